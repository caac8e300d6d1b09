"""Parse an LM's answer: remove its thinking, find its JSON object, and decide whether to keep it.

The cache parses an answer as the adapter does, so an answer is cached only if the adapter can parse it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import json_repair
from dspy import lm15
from dspy.lm15 import Request, Response
from dspy.utils.exceptions import AdapterParseError


def text_response(
    text: str, finish_reason: Any, model: str, input_tokens: int | None, output_tokens: int | None
) -> Response:
    """Return a response that contains only text."""
    return Response(
        id=None,
        model=model,
        message=lm15.Message.assistant([lm15.TextPart(text)]),
        finish_reason=finish_reason,
        usage=lm15.Usage(input_tokens=input_tokens, output_tokens=output_tokens),
    )


def with_text(response: Response) -> Response:
    """Return the response with its JSON as text, because DSPy parses an answer if its schema lists allowed values."""
    parts = response.message.parts
    if not any(isinstance(part, lm15.DataPart) for part in parts):
        return response
    shown = [
        lm15.TextPart(json.dumps(part.value, ensure_ascii=False)) if isinstance(part, lm15.DataPart) else part
        for part in parts
    ]
    return replace(response, message=replace(response.message, parts=tuple(shown)))


def system_text(request: Request) -> str:
    """Return a request's system message; empty if there is none."""
    system = request.system or ""
    return system if isinstance(system, str) else "".join(getattr(part, "text", "") for part in system)


def is_empty(response: Response) -> bool:
    """Return whether an answer contains nothing except thinking: no text, no refusal, and nothing else."""
    parts = (part for part in response.message.parts if not isinstance(part, lm15.ThinkingPart))
    return not any(part.text.strip() if isinstance(part, lm15.TextPart) else True for part in parts)


def is_only_thinking(response: Response) -> bool:
    """Return whether an answer contains only thinking."""
    return is_empty(response) and any(isinstance(part, lm15.ThinkingPart) for part in response.message.parts)


_BROKEN = frozenset({"error", "abort", "insufficient_system_resource"})
"""Finish reasons that report a service failure."""


def broken_off(response: Response) -> str:
    """Return the service's reason for an incomplete answer; empty if the service reports no failure.

    DSPy replaces unknown finish reasons with ``stop``, so this function reads the service's raw data.
    """
    data = response.provider_data or {}
    choices = data.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    reason = choice.get("finish_reason")
    if reason not in _BROKEN and response.finish_reason != "error":
        return ""
    error = choice.get("error") or data.get("error") or ""
    said = error.get("message") if isinstance(error, dict) else error
    return f"finish_reason {reason or 'error'}{': ' if said else ''}{said or ''}"


_THINKING = r"(?:\w+:)?(?:think(?:ing)?|thoughts?|reasoning|reflection|analysis|scratchpad)"
_OPENING = re.compile(
    rf"<\|?{_THINKING}\|?(?:\s[^<>]*)?>|<unused94>|\[THINK\]|\u25c1think\u25b7|<\|begin_of_thought\|>|<\|START_THINKING\|>"
    r"|<\|channel\|?>(?:analysis|commentary|thought)",
    re.IGNORECASE,
)
_CLOSING = re.compile(
    rf"<\|?/{_THINKING}\|?\s*>|<unused95>|\[/THINK\]|\u25c1/think\u25b7|<\|end_of_thought\|>|<\|END_THINKING\|>"
    r"|<\|channel\|>final\s*(?:<\|constrain\|>\w+\s*)?<\|message\|>|<channel\|>",
    re.IGNORECASE,
)
_ANSWER = re.compile(r"\s*(?:```\w*\s*)?\{")
"""Matches the beginning of an answer that is a JSON object."""


