"""What a compilation is given and what it finds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from querywright.data.types import Question
from querywright.metrics.statistics import PairedTest
from querywright.models.usage import Cost
from querywright.optimize.evaluate import Evaluation, Results, finite
from querywright.programs import RAG

if TYPE_CHECKING:
    from pathlib import Path

    from querywright.optimize.comparison import Comparison

PLAIN = "plain"
"""The technique that searches with the question as asked."""

BASELINE = "baseline"
"""The arm of a search that every other arm is compared with: ``plain`` with default knobs."""

UNTUNED = "untuned"
"""The arm of a technique with default knobs and prompts, and the name of these prompts."""


@dataclass(frozen=True, slots=True)
class CompileSettings:
    """How much is tried.

    Args:
        objective: What the technique is tuned for on dev: ``decision_useful`` (needs labelled evidence; no answer
            is read while searching), ``accuracy``, ``both`` (their mean), another metric, such as ``recall@5`` or
            ``judged_useful``, which asks a judge, or ``module:function``, a metric of one's own. Or several, costs
            (``lm_calls``, ``tokens``, ``seconds``) among them: the first decides, and what is best of the others meets
            test beside it.
        trials: Trials of the search over knobs and demonstration sets, 1 or more; each set is tried at least once.
            Default 30.
        teleprompter: What makes the technique's prompts: a name in ``OPTIMIZERS``. Default ``bootstrap_few_shot``.
        arguments: The teleprompter's own.
        demo_sizes: Demonstrations in each set that ``bootstrap_few_shot`` is asked for. Default 1 and 2.
        reader_demo_sizes: The same for the reader, whose sets are tuned for accuracy. Default 1.
        seed: Of the order of training questions and of the sampler. Default 0.
        threads: Questions under way at a time. Default None: 4, and as many as the server of an LM elsewhere takes.
        max_failures: Share of the questions of an arm that may fail. Default 0.05.
    """

    objective: str | tuple[str, ...] = "decision_useful"
    trials: int = 30
    teleprompter: str = "bootstrap_few_shot"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    demo_sizes: tuple[int, ...] = (1, 2)
    reader_demo_sizes: tuple[int, ...] = (1,)
    seed: int = 0
    threads: int | None = None
    max_failures: float = 0.05

    @property
    def objectives(self) -> tuple[str, ...]:
        """The objectives; the first decides."""
        return (self.objective,) if isinstance(self.objective, str) else tuple(self.objective)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A program that stood for selection.

    Args:
        name: ``baseline``, ``untuned`` or ``trial N``.
        knobs: The values of its knobs.
        prompt: ``untuned``, or the set of demonstrations, such as ``demos_2``.
        dev: Its results on dev.
    """

    name: str
    knobs: Mapping[str, Any]
    prompt: str
    dev: Evaluation


@dataclass(frozen=True, slots=True)
class PairedComparison:
    """Two arms on test.

    Args:
        family: ``technique`` or ``reader check``.
        metric: What is compared.
        arm: The first arm.
        other: The second arm.
        test: The paired test; its two-sided p is Holm-corrected over the planned comparisons of its family. Its
            one-sided p, of the first arm being better, is as the test gives it.
        sentence: What it shows.
    """

    family: str
    metric: str
    arm: str
    other: str
    test: PairedTest
    sentence: str

    def to_json(self) -> dict[str, Any]:
        """The comparison as a JSON object; NaN becomes null."""
        test = self.test
        told = {name: getattr(test, name) for name in ("difference", "low", "high", "p_one_sided")}
        return {
            **{name: getattr(self, name) for name in ("family", "metric", "arm", "other")},
            **{name: getattr(test, name) for name in ("wins", "losses", "ties")},
            **{name: finite(value) for name, value in (told | {"p_holm": test.p_two_sided}).items()},
            "sentence": self.sentence,
        }


