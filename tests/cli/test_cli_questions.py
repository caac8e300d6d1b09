"""``querywright questions`` and ``testset``: builds that go on where they stopped, and searches through them."""

from __future__ import annotations

import gc
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from querywright.errors import BudgetError, InputError
from querywright.models.embedder import resolve_embedder
from querywright.optimize.question_ray import LMName, RayBuild
from querywright.pool import bounded_map, let_work_end
from querywright.retrieval.collection import collection_folder, delete_collection, passage_line, published_passages
from querywright.retrieval.engines import open_retriever
from querywright.retrieval.generated_questions import (
    COMPLETE,
    PassageRecord,
    WrittenQuestion,
    publish_questions,
    questions_folder,
    read_records,
)

WORDS = ("juice", "feet", "cuff", "salt", "walk", "lenses")
WRITTEN = {
    "salt": "Which meals should I avoid?", "feet": "When are soles inspected?", "juice": "What lifts glucose quickly?",
    "cuff": "Why would a reading be wrong?",
}  # fmt: skip
QUESTION = "Which meals should be avoided?"


@pytest.fixture
def build(cli, collection, server, sent):
    """Runs ``questions build`` on the tiny collection, ten questions a passage, five a call.

    A passage answers its second question in part and its third not at all.
    """

    def answers(body):
        text = sent(body)
        topic = re.search(r"passage: (?:\[1\] )?(\w+):", text)[1]
        if "already_asked" in text or "- questions" in text:
            count = text.partition("already_asked:")[2].count("\n- ")
            return json.dumps({"questions": [f"What does {topic} help with, case {count + n}?" for n in range(1, 6)]})
        label = {2: "partial", 3: "none"}.get(int(re.search(r"case (\d+)", text)[1]), "complete")
        return json.dumps({"reason": f"It speaks of {topic}.", "label": label})

    server.reply = answers
    return lambda *more: cli("questions", "build", collection, "--num-questions", "10", *more, *server.lm)


@pytest.fixture
def folder(home):
    return questions_folder("tiny", home)


def test_questions_are_written_judged_published_and_counted(build, cli, server, folder):
    done = build("--json", "--threads", "3")
    assert done.status == 0, done.err
    assert (done.data["passages"], done.data["written"], done.data["current"]) == (6, 6, 0)
    assert done.data["made"]["lm"] == done.data["made"]["judge_lm"] == "openai/scripted"
    assert done.data["cost"]["calls"] == len(server.requests) == 6 * (2 + 10)
    assert done.data["index"]["count"] == 6 * 9
    found = read_records(folder)
    assert found["p-feet"].questions[1].reason == "It speaks of feet."
    _, kept = published_passages(folder)
    assert {passage.metadata["passage"] for passage in kept.values()} == {f"p-{word}" for word in WORDS}
    assert all("case 3?" not in passage.text for passage in kept.values())

    stats = cli("questions", "stats", "tiny", "--json").data
    assert stats["labels"] == {"complete": 48, "partial": 6, "none": 6, "unreadable": 0}
    shown = cli("questions", "stats", "tiny").out
    for text in ("coverage: 1", "per_passage: 8, 8, 8", "judge_lm: openai/scripted"):
        assert text in shown


def test_a_passage_that_changed_is_written_anew_and_the_questions_of_one_that_went_are_removed(
    build, cli, server, passages
):
    assert build().status == 0
    calls = len(server.requests)
    lines = [json.loads(line) for line in passages.read_text().splitlines()]
    lines[0]["text"] += " Then eat."
    passages.write_text("".join(json.dumps(line) + "\n" for line in lines[:-1]))
    assert cli("index", "tiny", passages, "--prune").status == 0
    done = build("--json")
    assert (done.data["written"], done.data["current"], done.data["removed"]) == (1, 4, 1)
    assert "no longer in the collection (passages: 1)" in done.err
    assert done.data["index"]["count"] == 5 * 9
    assert len(server.requests) == calls + 2 + 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("questions", "build", "nothing"), "there is no collection 'nothing' in "),
        (("questions", "build", "tiny", "--judge-api-base", "http://x"), "add --judge-lm"),
        (("questions", "build", "tiny", "--workers", "2"), "pip install 'querywright[ray]'"),
        (("testset", "rephrase", "tiny", "--out", "a.csv"), "end in .jsonl"),
        (("testset", "rephrase", "tiny", "--out", "a.jsonl"), "querywright questions build tiny"),
        (("ask", QUESTION, "--technique", "qb_rag", "--collection", "tiny"), "querywright questions build tiny"),
        (("ask", QUESTION, "--technique", "qb_rag", "--collection", "tiny", "--engine", "bm25"), "but got 'bm25'"),
    ],
)  # fmt: skip
def test_a_mistake_is_said_before_anything_is_asked(wrong, collection, server, monkeypatch, arguments, message):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert message in wrong(*arguments, *server.lm)


