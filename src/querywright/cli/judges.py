"""The judges of ``querywright evaluate``: which, asked of which LM, and what may be said of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from querywright.cli.checks import check_file
from querywright.cli.options import Judging
from querywright.errors import InputError

if TYPE_CHECKING:
    import dspy

    from querywright.data.types import Question
    from querywright.metrics.guideline import Guidelines
    from querywright.metrics.judge import JudgedMetric
    from querywright.optimize.evaluate import Progress
    from querywright.optimize.judge_files import SavedJudge

DEFAULT_JUDGE = "usefulness"


@dataclass(slots=True)
class Panel:
    """The judges of one command.

    Args:
        judges: By the name of their metric.
        guidelines: The file of guidelines, for the judge that needs them.
        metrics: The judges at work, once an LM is there.
    """

    judges: dict[str, SavedJudge]
    guidelines: Path | None = None
    metrics: dict[str, JudgedMetric] = field(default_factory=dict)

    def at_work(
        self,
        lm: dspy.LM,
        asked: Sequence[Question],
        retriever: Any,
        *,
        threads: int,
        max_failures: float,
        progress: Progress,
    ) -> dict[str, Callable[..., float]]:
        """The metrics by name, asked of this LM; guidelines that are missing are written first."""
        from querywright.metrics.guideline import GuidelineMetric
        from querywright.metrics.judge import judged_metric
        from querywright.metrics.judges import CoverageJudge

        for name, saved in self.judges.items():
            if isinstance(saved.judge, CoverageJudge):
                frozen = self._frozen(lm, asked, retriever, threads, max_failures, progress)
                self.metrics[name] = GuidelineMetric(saved.judge, frozen)
            else:
                self.metrics[name] = judged_metric(saved.judge)
        return {name: _asked_of(lm, metric) for name, metric in self.metrics.items()}

    def notes(self, lm: dspy.LM, reader: dspy.LM) -> list[str]:
        """A line on each judge, to stand below what it judged."""
        from querywright.models.lm import lm_digest

        lines = []
        for name, saved in self.judges.items():
            metric = self.metrics[name]
            line = f"{name}: {saved.standing(lm.model, lm_digest(lm))}"
            line += f"; in this run {metric.judgements} judgements, {metric.unreadable} unreadable"
            lines.append(f"{line}; judge and arms have the same LM" if lm.model == reader.model else line)
        return lines

    def _frozen(
        self,
        lm: dspy.LM,
        asked: Sequence[Question],
        retriever: Any,
        threads: int,
        max_failures: float,
        progress: Progress,
    ) -> Guidelines:
        from querywright.metrics.guideline import Guidelines
        from querywright.optimize.judging import freeze_guidelines

        assert self.guidelines is not None
        frozen = Guidelines.load(self.guidelines) if self.guidelines.exists() else Guidelines()
        sourced = _with_sources(asked, retriever)
        if not sourced:
            raise InputError(
                "a guideline is written from the passages that are labelled ENTAILED, but no question has one in the "
                "collection; give such questions and --collection, or leave the judge coverage out"
            )
        frozen = freeze_guidelines(
            frozen, sourced, lm=lm, threads=threads, max_failures=max_failures, progress=progress
        )
        frozen.save(self.guidelines)
        return Guidelines({question.id: frozen[question.id] for question, _ in sourced if question.id in frozen})


def make_panel(judging: Judging) -> Panel:
    """The judges that were named, or the one of usefulness where only its LM was."""
    from querywright.cli.judge import resolve_judge
    from querywright.metrics.judges import CoverageJudge

    judges: dict[str, SavedJudge] = {}
    guidelines = judging.guidelines
    for name in judging.judge or ([DEFAULT_JUDGE] if judging.judge_lm is not None else []):
        saved = resolve_judge(name)
        if saved.judge.METRIC in judges:
            raise InputError(f"--judge {name}: the judge {saved.judge.NAME} is given twice; give one of them")
        judges[saved.judge.METRIC] = saved
    if (CoverageJudge.METRIC in judges) != (guidelines is not None):
        raise InputError(
            "the judge coverage holds answers against guidelines, and only it does: give both --judge coverage and "
            "--guidelines FILE, which is written where it is missing, or neither"
        )
    if guidelines is not None:
        check_file(guidelines, "--guidelines")
    return Panel(judges, guidelines)


def _with_sources(asked: Sequence[Question], retriever: Any) -> list[tuple[Question, Sequence[Any]]]:
    """Each question that has a passage labelled ENTAILED in the collection, with those passages."""
    from querywright.data.types import Label

    if retriever is None:
        return []
    known: Mapping[str, Any] = {passage.id: passage for passage in retriever.passages()}
    found: list[tuple[Question, Sequence[Any]]] = []
    for question in asked:
        ids = [key for key, label in question.evidence.items() if label is Label.ENTAILED and key in known]
        if ids:
            found.append((question, [known[key] for key in ids]))
    return found


def _asked_of(lm: dspy.LM, metric: JudgedMetric) -> Callable[..., float]:
    from querywright.optimize.evaluate import asking

    def judged(example: Any, prediction: Any, trace: Any = None) -> float:
        with asking(lm):
            return metric(example, prediction, trace)

    return judged
