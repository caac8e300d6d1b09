"""The values of a knob that a search tries, and how Optuna is asked for one of them."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from querywright.programs.hyperparameters import Knob, Value

_STEP = 0.25
"""Between two values of a knob that is no whole number, where its range and its default allow it."""

_WIDE = 50
"""Times that the largest whole number is the smallest from which a range is looked at by its logarithm."""


@dataclass(frozen=True, slots=True)
class Domain:
    """Values to choose from, or a range of numbers with both ends.

    A range is looked at by its logarithm where that is said. Its high end, where no step leads to it, is lowered to
    the last that one does; without a step it has every number, or every whole one.
    """

    choices: tuple[Value, ...] = ()
    low: float = 0.0
    high: float = 0.0
    step: float | None = None
    log: bool = False
    whole: bool = False

    def __post_init__(self) -> None:
        if self.step is not None and not self.choices:
            # Optuna does the same, and warns each time that it does.
            low, step = Decimal(str(self.low)), Decimal(str(self.step))
            object.__setattr__(self, "high", float(low + (Decimal(str(self.high)) - low) // step * step))

    @property
    def single(self) -> bool:
        """Whether there is nothing to choose."""
        return len(self.choices) == 1 or (not self.choices and self.low == self.high)

    @property
    def size(self) -> int | None:
        """How many values there are; None where they cannot be counted."""
        counted = self.choices or self.step is not None or self.whole or self.single
        return len(self.values) if counted else None

    @property
    def values(self) -> list[Value]:
        """All values in order; only where they can be counted."""
        if self.choices:
            return list(self.choices)
        low, high, step = (Decimal(str(one)) for one in (self.low, self.high, self.step or 1))
        return [self._typed(float(low + step * place)) for place in range(int((high - low) // step) + 1)]

    @property
    def highest(self) -> Value:
        """The largest number, or the last of choices that are no numbers."""
        if self.choices:
            return max(self.choices, key=float) if self._counts else self.choices[-1]
        return self._typed(self.high)

    @property
    def lowest(self) -> Value:
        """The smallest number, or the first of choices that are no numbers."""
        if self.choices:
            return min(self.choices, key=float) if self._counts else self.choices[0]
        return self._typed(self.low)

    @property
    def _counts(self) -> bool:
        """Whether all choices are numbers."""
        return not any(isinstance(value, (str, bool)) for value in self.choices)

    def nearest(self, value: Value) -> Value:
        """The value itself where it is among them, else the number nearest to it, else the first."""
        if self.choices:
            if any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in self.choices):
                return value
            if self._counts and not isinstance(value, (str, bool)):
                return min(self.choices, key=lambda one: abs(float(one) - float(value)))
            return self.choices[0]
        number = min(max(float(value), self.low), self.high)
        if self.step is not None or self.whole:
            low, step = Decimal(str(self.low)), Decimal(str(self.step or 1))
            number = float(low + round((Decimal(str(number)) - low) / step) * step)
        return self._typed(number)

    def suggest(self, trial: Any, name: str) -> Value:
        """A value in a trial; a value that is the only one is no parameter of it."""
        if self.single:
            return self.lowest
        if self.choices:
            value: Value = trial.suggest_categorical(name, list(self.choices))
        elif self.whole:
            value = trial.suggest_int(name, int(self.low), int(self.high), step=int(self.step or 1), log=self.log)
        else:
            value = trial.suggest_float(name, self.low, self.high, step=self.step, log=self.log)
        return value

    def distribution(self) -> Any:
        """What Optuna calls it."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if self.choices:
            return CategoricalDistribution(list(self.choices))
        if self.whole:
            return IntDistribution(int(self.low), int(self.high), log=self.log, step=int(self.step or 1))
        return FloatDistribution(self.low, self.high, log=self.log, step=self.step)

    def _typed(self, number: float) -> Value:
        return round(number) if self.whole else number


def domain_of(knob: Knob) -> Domain:
    """A knob's own range; whole numbers over a wide range by their logarithm."""
    if knob.choices or isinstance(knob.default, bool):
        return Domain(choices=knob.choices or (False, True))
    low, high = float(knob.low or 0.0), float(knob.high or 0.0)
    if isinstance(knob.default, int):
        return Domain(low=low, high=high, log=low > 0 and high / low >= _WIDE, whole=True)
    return Domain(low=low, high=high, step=own_step(low, high, float(knob.default)))


def own_step(low: float, *others: float) -> float | None:
    """The distance between values of a knob that is no whole number; None for any value."""
    return _STEP if all((other - low) % _STEP == 0 for other in others) else None
