from __future__ import annotations

from types import SimpleNamespace

import dspy
import pytest

from querywright.data.declined import DECLINED
from querywright.data.types import Passage
from querywright.optimize.artifacts.watchers import exchange_of
from querywright.retrieval.types import Query

GIVEN = {"at": "2026-01-02T03:04:05.678+00:00", "artifact": "abc", "question": "What?"}


def made(**changes):
    return dspy.Prediction(
        **{
            "answer": "tea",
            "support": None,
            "passages": [Passage("b", "B."), Passage("a", "A.")],
            "queries": [Query("What?"), Query("tea", "support", 0.5)],
            "fallbacks": ["reader"],
            "steps": [],
            **changes,
        }
    )


def test_an_exchange_holds_what_was_asked_found_and_said():
    one = exchange_of(
        made(), **GIVEN, options=["tea", "mate"], seconds=1.5, lm_calls=2, lm_saved=1, metadata={"request": "r1"}
    )
    assert (one.question, one.options, one.answer, one.support) == ("What?", ("tea", "mate"), "tea", None)
    assert [(query.role, query.text) for query in one.queries] == [("original", "What?"), ("support", "tea")]
    assert (one.passages, one.fallbacks) == (("b", "a"), ("reader",))
    assert (one.at, one.artifact, one.seconds, one.lm_calls, one.lm_saved) == (GIVEN["at"], "abc", 1.5, 2, 1)
    assert (one.error, one.declined, one.metadata) == (None, False, {"request": "r1"})
    assert len(one.id) == 32
    assert one.id != exchange_of(made(), **GIVEN).id


@pytest.mark.parametrize(
    ("answer", "options", "declined"),
    [
        (DECLINED, (), True),
        ("I do not know", (), True),
        ("unknown", ("known", "unknown"), False),
        ("I don't know", ("I know", " I don't know "), False),
        ("I don't know", ("I know", "I don't"), True),
        ("tea", (), False),
        ("", (), False),
        (None, (), False),
    ],
)
def test_a_reader_that_says_that_the_passages_do_not_answer_declined(answer, options, declined):
    assert exchange_of(made(answer=answer), **GIVEN, options=options).declined is declined


def test_the_best_score_of_each_query_is_kept():
    steps = [
        SimpleNamespace(kind="search", scores={"What?": (0.9, 0.5), "tea": ()}),
        SimpleNamespace(kind="lm"),
        SimpleNamespace(kind="search", scores={"mate": (0.25,)}),
    ]
    assert exchange_of(made(steps=steps), **GIVEN).top_scores == (0.9, 0.25)
