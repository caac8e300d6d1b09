"""The rewriter that comes with the repository: whole, small, and it writes what it learnt."""

from __future__ import annotations

from pathlib import Path

import pytest

from querywright.data import load_sample, split_questions
from querywright.data.types import Passage, Question
from querywright.models.lm import resolve_lm
from querywright.models.rewriters import Rewriter, read_rewriter
from querywright.optimize.dspy_context import asking
from querywright.programs import make_program
from querywright.retrieval.types import Hit

FOLDER = Path(__file__).parents[2] / "artifacts" / "embedded-rewriter"


class Anything:
    """Finds one passage, whatever is asked."""

    fingerprint = "anything"

    def search(self, queries: list[str], k: int) -> list[list[Hit]]:
        return [[Hit(Passage("p", "text"), 1.0, 1)] for _ in queries]


@pytest.fixture(scope="module")
def shipped() -> Rewriter:
    return read_rewriter(FOLDER)  # checks every byte


@pytest.fixture(scope="module")
def unseen() -> list[Question]:
    """Test questions of the sample, which it did not learn from."""
    return split_questions(load_sample().questions).test[:2]


def test_it_is_small_and_names_what_it_learnt(shipped: Rewriter) -> None:
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 20 * 10**6
    assert set(shipped.techniques) == {"decomposition", "hcqr", "multi_query", "qb_rag", "rrr"}


@pytest.mark.slow
def test_it_writes_the_question_and_its_options_without_falling_back(shipped: Rewriter, unseen: list[Question]) -> None:
    lm = resolve_lm(f"rewriter:{FOLDER}")
    program = make_program("rrr", Anything())
    with asking(lm):
        for question in unseen:
            made = program(question=question.question, options=list(question.options))
            assert made.fallbacks == []
            first = made.queries[0].text.casefold()
            assert first.startswith(question.question.casefold().rstrip("?"))
            said = sum(option.casefold() in first for option in question.options)
            assert said >= len(question.options) / 2, first