@pytest.fixture
def names(server, home):
    lm = LMName("openai/scripted", server.address, "SCRIPTED_KEY")
    return RayBuild(str(home), lm, None, num_questions=10, batch_size=5, threads=2)


def test_a_process_makes_the_records_that_threads_make_or_none(build, names, home, folder, server, monkeypatch):
    assert build().status == 0
    expected = read_records(folder)["p-feet"]
    _, found = published_passages(collection_folder("tiny", home))
    assert replace(names, settings=expected.settings).record_maker()(found["p-feet"]) == expected
    with pytest.raises(InputError, match=r"question-writing settings \(.*do not match"):
        replace(names, settings="of others").record_maker()
    monkeypatch.delenv("SCRIPTED_KEY")
    with pytest.raises(InputError, match="'SCRIPTED_KEY' is unset or empty"):
        names.record_maker()


def test_the_limit_of_calls_is_that_of_all_processes_together(build, names, server, home, folder):
    assert build("--limit", "1").status == 0
    (settings,) = {record.settings for record in read_records(folder).values()}
    _, found = published_passages(collection_folder("tiny", home))
    server.requests.clear()
    given = replace(names, settings=settings, max_calls=30, budget="test")
    makers = [given.record_maker() for _ in range(3)]  # what three processes have
    made = bounded_map(lambda n: makers[n % 3](list(found.values())[n]), range(1, 6), threads=3)
    let_work_end(60)  # as a command does: calls that were counted may be under way when the last passage has failed
    assert len(server.requests) == 30
    stopped = [str(one) for one in made if isinstance(one, BudgetError)]
    assert stopped[0].startswith("reached the limit of 30 LM calls")


def test_an_index_of_questions_is_published_from_a_file(ok, build, collection, home, folder):
    assert build().status == 0
    _, kept = published_passages(folder)
    Path("written.jsonl").write_bytes(b"".join(map(passage_line, kept.values())))
    before = open_retriever("tiny", engine="questions", home=home).fingerprint
    gc.collect()  # a collection that is open cannot be deleted
    delete_collection("tiny-questions", home)
    ok("index", "tiny-questions", "written.jsonl")
    assert open_retriever("tiny", engine="questions", home=home).fingerprint == before


@pytest.fixture
def indexed(collection, home):
    """Publishes questions for passages of the collection, by topic."""

    def complete(text):
        return WrittenQuestion(text, COMPLETE)

    def call(texts):
        _, passages = published_passages(collection_folder(collection, home))
        records = [
            PassageRecord(one.id, one.text_digest(), "s", tuple(map(complete, texts[one.title])))
            for one in passages.values()
            if one.title in texts
        ]  # fmt: skip
        publish_questions(collection, records, embedder=resolve_embedder("embedded"), home=home)
        return collection

    return call


@pytest.fixture
def asked(indexed):
    """The collection with a question for four of its passages."""
    return indexed({topic: [text] for topic, text in WRITTEN.items()})


def test_a_technique_searches_through_questions_and_brings_its_engine(ok, cli, asked, questions, server):
    fixed = ("--collection", asked, "--reader", "none", *server.lm)
    done = ok("ask", QUESTION, "--technique", "qb_rag", "--json", *fixed)
    assert (done.data["passages"][0]["id"], len(done.data["passages"])) == ("p-salt", 4)
    assert done.data["steps"][0]["given"]["through"]["p-salt"] == WRITTEN["salt"]
    traced = cli("ask", QUESTION, "--technique", "qb_rag", "--trace", *fixed)
    assert f"p-salt matched through its question: {WRITTEN['salt']}" in " ".join(traced.out.split())
    done = ok(
        "evaluate", "qb_rag", "plain", "plain@questions", "qb_rag:match=hybrid,weight=1", "--data", questions,
        "--json", *fixed,
    )  # fmt: skip
    arms = {arm["arm"]: arm["metrics"]["recall"]["value"] for arm in done.data["arms"]}
    assert arms["plain"] == arms["qb_rag:match=hybrid,weight=1"] == 1.0
    assert arms["qb_rag"] == arms["plain@questions"] == pytest.approx(4 / 6)  # two topics have no question
    assert server.requests == []


