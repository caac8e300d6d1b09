"""A study from Python, on what people have: tables, a retriever, any LM, a technique of their own."""

from __future__ import annotations

import runpy
from functools import partial
from pathlib import Path

import dspy
import optuna
import pandas
import pytest

import querywright as qw
from querywright.errors import InputError, QuerywrightError
from querywright.optimize.study.engine import snapshot
from querywright.programs import TECHNIQUES, Knob, Predict, Technique, register_technique, technique_class
from querywright.programs.base import MAX_PASSAGES, TOP_K
from querywright.retrieval.types import Query

pytestmark = pytest.mark.filterwarnings("ignore:.*too few to show", "ignore:the baseline has .* 100 on dev")
TINY = runpy.run_path(str(Path(__file__).parent / "cli" / "conftest.py"))
PASSAGES = [{"id": f"p-{topic}", "title": topic, "text": text} for topic, text in TINY["TOPICS"].items()]
QUESTIONS = TINY["question_rows"](6)
SIZES = (6, 10, 10)


class QuestionToKeywords(dspy.Signature):
    """Name the words under which a library would file the answer."""

    question: str = dspy.InputField()
    keywords: str = dspy.OutputField(max_length=200)


class Keywords(Technique):
    """Searches the shelf of the question's keywords, once or several times."""

    NAME = "keywords"
    TITLE = "Keywords"
    PAPER = "made up"
    LM_STAGES = 1
    KNOBS = (MAX_PASSAGES, TOP_K, Knob("copies", 1, "times that the keywords are searched", low=1, high=3))

    def __init__(self, retriever=None, **knobs):
        super().__init__(retriever, **knobs)
        self.name_keywords = Predict(QuestionToKeywords)

    def forward(self, question, options=None, history=None):
        written = self.name_keywords(question=question, history=history)
        text = question if written is None else f"shelf {written.keywords}: {question}"
        return self.retrieve([Query(f"{text} {number}") for number in range(self.knobs["copies"])])


@pytest.fixture(autouse=True)
def _alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("querywright.models.embedder._loader", lambda *_: TINY["WordModel"])
    before = {**TECHNIQUES}
    yield
    TECHNIQUES.clear()
    TECHNIQUES.update(before)


@pytest.fixture
def lm(server):
    return dspy.LM("openai/scripted", api_base=server.address, api_key="sk-never-to-be-printed")


@pytest.fixture
def index():
    return qw.ChromaRetriever.build("shop", PASSAGES)


@pytest.fixture
def shop(index):
    """A shop that finds only what stands on a shelf."""

    def find(query, k):
        found = [hit.passage for hit in index.search([query], len(PASSAGES))[0]]
        return (found if query.startswith("shelf") else found[::-1])[:k]

    return find


@pytest.fixture
def questions():
    return pandas.DataFrame([{**row, "evidence": list(row["evidence"])} for row in QUESTIONS])


@pytest.fixture
def search(shop, lm):
    """A study of two techniques and two objectives, one technique a class of the user's."""
    return partial(
        qw.study,
        {"query2doc": {}, Keywords: {"copies": (1, 3)}},
        retriever=shop, lm=lm, objectives=["decision_useful", "lm_calls"], trials=8, max_passages=2, sizes=SIZES,
    )  # fmt: skip


