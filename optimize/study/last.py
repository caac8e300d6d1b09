"""What is chosen last in a study: prompts of the reader, for the program that dev chose."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from querywright.optimize.evaluate import Evaluation, evaluate, finite
from querywright.optimize.failures import TooManyFailuresError
from querywright.optimize.optimizer_run import OptimizerError
from querywright.optimize.selection import beats, best_of
from querywright.optimize.study.building import last_variants, prompt_of
from querywright.optimize.study.prompts import with_reader_prompts
from querywright.optimize.study.resources import Variant
from querywright.optimize.study.spec import AS_WRITTEN
from querywright.optimize.study.trial import Worker
from querywright.optimize.study.types import ArmConfig
from querywright.programs import RAG, Ensemble

LAST = "last"
"""The attribute of a study that holds what was chosen last."""

METRIC = "accuracy"
"""What the reader's prompts are chosen by."""


@dataclass(frozen=True, slots=True)
class LastPrompts:
    """The reader's prompts that were chosen.

    Args:
        name: The variant; ``as written`` where none was better, or none was tried.
        variant: Its prompts; None for those as written.
        tried: Accuracy on dev by variant, ``as written`` among them; empty where none was tried.
        failed: Variants with which too many questions failed, ``as written`` too, and what they said.
        nothing: Variants that could not be made, and why.
    """

    name: str = AS_WRITTEN
    variant: Variant | None = None
    tried: Mapping[str, float] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    nothing: Mapping[str, str] = field(default_factory=dict)

    def put_into(self, program: RAG) -> RAG:
        """The program with the reader's prompts that were chosen; as it is where it has another reader."""
        reader = None if program.reader is None else program.reader.NAME
        if self.variant is None or self.variant["reader"] != reader:
            return program
        return with_reader_prompts(program, self.variant)

    def to_json(self) -> dict[str, Any]:
        """What was chosen as a JSON object; NaN becomes null."""
        return {
            "name": self.name,
            "variant": self.variant,
            "tried": {name: finite(value) for name, value in self.tried.items()},
            "failed": dict(self.failed),
            "nothing": dict(self.nothing),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LastPrompts:
        """What ``to_json`` wrote."""
        tried = {name: math.nan if value is None else value for name, value in data["tried"].items()}
        return cls(data["name"], data["variant"], tried, data["failed"], data["nothing"])


@dataclass(frozen=True, slots=True)
class _Read:
    """A variant that read dev."""

    name: str
    dev: Evaluation
    variant: Variant | None = None


def choose_last(worker: Worker, arm: ArmConfig) -> LastPrompts:
    """Choose the reader's prompts, once in a study, by whether dev is read more accurately with them.

    Where too many questions fail with the reader as written it is out, and the best of the others is chosen.

    Args:
        worker: Compiles them, and reads.
        arm: What dev chose.

    Raises:
        OutageError: The LM is out of reach.
        BudgetError: The budget is spent.
    """
    names = last_variants(worker.bench.spec)
    if not names or arm.reader is None:
        return LastPrompts()
    known = worker.storage.attribute(LAST)
    if known is None:
        known = _choose(worker, arm, names).to_json()
        worker.storage.set_attribute(LAST, known)
    return LastPrompts.from_json(known)


def _choose(worker: Worker, arm: ArmConfig, names: list[str]) -> LastPrompts:
    program = worker.bench.program(arm, worker.variant(arm)[0], reads=True)
    read: list[_Read] = []
    failed: dict[str, str] = {}
    try:
        read.append(_Read(AS_WRITTEN, _read(worker, "the reader as written", program)))
    except TooManyFailuresError as error:
        failed[AS_WRITTEN] = str(error)[:500]
    if read and math.isnan(read[0].dev.average(METRIC)):
        return LastPrompts()
    single = program
    if isinstance(program, Ensemble):
        single = worker.bench.program(replace(arm, prompt=AS_WRITTEN), reads=True)
    seen = []
    nothing: dict[str, str] = {}
    for name in names:
        try:
            variant = _made(worker, arm, name, single)
            if variant["predictors"] in seen:
                continue
            seen.append(variant["predictors"])
            dev = _read(worker, f"the reader with {name}", with_reader_prompts(program, variant))
        except OptimizerError as error:
            nothing[name] = str(error)[:500]
        except TooManyFailuresError as error:
            failed[name] = str(error)[:500]
        else:
            read.append(_Read(name, dev, variant))
    if not read:
        return LastPrompts(failed=failed, nothing=nothing)
    best, first = best_of(read, METRIC), read[0]
    chosen = first if first.name == AS_WRITTEN and not beats(best, first, METRIC) else best
    tried = {one.name: one.dev.average(METRIC) for one in read}
    return LastPrompts(chosen.name, chosen.variant, tried, failed, nothing)


def _made(worker: Worker, arm: ArmConfig, name: str, program: RAG) -> Variant:
    found = prompt_of(worker.bench.spec, name)
    assert found is not None
    prompt = worker.bench.spec.prompts[found[0]]
    variant, _ = worker.made_once(f"prompt:last:{name}:{arm.key}", prompt, f"reader, {name}", program)
    return variant


def _read(worker: Worker, name: str, program: RAG) -> Evaluation:
    bench = worker.bench
    return evaluate(
        program,
        bench.splits.dev,
        lm=bench.lm,
        name=name,
        metrics=bench.metrics,
        threads=bench.spec.threads,
        max_failures=bench.spec.max_failures,
        progress=worker.progress,
    )
