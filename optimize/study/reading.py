"""Reading and writing a study's file: plain data alone, all that is wrong with it at once, and what differs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from querywright.errors import InputError
from querywright.files import write_file
from querywright.optimize.search.checks import read_search, shortened
from querywright.optimize.study.spec import StudySpec
from querywright.programs import technique_class

_FREE = frozenset(
    {"budget", "threads", "storage", "max_failures", "max_unreadable", "deadline", "timeout", "api_key_env", "trials"}
)
"""What changes nothing in what a trial finds; trials are looked at by themselves."""


def read_spec(source: Path | str | Mapping[str, Any]) -> StudySpec:
    """A study from its file, checked whole.

    The file is YAML of plain data: texts, numbers, true and false, lists and mappings. ``yes``, ``no``, ``on`` and
    ``off`` are texts, as in YAML 1.2; a key that stands twice is refused.

    Args:
        source: The file's path, or the same as a mapping.

    Raises:
        InputError: With every problem on a line of its own, as ``read_search`` reports them.
    """
    name, data = ("the study", source) if isinstance(source, Mapping) else _loaded(Path(source))
    return read_search(StudySpec, data, name, _of_writers)


def spec_text(spec: StudySpec) -> str:
    """A study as the YAML that ``read_spec`` reads, every default filled in, always the same for the same study."""
    return yaml.safe_dump(spec.to_json(), sort_keys=False, allow_unicode=True, width=100)


def write_spec(spec: StudySpec, path: Path) -> None:
    """Write a study so that the file is the old one or the new one at every moment."""
    write_file(path, spec_text(spec))


def _of_writers(spec: StudySpec) -> Iterator[str]:
    if spec.writers and not any(technique_class(name).LM_STAGES for name in spec.techniques):
        yield f"writers: none of the techniques ({', '.join(spec.techniques)}) asks an LM; leave them out, or add one"
    names = [one.name for one in spec.writers]
    yield from (f"writers: {one!r} is named twice" for one in dict.fromkeys(names) if names.count(one) > 1)


class _Loader(yaml.SafeLoader):
    """The words of YAML 1.2: ``off`` is a text and 1e-3 a number; no key stands twice."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: dict[Any, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if key.value in seen:
                problem = f"{key.value} stands twice, in lines {seen[key.value]} and {line}; keep one"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen[str(key.value)] = line
        return super().construct_mapping(node, deep=deep)


for _kind, _form, _first in (
    ("null", r"~|null|", "~n"),
    ("bool", r"true|false", "tf"),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    ("float", r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
):
    _starts = [*_first, *([""] if _kind == "null" else [])]
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(f"^(?:{_form})$"), _starts)


def _loaded(path: Path) -> tuple[str, Mapping[str, Any]]:
    """The name and the data of a file."""
    try:
        data = yaml.load(path.read_text("utf-8-sig"), Loader=_Loader)
    except OSError as error:
        raise InputError(f"{path.name!r} cannot be read: {error.strerror}; give the path of a YAML file") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise InputError(f"{path.name}{place}: no YAML here: {getattr(error, 'problem', None) or error}") from None
    if not isinstance(data, dict):
        raise InputError(f"{path.name} must be a mapping such as name: my-study, questions: sample, ...")
    return path.name, data


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
                yield f"{where}: was not there, and became {shortened(new[key])}"
            elif key not in new:
                yield f"{where}: {shortened(old[key])} is no longer there"
            else:
                yield from _between(old[key], new[key], where)
        if path in {"techniques", "prompts"} and set(old) == set(new) and list(old) != list(new):
            yield f"{path}: the order {', '.join(old)} became {', '.join(new)}"
    elif old != new or type(old) is not type(new):
        yield f"{path}: {shortened(old)} became {shortened(new)}"
