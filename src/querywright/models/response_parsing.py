"""Answers that consist of text: how they are made, and judged worth keeping."""

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


def system_text(request: Request) -> str:
    """What the system message of a request says; empty where there is none."""
    system = request.system or ""
    return system if isinstance(system, str) else "".join(getattr(part, "text", "") for part in system)


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
