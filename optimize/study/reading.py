"""Reading a study's file: all that is wrong with it at once, and nothing in it that is more than data."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ValidationError

from querywright.errors import InputError
from querywright.files import write_file
from querywright.optimize.study.checking import check_spec, check_storage, problems_of
from querywright.optimize.study.differences import spec_differences
from querywright.optimize.study.spec import (
    BudgetSpec,
    KnobRange,
    PromptSpec,
    SamplerSpec,
    StudySpec,
    TechniqueSpec,
)

MOST_BYTES = 1_000_000
_ROUNDS = 4
_DEEPEST = 30

_FIELDS: tuple[tuple[str, type[BaseModel]], ...] = (
    (r"", StudySpec),
    (r"techniques\.[^.]*", TechniqueSpec),
    (r"techniques\.[^.]*\.knobs\..*", KnobRange),
    (r"prompts\.[^.]*", PromptSpec),
    (r"sampler", SamplerSpec),
    (r"budget", BudgetSpec),
)
_KNOB = re.compile(r"techniques\.[^.]+\.knobs\.[^.]+")
_LONGEST = 60
_STAND_INS: Mapping[str, Any] = {"name": "study", "questions": "-", "collection": "-", "techniques": {"plain": {}}}


def read_spec(source: Path | str | Mapping[str, Any]) -> StudySpec:
    """A study from its file, checked whole.

    The file is YAML of plain data: texts, numbers, true and false, lists and mappings. ``yes``, ``no``, ``on`` and
    ``off`` are texts, as in YAML 1.2; tags, anchors and a key that stands twice are refused.

    Args:
        source: The file's path, or the same as a mapping.

    Raises:
        InputError: With every problem on a line of its own: where it is, what is there, and what is allowed.
    """
    name = "the study" if isinstance(source, Mapping) else Path(source).name
    problems: list[str] = []
    data = dict(source) if isinstance(source, Mapping) else _parsed(Path(source), problems)
    spec = None
    if not problems:
        problems += _impossible(data)
    if not problems:
        spec, problems = _validated(data)
        problems += _secrets(data)
    if spec is not None:
        problems += problems_of(spec)
    if problems or spec is None:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise InputError(f"{name} has {count}; nothing was begun:\n" + "\n".join(f"- {one}" for one in problems))
    return spec


def spec_text(spec: StudySpec) -> str:
    """A study as the YAML that ``read_spec`` reads, every default filled in, always the same for the same study."""
    return str(yaml.dump(spec.to_json(), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100))


def write_spec(spec: StudySpec, path: Path) -> None:
    """Write a study so that the file is the old one or the new one at every moment."""
    write_file(path, spec_text(spec).encode())


class _Dumper(yaml.SafeDumper):
    """Writes a value out each time: an anchor would not be read again."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


class _Loader(yaml.SafeLoader):
    """Plain data alone, in the words of YAML 1.2: ``off`` is a text and 1e-3 a number."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's


_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^(?:~|null|)$"), ["~", "n", ""])
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|false)$"), ["t", "f"])
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?(?:0|[1-9][0-9]*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$"),
    list("-+.0123456789"),
)


def _parsed(path: Path, problems: list[str]) -> dict[str, Any]:
    """The data of a file; what is wrong with its form is added to the problems."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        text = content.decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"there is no file {path.name!r}; give the path of a study's YAML file") from None
    except OSError as error:
        raise InputError(f"{path.name!r} cannot be read: {error.strerror}; give the path of a YAML file") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path.name} is not UTF-8 (byte {error.start}); save it as UTF-8") from None
    if len(content) > MOST_BYTES:
        raise InputError(f"{path.name} has more than {MOST_BYTES:,} bytes; a study's file has a few thousand")
    try:
        depth = 0
        for event in yaml.parse(text, Loader=_Loader):
            problems += _forbidden(event)
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST:
                line = 0 if event.start_mark is None else event.start_mark.line + 1
                raise InputError(f"{path.name} is nested too deep (line {line})")
        if problems:
            return {}
        node = yaml.compose(text, Loader=_Loader)
        if not isinstance(node, yaml.MappingNode):
            raise InputError(f"{path.name} must be a mapping such as name: my-study, questions: sample, ...")
        problems += _twice(node, "")
        data = None if problems else yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise InputError(f"{path.name}{place}: no YAML: {getattr(error, 'problem', None) or error}") from None
    except ValueError as error:
        raise InputError(f"{path.name}: a number is too long: {error}") from None
    return data or {}


def _forbidden(event: Any) -> list[str]:
    """Tags and anchors, which are more than data."""
    line = f"line {event.start_mark.line + 1}"
    found = []
    if getattr(event, "tag", None) is not None:
        found.append(f"{line}: the tag {str(event.tag)[:_LONGEST]!r} is not allowed; write the value without a tag")
    if getattr(event, "anchor", None) is not None:
        found.append(f"{line}: the anchor {str(event.anchor)[:_LONGEST]!r} is not allowed; write the value out")
    return found


