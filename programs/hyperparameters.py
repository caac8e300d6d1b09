"""The knobs of a technique: numbers and choices that are declared once and that DSPy saves with the prompts."""

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
    """A numeric parameter or a choice.

    Args:
        name: The knob's name in Python, on the command line, and in artifacts.
        default: The default value, from the technique's paper or chosen by the project.
        help: One line that says what the knob does, with the unit of its value.
        low: Smallest allowed value of a numeric knob.
        high: Largest allowed value of a numeric knob.
        choices: The allowed values of a choice; not needed for a bool.
        when: ``{other: values}``: the knob has an effect only if each knob ``other`` has one of its ``values``. Each
            ``other`` must be declared before this knob.
        search: Whether a study tunes the knob by default. A budget, such as the number of passages that the reader
            sees, is not tuned, because a larger budget finds at least as much but costs more. Default True.
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
            raise TechniqueError(f"{self.name} is a number, so it must have low= and high=")
        self.check(self.default)

    def acts(self, values: Mapping[str, Value]) -> bool:
        """Return whether the knob has an effect with these values of the other knobs."""
        return all(values.get(other) in allowed for other, allowed in self.when.items())

    @property
    def range(self) -> str:
        """The allowed values as text."""
        if self._is_number:
            return f"{self.low:g} to {self.high:g}"
        choices = ("true", "false") if isinstance(self.default, bool) else self.choices
        return " | ".join(str(choice) for choice in choices) or "no value"

    def check(self, value: Any) -> Value:
        """Return the value, converted to the knob's type.

        Raises:
            TechniqueError: The value has the wrong type or is not allowed.
        """
        whole = self._is_number and isinstance(self.default, int)
        if self._is_number:
            low, high = self.low or 0, self.high or 0  # a numeric knob always has both
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if number and low <= value <= high and (not whole or value == int(value)):
                return int(value) if whole else float(value)
        else:
            for choice in (True, False) if isinstance(self.default, bool) else self.choices:
                if value == choice and isinstance(value, bool) == isinstance(choice, bool):
                    return choice
        kind = "a whole number" if whole else "a number"
        several = "one of " if " | " in self.range else ""
        rule = f"{kind} from {self.range}" if self._is_number else several + self.range.replace(" | ", ", ")
        raise TechniqueError(f"{self.name} must be {rule}, but got {value!r}")

    def parse(self, text: str) -> Value:
        """Parse a string such as ``5``, ``rrf``, or ``true`` as a value of the knob.

        Raises:
            TechniqueError: The string is not an allowed value.
        """
        text = text.strip()
        value: Value = {"true": True, "false": False}.get(text.lower(), text)
        for kind in (float, int):  # int comes last, so that a message shows 500 and not 500.0
            with contextlib.suppress(ValueError):
                value = kind(text)
        return self.check(value)

    @property
    def _is_number(self) -> bool:
        return isinstance(self.default, (int, float)) and not isinstance(self.default, bool) and not self.choices


class Knobs(Parameter, Mapping[str, Any]):
    """The knobs of one program and their values, which are read as ``knobs["top_k"]``.

    This class is a DSPy parameter: ``save``, ``load``, ``deepcopy``, and optimizers keep it together with the prompts.

    Args:
        declared: The technique's knobs, in the order in which tables show them.
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
        """Return the declaration of a knob.

        Raises:
            TechniqueError: There is no such knob.
        """
        for knob in self.declared:
            if knob.name == name:
                return knob
        raise TechniqueError(unknown("knob", name, self._values))

    def update(self, values: Mapping[str, Any]) -> None:
        """Check all values, then set them.

        Raises:
            TechniqueError: A name is unknown or a value is not allowed.
        """
        self._values.update({name: self.knob(name).check(value) for name, value in values.items()})

    def dump_state(self, json_mode: bool = True) -> dict[str, Value]:
        """Return the values, for DSPy's ``save``."""
        return dict(self._values)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Load values that ``dump_state`` returned.

        A missing knob gets its default value: the program was saved before the knob existed, and the default of a new
        knob never changes an existing program.

        Raises:
            TechniqueError: A knob is unknown, or a value is not allowed.
        """
        self.update({**{knob.name: knob.default for knob in self.declared}, **state})

    def reset(self) -> None:
        """Do nothing: an optimizer that resets a program's prompts must keep its knobs."""
