"""Baselines, controllers and estimates against values worked out by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from querywright.errors import InputError
from querywright.optimize.rewriter.recipes import (
    OURS,
    PAPER,
    RECIPES,
    SEED,
    AdaptiveKL,
    KLSettings,
    MovingBaseline,
    batch_advantages,
    group_advantages,
    recipe_named,
)


def test_a_reward_is_held_against_the_others_of_its_group() -> None:
    found = group_advantages([1.0, 0.0, 0.5, 0.3, 7.0], ["a", "a", "a", "b", "c"])
    assert found == pytest.approx([1 - 0.25, 0 - 0.75, 0.5 - 0.5, 0, 0])
    assert math.fsum(found[:3]) == pytest.approx(0)


def test_a_nan_counts_for_nobody() -> None:
    assert group_advantages([1.0, math.nan, 0.0], "aaa") == [1.0, 0.0, -1.0]
    assert group_advantages([1.0, math.nan], "aa") == [0.0, 0.0]
    assert batch_advantages([1.0, math.nan, 3.0]) == pytest.approx([-1, 0, 1])
    assert batch_advantages([math.nan]) == [0.0]
    baseline = MovingBaseline()
    baseline.update([math.nan])
    assert baseline.value == 0
    baseline.update([1.0, math.nan, 0.0])
    assert baseline.value == 0.5
    assert baseline.advantages([1.0, math.nan]) == [0.5, 0.0]


def test_equal_rewards_teach_nothing() -> None:
    assert batch_advantages([0.3] * 4) == pytest.approx([0] * 4, abs=1e-6)
    assert group_advantages([0.3] * 4, "aaaa") == pytest.approx([0] * 4)


def test_a_reward_more_or_less_than_samples_is_refused() -> None:
    with pytest.raises(InputError, match="2 rewards for 1 samples"):
        group_advantages([1.0, 2.0], "a")


def test_the_moving_baseline_is_the_mean_of_the_last_steps() -> None:
    baseline = MovingBaseline(2)
    assert baseline.value == 0
    for rewards in ([9.0, 9.0], [1.0, 0.0], [0.25]):
        baseline.update(rewards)
    assert baseline.value == pytest.approx((0.5 + 0.25) / 2)
    again = MovingBaseline.from_json(json.loads(json.dumps(baseline.to_json())))
    again.update([1.0])
    baseline.update([1.0])
    assert again.value == baseline.value == pytest.approx((0.25 + 1) / 2)
    hundred = MovingBaseline()
    for step in range(250):
        hundred.update([float(step)])
    assert hundred.value == pytest.approx(199.5)
    with pytest.raises(InputError, match="1 step or more"):
        MovingBaseline(0)


@pytest.mark.parametrize(
    ("kl", "beta"),
    [(0.3, 0.00102), (0.21, 0.001 * (1 + 0.1 * 0.05)), (0.2, 0.001), (0.0, 0.00098), (math.nan, 0.001)],
)
def test_the_price_of_drifting_is_steered(kl: float, beta: float) -> None:
    assert AdaptiveKL(0.001, 0.2).update(kl) == pytest.approx(beta)


def test_the_controller_goes_on_from_its_state() -> None:
    controller = AdaptiveKL()
    controller.update(1.0)
    again = AdaptiveKL.from_json(json.loads(json.dumps(controller.to_json())))
    assert again.update(1.0) == controller.update(1.0) == pytest.approx(0.001 * 1.02**2)
    assert AdaptiveKL(0.1, None).update(5.0) == 0.1


def test_the_recipes_are_what_their_sources_say() -> None:
    assert (PAPER.lr, PAPER.clip, PAPER.kl, PAPER.room) == (2e-6, 0.2, KLSettings(0.001, 0.2), 50)
    assert (PAPER.length_penalty, PAPER.reward, PAPER.optimizer) == (0, "paper", "adamw")
    assert (SEED.lr, SEED.batch, SEED.steps, SEED.room, SEED.optimizer) == (1e-4, 32, 2000, 64, "adafactor")
    assert (SEED.baseline, SEED.reward, SEED.length_penalty, SEED.kl.target) == ("moving", "answer", 0.01, None)
    assert (OURS.baseline, OURS.needs_reader, OURS.kl.place) == ("group", False, "loss")
    assert SEED.needs_reader
    assert PAPER.needs_reader
    for name, recipe in RECIPES.items():
        assert recipe_named(name) is recipe
        assert json.loads(json.dumps(recipe.to_json()))["name"] == name
    with pytest.raises(InputError, match="the recipes are: ours, seed, paper"):
        recipe_named("ppo")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"group": 1}, "2 or more samples a question"),
        ({"batch": 0}, "batch of a recipe must be 1 or more, but got 0"),
        ({"lr": 0.0}, "lr of a recipe must be more than 0"),
        ({"temperature": math.inf}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"unreadable": -1.0}, "0 or more"),
        ({"kl": KLSettings(0.1, 0.0)}, "target"),
    ],
)
def test_values_that_cannot_be_are_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        replace(OURS, **changes)  # type: ignore[arg-type]
