"""A run under way: how every arm stands, and what a person asks of it meanwhile, in a file of its folder."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from querywright.errors import InputError
from querywright.metrics.statistics import mean_with_interval
from querywright.optimize.evaluate import Evaluation, Row, finite
from querywright.programs import RAG
from querywright.progress import CONTROL, Bar, LiveArm, Progress

A = TypeVar("A")
"""What an arm is where it is run: a program of a comparison, what a trial of a study tries."""


def live_arm(name: str, state: str, values: Sequence[float], total: int, done: int | None = None) -> LiveArm:
    """An arm as it stands, from its score of each question met (NaN where it could not be scored) of so many."""
    found = mean_with_interval(values)
    mean, low, high = (finite(one) for one in (found.value, found.low, found.high))
    done = len(values) if done is None else done
    return {"name": name, "state": state, "done": done, "total": total, "mean": mean, "low": low, "high": high}


def stands(progress: Progress | None, told: Callable[[], tuple[str, list[LiveArm]]], **given: Any) -> None:
    """Let a bar show how arms stand: a metric, and its value for each of them; a callable is told of none."""
    if isinstance(progress, Bar):
        progress.stand(told, **given)


@dataclass(slots=True)
class Control(Generic[A]):
    """What is asked of a run under way, in ``control.json`` of its folder, read again and again:
    ``{"stop": ["ARM", ...], "add": ["ARM:KNOB=VALUE,...", ...]}``, arms that stop where they are, and further ones.

    ``make`` gives an arm by its name: a comparison's as the command line takes it, a study's as ``Worker.clone`` does.
    What was told of it stands in ``said``.
    """

    folder: Path | None
    make: Callable[[str], A]
    tell: Callable[[str], object] = print
    said: list[str] = field(default_factory=list)

    def read(self, arms: Mapping[str, Any], baseline: str) -> tuple[set[str], dict[str, A]]:
        """The arms that stop, and those that are added to these; what cannot be done is said once."""
        data: Any = {}
        if self.folder is not None:
            try:
                data = json.loads((self.folder / CONTROL).read_text("utf-8"))
            except FileNotFoundError:
                pass
            except (OSError, ValueError) as error:
                self._say(f"{CONTROL} cannot be read ({error}); arms go on")
        given = data if isinstance(data, dict) else {}
        stop, add = (set(map(str, given.get(name) or ())) for name in ("stop", "add"))
        for name in stop - set(arms) - add:
            self._say(f"{CONTROL} stops {name!r}, which is none of the arms {', '.join(arms)}")
        if baseline in stop:
            self._say(f"{CONTROL} stops {baseline!r}, which the others are held against; it goes on")
        added: dict[str, A] = {}
        for name in sorted(add - set(arms)):
            try:
                added[name] = self.make(name)
            except InputError as error:
                self._say(f"{CONTROL} adds {name!r}: {error}")
        return stop - {baseline}, added

    def end(self) -> None:
        """What was asked is done: the next run of the folder begins without."""
        if self.folder is not None:
            (self.folder / CONTROL).unlink(missing_ok=True)

    def _say(self, text: str) -> None:
        if text not in self.said:
            self.said.append(text)
            self.tell(text)


@dataclass(slots=True)
class Rounds:
    """Arms that advance together: whichever is furthest behind meets the next block of questions.

    The first of the metrics that has a value is shown; the baseline is not stopped.
    """

    arms: dict[str, RAG]
    total: int
    metrics: Iterable[str]
    baseline: str
    control: Control[RAG]
    stopped: set[str] = field(default_factory=set)
    rows: dict[str, list[Row]] = field(default_factory=dict)
    found: dict[str, Evaluation] = field(default_factory=dict)
    _now: str = ""

    def next(self) -> str | None:
        """The arm that is next; None where all have met all questions, or are stopped."""
        self.stopped, added = self.control.read(self.arms, self.baseline)
        self.arms |= added
        left = [name for name in self.arms if name not in self.stopped and self.met(name) < self.total]
        self._now = min(left, key=self.met, default="")
        return self._now or None

    def met(self, name: str) -> int:
        """Questions that an arm has met."""
        return len(self.found[name].rows) if name in self.found else 0

    def add(self, met: Evaluation) -> None:
        """An arm has met a block."""
        before = self.found.get(met.name, Evaluation(met.name, (), 0.0))
        self.found[met.name] = Evaluation(met.name, (*before.rows, *met.rows), before.seconds + met.seconds)

    @property
    def whole(self) -> tuple[int, int]:
        """Questions met, and to be met, by all arms."""
        met = {name: self.met(name) for name in self.arms}
        return sum(met.values()), sum(met[name] if name in self.stopped else self.total for name in self.arms)

    def standing(self) -> tuple[str, list[LiveArm]]:
        """How the arms stand, question by question."""
        rows = {name: list(self.rows.get(name, ())) for name in self.arms}
        scored = [
            name
            for name in self.metrics
            if any(not math.isnan(one.scores.get(name, math.nan)) for each in rows.values() for one in each)
        ]
        metric = next(iter([*scored, *self.metrics]), "")
        return metric, [
            live_arm(name, self._state(name), [row.scores.get(metric, math.nan) for row in each], self.total,
                     max(len(each), self.met(name)))
            for name, each in rows.items()
        ]  # fmt: skip

    def _state(self, name: str) -> str:
        if self.met(name) == self.total:
            return "done"
        return "stopped" if name in self.stopped else "running" if name == self._now else "waiting"
