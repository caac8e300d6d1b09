"""From what was named on the command line to programs that can be asked: everything is checked, nothing is spent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from querywright.cli.checks import open_reranker
from querywright.cli.judges import Panel, make_panel
from querywright.cli.options import ArmOptions, DataOptions, Helpers, Judging, LimitedLM
from querywright.cli.plan import Plan, make_plan, planned_programs, planned_questions, settle
from querywright.cli.show import note
from querywright.cli.workspace import Workspace
from querywright.errors import InputError

if TYPE_CHECKING:
    import dspy

    from querywright.data.types import Question
    from querywright.optimize.evaluate import Progress
    from querywright.programs import RAG
    from querywright.retrieval.engines import CollectionRetriever

SHOWN_WARNINGS = 3


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is ready to be asked.

    Args:
        plan: What was named, settled.
        questions: What is asked.
        workspace: Working folder and LM.
        panel: The judges.
        judge_lm: Their LM.
        retrievers: Open retrievers by engine.
        programs: Programs by the names of their arms.
    """

    plan: Plan
    questions: list[Question]
    workspace: Workspace
    panel: Panel
    judge_lm: dspy.LM
    retrievers: Mapping[str, CollectionRetriever]
    programs: Mapping[str, RAG]

    @property
    def searched(self) -> dict[str, Any]:
        """By arm the retriever of those that search; here all of them search collections."""
        found = {name: program.technique.retriever for name, program in self.programs.items()}
        return {name: retriever for name, retriever in found.items() if retriever is not None}

    @property
    def rewriters(self) -> dict[str, list[str]]:
        """The arms that each rewriter writes for."""
        found: dict[str, list[str]] = {}
        for name, program in self.programs.items():
            if program.technique.own_lm is not None:
                found.setdefault(str(program.technique.own_lm.model), []).append(name)
        return found

    @property
    def retriever(self) -> Any:
        """A retriever over the collection, else that of the first artifact; None where nothing searches."""
        return next(iter((*self.retrievers.values(), *self.searched.values())), None)

    def metrics(self, *, threads: int, max_failures: float, progress: Progress) -> dict[str, Any]:
        """The metrics by name; guidelines that a judge needs are written first."""
        judged = self.panel.at_work(
            self.judge_lm,
            self.questions,
            self.retriever,
            threads=threads,
            max_failures=max_failures,
            progress=progress,
        )
        return {**self.plan.metrics, **judged}

    def lines(self, unscored: Sequence[str]) -> list[str]:
        """What is said below a table of results."""
        return [
            f"LM {self.workspace.lm.model}; mean in per cent with its 95 % interval",
            *(f"{', '.join(arms)}: what is searched was written by {name}" for name, arms in self.rewriters.items()),
            *self.plan.notes,
            *self.panel.notes(self.judge_lm, self.workspace.lm),
            *(f"{name} is not scored: it needs {lacking}" for name, lacking in self.plan.lacks.items()),
            *(f"{name}: no question could be scored" for name in unscored if name not in self.plan.lacks),
        ]


def prepare(
    source: str,
    techniques: Sequence[str],
    artifacts: Sequence[Path],
    *,
    arms: ArmOptions,
    helpers: Helpers,
    judging: Judging,
    data: DataOptions,
    lm: LimitedLM,
    home: Path | None,
    jointly: bool | None = None,
) -> Prepared:
    """Check, read and open all that a command was given.

    Where ``jointly`` is given, every question takes all of its helpful passages, or any one of them.

    Raises:
        InputError: Something cannot be used.
    """
    judging.check()
    panel = make_panel(judging)
    plan = make_plan(techniques, artifacts, arms, helpers.rewriter)
    asked = planned_questions(plan, source, data)
    if jointly is not None:
        asked = [replace(question, jointly=jointly) for question in asked]
    settle(plan, asked, judged=bool(panel.judges))
    if plan.searching and arms.collection is None:
        raise InputError(f"{plan.searching[0]} searches; name a collection with --collection")
    if helpers.reranker is not None and not plan.reranks:
        raise InputError("nothing here reranks; leave --reranker out, or name a technique that does")
    workspace = Workspace.open(home, lm)
    judge_lm = workspace.judge_lm(lm, judging)
    retrievers: dict[str, CollectionRetriever] = {}
    if arms.collection is not None:
        engines = plan.engines or ([arms.engine] if plan.artifacts or panel.guidelines else [])
        retrievers = {name: workspace.retriever(arms.collection, arms.embedder, name) for name in engines}
        for retriever in list(retrievers.values())[:1]:
            _warn_of_missing_evidence(asked, retriever)
    programs = planned_programs(plan, retrievers, workspace, home, open_reranker(helpers.reranker), helpers.rewriter)
    return Prepared(plan, asked, workspace, panel, judge_lm, retrievers, programs)


def _warn_of_missing_evidence(asked: Sequence[Question], retriever: CollectionRetriever) -> None:
    from querywright.data.reading import check_evidence

    missing = check_evidence(asked, {passage.id for passage in retriever.passages()})
    for line in missing[:SHOWN_WARNINGS]:
        note(f"warning: {line}", style="yellow")
    if len(missing) > SHOWN_WARNINGS:
        note(f"warning: and {len(missing) - SHOWN_WARNINGS} questions more", style="yellow")