def test_the_whole_way(search, questions, lm, shop):
    found = search(questions)
    assert len(found.trials) == 8
    assert set(found.trials["technique"]) == {"plain", "query2doc", "keywords"}
    assert found.trials["knob.copies"].dropna().isin([1, 2, 3]).all()
    assert found.best.values["decision_useful"] == found.trials["value.decision_useful"].max()
    assert found.best.number in set(found.front["number"])
    assert {"value.lm_calls", "low.decision_useful"} <= set(found.front)
    assert found.best.arm.technique == "keywords"
    assert found.cheapest(within=1.0).number == 0  # the baseline makes no call
    assert found.cheapest().values["decision_useful"] >= found.best.values["decision_useful"] - 0.01
    assert found.program(found.cheapest()).technique.NAME == "keywords"
    assert found.verdict == "gain"
    assert found.sentence in found._repr_html_()
    assert repr(found).startswith("Study('study', 8 trials, gain: ")
    assert found.compared.baseline == "baseline"

    assert isinstance(found.optuna, optuna.Study)
    assert [one.number for one in found.optuna.best_trials]
    assert len(found.optuna.trials) == 8

    assert "keywords" in found.report("pages/study.html").read_text(encoding="utf-8")
    found.save("artifacts/best")
    loaded = qw.load("artifacts/best", lm=lm, retriever=shop)
    assert found.save("artifacts/best").digest == loaded.manifest.digest
    with pytest.raises(QuerywrightError, match="'runner-up' already contains a different artifact"):
        found.save(found.folder / "artifacts" / "runner-up")
    row = QUESTIONS[0]
    answers = [one(row["question"], options=row["options"]) for one in (found.recommended, loaded)]
    assert answers[0].queries[0].text.startswith("shelf")
    assert [one.passages[0].id for one in answers] == [*row["evidence"]] * 2
    assert answers[0].answer == answers[1].answer


def test_the_same_folder_resumes_and_returns_its_results(search, questions, server, index):
    found = search(questions, out="studies/mine")
    calls = len(server.requests)
    again = search(questions, out="studies/mine")
    assert len(server.requests) == calls
    assert again.sentence == found.sentence
    pandas.testing.assert_frame_equal(again.trials, found.trials)
    kept = snapshot(Path("studies/mine"))  # which `querywright study` reads
    assert kept.finished
    assert kept.spec.techniques["keywords"].knobs["copies"].high == 3
    assert kept.spent.calls == calls
    with pytest.raises(
        InputError, match=r"these changed .*: the train questions, the dev questions, the test questions; undo"
    ):
        search(questions.assign(question=questions["question"] + " Say why."), out="studies/mine")


class Shelf(dspy.Module):
    """Shows a text that the retriever does not have."""

    def forward(self, question):
        return dspy.Prediction(passages=["A shelf."])


def test_a_study_of_a_module_class_says_its_warnings_again_after_it_is_finished(index, questions):
    for number in range(2):
        told: list[str] = []
        found = qw.study(
            {"plain": {"max_passages": 3}, Shelf: {}}, questions, retriever=index, reader=None, trials=2, sizes=SIZES,
            objectives="recall@5", pruner="none", out="mine", tell=told.append,
        )  # fmt: skip
        hints = [line for line in told if "Shelf: 1 of 1 distinct passages that it showed are not in" in line]
        assert len(hints) == 1, f"run {number}"
        assert "UNEQUAL BUDGETS (maximum number of passages): baseline 3, Shelf compiled 5" in found.compared.notes


def test_a_call_that_cannot_be_opened_leaves_no_folder_and_the_corrected_call_runs(search, questions, lm):
    with pytest.raises(InputError, match="omit lm to use the embedded LM"):
        search(questions, lm=None, out="mine")
    with pytest.raises(QuerywrightError):
        search(questions, lm="gguf:missing.gguf", out="mine")
    assert not Path("mine").exists()
    found = search(questions, lm=lm, out="mine")
    assert found.program(0).technique.NAME == found.program(found.snapshot.trials[0]).technique.NAME
    with pytest.raises(InputError, match="trial must be an integer between 0 and"):
        found.program(99)


def test_an_instance_brings_its_retriever_and_its_knobs(index, lm):
    splits = qw.split_questions(qw.read_questions(QUESTIONS), sizes=SIZES)
    programs = [Keywords(index, copies=2, top_k=1), "hyde@dense:n_documents=2,temperature=0.0", "plain"]
    found = qw.study(programs, splits, lm=lm, reader=None, trials=3, objectives="judged_useful", judge_lm=lm)
    assert {*found.trials["knob.copies"].dropna()} == {2}
    assert {*found.trials["knob.n_documents"].dropna()} == {2}
    assert "by judge usefulness" in found.sentence


