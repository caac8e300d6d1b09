"""What a study wants more or less of: measures of quality, which are means over questions, and of cost a question."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from querywright.data.splits import Splits
from querywright.errors import InputError
from querywright.metrics.dspy_metrics import METRICS, RANKED, metric_named, needs
from querywright.models.usage import Cost
from querywright.optimize.evaluate import Evaluation
from querywright.optimize.results import OBJECTIVE_METRICS
from querywright.programs import READERS

_LACKING = {
    "answer": "questions with an answer, but no dev question has one",
    "evidence": "labelled evidence, but no dev question has any",
    "options": "questions with options, but no dev question has any",
    "support": "a reader that names its support, such as grounded",
    "sentences": "support by sentences, which no question and no reader here has; take joint_passage_f1",
}


@dataclass(frozen=True, slots=True)
class Objective:
    """One thing that is optimised.

    Args:
        name: How it is called in a study's file.
        direction: ``maximize`` or ``minimize``.
        kind: ``quality``, or ``cost`` a question.
        metrics: What has to be scored for it.
        of: Its value from an evaluation.
    """

    name: str
    direction: Literal["maximize", "minimize"]
    kind: Literal["quality", "cost"]
    metrics: tuple[str, ...]
    of: Callable[[Evaluation], float]

    @property
    def reads(self) -> bool:
        """Whether it takes a reader."""
        return any("reader" in needs(metric) for metric in self.metrics)

    def value(self, evaluation: Evaluation) -> float:
        """Its value; NaN where nothing could be scored."""
        return self.of(evaluation)


def _quality(name: str, metrics: tuple[str, ...]) -> Objective:
    def mean(evaluation: Evaluation) -> float:
        return sum(evaluation.average(metric) for metric in metrics) / len(metrics)

    return Objective(name, "maximize", "quality", metrics, mean)


def _cost(name: str, amount: Callable[[Cost], float]) -> Objective:
    def a_question(evaluation: Evaluation) -> float:
        return amount(evaluation.cost) / len(evaluation.rows) if evaluation.rows else math.nan

    return Objective(name, "minimize", "cost", (), a_question)


def _all_seconds(cost: Any) -> float:
    return float(cost.seconds + getattr(cost, "saved_seconds", 0.0))


COSTS: Mapping[str, Objective] = {
    objective.name: objective
    for objective in (
        _cost("lm_calls", lambda cost: float(cost.asked)),
        _cost("tokens", lambda cost: float(cost.tokens + cost.saved_tokens)),
        _cost("seconds", _all_seconds),
    )
}
"""Cost a question, as if nothing had been stored: what was made and what was saved."""


class _Objectives(Mapping[str, Objective]):
    """All objectives by name; measures of the first K passages are there for every K, and listed for none."""

    def __init__(self) -> None:
        self._named: dict[str, Objective] = {name: _quality(name, (name,)) for name in METRICS}
        self._named |= {str(name): _quality(name, metrics) for name, metrics in OBJECTIVE_METRICS.items()}
        self._named |= COSTS

    def __getitem__(self, name: str) -> Objective:
        if name in self._named:
            return self._named[name]
        try:
            metric_named(name)
        except InputError:
            raise KeyError(name) from None
        return _quality(name, (name,))

    def __iter__(self) -> Iterator[str]:
        return iter(self._named)

    def __len__(self) -> int:
        return len(self._named)


OBJECTIVES: Mapping[str, Objective] = _Objectives()
"""What a study can optimise. ``decision_useful``, ``accuracy``, ``both`` (their mean) and every metric that
``metric_named`` knows, such as ``recall@5``, are to be large; ``lm_calls``, ``tokens`` and ``seconds`` are a
question's, cold, and to be small."""


def objective_named(name: str) -> Objective:
    """The objective of that name.

    Raises:
        InputError: There is none.
    """
    try:
        return OBJECTIVES[name]
    except KeyError:
        ranked = [f"{measure}@K" for measure in RANKED]
        near = difflib.get_close_matches(name, [*OBJECTIVES, *RANKED], 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        known = ", ".join([*OBJECTIVES, *ranked])
        raise InputError(f"unknown objective {name!r}{hint}; the objectives are: {known} (K from 1 to 1000)") from None


def objectives_of(names: Sequence[str]) -> tuple[Objective, ...]:
    """The objectives of these names, in their order.

    Raises:
        InputError: There is none of a name.
    """
    return tuple(objective_named(name) for name in names)


def metrics_of(names: Sequence[str]) -> tuple[str, ...]:
    """The metrics that have to be scored for these objectives, each once."""
    return tuple(dict.fromkeys(metric for one in objectives_of(names) for metric in one.metrics))


def reads(names: Sequence[str]) -> bool:
    """Whether any of these objectives takes a reader; where none does, a search does without."""
    return any(objective.reads for objective in objectives_of(names))


def check_objectives(objectives: Sequence[str], splits: Splits, reader: str | None) -> None:
    """Refuse objectives that the questions or the reader cannot carry, before anything is spent.

    Args:
        objectives: Their names.
        splits: Train, dev and test questions.
        reader: Name of the reader, or None where none reads.

    Raises:
        InputError: A split is empty, or an objective lacks what it needs; all that is lacking at once.
    """
    problems = [
        f"the {name} split is empty; give more questions or other sizes"
        for name, part in zip(splits._fields, splits, strict=True)
        if not part
    ]
    given = {
        "answer": any(question.answer for question in splits.dev),
        "options": any(question.options for question in splits.dev),
        "evidence": any(question.evidence for question in splits.dev),
        "reader": reader is not None,
        "support": reader is not None and READERS[reader].GROUNDED,
    }
    for objective in objectives_of(objectives):
        lacking = sorted({need for metric in objective.metrics for need in needs(metric) if not given.get(need)})
        if "reader" in lacking:
            problems.append(f"the objective {objective.name} needs a reader; give one, or another objective")
        problems += [f"the objective {objective.name} needs {_LACKING[need]}" for need in lacking if need in _LACKING]
    if problems:
        raise InputError("\n".join(problems))
