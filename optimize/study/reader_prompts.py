"""The reader's prompts, which are chosen last: by whether dev is read more accurately with them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from querywright.optimize.evaluate import finite
from querywright.optimize.failures import TooManyFailuresError
from querywright.optimize.optimizer_run import OptimizerError
from querywright.optimize.results import Arm
from querywright.optimize.study.building import last_variants, prompt_of
from querywright.optimize.study.objectives import objective_named
from querywright.optimize.study.prompts import with_reader_prompts
from querywright.optimize.study.resources import Bench, Variant
from querywright.optimize.study.select import beats, best_of
from querywright.optimize.study.spec import AS_WRITTEN
from querywright.optimize.study.types import ArmConfig
from querywright.programs import RAG, Ensemble


@dataclass(frozen=True, slots=True)
class ReaderPrompts:
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
        kept = {name: getattr(self, name) for name in ("name", "variant", "failed", "nothing")}
        return {**kept, "tried": {name: finite(value) for name, value in self.tried.items()}}


def choose_reader_prompts(bench: Bench, arm: ArmConfig) -> ReaderPrompts:
    """Choose the reader's prompts by whether dev is read more accurately with them.

    Where too many questions fail with the reader as written it is out, and the best of the others is chosen.

    Args:
        bench: Compiles them, and reads.
        arm: What dev chose.

    Raises:
        OutageError: The LM is out of reach.
        BudgetError: The budget is spent.
    """
    names, accuracy = last_variants(bench.spec), objective_named("accuracy")
    if not names or arm.reader is None:
        return ReaderPrompts()
    program = bench.program(arm, reads=True)
    single = bench.program(replace(arm, prompt=AS_WRITTEN), reads=True) if isinstance(program, Ensemble) else program
    read: list[Arm] = []
    variants: dict[str, Variant | None] = {}
    failed: dict[str, str] = {}
    nothing: dict[str, str] = {}
    seen: list[Any] = []
    for name in (AS_WRITTEN, *names):
        try:
            variant, tried, called = None, program, "the reader as written"
            found = prompt_of(bench.spec, name)
            if found is not None:
                variant = bench.compiled(bench.spec.prompts[found[0]], f"reader, {name}", single)
                if variant["predictors"] in seen:
                    continue
                seen.append(variant["predictors"])
                tried, called = with_reader_prompts(program, variant), f"the reader with {name}"
            read.append(Arm(name, {}, name, bench.evaluated(tried, bench.splits.dev, called)))
            variants[name] = variant
        except OptimizerError as error:
            nothing[name] = str(error)[:500]
        except TooManyFailuresError as error:
            failed[name] = str(error)[:500]
        if name == AS_WRITTEN and read and math.isnan(accuracy.value(read[0].dev)):
            return ReaderPrompts()
    if not read:
        return ReaderPrompts(failed=failed, nothing=nothing)
    best, first = best_of(read, accuracy), read[0]
    chosen = first if first.name == AS_WRITTEN and not beats(best.dev, first.dev, accuracy) else best
    values = {one.name: accuracy.value(one.dev) for one in read}
    return ReaderPrompts(chosen.name, variants[chosen.name], values, failed, nothing)
