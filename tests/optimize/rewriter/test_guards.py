"""What is noticed of completions that are no rewriting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest

from querywright.data.types import Question
from querywright.errors import InputError
from querywright.optimize.rewriter.guards import distinct_2, guards, leaks, warnings
from querywright.optimize.rewriter.types import Episode
from querywright.retrieval.types import Query


def episode(
    id: str, *queries: str, answer: str | None = "Marie Curie", read: Sequence[str | None] = ("{}",)
) -> Episode:
    question = Question(id, f"Who found {id} radium?", answer=answer)
    prediction = SimpleNamespace(queries=[Query(query) for query in queries])
    return Episode(question, (), tuple("x" for _ in read), prediction, None, tuple(read))


def test_each_way_to_cheat_is_counted() -> None:
    found = guards(
        [
            episode("a", "discovery of radium"),
            episode("b"),
            episode("c", "who found C radium"),
            episode("d", "word " * 30),
            episode("e", "marie curie radium"),
            episode("f", "x", read=("{}", None)),
            episode("g", "radium history chemist"),
            episode("h", "Radium history, chemist!"),
            Episode(Question("i", "?"), (), ("x",), None, "bug", (None,)),
        ]
    )
    assert found.episodes == 8
    assert (found.empty, found.copied, found.over_long, found.leaking) == (1 / 8,) * 4
    assert found.equal == 2 / 8
    assert found.unreadable == 2 / 10
    assert found.cut == 0


def test_completions_without_an_end_are_counted() -> None:
    assert guards([episode("a", "x"), episode("b", "y")], [[True, False], [False]]).cut == pytest.approx(2 / 3)
    with pytest.raises(InputError, match="ends of 1 episodes for 2"):
        guards([episode("a", "x"), episode("b", "y")], [[True]])


def test_samples_of_one_question_may_be_equal() -> None:
    assert guards([episode("a", "radium"), episode("a", "radium")]).equal == 0


def test_an_answer_that_the_question_or_an_option_names_is_no_leak() -> None:
    one = episode("a", "curie born Marie Curie")
    assert leaks(one)
    assert not leaks(replace(one, question=replace(one.question, options=("Marie Curie", "Bohr"))))
    assert not leaks(replace(one, question=replace(one.question, question="Who was Marie Curie?")))
    assert not leaks(replace(one, question=replace(one.question, answer="curi")))  # whole words
    assert not leaks(episode("a", "anything", answer="A"))


def test_distinct_pairs() -> None:
    assert distinct_2(["red fox runs", "red fox sleeps"]) == 3 / 4
    assert distinct_2(["one", ""]) == 0


def test_nothing_at_all_is_zero() -> None:
    assert set(guards([]).to_json().values()) == {0}


def test_what_got_worse_is_said_and_nothing_else() -> None:
    before = guards([episode("a", "radium chemist prize"), episode("b", "uranium ore mine")])
    assert warnings(before, before) == []
    after = guards([episode("a", "radium radium radium radium"), episode("b", "radium radium radium radium")])
    said = warnings(before, after)
    assert said[0] == "100% of the rewrites were the same as for another question (0% before)"
    assert any(sentence.startswith("diversity fell") for sentence in said)
    assert len(said) == 2
    long = guards(
        [episode("a", "radium one two three four five six"), episode("b", "ore and nine more words are here")]
    )
    assert warnings(before, long) == ["queries grew to 7 words a question (3 before)"]
