"""From what a study's file says to its arms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from querywright.data.types import Question
from querywright.errors import InputError, TechniqueError
from querywright.metrics.dspy_metrics import needs
from querywright.optimize.domains import Domain, domain_of, own_step
from querywright.optimize.study.space import Space, TechniqueSpace
from querywright.optimize.study.spec import AS_WRITTEN, PLAIN, KnobRange, KnobSpace, PromptSpec, StudySpec
from querywright.programs import READERS, make_program, technique_class
from querywright.programs.hyperparameters import Knob, Value

_COUNTS = ("n_queries", "n_sub_questions")
"""Knobs that say how many of the ``n_written`` texts are used."""


def build_space(
    spec: StudySpec,
    readers: Sequence[str | None],
    searched: Mapping[str, Sequence[Knob]] | None = None,
) -> Space:
    """The arms of a study.

    Args:
        spec: A study that was checked.
        readers: Readers to choose from, as ``readers_for`` settles them; None alone where none reads.
        searched: Knobs that a study searches by technique, for retrievers that narrow them
            (``Technique.searched_knobs``). Default: as they are declared.

    Raises:
        InputError: A value is not allowed.
    """
    found = []
    for name, asked in spec.techniques.items():
        knobs = knobs_of(name, (searched or {}).get(name))
        domains = {knob.name: domain_for(knob, asked.knobs.get(knob.name)) for knob in searched_in(spec, name, knobs)}
        given = _given(spec, name, knobs, domains)
        domains = {key: domain for key, domain in domains.items() if _can_act(knobs[key], domains, given)}
        searching = tuple(knob for knob in knobs.values() if knob.name in domains)
        early, late = variants_of(spec, name)
        found.append(TechniqueSpace(name, engines_of(spec, name), given, searching, domains, early, late))
    return Space(tuple(found), tuple(readers), spec.trials, late_trials_of(spec), spec.each_prompt)


def readers_for(spec: StudySpec, questions: Sequence[Question]) -> list[str | None]:
    """The readers of a study; ``auto`` chooses between options where every question has them.

    Args:
        spec: The study.
        questions: All of its questions.
    """
    if isinstance(spec.reader, list):
        return list(spec.reader)
    if spec.reader == "auto":
        return ["multiple_choice" if all(question.options for question in questions) else "short_answer"]
    return [None if spec.reader == "none" else spec.reader]


def engines_of(spec: StudySpec, name: str) -> tuple[str, ...]:
    """The engines of a technique; no rewriting always has dense."""
    named = spec.techniques[name].engines or [technique_class(name).ENGINE or "dense"]
    return tuple(dict.fromkeys(["dense", *named] if name == PLAIN else named))


def late_trials_of(spec: StudySpec) -> int:
    """How many trials are late."""
    if spec.late_trials is not None:
        return spec.late_trials
    return spec.trials // 4 if any(variants_of(spec, name)[1] for name in spec.techniques) else 0


def knobs_of(name: str, searched: Iterable[Knob] | None = None) -> dict[str, Knob]:
    """The knobs of a technique, each after those that it depends on, with the values that can be had."""
    narrowed = {knob.name: knob for knob in searched or ()}
    declared = sorted(technique_class(name).KNOBS, key=lambda knob: len(knob.when))
    return {knob.name: narrowed.get(knob.name, knob) for knob in declared}


def searched_in(spec: StudySpec, name: str, knobs: Mapping[str, Knob]) -> list[Knob]:
    """The knobs of a technique that trials choose, in order."""
    asked = spec.techniques[name]
    named = {key for key, values in asked.knobs.items() if isinstance(values, (list, KnobRange))}
    given = set(spec.fixed) | (set(asked.knobs) - named)
    every = {knob.name for knob in knobs.values() if knob.search and knob.name != "n_written"}
    wanted = named | (every if asked.search == "all" else set())
    return [knob for knob in knobs.values() if knob.name in wanted - given]


def domain_for(knob: Knob, asked: KnobSpace | None) -> Domain:
    """The values of a knob that a study asks for.

    Args:
        knob: The knob.
        asked: A range, a list or one value; None for the knob's own range.

    Raises:
        InputError: A value is not allowed, or a range is none.
    """
    if asked is None:
        return domain_of(knob)
    if isinstance(asked, KnobRange):
        return _range(knob, asked)
    return Domain(choices=tuple(knob.check(value) for value in (asked if isinstance(asked, list) else [asked])))


def variants_of(spec: StudySpec, name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The prompt variants of a technique: those of early trials, "as written" first, and those of late ones alone."""
    named = spec.techniques[name].prompts
    early: list[str] = [AS_WRITTEN]
    late: list[str] = []
    for key, prompt in spec.prompts.items():
        suits = key in named if named is not None else lacking(spec, name, prompt) is None
        if suits and not prompt.last:
            (late if prompt.is_late else early).extend(_sets(key, prompt))
    return tuple(early), tuple(late)