def strip_thinking(text: str) -> str:
    """Return the text without the thinking that ends in ``</think>``, ``[/THINK]``, or another common tag.

    The opening tag may be missing, because some chat templates put it in the prompt. A tag inside a JSON string counts
    as content.

    Args:
        text: An LM's answer.

    Returns:
        The answer without thinking; empty if the thinking has no closing tag.
    """
    closings = list(_CLOSING.finditer(text))
    if not closings:
        return "" if _OPENING.match(text.lstrip()) else text
    spans = [(start, end) for _, start, end in _objects(text)]
    begin = 0
    for closing in closings:
        inside = any(start < closing.start() < end for start, end in spans)
        answer = _ANSWER.match(text, begin)
        broken = answer is not None and not any(start == answer.end() - 1 for start, _ in spans)
        if not inside and not broken:
            begin = closing.end()
    if text[begin:].strip():
        return text[begin:]
    after = _OPENING.search(text) or (closings[0] if _ANSWER.match(text) else None)  # thinking or a tag, not an answer
    return text[: after.start()] if after else ""


def separate_thinking(response: Response) -> Response:
    """Return the response with the thinking moved from its text to a separate part, as most services send it."""
    text = response.text or ""
    answer = strip_thinking(text)
    if answer == text:
        return response
    thinking = text.removesuffix(answer).removeprefix(answer)
    parts = [lm15.ThinkingPart(thinking), lm15.TextPart(answer.strip())]
    return replace(response, message=lm15.Message.assistant(parts))


# LaTeX in JSON needs two backslashes, but LMs often write only one, and JSON reads "\frac" as a form feed and "rac". A
# backspace, form feed, or carriage return before a letter is always such a mistake. A line break or tab may be
# intended: "\nu" is the Greek letter, but "\nunder" starts a new line. A command whose letters could begin a word
# ("\ne", "\to") counts only next to a mathematical sign, a space, a single letter, or the beginning of the string.
_COMMANDS = (
    "nabla natural ncong nearrow neg neq newline nexists ngeq nleq nmid nolimits nonumber norm not notag notin "
    "nparallel nsim nsubseteq nu nwarrow tag tanh tbinom text textbf textit textnormal textrm textsc textsf texttt "
    "tfrac therefore theta tilde times triangle triangleq"
).replace(" ", "|")
_WORDLIKE = "(?:ne|ni|tan|tau|to|top)(?![A-Za-z])"
_BEFORE_MATH = r"""(?:(?<=[\s"$({^_=+*/<>|-])|(?<=[^A-Za-z][A-Za-z]))"""
_BACKSLASH = re.compile(
    r"""\\(?:["\\/'\s]|u[0-9A-Fa-f]{4})"""  # an intended escape, or one that json_repair handles
    r"|(?P<command>"
    rf"\\(?:[^bfnrt\s]|[bfr](?=[A-Za-z])|(?=(?:{_COMMANDS})(?![A-Za-z])))"
    rf"|{_BEFORE_MATH}\\(?={_WORDLIKE})|\\(?={_WORDLIKE}\s*[\\$^_={{}}(\d]))"
)


def restore_latex(text: str) -> str:
    """Return the JSON with the backslash doubled at the start of each LaTeX command and each invalid escape."""
    return _BACKSLASH.sub(lambda match: f"\\{match[0]}" if match["command"] else match[0], text)


_ESCAPED = re.compile(r"\\.", re.DOTALL)
_DECODER = json.JSONDecoder(strict=False)  # allows line breaks in strings, because LMs write them


def read_object(text: str, names: Collection[str], *, repair: bool = True) -> tuple[dict[str, Any], bool]:
    """Find the JSON object in an answer, and repair it if it is not valid.

    Args:
        text: An answer without thinking.
        names: Names of the requested fields; objects without any of these fields are skipped. If empty, any object is
            accepted.
        repair: Whether an object may be repaired. Default True.

    Returns:
        The object, and whether it is complete (False if the text ends inside a string).

    Raises:
        ValueError: There is no object, or there are several different objects.
        RecursionError: The object is nested too deeply.
    """
    text = restore_latex(text)
    found = [value for value, _, _ in _objects(text) if not names or set(names) & set(value)]
    breaks_off = not found and _breaks_off(text)
    if not found and repair:
        found = _repaired(text, names)
    if any(value != found[0] for value in found):
        raise ValueError("The answer holds more than one JSON object.")
    if not found and not breaks_off:
        raise ValueError("The answer is no JSON object.")
    return (found[0] if found else {}), not breaks_off


