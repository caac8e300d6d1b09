"""Everything about a study that can be known without its data and its models."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator
from typing import Any

from querywright.errors import InputError
from querywright.metrics.dspy_metrics import metric_named, needs
from querywright.optimize.study.building import (
    domain_for,
    engines_of,
    fixed_of,
    knobs_of,
    lacking,
    late_trials_of,
    predictors_of,
    searched_in,
    techniques_of,
    variants_of,
)
from querywright.optimize.study.objectives import objective_named
from querywright.optimize.study.space import PLAIN, seeded_sampler
from querywright.optimize.study.spec import AS_WRITTEN, KnobRange, PromptSpec, StudySpec
from querywright.programs import READERS, TECHNIQUES, takes_rewriter, technique_class
from querywright.retrieval.engines import ENGINES

_PROMPT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_POSTGRES = ("postgresql://", "postgresql+psycopg://")


def check_spec(spec: StudySpec) -> None:
    """Refuse a study that cannot be run, whatever its data and models are.

    Raises:
        InputError: With every problem on a line of its own.
    """
    problems = problems_of(spec)
    if problems:
        raise InputError("\n".join(problems))


def problems_of(spec: StudySpec) -> list[str]:
    """What is wrong with a study, each with where it stands."""
    unknown = [name for name in spec.techniques if name not in TECHNIQUES]
    if unknown:  # what is said of the others still holds
        rest = {name: one for name, one in spec.techniques.items() if name not in unknown}
        found = [_unknown(f"techniques.{name}", "technique", name, TECHNIQUES) for name in unknown]
        return [*found, *problems_of(spec.model_copy(update={"techniques": rest}))]
    parts = (_techniques, _fixed, _prompts, _rewriter, _readers, _objectives, _sampler, _storage)
    found = [problem for part in parts for problem in part(spec)]
    return [*found, *(() if found else _trials(spec))]


def check_storage(storage: str) -> None:
    """Refuse a storage that is none of ours.

    Args:
        storage: ``journal``, ``sqlite`` or an address of PostgreSQL; what else an address holds is never shown.

    Raises:
        InputError: It is something else.
    """
    if storage in {"journal", "sqlite"} or storage.startswith(_POSTGRES):
        return
    scheme, address, _ = storage.partition("://")
    rule = "must be journal, sqlite or an address that begins with postgresql:// or postgresql+psycopg://"
    if scheme.startswith("postgres"):
        raise InputError(f"{rule}, but begins with {scheme}://; psycopg is the driver here")
    if address and scheme.startswith("sqlite"):
        raise InputError(f"{rule}, but begins with {scheme}://; for a file in the study's folder write sqlite")
    if address:
        raise InputError(f"{rule}, but begins with {scheme}://, which is not tested for studies")
    raise InputError(f"{rule}, but got {storage[:40]!r}")


def _techniques(spec: StudySpec) -> Iterator[str]:
    for name, asked in techniques_of(spec).items():
        at, technique = f"techniques.{name}", technique_class(name)
        if technique.SEARCHES == "0":
            yield f"{at}: finds no passages, so there is nothing to search; leave it out"
            continue
        yield from _engines(spec, name)
        declared = knobs_of(name)
        sound = True
        for key, value in asked.knobs.items():
            where = f"{at}.knobs.{key}"
            if key not in declared:
                yield _unknown(where, f"knob of {name}", key, declared)
                sound = False
                continue
            if key in spec.fixed:
                more = "; for another budget write fixed: {}" if key == "max_passages" else ""
                yield f"{where}: stands under fixed as well ({spec.fixed[key]!r}); give it in one place{more}"
            try:
                domain = domain_for(declared[key], value)
            except InputError as error:
                yield f"{where}: {error}"
                sound = False
                continue
            if (
                name == PLAIN
                and key != "max_passages"
                and domain.nearest(declared[key].default) != declared[key].default
            ):
                yield f"{where}: no rewriting ({key}={declared[key].default}) is always an arm; add that value"
        if sound:
            yield from _gate(spec, name)
        for key in asked.prompts or ():
            where = f"{at}.prompts"
            if key not in spec.prompts:
                yield _unknown(where, "prompt", key, [one for one in spec.prompts if one != AS_WRITTEN])
            elif spec.prompts[key].last:
                yield f"{where}: {key!r} is tried at the end, whatever the technique; leave it out here"
            elif (reason := lacking(spec, name, spec.prompts[key])) is not None:
                yield f"{where}: {key!r} cannot be made for it: {reason}"


def _engines(spec: StudySpec, name: str) -> Iterator[str]:
    asked, technique = spec.techniques.get(name), technique_class(name)
    named = asked.engines if asked is not None else None
    where = f"techniques.{name}.engines"
    if named is None:
        return
    if not named:
        yield f"{where}: must name one engine or more, but got []; leave it out for the technique's own"
    for place, engine in enumerate(named):
        if engine not in ENGINES:
            yield _unknown(where, "engine", engine, ENGINES)
        elif engine in named[:place]:
            yield f"{where}: {engine!r} stands there twice"
        elif technique.ENGINE is not None and engine != technique.ENGINE:
            yield f"{where}: must be {technique.ENGINE}, the only one that {name} searches with, but got {engine!r}"
        elif technique.NEEDS_VECTORS and engine != "dense":
            yield f"{where}: must be dense, for {name} searches with vectors of its own, but got {engine!r}"


def _gate(spec: StudySpec, name: str) -> Iterator[str]:
    """A gate looks at similarities, which only vectors have."""
    declared, asked = knobs_of(name), techniques_of(spec)[name].knobs
    if "gate" not in declared:
        return
    value = asked.get("gate", spec.fixed.get("gate", "off"))
    values = value if isinstance(value, list) else [value]
    lexical = [engine for engine in engines_of(spec, name) if engine not in {"dense", "questions"}]
    if lexical and any(one != "off" for one in values):
        yield (
            f"techniques.{name}.knobs.gate: looks at cosine similarities, which {', '.join(lexical)} does not give; "
            "take dense alone, or gate: off"
        )


def _fixed(spec: StudySpec) -> Iterator[str]:
    declared = {name: knobs_of(name) for name in techniques_of(spec)}
    every = dict.fromkeys(key for knobs in declared.values() for key in knobs)
    for key, value in fixed_of(spec).items():
        where = f"fixed.{key}"
        if key not in every:
            yield _unknown(where, "knob of these techniques", key, every)
            continue
        wrong: dict[str, str] = {}
        for name, knobs in declared.items():
            if key in knobs:
                try:
                    checked = knobs[key].check(value)
                except InputError as error:
                    wrong.setdefault(str(error), name)
                    continue
                if name == PLAIN and key != "max_passages" and checked != knobs[key].default:
                    wrong.setdefault(f"no rewriting ({key}={knobs[key].default}) is always an arm; leave it out", name)
        yield from (f"{where}: {message} ({name})" for message, name in wrong.items())


def _prompts(spec: StudySpec) -> Iterator[str]:
    known = list(dict.fromkeys(key for name in techniques_of(spec) for key in predictors_of(spec, name)))
    for key, prompt in spec.prompts.items():
        at = f"prompts.{key}"
        if not _PROMPT_NAME.fullmatch(key):
            yield f"{at}: a prompt's name has letters, digits, - and _, and none of them is {AS_WRITTEN!r}"
        if prompt.optimizer is None and not prompt.instructions:
            yield f"{at}: names neither an optimizer nor instructions; give one of them"
        if prompt.optimizer is None and prompt.arguments:
            yield f"{at}.arguments: are for an optimizer, but none is named"
        if prompt.optimizer is None and prompt.sets > 1:
            yield f"{at}.sets: instructions alone give one set, but got {prompt.sets}"
        yield from _optimizer(at, prompt.optimizer, prompt.arguments)
        bad = [one for one in prompt.instructions if one not in known]
        yield from (_unknown(f"{at}.instructions.{one}", "predictor", one, known) for one in bad)
        if prompt.part == "reader" and not prompt.last and not _some_objective_reads(spec):
            yield f"{at}.part: tunes the reader, but no objective reads; add accuracy, or say last: true"
        if prompt.metric is not None:
            yield from _metric(at, prompt.metric, spec)
        if prompt.last:
            yield from _last(at, prompt, spec)
        reasons = [lacking(spec, name, prompt) for name in techniques_of(spec)]
        if not bad and all(reasons):
            yield f"{at}: can be made for none of the techniques: {reasons[-1]}"


def _optimizer(at: str, name: str | None, arguments: Any) -> Iterator[str]:
    if name is None:
        return
    from querywright.optimize.optimizers import OPTIMIZERS

    if name not in OPTIMIZERS:
        yield _unknown(f"{at}.optimizer", "optimizer", name, OPTIMIZERS)
        return
    known = OPTIMIZERS[name].arguments
    bad = [one for one in arguments if one not in known]
    yield from (_unknown(f"{at}.arguments.{one}", f"argument of {name}", one, known) for one in bad)
    if not bad:
        try:
            OPTIMIZERS[name].check(arguments)
        except InputError as error:
            yield f"{at}.arguments: {error}"


def _metric(at: str, name: str, spec: StudySpec) -> Iterator[str]:
    try:
        metric_named(name)
        if spec.reader == "none" and "reader" in needs(name):
            yield f"{at}.metric: {name} needs a reader, but reader is none"
    except InputError as error:
        yield f"{at}.metric: {error}"


def _last(at: str, prompt: PromptSpec, spec: StudySpec) -> Iterator[str]:
    """What is tried on the reader of every arm has to suit the reader of every arm."""
    if prompt.part != "reader":
        yield f"{at}.last: tunes the reader alone; say part: reader"
    if prompt.late:
        yield f"{at}.last: is tried after the late trials as well; leave late out"
    if prompt.optimizer in {"knn_few_shot", "ensemble"}:
        yield f"{at}.last: {prompt.optimizer} makes a program of another shape; take another optimizer"
    bad = [one for one in prompt.instructions if not one.startswith("reader.")]
    yield from (f"{at}.instructions.{one}: is no predictor of the reader, and the prompt is for last" for one in bad)
    if spec.reader == "none":
        yield f"{at}.last: tunes the reader, but reader is none"


def _rewriter(spec: StudySpec) -> Iterator[str]:
    if spec.rewriter is not None and not any(takes_rewriter(technique_class(name)) for name in techniques_of(spec)):
        named = ", ".join(techniques_of(spec))
        yield f"rewriter: none of the techniques ({named}) writes what is searched for; leave it out, or add one"


def _readers(spec: StudySpec) -> Iterator[str]:
    if isinstance(spec.reader, str):
        if spec.reader not in {"auto", "none", *READERS}:
            yield _unknown("reader", "reader", spec.reader, ["auto", *READERS, "none"])
        return
    if not spec.reader:
        yield "reader: must name one reader or more, but got []; write none for a study without"
    for place, name in enumerate(spec.reader):
        if name not in READERS:
            yield _unknown("reader", "reader", name, READERS)
        elif name in spec.reader[:place]:
            yield f"reader: {name!r} stands there twice"
    if len(spec.reader) > 1 and not _some_objective_reads(spec):
        yield "reader: several to choose from, but no objective reads; name one, or add the objective accuracy"


def _objectives(spec: StudySpec) -> Iterator[str]:
    sound = True
    for place, name in enumerate(spec.objectives):
        where = f"objectives.{place}"
        try:
            objective = objective_named(name)
        except InputError as error:
            yield f"{where}: {error}"
            sound = False
            continue
        if name in spec.objectives[:place]:
            yield f"{where}: {name!r} stands there twice"
        if objective.reads and spec.reader == "none":
            yield f"{where}: {name} needs a reader, but reader is none"
        if place == 0 and objective.kind == "cost":
            yield f"{where}: the first objective decides between programs and must be one of quality, but got {name!r}"
    if sound and len(spec.objectives) > 1 and spec.sampler.name == "cmaes":
        yield "sampler.name: cmaes has one objective; take tpe or nsga2"


def _sampler(spec: StudySpec) -> Iterator[str]:
    try:
        seeded_sampler(spec.sampler, spec.seed)
    except InputError as error:
        yield f"sampler: {error}"


def _storage(spec: StudySpec) -> Iterator[str]:
    try:
        check_storage(spec.storage)
    except InputError as error:
        yield f"storage: {error}"


def _trials(spec: StudySpec) -> Iterator[str]:
    count, late = len(techniques_of(spec)), late_trials_of(spec)
    if spec.each_prompt:
        count += sum(len(variants_of(spec, name)[0]) - 1 for name in techniques_of(spec))
    if late >= spec.trials:
        yield f"late_trials: must be fewer than trials ({spec.trials}), but got {late}"
    elif spec.trials - late < count:
        yield (
            f"trials: must be {count + late} or more, for {count} {_first(spec)} are tried as written first, "
            f"no rewriting among them, and {late} trials are late, but got {spec.trials}"
        )
    elif spec.sampler.name == "grid":
        for name in techniques_of(spec):
            for knob in searched_in(spec, name, knobs_of(name)):
                asked = techniques_of(spec)[name].knobs.get(knob.name)
                if domain_for(knob, asked).size is None:
                    more = "step" if isinstance(asked, KnobRange) else "list, or a range with a step"
                    yield f"techniques.{name}.knobs.{knob.name}: the sampler grid needs a {more}"


def _first(spec: StudySpec) -> str:
    return "techniques and prompts" if spec.each_prompt else "techniques"


def _some_objective_reads(spec: StudySpec) -> bool:
    """Whether an objective reads; one that does not exist is complained of elsewhere."""
    found = False
    for name in spec.objectives:
        try:
            found = found or objective_named(name).reads
        except InputError:
            found = True
    return found


def _unknown(where: str, what: str, name: str, known: Collection[str]) -> str:
    """The problem of a name that is none, with the nearest that is one."""
    near = difflib.get_close_matches(str(name), list(known), 1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return f"{where}: unknown {what} {name!r}{hint}; there are: {', '.join(known) or 'none'}"
