"""Answers that consist of text: how they are made, judged worth keeping, and written by a model that has no braces."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dspy import lm15
from dspy.lm15 import Request, Response

from querywright.models.constrained_decoding import Schema, resolved

JSON_REQUEST = "Answer with one JSON object"
"""What a prompt says when it asks for JSON; a request without a response format is known by it."""


def text_response(
    text: str, finish_reason: Any, model: str, input_tokens: int | None, output_tokens: int | None
) -> Response:
    """A response that consists of text."""
    return Response(
        id=None,
        model=model,
        message=lm15.Message.assistant([lm15.TextPart(text)]),
        finish_reason=finish_reason,
        usage=lm15.Usage(input_tokens=input_tokens, output_tokens=output_tokens),
    )


def system_text(request: Request) -> str:
    """What the system message of a request says; empty where there is none."""
    system = request.system or ""
    return system if isinstance(system, str) else "".join(getattr(part, "text", "") for part in system)


def is_empty(response: Response) -> bool:
    """Whether an answer says nothing at all: no text, no refusal and nothing else, whatever was thought."""
    parts = (part for part in response.message.parts if not isinstance(part, lm15.ThinkingPart))
    return not any(part.text.strip() if isinstance(part, lm15.TextPart) else True for part in parts)


def worth_keeping(request: Request, response: Response) -> bool:
    """Whether an answer is whole: another attempt might better one that is cut off, empty or no JSON."""
    text = response.text
    if not text or not text.strip() or response.finish_reason != "stop":
        return False
    if request.config.response_format is None and JSON_REQUEST not in system_text(request):
        return True
    try:
        return isinstance(json.loads(text[text.index("{") : text.rindex("}") + 1]), dict)
    except ValueError:
        return False


# T5's vocabulary has neither braces nor line breaks, so a sequence-to-sequence model cannot learn to write JSON. Its
# fields stand as ``name: value`` with bars between them, items of a list with semicolons between them; the only field
# of an answer has no name. A list of queries is then what the rewriter of Ma et al. 2023 (arXiv 2305.14283) writes.


def plain_text(values: Mapping[str, Any]) -> str:
    """Fields in plain words, in their order; a bar or semicolon within a value becomes a comma."""
    said = {name: "; ".join(map(_said, one if isinstance(one, list) else [one])) for name, one in values.items()}
    return " | ".join(f"{name}: {one}" for name, one in said.items()) if len(said) > 1 else "".join(said.values())


def as_json(text: str, schema: Schema | None) -> str:
    """An answer in plain words as JSON; one that is JSON already, or that nobody has asked a form of, as it is."""
    if schema is None or text.lstrip().startswith("{"):
        return text
    return json.dumps(_plain_values(text, schema), ensure_ascii=False)


def _plain_values(text: str, schema: Schema) -> dict[str, Any]:
    fields, parts = schema["properties"], text.split("|") if len(schema["properties"]) > 1 else [text]
    named = {name.strip(): value.strip() for name, colon, value in (part.partition(":") for part in parts) if colon}
    if len(fields) == 1 and not named.keys() & fields.keys():
        named = dict.fromkeys(fields, text.strip())
    told = {name: field for name, field in fields.items() if name in named}
    return {name: _read(named[name], resolved(field, schema), schema) for name, field in told.items()}


def _said(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return " ".join(text.translate({ord(mark): "," for mark in ";|"}).split())


def _read(text: str, field: Schema, root: Schema) -> Any:
    if field.get("type") == "array":
        items = resolved(field.get("items", {}), root)
        return [_read(one.strip(), items, root) for one in text.split(";") if one.strip()]
    if field.get("type") in {"integer", "number", "boolean"}:
        try:
            return json.loads(text.lower())
        except ValueError:
            return text  # which the reader of the answer refuses
    return text
