"""Answers that consist of text: how they are made, written down, and judged worth keeping."""

from __future__ import annotations

import json
from typing import Any

from dspy import lm15
from dspy.lm15 import Request, Response

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


def worth_keeping(request: Request, response: Response) -> bool:
    """Whether an answer is whole: another attempt might better one that is cut off, empty or no JSON."""
    text = response.text
    if not text or not text.strip() or response.finish_reason != "stop":
        return False
    if request.config.response_format is None and JSON_REQUEST not in _system_text(request):
        return True
    try:
        value = json.loads(text[text.index("{") : text.rindex("}") + 1])
    except ValueError:
        return False
    return isinstance(value, dict)


def _system_text(request: Request) -> str:
    system = request.system or ""
    return system if isinstance(system, str) else "".join(getattr(part, "text", "") for part in system)


def record_of(response: Response, seconds: float) -> dict[str, Any]:
    """What is stored of a response, for ``response_of``.

    Args:
        response: One that consists of text.
        seconds: How long the call took.
    """
    return {
        "text": response.text or "",
        "finish_reason": response.finish_reason,
        "model": response.model,
        "input_tokens": response.usage.input_tokens,
        "output_tokens": response.usage.output_tokens,
        "seconds": round(seconds, 4),
    }


def response_of(record: dict[str, Any]) -> tuple[Response, float]:
    """The response that a record was made of, and how many seconds its call took; 0 where the record does not say.

    Raises:
        TypeError: It is no such record.
        ValueError: As well.
    """
    fields = dict(record)
    seconds = float(fields.pop("seconds", 0.0))
    return text_response(**fields), seconds
