"""What the LM of a technique would have written, had it wanted certain queries searched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from querywright.data.types import Question
from querywright.errors import InputError
from querywright.optimize.rewriter.canonical import json_text
from querywright.programs.base import Technique
from querywright.programs.query_cleaning import folded

Script = Callable[[Question, Sequence[str], Technique], list[Mapping[str, Any]]]
"""The fields of each turn."""


def script_of(technique: Technique) -> Callable[[Question, Sequence[str]], list[str]]:
    """How queries are said in a technique's own words.

    Args:
        technique: With the knobs that say how many texts it asks for.

    Returns:
        What gives a question's texts, one a turn, from one to three queries.

    Raises:
        InputError: It is not known how.
    """
    if technique.NAME not in SCRIPTS:
        raise InputError(
            f"the teacher 'evidence' can teach {', '.join(sorted(SCRIPTS))}, but not {technique.NAME}; give an LM as "
            "the teacher (--teacher)"
        )
    script = SCRIPTS[technique.NAME]

    def texts(question: Question, queries: Sequence[str]) -> list[str]:
        return [json_text(fields) for fields in script(question, queries, technique)]

    return texts


def _counted(texts: Sequence[str], question: Question, count: int) -> list[str]:
    """As many texts as are asked for, since a grammar takes no fewer.

    The question stands in what is left over: it is searched besides, and not once more for being repeated.
    """
    others = [text for text in texts if folded(text) != folded(question.question)]
    return [*others, *[question.question] * count][:count]


def _queries(question: Question, queries: Sequence[str], technique: Technique) -> list[Mapping[str, Any]]:
    return [{"queries": _counted(queries, question, technique.written())}]


def _sub_questions(question: Question, queries: Sequence[str], technique: Technique) -> list[Mapping[str, Any]]:
    """Each name that has to be looked up, as a question of its own; what repeats the question is none."""
    asked = [f"What is {text}?" for text in queries if question.question not in text]
    return [{"sub_questions": _counted(asked, question, technique.written("n_sub_questions"))}]


def _rewrite(question: Question, queries: Sequence[str], technique: Technique) -> list[Mapping[str, Any]]:
    return [{"thought": "Look these up.", "queries": list(queries)}]


def _hypothesis(question: Question, queries: Sequence[str], technique: Technique) -> list[Mapping[str, Any]]:
    """The right option as the guess; the queries in the order support, distinguish, verify.

    A query that is missing is the question with the guess, then the question.
    """
    guess = question.answer if question.answer in question.options else question.options[0]
    support, distinguish, verify = (*queries, f"{question.question} {guess}", question.question)[:3]
    return [
        {
            "discriminating_features": list(question.options[:2]),
            "reasoning": f"The question points to {guess}",
            "confirming_evidence": [guess],
            "best_guess": guess,
        },
        {"support": support, "distinguish": distinguish, "verify": verify},
    ]


SCRIPTS: Mapping[str, Script] = {
    "rrr": _rewrite,
    "multi_query": _queries,
    "rag_fusion": _queries,
    "hcqr": _hypothesis,
    "decomposition": _sub_questions,
}
