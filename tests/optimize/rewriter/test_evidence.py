"""Rewrites of the names that evidence is about, and how each technique's LM would say them."""

from __future__ import annotations

import json
import math

import pytest

from querywright.data.types import Label, Question
from querywright.errors import InputError
from querywright.optimize.rewriter.evidence import best_ideas, group_of, ideas, names_of
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
    expected = {
        "question": (whole,),
        "question, names": (whole, "Venus", "Mercury"),
        "names, question": ("Venus", "Mercury", whole),
        "question, each name with it": (whole, f"Venus {whole}", f"Mercury {whole}"),
        "question with its options": (f"{whole} yes no",),
    }
    assert ideas(question, title, options=True) == expected
    del expected["question with its options"]
    assert ideas(question, title, options=False) == expected
    assert ideas(asked("what is it?"), title, options=True) == {"question": ("what is it?",)}


def test_an_idea_is_chosen_for_all_questions_that_are_alike_by_its_mean() -> None:
    groups = ["two", "two", "two", "none", "odd"]
    rewards = [
        {"question": 0.0, "names": 1.0, "options": 0.1},
        {"question": 0.0, "names": -1.0, "options": 0.1},
        {"question": 0.0, "names": math.nan, "options": 0.1},
        {"question": 0.0, "names": 0.0},
        {"question": math.nan},
    ]
    assert best_ideas(groups, rewards) == {"two": "options", "none": "question"}


def test_questions_are_alike_where_they_have_as_many_names_and_the_same_can_be_tried() -> None:
    def group(question: Question, *, options: bool = False) -> str:
        return group_of(ideas(question, title, options=options))

    one, two = asked("is MERCURY near?"), asked(options=("yes", "no"))
    assert group(two) == group(asked("Venus or Mercury"))
    assert len({group(one), group(two), group(two, options=True), group(asked("what?"))}) == 4


def test_every_technique_that_can_be_taught_reads_its_script() -> None:
    question = asked(options=("yes", "no"), answer="no")
    for name in SCRIPTS:
        technique = technique_class(name)(None)
        turns = [json.loads(text) for text in script_of(technique)(question, ("one", "two", "three"))]
        predictors = technique.predictors()[: len(turns)]  # those that write what is searched come first
        assert [set(turn) for turn in turns] == [set(one.signature.output_fields) for one in predictors], name
        said = json.dumps(turns)
        assert all(query in said for query in ("one", "two", "three")), name


def test_the_hypothesis_is_the_right_option_and_missing_queries_are_made_of_it() -> None:
    question = asked(options=("yes", "no"), answer="no")
    first, second = (json.loads(text) for text in script_of(technique_class("hcqr")(None))(question, ("one",)))
    assert first["best_guess"] == "no"
    assert second == {"support": "one", "distinguish": f"{question.question} no", "verify": question.question}


def test_a_technique_without_a_script_is_refused_with_those_that_have_one() -> None:
    with pytest.raises(InputError, match=r"can teach decomposition, hcqr, multi_query, rag_fusion, rrr, but not hyde"):
        script_of(technique_class("hyde")(None))


@pytest.mark.parametrize(("name", "field"), [("multi_query", "queries"), ("decomposition", "sub_questions")])
def test_a_list_is_as_long_as_the_grammar_asks_and_what_is_left_over_repeats_the_question(
    name: str, field: str
) -> None:
    question = asked()
    knob = {"multi_query": "n_queries", "decomposition": "n_sub_questions"}[name]
    for count in (1, 2, 4):
        script = script_of(technique_class(name)(None, **{knob: count}))
        (text,) = script(question, (question.question, "Venus", "Mercury"))
        said = json.loads(text)[field]
        names = [f"What is {one}?" if name == "decomposition" else one for one in ("Venus", "Mercury")]
        assert said == [*names, question.question, question.question][:count]


def test_a_sub_question_is_about_a_name_and_never_the_question_with_more() -> None:
    question = asked()
    script = script_of(technique_class("decomposition")(None))
    (text,) = script(question, (question.question, f"Venus {question.question}"))
    assert json.loads(text)["sub_questions"] == [question.question] * 3
