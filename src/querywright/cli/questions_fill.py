"""``querywright questions fill``: find out which passages answer the questions that were written for others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from querywright.cli.options import Count, Integer, LimitedLM, Name, Output, RunOptions
from querywright.cli.show import note, print_json, progress, say
from querywright.workspace import lm_failures

if TYPE_CHECKING:
    from querywright.optimize.question_fill import FillReport
    from querywright.retrieval.answer_matrix import Validation


def fill(
    collection: str,
    /,
    *,
    threshold: Annotated[float, Parameter(metavar="S", validator=Number(gte=-1, lte=1))] | None = None,
    percentile: Annotated[float, Parameter(metavar="P", validator=Number(gte=0, lte=100))] | None = None,
    most: Count = 10_000,
    complete: Annotated[bool, Parameter(negative="--no-complete")] = True,
    cut: Annotated[float, Parameter(metavar="V", validator=Number(gte=0, lte=1))] = 0.5,
    seed: Integer = 0,
    embedder: Name = "embedded",
    lm: LimitedLM = LimitedLM(),
    run: RunOptions = RunOptions(),
    output: Output = Output(),
) -> None:
    """Find the passages that answer a question beside the one it was written for: judge similar pairs, complete others.

    What is found replaces what an earlier fill stored, also where that was more.
    A completion that does not predict held-out judgements better than their mean does is refused, and only what was
    judged is stored. The same fill again costs nothing.

    Example: querywright questions fill textbooks --percentile 99.5 --most 5000

    Args:
        collection: The collection whose questions were written.
        threshold: Judge pairs of at least this cosine similarity.
        percentile: Judge pairs above this percentile of similarity, such as 99.5.
        most: At most N judgements, the most similar pairs first.
        complete: Complete the pairs that are not judged, at low rank.
        cut: Store completed pairs of this value or more.
        seed: Of what is drawn, and of the completion.
        embedder: embedded, or a sentence-transformers name or path.
    """
    from querywright.models.embedder import resolve_embedder
    from querywright.optimize.question_fill import fill as fill_in

    workspace = lm.open(output.home)
    with progress() as update, lm_failures():
        report = fill_in(
            collection,
            lm=workspace.lm,
            embedder=resolve_embedder(embedder, store=workspace.store),
            home=workspace.home,
            threshold=threshold,
            percentile=percentile,
            most=most,
            complete=complete,
            cut=cut,
            **run.given,
            seed=seed,
            progress=update,
        )
    if output.as_json:
        print_json(report.to_json())
        return
    _show(report)
    say(workspace.cost_line())


def _show(report: FillReport) -> None:
    say(
        f"{report.collection}: {report.questions} questions, {report.passages} passages; {report.stale} questions left "
        "out, their passage has changed"
    )
    say(
        f"judged {report.near} similar pairs of {report.eligible}, {_percent(report.near_answered)} answers, and "
        f"{report.far} drawn at random, {_percent(report.far_answered)} answers; {report.unreadable} unreadable, "
        f"{report.failed} failed"
    )
    say(f"stored {report.stored} pairs in place of {report.before}")
    if report.stored < report.before:
        note("fewer pairs are stored than before; the same fill as then brings them back, from stored answers")
    if report.validation is not None:
        say(_completion(report.validation, report.completed))


def _completion(found: Validation, completed: int) -> str:
    if not found.held:
        return f"completion refused: {found.reason}"
    auc = "undefined" if found.auc != found.auc else f"{found.auc:.2f}"
    said = (
        f"rank {found.rank}, ridge {found.ridge:g}; on {found.held} held-out judgements error (RMSE) {found.rmse:.3f}, "
        f"base rate {found.base_rmse:.3f}; right {_percent(found.accuracy)}, base rate "
        f"{_percent(found.base_accuracy)}; AUC {auc}"
    )
    return f"completed {completed} pairs: {said}" if found.used else f"completion refused, {found.reason}: {said}"


def _percent(share: float) -> str:
    return "no" if share != share else f"{share:.1%}"