def _objects(text: str) -> Iterator[tuple[dict[str, Any], int, int]]:
    """Yield the valid JSON objects in a text with their start and end, except objects nested in other objects."""
    start = text.find("{")
    while start >= 0:
        try:
            value, end = _DECODER.raw_decode(text, start)
        except RecursionError:
            return
        except ValueError:
            end = start + 1
        else:
            yield _plain_keys(value), start, end
        start = text.find("{", end)


def _repaired(text: str, names: Collection[str]) -> list[dict[str, Any]]:
    """Return the repaired objects that have one of the names; if there are none, the first object, if any."""
    named = "|".join(map(re.escape, names))
    starts = [match.start() for match in re.finditer(rf"\{{\s*[\"'\u201c](?:{named})\b", text)] if names else []
    starts = starts or [text.find("{")]
    found: list[dict[str, Any]] = []
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        try:
            made = json_repair.loads(text[start:end]) if start >= 0 else None
        except ValueError:  # nested too deeply
            continue
        found += [_plain_keys(one) for one in (made if isinstance(made, list) else [made]) if isinstance(one, dict)]
    return [value for value in found if set(names) & set(value)] or found[:1]


def _plain_keys(value: dict[str, Any]) -> dict[str, Any]:
    """Return the object without backslashes in its keys, because some LMs escape underscores as in Markdown."""
    return {key.replace("\\", ""): one for key, one in value.items()}


def _breaks_off(text: str) -> bool:
    """Return whether an object ends inside a string: it has an odd number of quotation marks, and no brace follows."""
    bare = _ESCAPED.sub("", text[text.find("{") :]) if "{" in text else ""
    return bare.count('"') % 2 == 1 and "}" not in bare.rpartition('"')[2]


def apostrophes(text: str) -> str:
    """Return the text with apostrophes instead of quotation marks, which the grammar does not allow in strings."""
    return text.replace('"', "'")


def ended(text: str, limit: int) -> str:
    """Return the text; if the limit cut it off, drop the partial word at the end."""
    if len(text) >= limit and " " in text.strip():
        text = text[: text.rstrip().rindex(" ")] if not text.endswith(" ") else text
    return text.strip()


def worth_keeping(request: Request, response: Response, parse: Callable[..., object] | None) -> bool:
    """Return whether an answer can be parsed, so that the cache may keep it.

    An answer cut off by the token limit is kept only if its object is complete.

    Args:
        request: The request.
        response: The answer.
        parse: `PromptAdapter.parse` for the requested signature. If None, the answer must have the fields in the
            request's schema, if there is one.
    """
    text, is_cut = response.text or "", response.finish_reason == "length"
    if not text.strip() or response.finish_reason not in {"stop", "tool_call", "length"}:
        return False
    if parse is None and request.config.response_format is None:
        return not is_cut
    try:
        (parse or partial(_parse_json, request))(text, repair=not is_cut)
    except (AdapterParseError, ValueError, RecursionError):
        return False
    return True


def _parse_json(request: Request, text: str, *, repair: bool) -> None:
    """Raise ``ValueError`` if an answer does not have the fields that the request's schema requires."""
    schema: Any = (request.config.response_format or {}).get("schema") or {}
    fields = set(schema.get("required", schema.get("properties", ())))
    found, is_whole = read_object(strip_thinking(text), fields, repair=repair)
    if not is_whole or fields - found.keys():
        raise ValueError("The answer lacks fields.")
