"""Check a search before it starts, and report all problems at once, each with its location."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from querywright.errors import InputError, unknown
from querywright.metrics.dspy_metrics import needs
from querywright.optimize.search.space import (
    domain_for,
    engines_of,
    knobs_of,
    lacking,
    nearest,
    predictors_of,
    variants_of,
)
from querywright.optimize.search.spec import (
    PLAIN,
    STORED,
    BudgetSpec,
    KnobRange,
    PromptSpec,
    SamplerSpec,
    SearchSpec,
    TechniqueSpec,
)
from querywright.programs import technique_class
from querywright.programs.base import MAX_PASSAGES
from querywright.programs.hyperparameters import Knob
from querywright.retrieval.checks import TO_LABEL
from querywright.retrieval.engines import ENGINES, VECTOR

_LONGEST = 120
"""Maximum length of a value in a message, in characters."""

_MODELS: Mapping[str, type[BaseModel]] = {
    "techniques.*.knobs.*": KnobRange,
    "techniques.*": TechniqueSpec,
    "prompts.*": PromptSpec,
    "sampler": SamplerSpec,
    "budget": BudgetSpec,
}

_SEARCH = "; 'all' searches every searchable knob of the technique, 'named' only the knobs with values under knobs"

Spec = TypeVar("Spec", bound=SearchSpec)


def read_search(
    model: type[Spec],
    data: Mapping[str, Any],
    name: str,
    more: Callable[[Spec], Iterator[str]] = lambda _: iter(()),
    *,
    stored: bool = False,
) -> Spec:
    """Validate plain data and return a search.

    Args:
        model: ``SearchSpec``, or a subclass.
        data: The data.
        name: The name of the search in errors.
        more: Returns additional problems in a search whose parts are valid.
        stored: Whether the search was checked before and is only shown. If true, the techniques and metrics in the
            user's code are not needed, and conflicts between parts are not checked. Default False.

    Raises:
        InputError: The search has problems. Each line gives a location, a value, and a rule. Conflicts between parts
            are reported only if every part is valid.
    """
    spec = None
    try:
        spec = model.model_validate(dict(data), context={STORED: stored})
        problems = [] if stored else [*_misfits(spec), *more(spec)] or list(_of_trials(spec))
    except ValidationError as error:
        problems = _problems(error, data, model)
    if problems or spec is None:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise InputError(f"{name} has {count}; nothing was started:\n" + "\n".join(f"- {one}" for one in problems))
    return spec


def _problems(error: ValidationError, data: Mapping[str, Any], whole: type[BaseModel]) -> list[str]:
    """Return one line for each location that has a problem."""
    found: dict[str, str] = {}
    for one in error.errors(include_url=False, include_context=False):
        kind, said = one["type"], one["msg"][0].lower() + one["msg"][1:]
        missing = [str(one["loc"][-1])] if kind == "missing" else []
        where = ".".join([*_steps(one["loc"], data), *missing])
        if kind == "extra_forbidden":
            parent, _, name = where.rpartition(".")
            model = next((model for form, model in _MODELS.items() if fnmatchcase(parent, form)), whole)
            said = unknown("key", name, model.model_fields)
        elif missing:
            said = "is missing; add this key"
        elif kind != "value_error":
            meaning = _SEARCH if fnmatchcase(where, "techniques.*.search") else ""
            said = f"{said}, but got {shortened(one['input'])}{meaning}"
        found[where] = f"{where}: {said.removeprefix('value error, ')}"
    return list(found.values())


def _steps(loc: tuple[str | int, ...], data: Any) -> Iterator[str]:
    """Return the path to an error, without the names of the types that pydantic tried."""
    place: Any = data
    for step in loc:
        try:
            place = place[step]
        except (LookupError, TypeError):
            continue
        yield str(step)


def shortened(value: Any) -> str:
    """Return a value as JSON that is short enough for a message."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _misfits(spec: SearchSpec) -> Iterator[str]:
    """Return the conflicts between parts of a search, each with its location."""
    declared = {name: knobs_of(name) for name in spec.techniques}
    known: dict[str, str] = {}
    for name in declared:
        if (first := known.setdefault(technique_class(name).NAME, name)) != name:
            yield f"techniques.{name}: this technique was passed twice, also as {first}; remove one"
    yield from _of_fixed(spec, declared)
    yield from _of_prompts(spec)
    for place, objective in enumerate(spec.aims):
        if spec.reader == "none" and any("reader" in needs(metric) for metric in objective.metrics):
            yield f"objectives.{place}: {objective.name} requires a reader, but reader is none" + (
                f"; choose a reader, or label the passages ({TO_LABEL}) and measure decision_useful" * (not place)
            )
        if place == 0 and not objective.metrics:
            yield f"objectives.0: the first objective must be a quality metric, but got {objective.name!r}"
    if len(spec.objectives) > 1 and spec.sampler.name == "cmaes":
        yield "sampler.name: cmaes supports only one objective; use tpe or nsga2"
    for name, knobs in declared.items():
        yield from _of_technique(spec, name, knobs)


