from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from querywright.data.types import Question
from querywright.optimize.rewriter.rollouts import Sampling, batch_of, roll_out, seed_of

pytest.importorskip("torch")
BANDIT = runpy.run_path(str(Path(__file__).with_name("bandit.py")))
QUESTIONS = [Question(f"q{n}", f"Question {n}?") for n in range(5)]


def test_a_seed_depends_on_all_its_parts_and_on_nothing_else() -> None:
    assert seed_of(1, "x", 2) == seed_of(1, "x", 2)
    assert len({seed_of(1, 23), seed_of(12, 3), seed_of(1, 2, 3)}) == 3
    assert 0 <= seed_of(5) < 2**63


def test_every_question_is_met_before_one_is_met_again() -> None:
    met = [one.id for step in range(5) for one in batch_of(QUESTIONS, 3, seed=1, step=step)]
    for start in (0, 5, 10):
        assert sorted(met[start : start + 5]) == [one.id for one in QUESTIONS]
    assert met[:5] != met[5:10] or met[5:10] != met[10:15]
    assert met != [one.id for step in range(5) for one in batch_of(QUESTIONS, 3, seed=2, step=step)]


def test_draws_depend_on_the_seed_and_the_place() -> None:
    policy, sampling = BANDIT["Bandit"](), Sampling(room=6)
    first, again, other = (
        [one.episode.texts[0] for one in roll_out(policy, BANDIT["one_turn"], QUESTIONS * 4, sampling, seed=seed)]
        for seed in ((0, 1), (0, 1), (0, 2))
    )
    assert first == again
    assert first != other
    assert len(set(first)) > 4


def test_without_a_seed_the_likeliest_is_written() -> None:
    rollouts = roll_out(BANDIT["Bandit"](), BANDIT["one_turn"], QUESTIONS, Sampling())
    assert {one.completions[0].tokens for one in rollouts} == {(0,)}
    assert [one.counts for one in rollouts] == [[1]] * 5
