"""A comparison under way: arms advance together, and are stopped, resumed and added by a file."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from querywright.errors import InputError
from querywright.optimize.comparison import compare
from querywright.optimize.live import CONTROL, Control
from querywright.progress import Bar


@pytest.fixture
def run(world, make_lm, tmp_path):
    """Compares two arms; ``changes`` says what the file holds once so many questions have been met in all."""

    def compared(changes=None, **given):
        told, seen = [], []

        class Watched(Bar):
            def __call__(self, what, done, total, said=None):
                seen.append((what, done, total))
                if done in (changes or {}):
                    (tmp_path / CONTROL).write_text(changes[done])
                super().__call__(what, done, total, said)

        def make(name):
            if name == "magic":
                raise InputError("unknown technique 'magic'")
            return world.program()

        arms = {"plain": world.program("plain"), "hcqr": world.program()}
        with Watched("compare", console=Console(file=io.StringIO()), folder=tmp_path, command="compare") as bar:
            found = compare(
                arms, world.questions, lm=given.pop("lm", None) or make_lm(), progress=bar,
                control=Control(tmp_path, make, told.append), references=False, **given,
            )  # fmt: skip
        return found, seen, told

    return compared


def test_arms_advance_together_and_one_whole_is_told(run, tmp_path):
    found, seen, _ = run()
    assert [what for what, *_ in seen] == ["plain"] * 8 + ["hcqr"] * 8 + ["plain"] * 8 + ["hcqr"] * 8 + (
        ["plain"] * 2 + ["hcqr"] * 2
    )
    assert [done for _, done, _ in seen] == [*range(1, 37)]
    assert {total for *_, total in seen} == {36}
    assert [one.mean("accuracy").n for one in found.arms] == [18, 18]
    live = json.loads((tmp_path / "live.json").read_text("utf-8"))
    assert [(arm["name"], arm["state"], arm["done"], arm["mean"]) for arm in live["arms"]] == [
        ("plain", "done", 18, 0.0), ("hcqr", "done", 18, 1.0),
    ]  # fmt: skip
    assert (live["command"], live["state"], live["metric"], live["done"]) == ("compare", "done", "accuracy", 36)
    assert live["calls"] > 0


def test_an_arm_that_is_stopped_keeps_what_it_has_and_is_held_against_nothing(run, tmp_path):
    found, seen, _ = run({16: json.dumps({"stop": ["hcqr"]})})
    assert [one.name for one in found.arms] == ["plain"]
    assert found.comparisons == ()
    (stopped,) = found.references
    assert (stopped.name, len(stopped.rows)) == ("hcqr, stopped after 8 of 18 questions", 8)
    assert "hcqr, stopped after 8 of 18 questions: held against nothing" in found.notes
    assert seen[-1] == ("plain", 26, 26)
    assert not (tmp_path / CONTROL).exists()  # the next run begins without


def test_an_arm_that_is_taken_off_the_list_goes_on(run):
    found, seen, _ = run({16: json.dumps({"stop": ["hcqr"]}), 24: json.dumps({"stop": []})})
    assert [len(one.rows) for one in found.arms] == [18, 18]
    assert [what for what, *_ in seen][16:] == ["plain"] * 8 + ["hcqr"] * 8 + ["plain"] * 2 + ["hcqr"] * 2


def test_an_arm_that_is_added_catches_up_and_asks_nothing_that_is_known(run, make_lm, store):
    lm = make_lm(store=store)
    found, _, _ = run({8: json.dumps({"add": ["hcqr:top_k=5"]})}, lm=lm)
    assert [one.name for one in found.arms] == ["plain", "hcqr", "hcqr:top_k=5"]
    assert [len(one.rows) for one in found.arms] == [18, 18, 18]
    assert [one.arm for one in found.comparisons if one.metric == "accuracy"] == ["hcqr", "hcqr:top_k=5"]
    calls, other = (found.arm(name).cost for name in ("hcqr", "hcqr:top_k=5"))
    assert calls.calls + other.calls == lm.engine.ledger.total.calls - found.arm("plain").cost.calls
    assert min(calls.calls, other.calls) < 54 / 2 < max(calls.calls, other.calls)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("{", "control.json cannot be read"),
        ('{"add": ["magic"]}', "control.json adds 'magic': unknown technique 'magic'"),
        ('{"stop": ["bm25"]}', "control.json stops 'bm25', which is none of the arms plain, hcqr"),
        ('{"stop": ["plain"]}', "control.json stops 'plain', which the others are held against; it goes on"),
    ],
)
def test_what_cannot_be_done_is_said_once_and_the_run_goes_on(written, said, run):
    found, _, told = run({8: written})
    assert [len(one.rows) for one in found.arms] == [18, 18]
    assert len(told) == 1
    assert told[0].startswith(said)