def last_variants(spec: StudySpec) -> list[str]:
    """The prompt variants that are tried at the end, on the reader of what dev chose."""
    return [name for key, prompt in spec.prompts.items() if prompt.last for name in _sets(key, prompt)]


def _sets(key: str, prompt: PromptSpec) -> list[str]:
    """The names of a prompt's variants."""
    return [key] if prompt.sets == 1 else [f"{key}.{number}" for number in range(1, prompt.sets + 1)]


def prompt_of(spec: StudySpec, variant: str) -> tuple[str, int] | None:
    """The prompt of a variant and which of its sets, from 1; None for prompts as written."""
    if variant == AS_WRITTEN:
        return None
    name, _, number = variant.partition(".")
    return name, int(number or 1)


def reads_for(prompt: PromptSpec) -> bool:
    """Whether a prompt takes a reader to be made, whatever the objectives are."""
    return prompt.part != "technique" or (prompt.metric is not None and "reader" in needs(prompt.metric))


def lacking(spec: StudySpec, name: str, prompt: PromptSpec) -> str | None:
    """Why a prompt is none for a technique; None where there is something to tune, and what it instructs is there."""
    known = predictors_of(spec, name)
    absent = [key for key in prompt.instructions if key not in known]
    if absent:
        return f"{name} has no predictor {', '.join(absent)}"
    parts = {"technique", "reader"} if prompt.part == "all" else {prompt.part}
    if prompt.optimizer is not None and not any(key.partition(".")[0] in parts for key in known):
        return f"{name} asks no LM" if prompt.part == "technique" else "there is no reader"
    if prompt.optimizer == "labelled_few_shot" and prompt.part == "technique":
        return "labelled_few_shot shows answers that are labelled, which only a reader gives; say part: reader"
    return None


def predictors_of(spec: StudySpec, name: str) -> list[str]:
    """The predictors of a technique's programs by name, such as ``technique.write_queries`` and ``reader.predict``."""
    reader = spec.reader[0] if isinstance(spec.reader, list) else spec.reader
    if reader == "auto":
        reader = "short_answer"  # every reader has the same predictors
    program = make_program(name, None, reader=reader if reader in READERS else None)
    return [key for key, _ in program.named_predictors()]


def _given(spec: StudySpec, name: str, knobs: Mapping[str, Knob], domains: Mapping[str, Domain]) -> dict[str, Value]:
    """The value of every knob where nothing is chosen."""
    values: dict[str, Any] = {key: value for key, value in spec.fixed.items() if key in knobs}
    values |= {
        key: value
        for key, value in spec.techniques[name].knobs.items()
        if not isinstance(value, (list, KnobRange))
    }  # fmt: skip
    values |= {key: domain.nearest(knobs[key].default) for key, domain in domains.items()}
    counted = next((key for key in _COUNTS if key in domains and not domains[key].single), None)
    if "n_written" in knobs and counted is not None:
        values.setdefault("n_written", domains[counted].highest)  # smaller numbers are the first of the same texts
    return dict(technique_class(name)(None, **values).knobs)


def _can_act(knob: Knob, domains: Mapping[str, Domain], given: Mapping[str, Value]) -> bool:
    """Whether some choice of the others lets a knob make a difference."""
    return all(
        any(value in allowed for value in (domains[other].values if other in domains else [given[other]]))
        for other, allowed in knob.when.items()
    )


def _range(knob: Knob, asked: KnobRange) -> Domain:
    if knob.choices or isinstance(knob.default, bool):
        raise InputError(f"must be a list or one of {knob.range}, for it is no number, but got a range")
    whole = isinstance(knob.default, int)
    for end in ("low", "high"):
        try:
            knob.check(getattr(asked, end))
        except TechniqueError as error:
            raise InputError(f"{end}: {error}") from error
    low, high, step = float(asked.low), float(asked.high), asked.step
    if low >= high:
        raise InputError(f"low must be smaller than high, but got {asked.low} and {asked.high}; one value is fixed")
    if step is not None and (step <= 0 or step > high - low or (whole and step != int(step))):
        rule = "a whole number from 1" if whole else "more than 0"
        raise InputError(f"step must be {rule}, and no more than high - low, but got {step}")
    if asked.log and (low <= 0 or step is not None):
        raise InputError("log needs a low of more than 0 and no step")
    if step is None and not whole and not asked.log:
        step = domain_of(knob).step and own_step(low, high)
    return Domain(low=low, high=high, step=None if step is None else float(step), log=asked.log, whole=whole)
