from __future__ import annotations

import json

import pytest

from querywright.data.types import Passage
from querywright.programs import Filter

QUESTION = "Which planet has the shortest day?"
TEXTS = {
    "a": "Mars has two moons.",
    "b": "A day on Jupiter takes ten hours.",
    "c": "Saturn has rings.",
    "d": "Days on Saturn are short too.",
    "e": "Tea is grown in Assam.",
}
PASSAGES = [Passage(key, text) for key, text in TEXTS.items()]


def keeping(kept, unreadable=""):
    """An LM that keeps some texts, drops the others, and says of some nothing that can be read."""

    def answer(asked):
        (key,) = [key for key, text in TEXTS.items() if text in asked.text]
        judged = "perhaps" if key in unreadable else "relevant" if key in kept else "irrelevant"
        return json.dumps({"passage_is": judged})

    return answer


@pytest.fixture
def run(scripted, asking):
    def run(kept, unreadable="", found=PASSAGES, **knobs):
        searched = []

        def search(query, k):
            searched.append((query, k))
            return list(found)

        lm = scripted(keeping(kept, unreadable))
        with asking(lm):
            out = Filter(search, **knobs)(question=QUESTION)
        return "".join(p.id for p in out.passages), out, lm.engine.asked, searched

    return run


def test_what_is_kept_stays_in_the_order_of_the_search(run):
    found, out, asked, searched = run("dba")

    assert found == "abd"
    assert searched == [(QUESTION, 15)]
    assert [(q.text, q.role) for q in out.queries] == [(QUESTION, "original")]
    assert out.fallbacks == []
    assert len(asked) == 5
    assert [(step.kind, step.stage) for step in out.steps] == [("search", 1)] + [("lm", 2)] * 5


def test_each_prompt_holds_the_question_and_one_passage(run):
    _, _, asked, _ = run("b")

    assert all(f"question: {QUESTION}" in one.text for one in asked)
    shown = [one.text.partition("passage: ")[2].partition("\n")[0] for one in asked]
    assert sorted(shown) == sorted(f"[1] {text}" for text in TEXTS.values())
    assert all(one.properties["passage_is"]["enum"] == ["relevant", "irrelevant"] for one in asked)


def test_the_pool_is_judged_and_the_survivors_are_cut(run):
    found, _, asked, searched = run("bcd", pool=3)
    assert (found, len(asked), searched) == ("bc", 3, [(QUESTION, 3)])

    found, _, asked, _ = run("bcd", max_passages=2)
    assert (found, len(asked)) == ("bc", 5)


def test_if_none_survives_the_first_is_kept_unless_none_is_wanted(run):
    assert run("")[0] == "a"
    assert run("", empty_ok=True)[0] == ""
    assert run("", empty_ok=True)[1].fallbacks == []
    assert run("e", empty_ok=True)[0] == "e"


def test_a_judgement_that_cannot_be_read_keeps_the_passage(run):
    found, out, asked, _ = run("d", unreadable="be")

    assert found == "bde"
    assert out.fallbacks == ["keep:2", "keep:5"]
    assert len(asked) == 7