def _of_fixed(spec: SearchSpec, declared: Mapping[str, Mapping[str, Knob]]) -> Iterator[str]:
    for key, value in spec.fixed.items():
        having = {name: knobs[key] for name, knobs in declared.items() if key in knobs}
        if not having:
            every = dict.fromkeys(key for knobs in declared.values() for key in knobs)
            yield f"fixed.{key}: {unknown('knob of these techniques', key, every)}"
        try:
            for name, knob in having.items():
                if knob.check(value) != knob.default and name == PLAIN and key != "max_passages":
                    yield f"fixed.{key}: the baseline requires {key}={knob.default}; remove this knob"
        except InputError as error:
            yield f"fixed.{key}: {error}"


def _of_technique(spec: SearchSpec, name: str, declared: Mapping[str, Knob]) -> Iterator[str]:
    asked, technique, engines = spec.techniques[name], technique_class(name), engines_of(spec, name)
    for place, engine in enumerate(engines):
        if engine not in {*spec.retrievers, *ENGINES}:
            line = f"techniques.{name}.engines.{place}: {unknown('engine', engine, [*spec.retrievers, *ENGINES])}"
            yield line + "; under retrievers, name a collection with its engine, NAME: COLLECTION@ENGINE" * (
                "@" in engine
            )
            continue
        searched = spec.engine_of(engine)
        if engine in spec.retrievers and searched == "dense":  # may be any retriever from Python
            continue
        if technique.ENGINE is not None and searched != technique.ENGINE:
            rule = f"the engine must be {technique.ENGINE}, the only engine that {name} can search with"
        elif technique.NEEDS_VECTORS and searched not in VECTOR:
            rule = f"the engine must be dense or questions, because {name} searches with vectors"
        else:
            continue
        yield f"techniques.{name}.engines: got {engine!r}, but {rule}"
    for key, value in asked.knobs.items():
        where = f"techniques.{name}.knobs.{key}"
        if key not in declared:
            yield f"{where}: {unknown(f'knob of {name}', key, declared)}"
            continue
        if key in spec.fixed and key != MAX_PASSAGES.name:  # a technique may have its own budget
            yield f"{where}: this knob is also set under fixed ({spec.fixed[key]!r}); set the knob in only one place"
        default = declared[key].default
        try:
            domain = domain_for(declared[key], value)
            if name == PLAIN and key != "max_passages" and nearest(domain, default) != default:
                yield f"{where}: the baseline requires {key}={default}; add this value"
        except InputError as error:
            yield f"{where}: {error}"
    gate = asked.knobs.get("gate", spec.fixed.get("gate", "off"))
    lexical = [engine for engine in engines if spec.engine_of(engine) not in VECTOR]
    if "gate" in declared and lexical and set(gate if isinstance(gate, list) else [gate]) != {"off"}:
        yield (
            f"techniques.{name}.knobs.gate: the gate requires an engine with cosine similarities, but got "
            f"{', '.join(lexical)}; use only the dense engine, or set gate: off"
        )
    for key in asked.prompts or ():
        where, prompt = f"techniques.{name}.prompts", spec.prompts.get(key)
        if prompt is None:
            yield f"{where}: {unknown('prompt', key, spec.prompts)}"
        elif prompt.last:
            yield f"{where}: {key!r} is tried last for every technique (after all trials); remove this prompt here"
        elif (reason := lacking(spec, name, prompt)) is not None:
            yield f"{where}: {key!r} cannot be used: {reason}"


def _of_prompts(spec: SearchSpec) -> Iterator[str]:
    known = list(dict.fromkeys(key for name in spec.techniques for key in predictors_of(spec, name)))
    for key, prompt in spec.prompts.items():
        at = f"prompts.{key}"
        bad = [one for one in prompt.instructions if one not in known]
        yield from (f"{at}.instructions.{one}: {unknown('predictor', one, known)}" for one in bad)
        if prompt.part == "reader" and not prompt.last and not spec.reads:
            yield (
                f"{at}.part: this prompt tunes the reader, but no objective needs a reader; add accuracy, or set "
                "last: true"
            )
        if prompt.metric is not None and spec.reader == "none" and "reader" in needs(prompt.metric):
            yield f"{at}.metric: {prompt.metric} requires a reader, but reader is none"
        if prompt.last and spec.reader == "none":
            yield f"{at}.last: this prompt tunes the reader, but reader is none"
        reasons = [lacking(spec, name, prompt) for name in spec.techniques]
        if not bad and all(reasons):
            yield f"{at}: this prompt cannot be used by any of the techniques: {reasons[-1]}"


def _of_trials(spec: SearchSpec) -> Iterator[str]:
    """Return a problem if there are too few trials."""
    count = len(spec.techniques)
    if spec.each_prompt:
        count += sum(len(variants_of(spec, name)) - 1 for name in spec.techniques)
    if spec.trials < count:
        first = "techniques and prompts" if spec.each_prompt else "techniques"
        yield (
            f"trials: must be at least {count}, but got {spec.trials}; the first {count} trials cover all {first}, so "
            "increase trials or remove some"
        )
