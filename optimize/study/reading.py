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
from querywright.metrics.dspy_metrics import needs
from querywright.optimize.objectives import objective_named
from querywright.optimize.study.space import (
    domain_for,
    engines_of,
    knobs_of,
    lacking,
    late_trials_of,
    nearest,
    predictors_of,
    variants_of,
)
from querywright.optimize.study.spec import (
    PLAIN,
    BudgetSpec,
    KnobRange,
    PromptSpec,
    SamplerSpec,
    StudySpec,
    TechniqueSpec,
)
from querywright.programs import technique_class
from querywright.programs.hyperparameters import Knob

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
        InputError: With every problem on a line of its own: where it is, what is there, and what is allowed. What can
            only be told of a study whose parts are sound is told when they are.
    """
    name, data = ("the study", source) if isinstance(source, Mapping) else _loaded(Path(source))
    spec = None
    try:
        spec = StudySpec.model_validate(dict(data))
        problems = list(_misfits(spec)) or list(_of_trials(spec))
    except ValidationError as error:
        problems = _problems(error, data)
    if problems or spec is None:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise InputError(f"{name} has {count}; nothing was begun:\n" + "\n".join(f"- {one}" for one in problems))
    return spec


def spec_text(spec: StudySpec) -> str:
    """A study as the YAML that ``read_spec`` reads, every default filled in, always the same for the same study."""
    return yaml.safe_dump(spec.to_json(), sort_keys=False, allow_unicode=True, width=100)


def write_spec(spec: StudySpec, path: Path) -> None:
    """Write a study so that the file is the old one or the new one at every moment."""
    write_file(path, spec_text(spec))


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
            said = unknown("key", name, model.model_fields)
        elif missing:
            said = "is missing; give it"
        elif kind != "value_error":
            said = f"{said}, but got {_shown(one['input'])}"
        found[where] = f"{where}: {said.removeprefix('value error, ')}"
    return list(found.values())


def _steps(loc: tuple[str | int, ...], data: Any) -> Iterator[str]:
    """The path of an error without the names of the types that were tried."""
    place: Any = data
    for step in loc:
        try:
            place = place[step]
        except (LookupError, TypeError):
            continue
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


def _misfits(spec: StudySpec) -> Iterator[str]:
    """What does not fit together in a study whose parts are sound, each with where it stands."""
    declared = {name: knobs_of(name) for name in spec.techniques}
    yield from _of_fixed(spec, declared)
    yield from _of_prompts(spec)
    for place, objective in enumerate(map(objective_named, spec.objectives)):
        if spec.reader == "none" and any("reader" in needs(metric) for metric in objective.metrics):
            yield f"objectives.{place}: {objective.name} needs a reader, but reader is none"
        if place == 0 and not objective.metrics:
            yield f"objectives.0: the first decides and must be one of quality, but got {objective.name!r}"
    if len(spec.objectives) > 1 and spec.sampler.name == "cmaes":
        yield "sampler.name: cmaes has one objective; take tpe or nsga2"
    for name, knobs in declared.items():
        yield from _of_technique(spec, name, knobs)
    if spec.writers and not any(technique_class(name).LM_STAGES for name in spec.techniques):
        yield f"writers: none of the techniques ({', '.join(spec.techniques)}) asks an LM; leave them out, or add one"
    names = [one.name for one in spec.writers]
    yield from (f"writers: {one!r} is named twice" for one in dict.fromkeys(names) if names.count(one) > 1)


def _of_fixed(spec: StudySpec, declared: Mapping[str, Mapping[str, Knob]]) -> Iterator[str]:
    for key, value in spec.fixed.items():
        having = {name: knobs[key] for name, knobs in declared.items() if key in knobs}
        if not having:
            every = dict.fromkeys(key for knobs in declared.values() for key in knobs)
            yield f"fixed.{key}: {unknown('knob of these techniques', key, every)}"
        try:
            for name, knob in having.items():
                if knob.check(value) != knob.default and name == PLAIN and key != "max_passages":
                    yield f"fixed.{key}: no rewriting ({key}={knob.default}) is always an arm; leave it out"
        except InputError as error:
            yield f"fixed.{key}: {error}"


def _of_technique(spec: StudySpec, name: str, declared: Mapping[str, Knob]) -> Iterator[str]:
    asked, technique, engines = spec.techniques[name], technique_class(name), engines_of(spec, name)
    for engine in asked.engines or ():
        if technique.ENGINE is not None and engine != technique.ENGINE:
            rule = f"{technique.ENGINE}, the only one that {name} searches with"
        elif technique.ENGINE is None and technique.NEEDS_VECTORS and engine != "dense":
            rule = f"dense, for {name} searches with vectors of its own"
        else:
            continue
        yield f"techniques.{name}.engines: must be {rule}, but got {engine!r}"
    for key, value in asked.knobs.items():
        where = f"techniques.{name}.knobs.{key}"
        if key not in declared:
            yield f"{where}: {unknown(f'knob of {name}', key, declared)}"
            continue
        if key in spec.fixed:
            more = "; for another budget write fixed: {}" if key == "max_passages" else ""
            yield f"{where}: stands under fixed as well ({spec.fixed[key]!r}); give it in one place{more}"
        default = declared[key].default
        try:
            domain = domain_for(declared[key], value)
            if name == PLAIN and key != "max_passages" and nearest(domain, default) != default:
                yield f"{where}: no rewriting ({key}={default}) is always an arm; add that value"
        except InputError as error:
            yield f"{where}: {error}"
    gate = asked.knobs.get("gate", spec.fixed.get("gate", "off"))
    lexical = [engine for engine in engines if engine not in {"dense", "questions"}]
    if "gate" in declared and lexical and set(gate if isinstance(gate, list) else [gate]) != {"off"}:
        yield (
            f"techniques.{name}.knobs.gate: looks at cosine similarities, which {', '.join(lexical)} does not give; "
            "take dense alone, or gate: off"
        )
    for key in asked.prompts or ():
        where, prompt = f"techniques.{name}.prompts", spec.prompts.get(key)
        if prompt is None:
            yield f"{where}: {unknown('prompt', key, spec.prompts)}"
        elif prompt.last:
            yield f"{where}: {key!r} is tried at the end, whatever the technique; leave it out here"
        elif (reason := lacking(spec, name, prompt)) is not None:
            yield f"{where}: {key!r} cannot be made for it: {reason}"


def _of_prompts(spec: StudySpec) -> Iterator[str]:
    known = list(dict.fromkeys(key for name in spec.techniques for key in predictors_of(spec, name)))
    for key, prompt in spec.prompts.items():
        at = f"prompts.{key}"
        bad = [one for one in prompt.instructions if one not in known]
        yield from (f"{at}.instructions.{one}: {unknown('predictor', one, known)}" for one in bad)
        if prompt.part == "reader" and not prompt.last and not spec.reads:
            yield f"{at}.part: tunes the reader, but no objective reads; add accuracy, or say last: true"
        if prompt.metric is not None and spec.reader == "none" and "reader" in needs(prompt.metric):
            yield f"{at}.metric: {prompt.metric} needs a reader, but reader is none"
        if prompt.last and spec.reader == "none":
            yield f"{at}.last: tunes the reader, but reader is none"
        reasons = [lacking(spec, name, prompt) for name in spec.techniques]
        if not bad and all(reasons):
            yield f"{at}: can be made for none of the techniques: {reasons[-1]}"


def _of_trials(spec: StudySpec) -> Iterator[str]:
    """Whether the trials suffice, where all else is sound."""
    count, late = len(spec.techniques), late_trials_of(spec)
    if spec.each_prompt:
        count += sum(len(variants_of(spec, name)[0]) - 1 for name in spec.techniques)
    if late >= spec.trials:
        yield f"late_trials: must be fewer than trials ({spec.trials}), but got {late}"
    elif spec.trials - late < count:
        first = "techniques and prompts" if spec.each_prompt else "techniques"
        yield (
            f"trials: must be {count + late} or more, for {count} {first} are tried as written first, no rewriting "
            f"among them, and {late} trials are late, but got {spec.trials}"
        )
