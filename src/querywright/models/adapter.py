"""Convert a DSPy signature to a short prompt, and a JSON answer to fields.

The prompt contains the signature's instructions, the field descriptions, and the inputs. Inputs are treated as data, so
they cannot imitate the prompt's structure or an answer. Answers are JSON, input lines that look like a field name are
indented, and JSON in an input is changed so that it cannot be mistaken for an answer.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal, cast, get_args, get_origin
from weakref import WeakKeyDictionary

import dspy
from dspy.adapters.json_adapter import JSONAdapter
from dspy.adapters.utils import apply_output_field_defaults, parse_value
from dspy.utils.exceptions import AdapterParseError

from querywright.answer_text import find_choice
from querywright.data.types import Passage
from querywright.models.response_parsing import apostrophes, read_object, strip_thinking
from querywright.models.usage import Cost, UnreadableAnswer, surrounded

if TYPE_CHECKING:
    from querywright.models.engine import LMEngine

_QUOTED = 160  # maximum number of characters of an unreadable answer that a message shows
_MARKER = re.compile(r"\[\[\s*##|<\|")
_LINE_END = re.compile("\r\n|[\r\v\f\x1c\x1d\x1e\x85\u2028\u2029]")
_UNSEEN = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
_KINDS = {bool: "true or false", int: "a whole number", float: "a number"}
_LISTS = {(str,): "list of texts", (int,): "list of whole numbers"}
_formats: WeakKeyDictionary[Any, dict[Any, dict[str, Any]]] = WeakKeyDictionary()
"""Response formats by signature and kind of LM, kept because building a format takes longer than a cached call."""


class PromptAdapter(JSONAdapter):
    """Writes prompts and reads JSON answers.

    If an answer cannot be parsed, the request is repeated once with a description of the problem. If the second answer
    cannot be parsed either, an error is raised.

    Args:
        grammar: Whether the LM's output is constrained by a grammar, as with the embedded LM. Such an LM makes choices
            by likelihood and does better if the prompt does not list the allowed values. Requests to the LM include the
            maximum length of each value. The LM cannot write quotation marks in strings, so prompts use single quotes
            instead. An LM whose engine sets ``decides_by_likelihood`` always gets these prompts. Default False.
    """

    def __init__(self, *, grammar: bool = False) -> None:
        super().__init__(use_native_function_calling=False)
        self.grammar = grammar
        self._note = ""

    def __deepcopy__(self, memo: dict[int, Any]) -> PromptAdapter:
        return self

    def __call__(
        self, lm: Any, lm_kwargs: dict[str, Any], signature: Any, demos: list[dict[str, Any]], inputs: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """Call the LM, and return one mapping of output fields per completion."""
        first = self._variant(lm)
        with surrounded(parse=partial(self.parse, signature)):
            try:
                return list(JSONAdapter.__call__(first, lm, dict(lm_kwargs), signature, demos, inputs))
            except AdapterParseError as error:
                again = first._repairing(lm, signature, error)
            with _last_try(lm, signature):
                return list(JSONAdapter.__call__(again, lm, dict(lm_kwargs), signature, demos, inputs))

    async def acall(
        self, lm: Any, lm_kwargs: dict[str, Any], signature: Any, demos: list[dict[str, Any]], inputs: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """Call the LM asynchronously, and return one mapping of output fields per completion."""
        first = self._variant(lm)
        with surrounded(parse=partial(self.parse, signature)):
            try:
                return list(await JSONAdapter.acall(first, lm, dict(lm_kwargs), signature, demos, inputs))
            except AdapterParseError as error:
                again = first._repairing(lm, signature, error)
            with _last_try(lm, signature):
                return list(await JSONAdapter.acall(again, lm, dict(lm_kwargs), signature, demos, inputs))

    def _prepare_response_format(self, lm: Any, lm_kwargs: dict[str, Any], signature: Any) -> None:
        """Request the fields with a schema, which includes maximum lengths for an LM constrained by a grammar."""
        known = _formats.setdefault(signature, {})
        case = (self.grammar, "response_format" in lm.supported_params, lm.supports_response_schema)
        if case not in known:
            made: dict[str, Any] = {}
            super()._prepare_response_format(lm, made, signature)
            schema_of = getattr(made.get("response_format"), "model_json_schema", None)
            if self.grammar and schema_of is not None:
                _limit(schema_of()["properties"], signature)  # the response format shares this mapping
            known[case] = made
        lm_kwargs.update(known[case])

    def format_system_message(self, signature: Any) -> str:
        """Return the instructions and one line per output field."""
        opening = "Fields of the answer:" if self.grammar else "Answer with one JSON object with these fields:"
        fields = [self._field_line(name, field) for name, field in signature.output_fields.items()]
        return "\n".join([textwrap.dedent(signature.instructions).strip(), "", opening, *fields])

    def format_user_message_content(
        self, signature: Any, inputs: Mapping[str, Any], prefix: str = "", suffix: str = "", main_request: bool = False
    ) -> str:
        """Return the inputs, each labeled with its field name; empty inputs are omitted."""
        parts = [prefix]
        key, opening = _frame(tuple(signature.output_fields), tuple(signature.fields))
        for name in signature.input_fields:
            text = self._shown(_framed(_text(inputs.get(name)), key, opening))
            if text:
                parts.append(f"{name}:\n{text}" if "\n" in text else f"{name}: {text.lstrip()}")
        parts += [suffix, self._note if main_request else ""]
        return "\n\n".join(filter(None, parts)) or "(nothing is given)"

    def format_assistant_message_content(
        self, signature: Any, outputs: Mapping[str, Any], missing_field_message: str | None = None
    ) -> str:
        """Return a demonstration's answer as JSON; missing fields are omitted."""
        values = {name: self._shown(outputs[name]) for name in signature.output_fields if name in outputs}
        return json.dumps(values, ensure_ascii=False, default=str)

    def parse(self, signature: Any, completion: str, *, repair: bool = True) -> dict[str, Any]:
        """Return the output fields in an answer.

        Args:
            signature: The signature.
            completion: The answer.
            repair: Whether JSON that is not valid may be repaired. Default True.

        Raises:
            AdapterParseError: The answer has no JSON object with the fields, or has several; a value has the wrong
                type; or the answer ends inside a string. In the error, ``parsed_result`` contains the fields that could
                be parsed, and ``lm_response`` contains the answer without the thinking.
        """
        given: dict[str, Any] = {}
        answer = strip_thinking(_valid(completion)).strip()
        try:
            return _parsed(signature, answer, given, repair=repair)
        except RecursionError:
            problem = "The answer is nested too deep."
        except ValueError as error:
            problem = str(error)
        raise AdapterParseError("PromptAdapter", signature, answer, problem, cast("Any", given))

    def _field_line(self, name: str, field: Any) -> str:
        description = (field.json_schema_extra or {}).get("desc") or ""
        description = "" if description == f"${{{name}}}" else description
        parts = ", ".join(filter(None, (description, self._form(field.annotation))))
        return f"- {name}: {parts}" if parts else f"- {name}"

    def _form(self, annotation: Any) -> str:
        if get_origin(annotation) is Literal:
            values = " | ".join(json.dumps(value, ensure_ascii=False) for value in get_args(annotation))
            return "" if self.grammar else f"one of {values}"
        if get_origin(annotation) is list:
            return _LISTS.get(get_args(annotation), "list")
        return "" if self.grammar else _KINDS.get(annotation, "")

    def _shown(self, value: Any) -> Any:
        """Return a value in a form that the LM can write: the grammar does not allow quotation marks in strings."""
        if not self.grammar:
            return value
        if isinstance(value, str):
            return apostrophes(value)
        return [self._shown(one) for one in value] if isinstance(value, list) else value

    def _variant(self, lm: Any) -> PromptAdapter:
        """Return this adapter, or a grammar adapter if the LM needs one."""
        if not self.grammar and isinstance(lm, dspy.LM) and getattr(lm.engine, "decides_by_likelihood", False):
            return PromptAdapter(grammar=True)
        return self

    def _repairing(self, lm: Any, signature: Any, error: AdapterParseError) -> PromptAdapter:
        """Return an adapter whose prompt also describes the problem, and count the repair in the LM's ledger."""
        if engine := _own_engine(lm):
            engine.ledger.add(Cost(repairs=1))
        names = ", ".join(json.dumps(name) for name in signature.output_fields)
        wrong = error.message.partition("\n\n")[0]
        repairing = PromptAdapter(grammar=self.grammar)
        repairing._note = (
            f"Your last answer could not be read. {wrong} Answer with only the JSON object, nothing before or "
            f"after it, with these fields: {names}."
        )
        return repairing