def _twice(node: Any, path: str) -> list[str]:
    """Keys that stand twice in a mapping, wherever it is."""
    found: list[str] = []
    if isinstance(node, yaml.SequenceNode):
        for place, one in enumerate(node.value):
            found += _twice(one, _join(path, place))
    elif isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else "?"
            line = key.start_mark.line + 1
            if name in seen:
                found.append(f"{_join(path, name)}: stands twice, in lines {seen[name]} and {line}; keep one")
            seen.setdefault(name, line)
            found += _twice(value, _join(path, name))
    return found


def _impossible(value: Any, path: str = "") -> list[str]:
    """Keys that are no texts and values that JSON has not."""
    if isinstance(value, Mapping):
        found = [f"{_join(path, key)}: a key must be a text, but got {key!r}" for key in value if type(key) is not str]
        return found + [one for key, inner in value.items() for one in _impossible(inner, _join(path, key))]
    if isinstance(value, (list, tuple)):
        return [one for place, inner in enumerate(value) for one in _impossible(inner, _join(path, place))]
    if isinstance(value, float) and not math.isfinite(value):
        return [f"{path}: must be a finite number, but got {value!r}"]
    if value is None or isinstance(value, (str, int, float, bool)):
        return []
    return [f"{path}: must be a text, a number, true, false, a list or a mapping, but got {type(value).__name__}"]


def _validated(data: Mapping[str, Any]) -> tuple[StudySpec | None, list[str]]:
    """The study, or what of it could be read, and what is wrong with its types."""
    problems: list[str] = []
    rest = json.loads(json.dumps(data))
    for _ in range(_ROUNDS):  # without what is wrong, the rest is looked at as well
        try:
            return StudySpec.model_validate_json(json.dumps(rest), strict=True), problems
        except ValidationError as error:
            found = _found(error, rest)
            problems += [one for one in found.values() if one not in problems]
            for path in found:
                _mend(rest, path)
    return None, problems


def _found(error: ValidationError, data: Any) -> dict[tuple[str | int, ...], str]:
    """The problems by the path of what is to blame, each once."""
    found: dict[tuple[str | int, ...], str] = {}
    for one in error.errors(include_url=False, include_context=False):
        path, value = _real(one["loc"], data)
        if one["type"] == "missing":
            path = (*path, one["loc"][-1])
        where = ".".join(map(str, path))
        knob, is_range = _KNOB.match(where), isinstance(value, Mapping)
        if knob and not (is_range or "KnobRange" in one["loc"]):
            found[path] = f"{where}: must be a value, a list of values or a range (low, high), but got {_shown(value)}"
        elif knob and "KnobRange" not in one["loc"]:
            continue  # what is said of the range tells more
        elif one["type"] == "extra_forbidden":
            found[path] = _unknown_key(path)
        elif one["type"] == "missing":
            found[path] = f"{where}: is missing; give it"
        elif path == ("reader",):
            found[path] = f"reader: must be a name or a list of names, but got {_shown(value)}"
        else:
            said = one["msg"][0].lower() + one["msg"][1:]
            found[path] = f"{where}: {said}, but got {_shown(value)}"
    return found


def _real(loc: tuple[str | int, ...], data: Any) -> tuple[tuple[str | int, ...], Any]:
    """The path of an error without the names of types that were tried, and what is there."""
    path: list[str | int] = []
    step: Any
    for step in loc:
        inside = isinstance(data, list) and isinstance(step, int) and 0 <= step < len(data)
        if inside or (isinstance(data, Mapping) and step in data):
            data = data[step]
            path.append(step)
    return tuple(path), data


def _mend(data: Any, path: tuple[str | int, ...]) -> None:
    """Take what is wrong out of the data, and put something in the place of what a study cannot do without."""
    *above, last = path
    if _KNOB.match(".".join(map(str, path))):  # a range that lacks an end is no range
        above, last = list(path[:3]), path[3]
    for step in above:
        if isinstance(data, list) or step not in data:
            return  # what is above is out already
        data = data[step]
    if isinstance(data, list):
        data.clear()
        return
    data.pop(last, None)
    if not above and last in _STAND_INS:
        data[str(last)] = _STAND_INS[str(last)]


def _unknown_key(path: tuple[str | int, ...]) -> str:
    parent, name = ".".join(map(str, path[:-1])), str(path[-1])
    known = next((list(model.model_fields) for form, model in _FIELDS if re.fullmatch(form, parent)), [])
    near = difflib.get_close_matches(name, known, 1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return f"{_join(parent, name)}: unknown key{hint}; there are: {', '.join(known)}"


def _secrets(data: Mapping[str, Any]) -> list[str]:
    """Addresses with a password: a study's file is copied, shown and kept."""
    found = []
    remedies = {
        "storage": "give it with --storage, or keep it where PostgreSQL looks for it",
        "api_base": "see api_key_env",
    }
    for key, remedy in remedies.items():
        try:
            address = urlsplit(str(data.get(key) or ""))
            if address.password:
                found.append(f"{key}: holds a password, which no study's file may; {remedy}")
            elif address.query:
                found.append(f"{key}: has settings after a question mark, which may hold a key; {remedy}")
        except ValueError:
            continue
    return found


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _join(path: str, step: object) -> str:
    return f"{path}.{step}" if path else str(step)


__all__ = ["check_spec", "check_storage", "read_spec", "spec_differences", "spec_text", "write_spec"]
