"""Handle request parameters that a server does not support.

If a server's error names an unsupported parameter, later requests omit it, and a warning reports it once.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from dspy.lm15 import Config, Request, Response
from dspy.utils.exceptions import LMError, LMInvalidRequestError, LMUnsupportedFeatureError

from querywright.models.usage import Layer, call_context, surrounded

STATUSES = (400, 422)
"""HTTP statuses of errors that may name an unsupported parameter."""
_LENGTHS = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
"""Two names for the same limit. If a server does not support one name, requests use the other name."""
_FIELDS = {"max_completion_tokens": "max_tokens", "top_logprobs": "logprobs", "reasoning_effort": "reasoning"}
"""Parameters that have a different name in a request's configuration."""
_PATTERNS = {"response_format": "response[_ ]format|json[_ ]schema|structured[_ ]outputs?"}
"""Regular expressions that find a parameter in an error that describes it instead of naming it."""
_STREAM = ("stream", "stream_options")
"""Parameters that request streaming. Without them, the answer arrives all at once."""
_OPTIONAL = {
    "seed", "temperature", "top_p", "top_k", "min_p", "stop", "response_format", "logprobs", "logit_bias",
    "frequency_penalty", "presence_penalty", "repetition_penalty", *_LENGTHS, *_FIELDS, *_STREAM,
}  # fmt: skip
"""Parameters that a request can omit."""

_TEXTS = ("code", "type", "param", "loc", "message", "msg", "detail", "details", "error", "errors")
"""Keys in an error's JSON that describe the error. Other keys may repeat the request, which can contain any word."""
_SENTENCE_END = re.compile(r"[.;]\s|\n")
_REFUSAL = re.compile(
    r"(?i)un(?:supported|recogni[sz]ed|known|expected|available)|deprecated|forbidden|extraneous"
    r"|extra[_ ](?:fields|inputs)"
    r"|(?:\bnot|n't|\bno longer) (?:\w+ )?(?:support|allow|permit|accept|recogni[sz]e|available|valid)"
    r"|\bonly\b.{0,30}\b(?:allowed|supported|accepted)|\bmay only\b|\bcannot (?:be|both)\b"
)
_WRONG_VALUE = re.compile(r"(?i)\b(?:must|should|invalid|positive|greater)")
_TOO_LONG = re.compile(r"(?i)too (?:large|many|high|long)|exceed|maximum|at most|at least|(?:less|more|greater) than")

_logger = logging.getLogger(__name__)


class UnsupportedParameter(NamedTuple):
    """A parameter that a server does not support.

    Args:
        name: Name of the parameter in requests.
        value: The unsupported value; None if no value is supported.
    """

    name: str
    value: Any = None


@cache
def unsupported_by(identity: str) -> set[UnsupportedParameter]:
    """Return the parameters that a model's server is known not to support, as a set that callers add to."""
    return set()


class ParameterLayer:
    """Repeats a request without the parameter named in a server's error, and omits the parameter from then on.

    A parameter counts as unsupported when a request without it succeeds.

    Args:
        inner: Next layer; sends one request.
        identity: Name of the model and its server.
        always: Parameters to omit from every request. Default: none.
        kept: Names of parameters that are never omitted. Default: none.
    """

    def __init__(
        self, inner: Layer, identity: str, always: Collection[UnsupportedParameter] = (), kept: Collection[str] = ()
    ) -> None:
        self._inner, self._identity, self._always, self._kept = inner, identity, always, kept
        self._known = unsupported_by(identity)

    def complete(self, request: Request) -> Response:
        """Return the answer to a request without the parameters that the server does not support."""
        left_out = {one for one in self._known if one.name not in self._kept}.union(self._always)
        while True:
            sent = _without(request, left_out)
            ear = None if {name for name, _ in left_out}.intersection(_STREAM) else call_context().ear
            try:
                with surrounded(ear=ear):
                    response = self._inner.complete(sent)
            except LMError as error:
                found = _unsupported(error, sent.config)
                if found is None or found in left_out:
                    raise
                if found.name in self._kept:
                    raise LMInvalidRequestError(
                        f"{error.message.rstrip('.')}. With structured='on', every request has a JSON schema; use auto "
                        "or off for a server that does not support one",
                        status=error.status,
                    ) from error
                left_out.add(found)
            else:
                for one in left_out.difference(self._always):
                    if one in self._known:
                        continue
                    self._known.add(one)  # before the warning, because another thread may get here at the same time
                    _logger.warning("%s does not support %s", self._identity, _report(one, left_out))
                return response