@contextmanager
def _last_try(lm: Any, signature: Any) -> Iterator[None]:
    """Record an unreadable answer in the LM's ledger: the start of the answer, and the fields that were requested."""
    try:
        yield
    except AdapterParseError as error:
        if engine := _own_engine(lm):
            said = textwrap.shorten(_UNSEEN.sub("", str(error.lm_response or "")), _QUOTED, placeholder=" ...")
            wanted = " and ".join(json.dumps(name) for name in signature.output_fields)
            message = f"{said!r}, but the prompt asked {lm.model} for a JSON object with {wanted}"
            engine.ledger.add(Cost(unreadable=1), UnreadableAnswer(message, engine.limits.max_unreadable))
        raise


def _own_engine(lm: Any) -> LMEngine | None:
    from querywright.models.engine import LMEngine

    engine = getattr(lm, "engine", None)
    return engine if isinstance(engine, LMEngine) else None


def _limit(properties: dict[str, Any], signature: Any) -> None:
    """Add the limits of the fields to a schema.

    The limits are ``max_length`` for a string, ``count`` or ``most`` for a list, ``max_chars`` for a list of strings,
    and ``highest`` for a list of numbers that start at 1.
    """
    for name, field in signature.output_fields.items():
        extra = field.json_schema_extra or {}
        if "count" in extra:
            properties[name].update(minItems=extra["count"], maxItems=extra["count"])
        if "most" in extra:
            properties[name].update(maxItems=extra["most"])
        if "max_chars" in extra:
            properties[name]["items"] = {**properties[name]["items"], "maxLength": extra["max_chars"]}
        if "highest" in extra:
            properties[name]["items"] = {**properties[name]["items"], "minimum": 1, "maximum": extra["highest"]}
        for limit in field.metadata:
            if getattr(limit, "max_length", None) is not None:
                properties[name]["maxLength"] = limit.max_length


