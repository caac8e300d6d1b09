"""The settings and results of a compilation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from querywright.data.types import Question
from querywright.metrics.statistics import PairedTest
from querywright.models.usage import Cost
from querywright.optimize.evaluate import Evaluation, Results, finite
from querywright.optimize.objectives import objectives_of
from querywright.programs import RAG, Technique
from querywright.programs.base import MAX_PASSAGES

if TYPE_CHECKING:
    from pathlib import Path

    from querywright.optimize.comparison import Comparison
    from querywright.optimize.slices import SliceResult

PLAIN = "plain"
"""The technique that searches with the unchanged question."""

BASELINE = "baseline"
"""The program that every other program in a search is compared with: ``plain`` with default knobs."""

CHOSEN_ON_DEV = "Programs were chosen on dev. The verdict and the scores are from test, which was evaluated once."
"""A sentence for the pages of searches."""

UNTUNED = "untuned"
"""The name of a technique's program with default knobs and prompts, and also of the default prompts."""


@dataclass(frozen=True, slots=True)
class CompileSettings:
    """Settings of a compilation.

    Args:
        objective: What the technique is tuned for on dev: ``decision_useful`` (requires labeled evidence; the search
            does not run the reader), ``accuracy``, ``both`` (their mean), another metric such as ``recall@5`` or
            ``judged_useful`` (which calls a judge), or ``module:function`` for a custom metric. If there are several
            objectives, which may include costs (``lm_calls``, ``tokens``, ``seconds``), the first one decides, and the
            best programs by the other objectives are also evaluated on test.
        trials: Trials of the search over knobs and demonstration sets, 1 or more; each set is tried at least once.
            Default 30.
        teleprompter: The optimizer of the technique's prompts: a name in ``OPTIMIZERS``. Default
            ``bootstrap_few_shot``.
        arguments: Arguments of the teleprompter.
        demo_sizes: Number of demonstrations in each set of ``bootstrap_few_shot``. Default 1 and 2.
        reader_demo_sizes: Number of demonstrations in each of the reader's sets, which are tuned for accuracy. Default
            1.
        seed: Seed for the order of training questions and for the sampler. Default 0.
        threads: Number of questions to run at a time. Default None: 4, or the number that a remote LM's server accepts.
        max_failures: Share of a program's questions that may fail. Default 0.05.
        allow_copies: Whether prompts that copy training questions, answers, or passages may be tried and recommended.
            Default False: they are left out and reported.
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
    allow_copies: bool = False

    @property
    def objectives(self) -> tuple[str, ...]:
        """The objectives; the first one decides."""
        return (self.objective,) if isinstance(self.objective, str) else tuple(self.objective)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A program that can be chosen.

    Args:
        name: ``baseline``, ``untuned``, or ``trial N``.
        knobs: Values of the program's knobs.
        prompt: ``untuned``, or the set of demonstrations, such as ``demos_2``.
        dev: The program's results on dev.
    """

    name: str
    knobs: Mapping[str, Any]
    prompt: str
    dev: Evaluation


