from __future__ import annotations

import runpy
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from querywright.data.types import Question
from querywright.errors import PromptTooLongError
from querywright.optimize.evaluate import metrics_by_name
from querywright.optimize.rewriter.episodes import run_episodes
from querywright.optimize.rewriter.evaluation import evaluation_of
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


def test_a_prompt_that_is_too_long_fails_its_episode_alone(world: Any) -> None:
    class Short(BANDIT["Bandit"]):  # type: ignore[misc]
        def refused(self, messages: Any, room: int) -> Exception | None:
            return PromptTooLongError(9, 8, room) if "number 1?" in messages[-1][1] else None

    run = partial(run_episodes, world.program("rrr", None))
    found = roll_out(Short(), run, world.questions[:3], Sampling())
    assert [one.episode.error for one in found] == [None, "prompt_too_long", None]
    assert [len(one.counts) for one in found] == [1, 0, 1]
    arm = evaluation_of("one", [one.episode for one in found], metrics_by_name(["hit"]))
    assert [row.failure for row in arm.rows] == [None, "prompt_too_long", None]