def show_passages(passages: Sequence[Passage]) -> str:
    """Return passages as a reader sees them: numbered, best first, each starting on a new line."""
    return "\n".join(f"[{number}] {show_passage(passage)}" for number, passage in enumerate(passages, 1))


def show_passage(passage: Passage) -> str:
    """Return a passage without a number, because small models copy numbers and keep counting.

    A passage from a document keeps its line breaks, for lists, tables, and code. Its lines are indented so that none of
    them looks like the start of a new passage. Any other passage is a single line.
    """
    title = f"{_one_line(passage.title)}: " if passage.title else ""
    lines = passage.text.splitlines()
    if passage.is_of_document and len(lines) > 1:
        return "\n".join([title.rstrip(), *(f"    {line}".rstrip() for line in lines)]).lstrip("\n")
    return f"{title}{_one_line(passage.text)}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)):
        return "\n".join(f"- {_one_line(str(item))}" for item in value)
    return json.dumps(value, ensure_ascii=False, default=str)


@lru_cache(maxsize=256)
def _frame(outputs: tuple[str, ...], fields: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return two patterns: one for the keys in an answer, and one for the first line of each field in a prompt."""
    said, named = ("|".join(map(re.escape, names)) for names in (outputs, fields))
    key = re.compile(rf"""(["'])({said})\1(\s*:)""", re.IGNORECASE)
    return key, re.compile(rf"^(?=(?:{named})\s*:)", re.MULTILINE | re.IGNORECASE)


def _framed(text: str, key: re.Pattern[str], opening: re.Pattern[str]) -> str:
    """Return the text without anything that could be mistaken for prompt structure or an answer."""
    text = _UNSEEN.sub("", _LINE_END.sub("\n", text)).strip()
    text = _MARKER.sub(lambda match: f"{match.group()[0]} {match.group()[1:]}", _valid(text))
    text = key.sub(r"(\2)\3", text)
    return opening.sub("  ", text) if "\n" in text else text


def _valid(text: str) -> str:
    """Return the text as valid Unicode, so that it can be stored and sent.

    A surrogate pair becomes one character; a lone surrogate becomes U+FFFD.
    """
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _parsed(signature: Any, completion: str, given: dict[str, Any], *, repair: bool) -> dict[str, Any]:
    """Return the output fields in an answer, and put the unconverted values in ``given``."""
    names = list(signature.output_fields)
    found, is_whole = read_object(completion, names, repair=repair)
    kept = {name: found[name] for name in names if name in found}
    given |= json.loads(_valid(json.dumps(kept, ensure_ascii=False)))
    if not is_whole:
        raise ValueError("The answer breaks off inside a text.")
    fields = {name: _read(name, value, signature.output_fields[name].annotation) for name, value in given.items()}
    fields = apply_output_field_defaults(signature, fields)
    missing = [name for name in names if name not in fields]
    if missing:
        raise ValueError(f"The answer lacks {', '.join(missing)}.")
    return {name: fields[name] for name in names}


def _read(name: str, value: Any, annotation: Any) -> Any:
    """Convert a value to the field's type; a choice may be spelled differently, see `find_choice`."""
    if annotation is str and value is None:
        return ""
    if annotation is str and not isinstance(value, (str, int, float)):
        raise ValueError(f"The field {name} is no text.")
    if annotation == list[str] and isinstance(value, list) and all(isinstance(one, str) for one in value):
        return value  # the usual case; pydantic would build a new validator
    choices = get_args(annotation) if get_origin(annotation) is Literal else (True, False) if annotation is bool else ()
    if (place := find_choice(value, choices)) is not None:
        value = choices[place]
    try:
        return parse_value(value, annotation)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"The field {name} has a value that is not allowed there.") from error
