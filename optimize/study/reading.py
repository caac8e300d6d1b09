"""Reading and writing a study's file: plain data alone, all that is wrong with it at once, and what differs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from querywright.errors import InputError, unknown
from querywright.files import write_file
from querywright.optimize.study.checking import problems_of
from querywright.optimize.study.spec import BudgetSpec, KnobRange, PromptSpec, SamplerSpec, StudySpec, TechniqueSpec

MOST_BYTES = 1_000_000
_LONGEST = 120
"""Characters of a value that a message shows."""

_MODELS: Mapping[str, type[BaseModel]] = {
    "techniques.*.knobs.*": KnobRange,
    "techniques.*": TechniqueSpec,
    "prompts.*": PromptSpec,
    "sampler": SamplerSpec,
    "budget": BudgetSpec,
    "": StudySpec,
}
_FREE = frozenset({"budget", "threads", "storage", "max_failures", "api_key_env", "trials"})
"""What changes nothing in what a trial finds; trials are looked at by themselves."""


def read_spec(source: Path | str | Mapping[str, Any]) -> StudySpec:
    """A study from its file, checked whole.

    The file is YAML of plain data: texts, numbers, true and false, lists and mappings. ``yes``, ``no``, ``on`` and
    ``off`` are texts, as in YAML 1.2; tags, anchors and a key that stands twice are refused.

    Args:
        source: The file's path, or the same as a mapping.

    Raises:
        InputError: With every problem on a line of its own: where it is, what is there, and what is allowed. What can
            only be told of a study whose parts are sound is told when they are.
    """
    name, data = ("the study", source) if isinstance(source, Mapping) else _loaded(Path(source))
    spec = None
    try:
        spec = StudySpec.model_validate(dict(data))
        problems = problems_of(spec)
    except ValidationError as error:
        problems = _problems(error, data)
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

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        for what in ("tag", "anchor"):
            if getattr(event, what, None) is not None:
                raise yaml.MarkedYAMLError(
                    problem=f"the {what} {getattr(event, what)!r} is not allowed; write the value out",
                    problem_mark=event.start_mark,
                )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: dict[Any, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"{key.value} stands twice, in lines {seen[key.value]} and {line}; keep one",
                    problem_mark=key.start_mark,
                )
            seen[str(key.value)] = line
        return super().construct_mapping(node, deep=deep)


_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^(?:~|null|)$"), ["~", "n", ""])
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|false)$"), ["t", "f"])
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?(?:0|[1-9][0-9]*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$"),
    list("-+.0123456789"),
)


def _loaded(path: Path) -> tuple[str, Mapping[str, Any]]:
    """The name and the data of a file."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise InputError(f"{path.name} has more than {MOST_BYTES:,} bytes; a study's file has a few thousand")
        data = yaml.load(content.decode("utf-8-sig"), Loader=_Loader)
    except FileNotFoundError:
        raise InputError(f"there is no file {path.name!r}; give the path of a study's YAML file") from None
    except OSError as error:
        raise InputError(f"{path.name!r} cannot be read: {error.strerror}; give the path of a YAML file") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path.name} is not UTF-8 (byte {error.start}); save it as UTF-8") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise InputError(f"{path.name}{place}: no YAML here: {getattr(error, 'problem', None) or error}") from None
    except RecursionError:
        raise InputError(f"{path.name} is nested too deep") from None
    except ValueError as error:
        raise InputError(f"{path.name}: a number is too long: {error}") from None
    if not isinstance(data, dict):
        raise InputError(f"{path.name} must be a mapping such as name: my-study, questions: sample, ...")
    return path.name, data


def _problems(error: ValidationError, data: Mapping[str, Any]) -> list[str]:
    """A line for each place that is to blame."""
    found: dict[str, str] = {}
    for one in error.errors(include_url=False, include_context=False):
        kind, said = one["type"], one["msg"][0].lower() + one["msg"][1:]
        missing = [str(one["loc"][-1])] if kind == "missing" else []
        where = ".".join([*_steps(one["loc"], data), *missing])
        if kind == "extra_forbidden":
            parent, _, name = where.rpartition(".")
            model = next(model for form, model in _MODELS.items() if fnmatchcase(parent, form))
            found[where] = f"{where}: {unknown('key', name, model.model_fields)}"
        elif missing:
            found[where] = f"{where}: is missing; give it"
        elif kind == "value_error":
            found[where] = f"{where}: {said.removeprefix('value error, ')}"
        else:
            found[where] = f"{where}: {said}, but got {_shown(one['input'])}"
    return list(found.values())


def _steps(loc: tuple[str | int, ...], data: Any) -> Iterator[str]:
    """The path of an error without the names of the types that were tried."""
    for step in loc:
        inner: Any = data
        inside = isinstance(data, list) and isinstance(step, int) and step < len(data)
        if inside or (isinstance(data, Mapping) and step in data):
            data = inner[step]
            yield str(step)


def spec_differences(old: StudySpec, new: StudySpec) -> list[str]:
    """Why a study cannot be resumed with another specification.

    More trials, another budget, another storage, other threads or another share of failures are no reason.

    Args:
        old: What the study was begun with.
        new: What it is to go on with.

    Returns:
        A line for each difference, such as ``techniques.hcqr.knobs.top_k: [3, 5] became [3, 5, 10]``.
    """
    before, after = ({k: v for k, v in one.to_json().items() if k not in _FREE} for one in (old, new))
    fewer = [f"trials: {old.trials} became {new.trials}; they can only grow"] if new.trials < old.trials else []
    return [*_between(before, after, ""), *fewer]


def _between(old: Any, new: Any, path: str) -> Iterator[str]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys([*old, *new]):
            where = f"{path}.{key}" if path else key
            if key not in old:
                yield f"{where}: was not there, and became {_shown(new[key])}"
            elif key not in new:
                yield f"{where}: {_shown(old[key])} is no longer there"
            else:
                yield from _between(old[key], new[key], where)
        if path in {"techniques", "prompts"} and set(old) == set(new) and list(old) != list(new):
            yield f"{path}: the order {', '.join(old)} became {', '.join(new)}"
    elif old != new or type(old) is not type(new):
        yield f"{path}: {_shown(old)} became {_shown(new)}"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