@pytest.mark.parametrize(("technique", "sizes"), [("qb_rag", "3,6,6"), ("plain", "3,4,4")])
def test_it_is_compiled_against_plain_retrieval_and_loaded_again(
    ok, compiled, asked, questions, server, write, technique, sizes
):
    if technique == "qb_rag":  # it wins where questions are asked in the words of those that were written
        options = ["salt", "feet", "juice", "cuff"]
        questions = write("asked.jsonl", [
            {"id": f"{topic}-{n}", "question": f"{n}: {text}", "options": options, "answer": topic,
             "evidence": {f"p-{topic}": "ENTAILED"}}
            for topic, text in WRITTEN.items() for n in range(8)
        ])  # fmt: skip
    compiled("qb_rag", "artifacts/q", "--knob", "max_passages=1", "--trials", "3", data=questions, sizes=sizes)
    manifest = json.loads(Path("artifacts/q/manifest.json").read_text())
    expected = (technique, {"plain": "dense", "qb_rag": "questions"}[technique], asked)
    assert (manifest["technique"], manifest["engine"], manifest["collection"]) == expected
    done = ok("ask", f"7: {WRITTEN['feet']}", "--artifact", "artifacts/q", "--verify", "--option", "salt", "--option",
               "feet", "--json", *server.lm)  # fmt: skip
    assert (done.data["passages"][0]["id"] == "p-feet") or technique == "plain"


@pytest.fixture
def tested(indexed, server, sent):
    """The collection with two questions for each passage, and an LM that rewords them and asks others."""

    def reply(body):
        last = body["messages"][-1]["content"]
        if "rephrased_question" in sent(body):
            return json.dumps({"rephrased_question": f"Which words tell about {last.rpartition(' of ')[2]}"})
        if "new_question" in sent(body):
            return json.dumps({"new_question": f"Why {re.match(r'passage: (.+?):', last)[1]}?"})
        fields = re.findall(r"^- (\w+)", sent(body), re.MULTILINE)
        return json.dumps(dict.fromkeys(fields, "r") | {"label": "complete" if '"complete"' in sent(body) else "yes"})

    server.reply = reply
    return indexed({word: [f"{one} is said of {word}?" for one in ("What", "How much")] for word in WORDS})


def test_a_set_of_reworded_questions_is_evaluated_and_made_again(ok, cli, tested, server):
    rephrase = ("testset", "rephrase", tested, "--number", "4", *server.lm, "--out")
    made = ok(*rephrase, "sets/re.jsonl")
    assert "kept: 4" in made.out
    assert "questions: sets/re.jsonl; card: sets/re.card.json" in made.err
    assert "the index does not name the LM that wrote it" in made.err
    done = cli("evaluate", "plain", "--data", "sets/re.jsonl", "--collection", tested, "--reader", "none", "--json",
               *server.lm)  # fmt: skip
    assert done.data["arms"][0]["n"] == 4, done.err
    requests = len(server.requests)
    assert cli(*rephrase, "sets/again.jsonl", "--json").data == json.loads(Path("sets/re.card.json").read_text())
    assert Path("sets/again.jsonl").read_bytes() == Path("sets/re.jsonl").read_bytes()
    assert len(server.requests) == requests


def test_new_questions_are_judged_by_another_lm(ok, cli, tested, server):
    judge = ("--judge-lm", "openai/judge", "--judge-api-base", server.address, "--judge-api-key-env", "SCRIPTED_KEY")
    command = ("testset", "out-of-distribution", tested, "--out", "new.jsonl", *server.lm, *judge)
    made = ok(*command, "--json")
    assert (made.data["kept"], made.data["asked"], made.data["judge"]) == (6, 6, "openai/judge")
    assert sum(body["model"] == "judge" for body in server.requests) == 6
    assert "6 of the 99 requested questions, because the index has no more" in cli(*command, "--number", "99").err
