"""Rewrites of the names that evidence is about, and how each technique's LM would say them."""

from __future__ import annotations

import json

import pytest

from querywright.data.types import Label, Question
from querywright.errors import InputError
from querywright.optimize.rewriter.evidence import IDEAS, ideas, names_of
from querywright.optimize.rewriter.scripts import SCRIPTS, script_of
from querywright.programs import technique_class

TITLES = {"a": "Mercury (planet)", "b": "Venus", "c": "Orbit", "d": "", "e": "venus"}


def title(id: str) -> str:
    return TITLES.get(id, "")


def asked(text: str = "Is Venus hotter than Mercury?", **values: object) -> Question:
    evidence = {"a": Label.ENTAILED, "b": Label.USEFUL, "c": Label.ENTAILED, "d": Label.USEFUL, "gone": Label.ENTAILED}
    return Question("q", text, **{"evidence": evidence, **values})  # type: ignore[arg-type]


def test_names_are_titles_that_stand_in_the_question_in_its_order() -> None:
    assert names_of(asked(), title) == ("Venus", "Mercury")
    assert names_of(asked("is MERCURY near?"), title) == ("Mercury",)
    assert names_of(asked("what is it?"), title) == ()


def test_a_passage_that_does_not_help_gives_no_name() -> None:
    evidence = {"a": Label.NOT_USEFUL, "b": Label.USEFUL}
    assert names_of(asked(evidence=evidence), title) == ("Venus",)


def test_ideas_are_the_question_with_its_names_and_with_its_options() -> None:
    question = asked(options=("yes", "no"))
    whole = question.question
    expected = [
        (whole,),
        (whole, "Venus", "Mercury"),
        ("Venus", "Mercury", whole),
        (whole, f"Venus {whole}", f"Mercury {whole}"),
        (f"{whole} yes no",),
    ]
    assert ideas(question, title, options=True) == expected
    assert ideas(question, title, options=False) == expected[:-1]
    assert len(expected) == IDEAS


def test_a_question_that_is_its_name_has_one_idea_each() -> None:
    found = ideas(asked("Venus"), title, options=True)
    assert len(found) == len(set(found))
    assert found[0] == ("Venus",)


def test_every_technique_that_can_be_taught_reads_its_script() -> None:
    question = asked(options=("yes", "no"), answer="no")
    for name in SCRIPTS:
        turns = [json.loads(text) for text in script_of(name)(question, ("one", "two", "three"))]
        predictors = technique_class(name)(None).predictors()
        assert [set(turn) for turn in turns] == [set(one.signature.output_fields) for one in predictors], name
        said = json.dumps(turns)
        assert all(query in said for query in ("one", "two", "three")), name


def test_the_hypothesis_is_the_right_option_and_missing_queries_are_made_of_it() -> None:
    question = asked(options=("yes", "no"), answer="no")
    first, second = (json.loads(text) for text in script_of("hcqr")(question, ("one",)))
    assert first["best_guess"] == "no"
    assert second == {"support": "one", "distinguish": f"{question.question} no", "verify": question.question}


def test_a_technique_without_a_script_is_refused_with_those_that_have_one() -> None:
    with pytest.raises(InputError, match=r"can teach hcqr, multi_query, rag_fusion, rrr, but not hyde"):
        script_of("hyde")
