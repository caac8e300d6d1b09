"""How a DSPy signature becomes a prompt, and an answer becomes fields: short prompts, JSON answers.

A signature's instructions and its fields' descriptions are all that the model is told beside the inputs. What an
input says is data: it stands under its field's name and cannot open a field of its own, because answers are JSON
and lines of an input that look like a field's name are indented.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

import dspy
from dspy.adapters.json_adapter import JSONAdapter

from querywright.data.types import Passage

_MARKER = re.compile(r"\[\[\s*##|<\|")


class PromptAdapter(JSONAdapter):
    """Writes prompts and reads JSON answers.

    Args:
        list_choices: Name the values of a choice in the prompt. An LM that decides choices by likelihood does
            better without the list, so for such an LM it is left out whatever is given here. Default True.
    """

    def __init__(self, *, list_choices: bool = True) -> None:
        super().__init__(use_native_function_calling=False)
        self.list_choices = list_choices

    def __deepcopy__(self, memo: dict[int, Any]) -> PromptAdapter:
        return self

    def __call__(
        self, lm: Any, lm_kwargs: dict[str, Any], signature: Any, demos: list[dict[str, Any]], inputs: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """Ask the LM and return one mapping of output fields a completion."""
        if self.list_choices and _decides_by_likelihood(lm):
            return PromptAdapter(list_choices=False)(lm, lm_kwargs, signature, demos, inputs)
        return list(super().__call__(lm, lm_kwargs, signature, demos, inputs))

    async def acall(
        self, lm: Any, lm_kwargs: dict[str, Any], signature: Any, demos: list[dict[str, Any]], inputs: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """Ask the LM asynchronously."""
        if self.list_choices and _decides_by_likelihood(lm):
            return await PromptAdapter(list_choices=False).acall(lm, lm_kwargs, signature, demos, inputs)
        return list(await super().acall(lm, lm_kwargs, signature, demos, inputs))

    def format_system_message(self, signature: Any) -> str:
        """The instructions, then one line an output field."""
        lines = [textwrap.dedent(signature.instructions).strip()]
        if self.list_choices:
            lines.append("\nAnswer with one JSON object with these fields:")
        else:
            lines.append("\nFields of the answer:")
        lines.extend(self._field_line(name, field) for name, field in signature.output_fields.items())
        return "\n".join(lines)

    def _field_line(self, name: str, field: Any) -> str:
        description = (field.json_schema_extra or {}).get("desc") or ""
        if description == f"${{{name}}}":
            description = ""
        form = ""
        if get_origin(field.annotation) is Literal:
            if self.list_choices:
                form = "one of " + " | ".join(json.dumps(v, ensure_ascii=False) for v in get_args(field.annotation))
        elif get_origin(field.annotation) is list:
            form = "list of texts"
        parts = ", ".join(part for part in (description, form) if part)
        return f"- {name}: {parts}" if parts else f"- {name}"

    def format_user_message_content(
        self,
        signature: Any,
        inputs: Mapping[str, Any],
        prefix: str = "",
        suffix: str = "",
        main_request: bool = False,
    ) -> str:
        """The inputs, each under its field's name; empty ones are left out."""
        names = list(signature.input_fields)
        parts = [prefix] if prefix else []
        for name in names:
            text = _text(inputs.get(name))
            if text:
                separator = "\n" if "\n" in text else " "
                parts.append(f"{name}:{separator}{_framed(text, names)}")
        if suffix:
            parts.append(suffix)
        return "\n\n".join(parts)

    def format_assistant_message_content(
        self, signature: Any, outputs: Mapping[str, Any], missing_field_message: str | None = None
    ) -> str:
        """The answer of a demonstration, in the form that is asked for."""
        values = {name: outputs.get(name, missing_field_message) for name in signature.output_fields}
        return json.dumps(values, ensure_ascii=False)


def show_passages(passages: Sequence[Passage]) -> str:
    """Passages as a reader sees them: numbered, best first, each on lines of its own."""
    return "\n".join(
        f"[{number}] {passage.title}: {_one_line(passage.text)}" if passage.title else f"[{number}] {_one_line(passage.text)}"
        for number, passage in enumerate(passages, 1)
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, (list, tuple)):
        return "\n".join(f"- {_one_line(str(item))}" for item in value)
    return json.dumps(value, ensure_ascii=False, default=str)


def _framed(text: str, names: Sequence[str]) -> str:
    """The text with nothing in it that could be taken for the frame of the prompt."""
    text = _MARKER.sub(lambda match: match.group()[0] + " " + match.group()[1:], text)
    opening = re.compile(rf"^(?=(?:{'|'.join(map(re.escape, names))})\s*:)", re.MULTILINE)
    first, newline, rest = text.partition("\n")
    return first + newline + opening.sub("  ", rest)


def _decides_by_likelihood(lm: Any) -> bool:
    return isinstance(lm, dspy.LM) and bool(getattr(lm.engine, "decides_by_likelihood", False))