@dataclass(frozen=True, slots=True)
class PairedComparison:
    """Two programs compared on the same questions.

    Args:
        family: The name of the comparisons that are corrected together, such as ``technique`` or ``reader check``.
        metric: The metric.
        arm: The first program.
        other: The second program.
        test: The paired test. Its two-sided p is corrected for multiple comparisons within its family (Holm's method).
            Its one-sided p (that the first program is better) is not corrected.
        sentence: The result in a sentence.
    """

    family: str
    metric: str
    arm: str
    other: str
    test: PairedTest
    sentence: str

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as a JSON object; NaN becomes null."""
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
    """The result of a compilation.

    Args:
        program: The recommended program: the winner on dev.
        technique: The technique that was compiled.
        recommended: Name of the program that won on dev.
        arms: All programs, in the order in which they were tried.
        compiled: The technique's best program on dev.
        reader_demos: Whether demonstrations were chosen for the reader.
        test: Results on test for every program in the final table.
        comparisons: The planned comparisons on test.
        verdict: The verdict in one word.
        sentence: The verdict in a sentence with figures.
        costs: Cost of each stage.
        settings: The settings.
        n_demo_sets: Number of demonstration sets that were made for the technique.
        failed: Programs that were dropped because too many of their questions failed, with the message.
        nothing: Sets of demonstrations that could not be made (for the technique or the reader), and why.
        reader_check: Additional questions on which only closed book and oracle evidence were evaluated.
        corrected: The best program's value on dev, and the value to expect on new questions, which is usually lower
            because the best of many programs is partly lucky. None if too few questions were scored.
        judges: For each judge, ``judge``, the ``digest`` of its prompt, ``lm``, ``lm_digest``, and its calibration as
            ``standing``.
        copied: Training texts that were copied into prompts, by the name of the prompts.
        slices: Results on test by slice, if columns were named.
        hints: Warnings about the questions, such as labels that moved, and about the passages that programs showed.
        notes: What readers should know before they trust the results, such as a judge's calibration.
        remarks: Lines to print below a table of the results.
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
    copied: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    slices: tuple[SliceResult, ...] = ()
    hints: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def compared(self) -> Comparison:
        """The results on test as a comparison with the baseline; closed book and oracle evidence are the references."""
        told = {name: getattr(self, name) for name in ("slices", "hints", "notes", "remarks")}
        return replace(as_comparison(self.test, self.comparisons), **told)

    def by_slice(self, columns: Sequence[str], questions: Sequence[Question]) -> CompileResult:
        """Return this result with results by slice of the test questions; see ``slice_results`` for ``columns``."""
        from querywright.optimize.comparison import CLOSED_BOOK
        from querywright.optimize.slices import slice_results

        compared, closed = self.compared, self.compared.reference(CLOSED_BOOK)
        arms = [*compared.arms]
        found = slice_results(arms, questions, columns, baseline=compared.baseline, closed_book=closed)
        return replace(self, slices=found)

    def to_json(self) -> dict[str, Any]:
        """Return everything except the individual questions as a JSON object."""
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
            **({"copied_prompts": {name: list(texts) for name, texts in self.copied.items()}} if self.copied else {}),
            "corrected": self.corrected and dict(zip(("dev", "corrected"), self.corrected, strict=True)),
            "compiled": self.compiled.name,
            "reader_check": len(self.reader_check),
            "test": [evaluation.to_json() for evaluation in self.test],
            "comparisons": [one.to_json() for one in self.comparisons],
            **({"slices": [one.to_json() for one in self.slices]} if self.slices else {}),
            "notes": self.compared.all_notes,
            "cost": {stage: cost.to_json() for stage, cost in self.costs.items()},
        }

    def report(self, path: str | Path) -> Path:
        """Write the outcome and the test as one HTML page; return the file."""
        facts = {"Technique": self.technique, "Recommended": self.recommended}
        facts |= {"Objective": ", ".join(self.settings.objectives)}
        notes = [CHOSEN_ON_DEV, *(one.sentence for one in self.comparisons if one.other != BASELINE)]
        return self.compared.report(
            path,
            title=f"{self.technique}, compiled{by_judges(self.judges)}",
            facts=facts,
            notes=notes,
            outcome=self.sentence,
            metric=objectives_of(self.settings.objectives)[0].metrics[0],
        )

    def _told(self) -> tuple[Sequence[Evaluation], Sequence[str], Sequence[Question]]:
        return self.test, [*self.compared.all_notes, f"{self.sentence}."], []


def as_comparison(met: Sequence[Evaluation], comparisons: Sequence[PairedComparison]) -> Comparison:
    """Return results on test as a comparison with the baseline; closed book and oracle evidence are the references."""
    from querywright.optimize.comparison import CLOSED_BOOK, ORACLE, Comparison

    arms = tuple(one for one in met if one.name not in (CLOSED_BOOK, ORACLE))
    held: Any = tuple(one for one in comparisons if one.other == BASELINE)
    references = tuple(one for one in met if one.name in (CLOSED_BOOK, ORACLE))
    return Comparison(arms, BASELINE, held, references)


def configuration(technique: type[Technique], engine: str | None, knobs: Mapping[str, Any]) -> str:
    """Return a program's engine, its number of passages, and the knobs that differ from their defaults, in words."""
    defaults = {knob.name: knob.default for knob in technique.KNOBS if knob is not MAX_PASSAGES}
    named = [f"{name}={value}" for name, value in knobs.items() if defaults.get(name) != value]
    return ", ".join([*([f"engine {engine}"] if engine else []), *named])


def in_words(arm: str) -> str:
    """Return an arm's name for use in a sentence: ``baseline`` with an article, any other name unchanged."""
    return f"the {arm}" if arm == BASELINE else arm


def by_judges(judges: Iterable[Mapping[str, str]]) -> str:
    """Return the judges and their LMs as text to append to a title or sentence; empty without judges."""
    named = [f"{one['judge']} ({one['lm']})" for one in judges]
    return f", by judge{'s' * (len(named) > 1)} {' and '.join(named)}" if named else ""


def today() -> str:
    """Return today's date, ISO 8601."""
    return datetime.now(UTC).date().isoformat()