def unsupported_notes(identity: str) -> list[str]:
    """Return a line for each parameter that the model's server does not support."""
    known = unsupported_by(identity)
    return [f"the LM server does not support {_report(one, known)}" for one in sorted(known.copy(), key=str)]


def unsupported_name(text: str, names: Collection[str]) -> tuple[str, bool] | None:
    """Return the unsupported parameter in an error, and whether only its value is unsupported; None if there is none.

    Args:
        text: Text of the error message.
        names: Names of the request's parameters.
    """
    names = _OPTIONAL.intersection(names)
    for sentence in _SENTENCE_END.split(text):
        is_refused = _REFUSAL.search(sentence)
        if is_refused or _WRONG_VALUE.search(sentence):
            patterns = {name: rf"(?i)\b(?:{_PATTERNS.get(name, name)})\b" for name in names}
            said = [(match.start(), name) for name in names if (match := re.search(patterns[name], sentence))]
            name = min(said)[1] if said else ""
            # Programs choose temperatures, seeds, and formats, so they may be omitted. A limit that is too high must be
            # lowered by the user.
            if name in _LENGTHS and _TOO_LONG.search(sentence):
                continue
            if name and (is_refused or name in ("temperature", "seed", "response_format")):
                return name, not is_refused and name == "temperature"
    return None


def complaints(body: str) -> Iterator[str]:
    """Yield the messages in a server's error: one per JSON object, or the whole text if it is not JSON."""
    try:
        data = json.loads(body)
    except ValueError:
        data = body
    waiting = [data]
    while waiting:
        one = waiting.pop(0)
        values = [one[key] for key in _TEXTS if key in one] if isinstance(one, dict) else [one]
        said = []
        for value in values:
            items = value if isinstance(value, list) else [value]
            said += [item for item in items if isinstance(item, str)]
            waiting += [item for item in items if isinstance(item, dict)]
        if said:
            yield ": ".join(said)


def _unsupported(error: LMError, config: Config) -> UnsupportedParameter | None:
    """Return the request parameter that an error reports as unsupported."""
    if error.status not in STATUSES and not isinstance(error, LMUnsupportedFeatureError):
        return None
    names = [name for name in _OPTIONAL if _value(config, name) not in (None, ())]
    if call_context().ear is not None:
        names += _STREAM
    found = unsupported_name(error.message, names)
    return found and UnsupportedParameter(found[0], _value(config, found[0]) if found[1] else None)


def _value(config: Config, name: str) -> Any:
    return (config.extensions or {}).get(name, getattr(config, _FIELDS.get(name, name), None))


def _without(request: Request, left_out: Collection[UnsupportedParameter]) -> Request:
    """Return the request without the parameters. If one name for the token limit is left out, use the other name."""
    config = request.config
    names = {name for name, value in left_out if value is None or value == _value(config, name)}
    fields = {_FIELDS.get(name, name) for name in names}
    changes = {name: getattr(Config(), name) for name in fields if hasattr(config, name)}
    extensions = {name: value for name, value in (config.extensions or {}).items() if name not in names}
    if len(lengths := names.intersection(_LENGTHS)) == 1 and config.max_tokens is not None:
        extensions[_LENGTHS[lengths.pop()]] = config.max_tokens
    return replace(request, config=replace(config, **changes, extensions=extensions or None))


def _report(one: UnsupportedParameter, left_out: Collection[UnsupportedParameter]) -> str:
    if one.value is not None:
        return f"{one.name}={one.value}; requests omit it"
    other = _LENGTHS.get(one.name)
    if other and UnsupportedParameter(other) not in left_out:
        return f"{one.name}; requests use {other} instead"
    return f"{one.name}; requests omit it"