def test_named_retrievers_are_a_dimension_of_the_search(index, lm, questions, shop):
    def blind(query, k):
        return [hit.passage for hit in index.search([query], len(PASSAGES))[0]][::-1][:k]

    both = {"blind": blind, "shop": shop}
    found = qw.study([Keywords], questions, retriever=both, lm=lm, trials=8, sizes=SIZES)
    assert set(found.trials["engine"]) == {"blind", "shop"}
    assert found.trials["engine"][0] == "blind"  # the baseline searches the first
    assert found.best.arm.engine == "shop"
    other = "baseline blind, keywords@shop compiled"
    note = f"UNEQUAL RETRIEVERS: {other}; a gain may come from the retriever; compare with plain on shop"
    assert note in found.compared.notes
    row = QUESTIONS[0]
    assert found.recommended(row["question"], options=row["options"]).passages[0].id in row["evidence"]


def test_a_class_that_is_defined_again_replaces_the_earlier_one():
    again = type("Keywords", (Keywords,), {"__qualname__": Keywords.__qualname__, "__module__": Keywords.__module__})
    assert [register_technique(one) for one in (Keywords, again)] == ["keywords"] * 2
    assert technique_class("keywords") is again


class Renamed(Keywords):
    NAME = "hyde"


def with_other_prompt(index):
    changed = Keywords(index)
    changed.name_keywords.signature = changed.name_keywords.signature.with_instructions("Name.")
    return changed


@pytest.mark.parametrize(
    ("techniques", "changes", "said"),
    [
        (["hide"], {}, "unknown technique 'hide'"),
        ([Renamed], {}, "the name 'hyde' is already used by HyDE; choose a different NAME"),
        ([42], {}, "not a valid arm: 42"),
        (["hyde", qw.HyDE], {}, "'hyde' was passed twice"),
        ([with_other_prompt], {}, "this keywords instance has custom prompts"),
        ({"hyde": {"documents": [1, 2]}}, {}, r"techniques\.hyde\.knobs\.documents: unknown knob of hyde"),
        ({"hyde": {"n_documents": (3, 1)}}, {}, r"techniques\.hyde\.knobs\.n_documents: low must be less"),
        (["hyde"], {"objectives": ["usefulness"]}, r"objectives\.0: unknown objective 'usefulness'"),
        (["hyde"], {"prompts": ["gepas"]}, r"prompts\.gepas\.optimizer: unknown optimizer 'gepas'"),
        (["hyde"], {"sampling": "tpe"}, "unknown study setting 'sampling' .did you mean sampler"),
        (["hyde"], {"retriever": None}, "plain needs a retriever; pass retriever="),
    ],
)
def test_an_error_names_the_value_before_anything_is_asked(search, questions, server, index, techniques, changes, said):
    if with_other_prompt in techniques:
        techniques = [with_other_prompt(index)]
    with pytest.raises(QuerywrightError, match=said):
        search.func(techniques, questions, **{**search.keywords, **changes})
    assert not server.requests


def test_a_database_stores_trials_answers_and_the_budget(search, questions, postgres, server):
    url = postgres.new_database()
    given = {"storage": url, "budget": {"calls": 1000}}
    found = search(questions, out="here", **given)
    calls = len(server.requests)
    assert found.snapshot.spent.calls == calls <= 1000
    assert len(found.optuna.trials) == 8
    there = search(questions, out="there", home="other", **given)  # another host has neither folder nor answers
    assert (there.sentence, len(server.requests)) == (found.sentence, calls)
    assert not any(url.encode() in path.read_bytes() for path in Path().rglob("*") if path.is_file())
    with pytest.raises(InputError, match="an open workspace already has a cache"):
        search(questions, out="again", lm=qw.Workspace.open(lm=found.search.lm), **given)
