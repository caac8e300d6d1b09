"""A technique's numbers and choices, declared once and saved by DSPy beside the prompts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dspy.predict.parameter import Parameter

from querywright.errors import TechniqueError, unknown

Value = int | float | str | bool


@dataclass(frozen=True, slots=True)
class Knob:
    """One number or choice.

    Args:
        name: How it is called everywhere: in Python, on the command line, in an artifact.
        default: The value that the technique's paper or its decision in the project gives.
        help: One line: what it does, with its unit.
        low: Smallest value of a number.
        high: Largest value of a number.
        choices: The values of a choice. A bool needs none.
        when: ``{other: values}``: the knob acts only while each knob ``other``, declared before it, has one of
            ``values``.
        search: Whether a study searches it. A budget, such as how many passages the reader sees, is given
            rather than searched: more is always at least as good to find, and costs. Default True.
    """

    name: str
    default: Value
    help: str
    low: float | None = None
    high: float | None = None
    choices: tuple[Value, ...] = ()
    when: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    search: bool = True

    def __post_init__(self) -> None:
        if self._is_number and (self.low is None or self.high is None):
            raise TechniqueError(f"{self.name} is a number and needs low= and high=")
        self.check(self.default)

    def acts(self, values: Mapping[str, Value]) -> bool:
        """Whether the knob makes a difference beside these values of the others."""
        return all(values.get(other) in allowed for other, allowed in self.when.items())

    @property
    def range(self) -> str:
        """The allowed values in words."""
        if self._is_number:
            return f"{self.low:g} to {self.high:g}"
        choices = ("true", "false") if isinstance(self.default, bool) else self.choices
        return " | ".join(str(choice) for choice in choices) or "no value"

    def check(self, value: Any) -> Value:
        """The value in the knob's type.

        Raises:
            TechniqueError: It has another type or is out of range.
        """
        whole = self._is_number and isinstance(self.default, int)
        if self._is_number:
            low, high = self.low or 0, self.high or 0  # a number has both
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if number and low <= value <= high and (not whole or value == int(value)):
                return int(value) if whole else float(value)
        else:
            for choice in (True, False) if isinstance(self.default, bool) else self.choices:
                if value == choice and isinstance(value, bool) == isinstance(choice, bool):
                    return choice
        rule = f"a whole number from {self.range}" if whole else self.range
        raise TechniqueError(f"{self.name} must be {rule}, but got {value!r}")

    def parse(self, text: str) -> Value:
        """The value that a text such as ``5``, ``rrf`` or ``true`` stands for.

        Raises:
            TechniqueError: It stands for none.
        """
        text = text.strip()
        value: Value = {"true": True, "false": False}.get(text.lower(), text)
        for kind in (float, int):  # so that a message shows 500 for 500
            with contextlib.suppress(ValueError):
                value = kind(text)
        return self.check(value)

    @property
    def _is_number(self) -> bool:
        return isinstance(self.default, (int, float)) and not isinstance(self.default, bool) and not self.choices


class Knobs(Parameter, Mapping[str, Any]):
    """The knobs of one program and their values, read as ``knobs["top_k"]``.

    A DSPy parameter: ``save``, ``load``, ``deepcopy`` and the optimizers carry it along with the prompts.

    Args:
        declared: The technique's knobs, in the order in which they are shown.
        values: Values that differ from the defaults.

    Raises:
        TechniqueError: A name is unknown or a value is not allowed.
    """

    def __init__(self, declared: Sequence[Knob], values: Mapping[str, Any] | None = None) -> None:
        self.declared = tuple(declared)
        self._values: dict[str, Value] = {knob.name: knob.default for knob in self.declared}
        self.update(values or {})

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return "Knobs(" + ", ".join(f"{name}={value!r}" for name, value in self._values.items()) + ")"

    def knob(self, name: str) -> Knob:
        """The declaration of a knob.

        Raises:
            TechniqueError: There is no such knob.
        """
        for knob in self.declared:
            if knob.name == name:
                return knob
        raise TechniqueError(unknown("knob", name, self._values))

    def update(self, values: Mapping[str, Any]) -> None:
        """Set values; all of them are checked before any is set.

        Raises:
            TechniqueError: A name is unknown or a value is not allowed.
        """
        self._values.update({name: self.knob(name).check(value) for name, value in values.items()})

    def dump_state(self, json_mode: bool = True) -> dict[str, Value]:
        """The values, for DSPy's save."""
        return dict(self._values)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take the values that ``dump_state`` gave.

        Raises:
            TechniqueError: A knob is missing or unknown, or a value is not allowed.
        """
        missing = [name for name in self if name not in state]
        if missing:
            raise TechniqueError(
                f"the saved knobs lack {', '.join(missing)}: another version saved them; compile again"
            )
        self.update(state)

    def reset(self) -> None:
        """Do nothing: an optimizer that resets a program's prompts keeps its numbers."""
