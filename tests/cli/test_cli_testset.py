"""``querywright testset`` against an OpenAI-compatible server."""

from __future__ import annotations

import json
import re

import pytest

from querywright.models.embedder import resolve_embedder
from querywright.models.store import open_store
from querywright.retrieval.collection import collection_folder, published_passages
from querywright.retrieval.generated_questions import COMPLETE, PassageRecord, WrittenQuestion, publish_questions


@pytest.fixture
def indexed(collection, home):
    """The collection with two questions for each passage."""
    _, passages = published_passages(collection_folder(collection, home))
    records = [
        PassageRecord(
            passage.id,
            passage.text_digest(),
            "s",
            tuple(WrittenQuestion(f"{word} is said of {passage.title}?", COMPLETE) for word in ("What", "How much")),
        )
        for passage in passages.values()
    ]
    publish_questions(collection, records, embedder=resolve_embedder("embedded", store=open_store(home)), home=home)
    return collection


def reply(body):
    texts = [
        one["content"] if isinstance(one["content"], str) else "".join(part["text"] for part in one["content"])
        for one in body["messages"]
    ]
    sent, last = "\n".join(texts), texts[-1]
    if "rephrased_question" in sent:
        return json.dumps({"rephrased_question": f"Which words tell about {last.rpartition(' of ')[2]}"})
    if "new_question" in sent:
        return json.dumps({"new_question": f"Why {re.match(r'passage: (.+?):', last)[1]}?"})
    fields = re.findall(r"^- (\w+)", sent, re.MULTILINE)
    return json.dumps(dict.fromkeys(fields, "r") | {"label": "complete" if '"complete"' in sent else "yes"})


def test_a_set_of_reworded_questions_is_evaluated_and_compared(cli, indexed, server, tmp_path):
    server.reply = reply
    made = cli("testset", "rephrase", indexed, "--out", "sets/re.jsonl", "--number", "4", *server.lm)
    assert made.status == 0, made.err
    assert "rephrase of tiny: 4 questions of " in made.out
    assert made.out.splitlines()[-2:] == ["questions: sets/re.jsonl", "card: sets/re.card.json"]
    assert "the index does not tell which LM wrote it" in made.err

    done = cli("evaluate", "sets/re.jsonl", "--collection", indexed, "--technique", "plain", "--reader", "none",
               "--json", *server.lm)  # fmt: skip
    assert done.status == 0, done.err
    assert done.data["arms"][0]["n"] == 4
    compared = cli("compare", "plain", "hyde", "--data", "sets/re.jsonl", "--collection", indexed, "--reader", "none",
                   "--out", "results", *server.lm)  # fmt: skip
    assert compared.status == 0, compared.err

    requests = len(server.requests)
    again = cli("testset", "rephrase", indexed, "--out", "sets/again.jsonl", "--number", "4", "--json", *server.lm)
    assert len(server.requests) == requests
    assert again.data == json.loads((tmp_path / "sets" / "re.card.json").read_text())
    assert (tmp_path / "sets" / "again.jsonl").read_bytes() == (tmp_path / "sets" / "re.jsonl").read_bytes()


def test_new_questions_are_judged_by_another_lm(cli, indexed, server):
    server.reply = reply
    judge = ("--judge-lm", "openai/judge", "--judge-api-base", server.address, "--judge-api-key-env", "SCRIPTED_KEY")
    made = cli("testset", "out-of-distribution", indexed, "--out", "new.jsonl", "--json", *server.lm, *judge)
    assert made.status == 0, made.err
    assert (made.data["kept"], made.data["asked"], made.data["judge"]) == (6, 6, "openai/judge")
    assert sum(body["model"] == "judge" for body in server.requests) == 6
    more = cli("testset", "out-of-distribution", indexed, "--out", "new.jsonl", "--number", "99", *server.lm, *judge)
    assert "6 questions, not 99: the index gives no more" in more.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("rephrase", "tiny", "--out", "a.csv"), "ends in .jsonl"),
        (("rephrase", "nowhere", "--out", "a.jsonl"), "there is no collection 'nowhere'"),
        (("rephrase", "tiny", "--out", "a.jsonl"), "querywright questions build tiny"),
        (
            ("out-of-distribution", "tiny", "--out", "a.jsonl", "--judge-api-base", "http://x"),
            "name it with --judge-lm",
        ),
        (("rephrase", "tiny", "--out", "a.jsonl", "--number", "0"), "number"),
    ],
)
def test_mistakes_are_told_before_anything_is_asked(cli, collection, server, arguments, said):
    done = cli("testset", *arguments, *server.lm)
    assert done.status == 2
    assert said in " ".join(done.err.split())
    assert server.requests == []
