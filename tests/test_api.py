"""The main job with ``import querywright as qw`` alone, on what people have."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import datasets
import dspy
import pandas
import pytest

import querywright as qw
from querywright.errors import InputError, QuerywrightError
from querywright.retrieval.engines import open_retriever

pytestmark = pytest.mark.filterwarnings("ignore:the baseline has .* 100", "ignore:.*too few to show")
TINY = runpy.run_path(str(Path(__file__).parent / "cli" / "conftest.py"))
PASSAGES = [{"id": f"p-{topic}", "title": topic, "text": text} for topic, text in TINY["TOPICS"].items()]
QUESTIONS = TINY["question_rows"](4)


@pytest.fixture(autouse=True)
def _small_embedder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("querywright.models.embedder._loader", lambda *_: TINY["WordModel"])


@pytest.fixture
def lm(server):
    """Any LM of DSPy's own, not one of ours."""
    return dspy.LM("openai/scripted", api_base=server.address, api_key="sk-never-to-be-printed", max_tokens=77)


def as_path(name, rows):
    path = Path(f"{name}.jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def as_table(name, rows):
    return pandas.DataFrame([{**row, "evidence": list(row["evidence"])} if "evidence" in row else row for row in rows])


def as_dataset(name, rows):
    return datasets.Dataset.from_pandas(as_table(name, rows))


def test_what_people_have_is_read_alike(lm):
    found = []
    for kind in (lambda name, rows: rows, as_table, as_dataset, as_path):
        index = qw.ChromaRetriever.build("shop", kind("passages", PASSAGES))
        made = qw.evaluate("plain", kind("questions", QUESTIONS), retriever=index, lm=lm)
        found.append((index.fingerprint, [(row.id, row.passages, row.answer, row.scores) for row in made.rows]))
    assert found == [found[0]] * 4


def test_the_whole_way(lm, server):
    index = qw.ChromaRetriever.build("shop", as_table("passages", PASSAGES))
    questions = as_dataset("questions", QUESTIONS)
    program = qw.HCQR(index, max_passages=2)

    table = qw.compare(["plain", "rag_fusion", program], questions, retriever=index, lm=lm)
    assert [one.name for one in table.arms] == ["plain", "rag_fusion", "hcqr"]
    assert {one.name for one in table.references} == {"closed book", "oracle evidence"}
    assert set(table.to_pandas()["arm"]) == {"plain", "rag_fusion", "hcqr", "closed book", "oracle evidence"}
    assert "rag_fusion" in table._repr_html_()
    assert re.search(rf"rag_fusion \(n {len(QUESTIONS)}\): accuracy [\d.]+ \[\d+, \d+\], ", repr(table))
    assert len(repr(table)) < 3000
    assert "hcqr" in table.report("pages/compare.html").read_text(encoding="utf-8")

    assert table.facts["Questions"] == "24"
    assert table.remarks[0] == "LM openai/scripted; mean in percent with 95% interval"

    calls = len(server.requests)
    again = qw.compare(["plain", "rag_fusion", program], questions, retriever=index, lm=lm)
    assert again.to_json()["comparisons"] == table.to_json()["comparisons"]
    assert len(server.requests) == calls
    assert {body.get("max_completion_tokens", body.get("max_tokens")) for body in server.requests} == {77}

    tuned = qw.compile("hcqr", questions, retriever=index, lm=lm, trials=2, demo_sizes=(1,), reader_demo_sizes=())
    assert tuned.verdict in {"gain", "no difference shown", "baseline", "loss"}
    assert tuned.sentence
    assert "<table" in tuned._repr_html_()
    assert len(qw.compare(["plain", tuned], questions, retriever=index, lm=lm).arms) >= 2
    tuned.save("artifacts/shop")
    assert len(repr(tuned.save("artifacts/shop"))) < 300
    with pytest.raises(
        InputError, match=r"'artifacts/shop' contains a program .*\(technique was hcqr, but is now plain.*replace="
    ):
        qw.compile("plain", questions, retriever=index, lm=lm, out="artifacts/shop")
    loaded = qw.load("artifacts/shop", lm=lm)
    row = QUESTIONS[0]
    answer = loaded(row["question"], options=row["options"])
    assert repr(answer.passages[0]).startswith("Passage(id='p-")
    assert (
        repr(qw.Passage("p", "Wear. " * 99, "Brakes")) == f"Passage(id='p', title='Brakes', text='{'Wear. ' * 10}...')"
    )
    assert answer.answer == tuned(row["question"], options=row["options"]).answer
    assert answer.answer in row["options"]
    assert "sk-never" not in "".join(path.read_text("utf-8") for path in Path("artifacts/shop").iterdir())


def test_a_program_is_named_after_its_engine(lm):
    index = qw.ChromaRetriever.build("shop", PASSAGES)
    hybrid = qw.make_program("plain", open_retriever(index, engine="hybrid"))
    tuned = qw.make_program("rag_fusion", open_retriever(index, engine="bm25"), reader=None)
    asked = {"retriever": index, "lm": lm, "reader": None, "references": False}
    found = qw.compare(["plain", hybrid, tuned], QUESTIONS, **asked)
    assert [one.name for one in found.arms] == ["plain", "plain@hybrid", "rag_fusion@bm25"]
    assert found.facts["Engines"] == "dense (plain); hybrid (plain@hybrid); bm25 (rag_fusion@bm25)"
    note = "UNEQUAL ENGINES: {}; a gain may come from the engine; compare with plain@{} (add this arm)"
    assert note.format("plain dense, rag_fusion@bm25", "bm25") in found.notes
    found = qw.compare({"plain": "plain", "mine": hybrid}, QUESTIONS, **asked)
    assert note.format("plain dense, mine hybrid", "hybrid") in found.notes

    def custom(question):
        return "salt"

    found = qw.compare([tuned, "plain", custom], QUESTIONS, baseline="rag_fusion", **asked, engine="bm25")
    assert [one.name for one in found.arms] == ["rag_fusion", "plain", "custom"]
    for arms in ([hybrid], ["plain", "rag_fusion"], ["plain", "plain@bm25", tuned]):
        assert not any("UNEQUAL" in line for line in qw.compare(arms, QUESTIONS, **asked).notes)
    found = qw.compare(["plain", tuned], QUESTIONS, baseline="rag_fusion@bm25", **asked)
    assert not any("UNEQUAL" in line for line in found.notes), "plain with its engine is an arm"
    with pytest.raises(InputError, match=r"'shop@hybrid' is not valid; .*; choose the engine separately \(engine="):
        qw.compare(["plain"], QUESTIONS, retriever="shop@hybrid", reader=None)


def test_arms_join_a_comparison_that_was_saved(lm, server):
    index = qw.ChromaRetriever.build("shop", PASSAGES)
    place = qw.Workspace.open(lm=lm, max_calls=100)

    def compared(arms, folder="results", **more):
        found = qw.compare(arms, QUESTIONS, retriever=index, lm=place, out=folder, **more)
        return found, found.save(folder)

    _, files = compared({"short": "plain:max_passages=1"})
    assert sorted(files) == ["comparison.json", "report.html", "results.parquet"]
    assert all(Path(file).is_file() for file in files.values())
    found, _ = compared({"bm25": "plain@bm25"}, baseline="short")
    assert [one.name for one in found.arms] == ["short", "bm25"]
    compared([qw.PlainRetrieval(index)], "memory")
    with pytest.raises(InputError, match=r"no program can be added .* unsaved in-memory programs \(plain\)"):
        compared(["plain"], "memory")


def test_one_program_is_evaluated_by_name_as_a_technique_and_as_saved(lm, server, monkeypatch):
    index = qw.ChromaRetriever.build("shop", PASSAGES)
    plain = qw.evaluate("plain", QUESTIONS[:6], retriever="shop", lm=lm)
    given = qw.evaluate(qw.PlainRetrieval(index), QUESTIONS[:6], lm=lm, name="mine")
    assert (plain.name, given.name) == ("plain", "mine")
    assert [row.passages for row in plain.rows] == [row.passages for row in given.rows]
    monkeypatch.setenv("OPENAI_API_BASE", server.address)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-never-to-be-printed")
    named = qw.evaluate(
        "plain@bm25", [qw.Question("q", "juice?", answer="juice")], retriever=index, lm="openai/scripted"
    )
    assert named.rows[0].passages[0] == "p-juice"
    assert named.mean("accuracy").n == 1


def test_questions_with_and_without_options_are_read_each_in_its_way(lm, server):
    """The reader is chosen for each question: in an evaluation, a compilation, and the artifact."""

    def reply(body):
        filled = json.loads(TINY["fill_in"](body))
        if filled.get("answer") is not None and "one of" not in json.dumps(body["messages"][0]):
            filled["answer"] = "bread"  # what a reader that is shown no options says
        return json.dumps(filled)

    server.reply = reply
    qw.ChromaRetriever.build("shop", PASSAGES)
    bare = [{**one, "options": [], "answer": "bread"} for one in QUESTIONS[1::2]]
    mixed = [one for pair in zip(QUESTIONS[::2], bare, strict=True) for one in pair]
    found = qw.evaluate("plain", mixed, retriever="shop", lm=lm)
    assert found.mean("accuracy").value == 1.0
    tuned = qw.compile("plain", mixed, retriever="shop", lm=lm, trials=1, objective="accuracy")
    assert tuned.save("artifacts/both").reader == "auto"
    assert next(one for one in tuned.test if one.name == "baseline").mean("accuracy").value == 1.0
    loaded = qw.load("artifacts/both", lm=lm)
    assert loaded(mixed[0]["question"], mixed[0]["options"]).answer == mixed[0]["answer"]
    assert loaded(mixed[1]["question"]).answer == "bread"


def test_splits_that_are_given_are_kept(lm):
    index = qw.ChromaRetriever.build("shop", PASSAGES)
    parts = {"train": QUESTIONS[:4], "validation": QUESTIONS[4:10], "test": QUESTIONS[10:16]}
    given = datasets.DatasetDict({name: as_dataset(name, rows) for name, rows in parts.items()})
    knobs = {"n_queries": "2,3", "max_passages": (1, 2), "rrf_k": "20..30"}
    tuned = qw.compile(
        "rag_fusion", given, retriever=index, lm=lm, trials=3, demo_sizes=(1,), reader_demo_sizes=(), knobs=knobs
    )
    for baseline, arm in [(tuned.arms[0].knobs, one.knobs) for one in tuned.arms[1:]]:
        assert baseline["max_passages"] == 2
        assert arm["n_queries"] in {2, 3}
        assert arm["max_passages"] in {1, 2}
        assert 20 <= arm["rrf_k"] <= 30
    assert [len(part) for part in tuned.splits] == [4, 6, 6]
    assert qw.read_questions(given, split="test")[0].id == QUESTIONS[10]["id"]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: qw.compare([3], QUESTIONS), "not a valid arm: 3; pass a technique name"),
        (lambda: qw.evaluate(["plain", "hyde"], QUESTIONS), "takes one arm, but got .*to evaluate several"),
        (lambda: qw.resolve_lm("openai/x", api_base="http://[::1/v1"), "the LM URL is not valid"),
        (lambda: qw.compare(["plain"], QUESTIONS), "plain needs a retriever; pass retriever="),
        (lambda: qw.compare(["plain"], 3, retriever="shop"), "found int; expected a list of dicts .* a DataFrame"),
        (lambda: qw.compare(["plain"], [3], retriever="shop"), "row 1: found int; expected a dict, a dspy.Example"),
        (lambda: qw.compare(["closed_book"], QUESTIONS, lm=3), "an LM must be a dspy.LM or a name such as .* got 3"),
        (lambda: qw.compile(3, QUESTIONS, retriever="shop"), "a technique must be a name such as hcqr.* got 3"),
        (
            lambda: qw.compile("hcqr", QUESTIONS, retriever="shop", rounds=3),
            "unknown settings: rounds; available: objective.* trials",
        ),
        (
            lambda: qw.compile("hcqr", {"train": QUESTIONS}, retriever="shop"),
            "splits train are incomplete; add validation and test",
        ),
        (lambda: qw.read_questions({"a": [], "b": []}), r"keys of the data .a, b., .* such as data\[.a.\]"),
    ],
)
def test_an_error_names_what_was_got_and_what_may_be_given(call, said):
    with pytest.raises(QuerywrightError, match=f"(?s){said}"):
        call()


