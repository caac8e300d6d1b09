"""A comparison under way: the arms advance together, and a bar shows their scores so far."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from querywright.optimize.comparison import compare
from querywright.progress import Bar


@pytest.fixture
def run(world, make_lm):
    """Compares two arms, and returns the comparison, the calls of its progress, and the bar."""

    def compared():
        seen = []

        class Watched(Bar):
            def __call__(self, what, done, total, said=None):
                seen.append((what, done, total))
                super().__call__(what, done, total, said)

        arms = {"plain": world.program("plain"), "hcqr": world.program()}
        with Watched("compare", console=Console(file=io.StringIO())) as bar:
            found = compare(arms, world.questions, lm=make_lm(), threads=1, progress=bar, references=False)
        return found, seen, bar

    return compared


def test_arms_take_turns_the_one_with_more_calls_first_and_one_whole_is_told(run):
    found, seen, bar = run()
    assert [what for what, *_ in seen] == ["hcqr", *["plain", "hcqr"] * 17, "plain"]
    assert [done for _, done, _ in seen] == [*range(1, 37)]
    assert {total for *_, total in seen} == {36}
    assert [one.mean("accuracy").n for one in found.arms] == [18, 18]
    assert bar.metric == "accuracy"
    assert [(arm["name"], arm["state"], arm["done"], arm["mean"]) for arm in bar.arms] == [
        ("plain", "done", 18, 0.0), ("hcqr", "done", 18, 1.0),
    ]  # fmt: skip
