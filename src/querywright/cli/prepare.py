"""From what was named on the command line to programs that can be asked: everything is checked, nothing is spent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from querywright.cli.common import Workspace, open_reranker, pairs
from querywright.cli.plan import Plan, make_plan, planned_programs, planned_questions, settle
from querywright.cli.show import note
from querywright.errors import InputError

if TYPE_CHECKING:
    from querywright.data.types import Question
    from querywright.programs import RAG
    from querywright.retrieval.engines import CollectionRetriever

SHOWN_WARNINGS = 3


@dataclass(frozen=True, slots=True)
class Judging:
    """An LM that labels passages.

    Args:
        lm: Its name.
        api_base: Address of its server.
        api_key_env: Environment variable that holds its key.
    """

    lm: str
    api_base: str | None
    api_key_env: str | None


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is ready to be asked.

    Args:
        plan: What was named, settled.
        questions: What is asked.
        workspace: Working folder and LM.
        metrics: Metrics by name.
        retrievers: Open retrievers by engine.
        programs: Programs by the names of their arms.
    """

    plan: Plan
    questions: list[Question]
    workspace: Workspace
    metrics: Mapping[str, Any]
    retrievers: Mapping[str, CollectionRetriever]
    programs: Mapping[str, RAG]

    def lines(self, unscored: Sequence[str]) -> list[str]:
        """What is said below a table of results."""
        return [
            f"LM {self.workspace.lm.model}; mean in per cent with its 95 % interval",
            *self.plan.notes,
            *(f"{name}: no question could be scored" for name in unscored),
        ]


def prepare(
    source: str,
    *,
    collection: str | None,
    techniques: Sequence[str] | None,
    artifacts: Sequence[Path] | None,
    metric: list[str] | None,
    judging: Judging | None,
    knob: list[str] | None,
    reader: str,
    column: list[str] | None,
    limit: int | None,
    split: str | None,
    lm: str,
    api_base: str | None,
    api_key_env: str | None,
    max_calls: int | None,
    embedder: str,
    engine: str,
    reranker: str | None,
    home: Path | None,
) -> Prepared:
    """Check, read and open all that a command was given.

    Raises:
        InputError: Something cannot be used.
    """
    plan = make_plan(techniques, artifacts, reader, pairs(knob, "--knob"), metric, engine)
    asked = planned_questions(plan, source, pairs(column, "--column"), limit, split)
    settle(plan, asked, judged=judging is not None)
    if plan.searching and collection is None:
        raise InputError(f"{plan.searching[0]} searches; name a collection with --collection")
    if reranker is not None and not plan.reranks:
        raise InputError("nothing here reranks; leave --reranker out, or name a technique that does")
    workspace = Workspace.open(home, lm, api_base=api_base, api_key_env=api_key_env, max_calls=max_calls)
    metrics: dict[str, Any] = dict(plan.metrics)
    if judging is not None:
        own = judging.api_base or api_base, judging.api_key_env or api_key_env
        judge = (
            workspace.lm
            if (judging.lm, *own) == (lm, api_base, api_key_env)
            else workspace.another_lm(
                judging.lm, api_base=judging.api_base, api_key_env=judging.api_key_env, max_calls=max_calls
            )
        )
        metrics["judged_useful"] = _judged(judge)
        plan.notes.append(f"judged_useful: labels by the judge {judge.model}, not calibrated against people")
    retrievers: dict[str, CollectionRetriever] = {}
    if collection is not None:
        engines = plan.engines or ([engine] if plan.artifacts else [])
        retrievers = {name: workspace.retriever(collection, embedder, name) for name in engines}
        for retriever in list(retrievers.values())[:1]:
            _warn_of_missing_evidence(asked, retriever)
    programs = planned_programs(plan, retrievers, workspace, home, open_reranker(reranker))
    return Prepared(plan, asked, workspace, metrics, retrievers, programs)


def _judged(lm: Any) -> Callable[..., float]:
    import dspy

    from querywright.metrics.judge import UsefulnessJudge, judged_metric
    from querywright.models.adapter import PromptAdapter

    metric = judged_metric(UsefulnessJudge())

    def judged(example: Any, prediction: Any, trace: Any = None) -> float:
        with dspy.context(lm=lm, adapter=PromptAdapter()):
            return metric(example, prediction, trace)

    return judged


def _warn_of_missing_evidence(asked: Sequence[Question], retriever: CollectionRetriever) -> None:
    from querywright.data.reading import check_evidence

    missing = check_evidence(asked, {passage.id for passage in retriever.passages()})
    for line in missing[:SHOWN_WARNINGS]:
        note(f"warning: {line}", style="yellow")
    if len(missing) > SHOWN_WARNINGS:
        note(f"warning: and {len(missing) - SHOWN_WARNINGS} questions more", style="yellow")
