"""What ``querywright evaluate`` and ``compare`` run: arms and judges, checked and open; and what is said of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from querywright.cli.checks import check_file
from querywright.cli.options import ArmOptions, DataOptions, Helpers, Judging, LimitedLM, RunOptions
from querywright.cli.show import note
from querywright.errors import InputError

if TYPE_CHECKING:
    import dspy

    from querywright.data.types import Question
    from querywright.metrics.guideline import Guidelines
    from querywright.metrics.judge import JudgedMetric
    from querywright.optimize.evaluate import Evaluation, Progress
    from querywright.optimize.judge_files import SavedJudge
    from querywright.prepared import Prepared

DEFAULT_JUDGE = "usefulness"


@dataclass(slots=True)
class Bench:
    """Arms and judges of one command.

    Args:
        ready: The arms, questions and metrics.
        judges: By the name of their metric.
        judge_lm: Their LM.
        guidelines: The file of guidelines, for the judge that needs them.
        judged: The judges at work.
    """

    ready: Prepared
    judges: Mapping[str, SavedJudge]
    judge_lm: dspy.LM
    guidelines: Path | None
    judged: dict[str, JudgedMetric] = field(default_factory=dict)

    @classmethod
    def open(
        cls,
        source: str,
        named: Iterable[Any],
        *,
        arms: ArmOptions,
        helpers: Helpers,
        judging: Judging,
        data: DataOptions,
        lm: LimitedLM,
        home: Path | None,
        jointly: bool | None = None,
    ) -> Bench:
        """Check, read and open all that a command was given.

        Raises:
            InputError: Something cannot be used.
        """
        from querywright.prepared import prepare

        judging.check()
        judges = _judges(judging)
        ready = prepare(
            named, source, workspace=lambda: lm.open(home), retriever=arms.collection, embedder=arms.embedder,
            engine=arms.engine, reader=arms.reader, knobs=arms.knobs, metrics=arms.metric, reranker=helpers.reranker,
            rewriter=helpers.rewriter, reading=data.given, jointly=jointly, judged=bool(judges), tell=note,
        )  # fmt: skip
        return cls(ready, judges, judging.open(ready.workspace, lm), judging.guidelines)

    def metrics(self, run: RunOptions, progress: Progress) -> dict[str, Any]:
        """The metrics by name; guidelines that a judge needs are written first."""
        from querywright.metrics.guideline import GuidelineMetric
        from querywright.metrics.judge import judged_metric
        from querywright.metrics.judges import CoverageJudge

        for name, saved in self.judges.items():
            if isinstance(saved.judge, CoverageJudge):
                self.judged[name] = GuidelineMetric(saved.judge, self._frozen(run, progress))
            else:
                self.judged[name] = judged_metric(saved.judge)
        asked = {name: _asked_of(self.judge_lm, metric) for name, metric in self.judged.items()}
        return {**self.ready.metrics, **asked}

    def lines(self, found: Sequence[Evaluation], metrics: Iterable[str]) -> list[str]:
        """What is said below a table of results."""
        from querywright.models.lm import lm_digest

        ready, lm = self.ready, self.ready.workspace.lm
        lines = [f"LM {lm.model}; mean in per cent with its 95 % interval"]
        for name, arms in ready.rewriters.items():
            lines.append(f"{', '.join(arms)}: what is searched was written by {name}")
        lines += ready.notes
        for name, saved in self.judges.items():
            metric = self.judged[name]
            line = f"{name}: {saved.standing(self.judge_lm.model, lm_digest(self.judge_lm))}"
            line += f"; in this run {metric.judgements} judgements, {metric.unreadable} unreadable"
            lines.append(f"{line}; judge and arms have the same LM" if self.judge_lm.model == lm.model else line)
        lines += [f"{name} is not scored: it needs {lacking}" for name, lacking in ready.lacks.items()]
        unscored = [name for name in metrics if not any(name in one.metrics for one in found)]
        return [*lines, *(f"{name}: no question could be scored" for name in unscored if name not in ready.lacks)]

    def _frozen(self, run: RunOptions, progress: Progress) -> Guidelines:
        from querywright.metrics.guideline import Guidelines
        from querywright.optimize.judging import freeze_guidelines

        assert self.guidelines is not None
        frozen = Guidelines.load(self.guidelines) if self.guidelines.exists() else Guidelines()
        sourced = _with_sources(self.ready.questions, self.ready.retriever)
        if not sourced:
            raise InputError(
                "a guideline is written from the passages that are labelled ENTAILED, but no question has one in the "
                "collection; give such questions and --collection, or leave the judge coverage out"
            )
        frozen = freeze_guidelines(frozen, sourced, lm=self.judge_lm, **run.given, progress=progress)
        frozen.save(self.guidelines)
        return Guidelines({question.id: frozen[question.id] for question, _ in sourced if question.id in frozen})


def _judges(judging: Judging) -> dict[str, SavedJudge]:
    """The judges that were named, or the one of usefulness where only its LM was."""
    from querywright.cli.judge import resolve_judge
    from querywright.metrics.judges import CoverageJudge

    judges: dict[str, SavedJudge] = {}
    for name in judging.judge or ([DEFAULT_JUDGE] if judging.judge_lm is not None else []):
        saved = resolve_judge(name)
        if saved.judge.METRIC in judges:
            raise InputError(f"--judge {name}: the judge {saved.judge.NAME} is given twice; give one of them")
        judges[saved.judge.METRIC] = saved
    if (CoverageJudge.METRIC in judges) != (judging.guidelines is not None):
        raise InputError(
            "the judge coverage holds answers against guidelines, and only it does: give both --judge coverage and "
            "--guidelines FILE, which is written where it is missing, or neither"
        )
    if judging.guidelines is not None:
        check_file(judging.guidelines, "--guidelines")
    return judges


def _with_sources(asked: Sequence[Question], retriever: Any) -> list[tuple[Question, Sequence[Any]]]:
    """Each question that has a passage labelled ENTAILED in the collection, with those passages."""
    from querywright.data.types import Label

    known: Mapping[str, Any] = {} if retriever is None else {one.id: one for one in retriever.passages()}
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
