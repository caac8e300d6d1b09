"""What can be known of a study whose parts are sound, without its data and its models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from querywright.errors import InputError, unknown
from querywright.metrics.dspy_metrics import needs
from querywright.optimize.study.building import (
    domain_for,
    engines_of,
    knobs_of,
    lacking,
    late_trials_of,
    predictors_of,
    searched_in,
    variants_of,
)
from querywright.optimize.study.objectives import objective_named
from querywright.optimize.study.spec import BUDGET, PLAIN, KnobRange, StudySpec
from querywright.programs import takes_rewriter, technique_class
from querywright.programs.hyperparameters import Knob


def problems_of(spec: StudySpec) -> list[str]:
    """What is wrong with a study, each with where it stands."""
    declared = {name: knobs_of(name) for name in spec.techniques}
    found = [*_fixed(spec, declared), *_prompts(spec), *_reading(spec)]
    for name, knobs in declared.items():
        found += [*_engines(spec, name), *(_knobs(spec, name, knobs) or _gate(spec, name)), *_named(spec, name)]
    if spec.rewriter is not None and not any(takes_rewriter(technique_class(name)) for name in spec.techniques):
        named = ", ".join(spec.techniques)
        found.append(f"rewriter: none of the techniques ({named}) writes what is searched for; leave it out or add one")
    return found or list(_trials(spec))


def _knobs(spec: StudySpec, name: str, declared: Mapping[str, Knob]) -> list[str]:
    found = []
    for key, value in spec.techniques[name].knobs.items():
        where = f"techniques.{name}.knobs.{key}"
        if key not in declared:
            found.append(f"{where}: {unknown(f'knob of {name}', key, declared)}")
            continue
        freed = "fixed" in spec.model_fields_set and spec.fixed.get(key) == BUDGET  # by ``fixed: {}``, filled in since
        if key in spec.fixed and not (key == "max_passages" and freed):
            more = "; for another budget write fixed: {}" if key == "max_passages" else ""
            found.append(f"{where}: stands under fixed as well ({spec.fixed[key]!r}); give it in one place{more}")
        default = declared[key].default
        try:
            domain = domain_for(declared[key], value)
        except InputError as error:
            found.append(f"{where}: {error}")
            continue
        if name == PLAIN and key != "max_passages" and domain.nearest(default) != default:
            found.append(f"{where}: no rewriting ({key}={default}) is always an arm; add that value")
    return found


def _engines(spec: StudySpec, name: str) -> Iterator[str]:
    technique = technique_class(name)
    for engine in spec.techniques[name].engines or ():
        if technique.ENGINE is not None and engine != technique.ENGINE:
            rule = f"{technique.ENGINE}, the only one that {name} searches with"
        elif technique.ENGINE is None and technique.NEEDS_VECTORS and engine != "dense":
            rule = f"dense, for {name} searches with vectors of its own"
        else:
            continue
        yield f"techniques.{name}.engines: must be {rule}, but got {engine!r}"


def _gate(spec: StudySpec, name: str) -> list[str]:
    """A gate looks at similarities, which only vectors have."""
    value = spec.techniques[name].knobs.get("gate", spec.fixed.get("gate", "off"))
    lexical = [engine for engine in engines_of(spec, name) if engine not in {"dense", "questions"}]
    closed = "gate" not in knobs_of(name) or set(value if isinstance(value, list) else [value]) == {"off"}
    if closed or not lexical:
        return []
    return [
        f"techniques.{name}.knobs.gate: looks at cosine similarities, which {', '.join(lexical)} does not give; take "
        "dense alone, or gate: off"
    ]


def _named(spec: StudySpec, name: str) -> Iterator[str]:
    """The prompts that a technique names."""
    for key in spec.techniques[name].prompts or ():
        where, prompt = f"techniques.{name}.prompts", spec.prompts.get(key)
        if prompt is None:
            yield f"{where}: {unknown('prompt', key, spec.prompts)}"
        elif prompt.last:
            yield f"{where}: {key!r} is tried at the end, whatever the technique; leave it out here"
        elif (reason := lacking(spec, name, prompt)) is not None:
            yield f"{where}: {key!r} cannot be made for it: {reason}"


def _fixed(spec: StudySpec, declared: Mapping[str, Mapping[str, Knob]]) -> Iterator[str]:
    for key, value in spec.fixed.items():
        where = f"fixed.{key}"
        having = {name: knobs[key] for name, knobs in declared.items() if key in knobs}
        if not having:
            every = dict.fromkeys(key for knobs in declared.values() for key in knobs)
            yield f"{where}: {unknown('knob of these techniques', key, every)}"
        try:
            for name, knob in having.items():
                if knob.check(value) != knob.default and name == PLAIN and key != "max_passages":
                    yield f"{where}: no rewriting ({key}={knob.default}) is always an arm; leave it out"
        except InputError as error:
            yield f"{where}: {error}"


def _prompts(spec: StudySpec) -> Iterator[str]:
    known = list(dict.fromkeys(key for name in spec.techniques for key in predictors_of(spec, name)))
    for key, prompt in spec.prompts.items():
        at = f"prompts.{key}"
        bad = [one for one in prompt.instructions if one not in known]
        yield from (f"{at}.instructions.{one}: {unknown('predictor', one, known)}" for one in bad)
        if prompt.part == "reader" and not prompt.last and not _reads(spec):
            yield f"{at}.part: tunes the reader, but no objective reads; add accuracy, or say last: true"
        if prompt.metric is not None and spec.reader == "none" and "reader" in needs(prompt.metric):
            yield f"{at}.metric: {prompt.metric} needs a reader, but reader is none"
        if prompt.last and spec.reader == "none":
            yield f"{at}.last: tunes the reader, but reader is none"
        reasons = [lacking(spec, name, prompt) for name in spec.techniques]
        if not bad and all(reasons):
            yield f"{at}: can be made for none of the techniques: {reasons[-1]}"


def _reading(spec: StudySpec) -> Iterator[str]:
    """Readers, objectives and the sampler, which has to take them."""
    if isinstance(spec.reader, list) and len(spec.reader) > 1 and not _reads(spec):
        yield "reader: several to choose from, but no objective reads; name one, or add the objective accuracy"
    for place, name in enumerate(spec.objectives):
        objective = objective_named(name)
        if objective.reads and spec.reader == "none":
            yield f"objectives.{place}: {name} needs a reader, but reader is none"
        if place == 0 and not objective.metrics:
            yield f"objectives.0: the first decides between programs and must be one of quality, but got {name!r}"
    if len(spec.objectives) > 1 and spec.sampler.name == "cmaes":
        yield "sampler.name: cmaes has one objective; take tpe or nsga2"


def _trials(spec: StudySpec) -> Iterator[str]:
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
    elif spec.sampler.name == "grid":
        for name, one in spec.techniques.items():
            for knob in searched_in(spec, name, knobs_of(name)):
                asked = one.knobs.get(knob.name)
                if domain_for(knob, asked).size is None:
                    more = "step" if isinstance(asked, KnobRange) else "list, or a range with a step"
                    yield f"techniques.{name}.knobs.{knob.name}: the sampler grid needs a {more}"


def _reads(spec: StudySpec) -> bool:
    return any(objective_named(name).reads for name in spec.objectives)