@dataclass(frozen=True, slots=True, repr=False)
class CompileResult(Results):
    """What a compilation found.

    Args:
        program: The recommended program: the winner on dev.
        technique: The technique that was compiled.
        recommended: Name of the arm that won on dev.
        arms: All arms, in the order in which they were tried.
        compiled: The best arm of the technique itself, on dev.
        reader_demos: Whether demonstrations for the reader were chosen.
        test: Results on test of every program in the final table.
        comparisons: The planned comparisons on test.
        verdict: What came of it, as a word,
        sentence: and as a plain sentence with figures.
        costs: Cost of each stage.
        settings: How much was tried.
        n_demo_sets: Demonstration sets that were found for the technique.
        failed: Arms that are out of the question because too many of their questions failed, with what they said.
        nothing: Sets of demonstrations that could not be made, the reader's among them, and why.
        reader_check: Further questions, on which only closed book and oracle evidence were evaluated.
        corrected: Value of the best arm on dev, and what it is likely to be on other questions: the best of many is
            partly lucky. None where too few questions were scored.
        judges: Who judged: ``judge``, ``digest`` of its prompt, ``lm``, ``lm_digest``, and its calibration as
            ``standing``.
    """

    program: RAG
    technique: str
    recommended: str
    arms: tuple[Candidate, ...]
    compiled: Candidate
    reader_demos: bool
    test: tuple[Evaluation, ...]
    comparisons: tuple[PairedComparison, ...]
    verdict: str
    sentence: str
    costs: Mapping[str, Cost]
    settings: CompileSettings
    n_demo_sets: int
    failed: Mapping[str, str] = field(default_factory=dict)
    nothing: Mapping[str, str] = field(default_factory=dict)
    reader_check: tuple[Question, ...] = ()
    corrected: tuple[float, float] | None = None
    judges: tuple[Mapping[str, str], ...] = ()

    @property
    def compared(self) -> Comparison:
        """The test as a comparison with the baseline; closed book and oracle evidence are its references."""
        return beside(self.test, self.comparisons)

    def to_json(self) -> dict[str, Any]:
        """Everything but single questions, as a JSON object."""
        from querywright.optimize.objectives import objective_named

        settings = self.settings
        objective = objective_named(settings.objectives[0])
        return {
            "technique": self.technique,
            "recommended": self.recommended,
            "verdict": self.verdict,
            "verdict_sentence": self.sentence,
            "objective": settings.objectives[0],
            **({"further_objectives": settings.objectives[1:]} if settings.objectives[1:] else {}),
            **({"judges": [dict(one) for one in self.judges]} if self.judges else {}),
            "teleprompter": settings.teleprompter,
            "seed": settings.seed,
            "trials": settings.trials,
            "demonstration_sets": self.n_demo_sets,
            "reader_demonstrations": self.reader_demos,
            "arms": [
                {
                    "arm": arm.name,
                    "knobs": dict(arm.knobs),
                    "prompt": arm.prompt,
                    "objective": finite(objective.value(arm.dev)),
                    "dev": arm.dev.to_json(),
                }
                for arm in self.arms
            ],
            "failed_arms": dict(self.failed),
            "failed_prompts": dict(self.nothing),
            "corrected": self.corrected and dict(zip(("dev", "corrected"), self.corrected, strict=True)),
            "compiled": self.compiled.name,
            "reader_check": len(self.reader_check),
            "test": [evaluation.to_json() for evaluation in self.test],
            "comparisons": [one.to_json() for one in self.comparisons],
            "cost": {stage: cost.to_json() for stage, cost in self.costs.items()},
        }

    def report(self, path: str | Path) -> Path:
        """Write what came of it, and the test, as one HTML page; gives the file."""
        facts = {"Technique": self.technique, "Recommended": self.recommended}
        facts |= {"Objective": ", ".join(self.settings.objectives)}
        facts |= {"Judges": "; ".join(one["standing"] for one in self.judges)} if self.judges else {}
        notes = [one.sentence for one in self.comparisons if one.other != BASELINE]
        return self.compared.report(
            path,
            title=f"{self.technique}, compiled{by_judges(self.judges)}",
            facts=facts,
            notes=notes,
            outcome=self.sentence,
        )

    def _told(self) -> tuple[Sequence[Evaluation], Sequence[str], Sequence[Question]]:
        return self.test, [f"{self.sentence}."], []


def beside(met: Sequence[Evaluation], comparisons: Sequence[PairedComparison]) -> Comparison:
    """Return results on test as a comparison with the baseline; closed book and oracle evidence are its references."""
    from querywright.optimize.comparison import CLOSED_BOOK, ORACLE, Comparison

    arms = tuple(one for one in met if one.name not in (CLOSED_BOOK, ORACLE))
    held: Any = tuple(one for one in comparisons if one.other == BASELINE)
    references = tuple(one for one in met if one.name in (CLOSED_BOOK, ORACLE))
    return Comparison(arms, BASELINE, held, references)


def in_words(arm: str) -> str:
    """Return an arm's name for a sentence: ``baseline`` with its article, any other name unchanged."""
    return f"the {arm}" if arm == BASELINE else arm


def by_judges(judges: Iterable[Mapping[str, str]]) -> str:
    """Who judged, as the end of a title or sentence; empty where nobody did."""
    named = [f"{one['judge']} ({one['lm']})" for one in judges]
    return f", by judge{'s' * (len(named) > 1)} {' and '.join(named)}" if named else ""


def today() -> str:
    """The day, ISO 8601."""
    return datetime.now(UTC).date().isoformat()