def test_what_a_judge_said_stands_in_for_labels_and_nothing_is_judged_twice(lm, server):
    index = qw.ChromaRetriever.build("shop", PASSAGES)
    questions = [{key: value for key, value in row.items() if key != "evidence"} for row in QUESTIONS]
    judge = dspy.LM("openai/judge", api_base=server.address, api_key="sk-never-to-be-printed", max_tokens=77)

    def words(example, prediction, trace=None):
        return float(len(prediction.passages))

    def compared(arms, **more):
        found = qw.compare(arms, questions, retriever=index, lm=lm, judge_lm=judge, max_passages=2, **more)
        return found, sum(sent["model"] == "judge" for sent in server.requests)

    table, judged = compared(["plain"], metrics=["accuracy", "judged_useful", words])
    pairs = {(row.id, key) for one in table.arms for row in one.rows for key in row.passages}
    assert judged == len(pairs) == 2 * len(questions)
    said = table.arm("plain").rows[0].judgements
    assert [(one.passage, one.by) for one in said] == [(key, "usefulness") for key in table.arms[0].rows[0].passages]
    assert (table.labelled_by, table.arm("plain").mean("words").value) == ("labels by judge usefulness", 2.0)
    assert table.reference("oracle evidence") is not None
    assert sum(table.diagnosis.counts("plain").values()) == len(questions)
    assert table.decisions[0].passages == len(pairs)
    assert any("openai/judge): not calibrated" in note for note in table.notes)
    # Another objective, another arm with the same passages, another run.
    again, now = compared({"plain": "plain", "twin": "plain"}, metrics=["judged_entailed", "judged_useful"])
    assert now == judged
    assert again.arm("twin").mean("judged_entailed").value == 1.0  # the script says ENTAILED
    with pytest.raises(InputError, match="unknown judge 'nobody'"):
        compared(["plain"], judge="nobody")
