"""``querywright questions fill``: find out which passages answer the questions that were written for others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from querywright.cli.options import (
    ApiBaseOption,
    CallsOption,
    EmbedderOption,
    HomeOption,
    JsonOption,
    KeyOption,
    LMOption,
    ThreadsOption,
)
from querywright.cli.show import note, print_json, progress, say
from querywright.cli.workspace import Workspace, lm_failures

if TYPE_CHECKING:
    from querywright.optimize.question_fill import FillReport
    from querywright.retrieval.answer_matrix import Validation


def fill(
    collection: Annotated[
        str, typer.Argument(metavar="COLLECTION", help="The collection whose questions were written.")
    ],
    threshold: Annotated[
        float | None,
        typer.Option(
            "--threshold",
            metavar="S",
            min=-1.0,
            max=1.0,
            help="Judge pairs of at least this cosine similarity.",
            show_default=False,
        ),
    ] = None,
    percentile: Annotated[
        float | None,
        typer.Option(
            "--percentile",
            metavar="P",
            min=0.0,
            max=100.0,
            help="Judge pairs above this percentile of similarity, such as 99.5.",
            show_default=False,
        ),
    ] = None,
    most: Annotated[
        int, typer.Option("--most", metavar="N", min=1, help="At most N judgements, the most similar pairs first.")
    ] = 10_000,
    complete: Annotated[
        bool, typer.Option("--complete/--no-complete", help="Complete the pairs that are not judged, at low rank.")
    ] = True,
    cut: Annotated[
        float, typer.Option("--cut", metavar="V", min=0.0, max=1.0, help="Store completed pairs of this value or more.")
    ] = 0.5,
    lm: LMOption = "embedded",
    api_base: ApiBaseOption = None,
    api_key_env: KeyOption = None,
    max_calls: CallsOption = None,
    max_failures: Annotated[
        float,
        typer.Option("--max-failures", metavar="SHARE", min=0.0, max=1.0, help="Share of judgements that may fail."),
    ] = 0.05,
    threads: ThreadsOption = 4,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Of what is drawn, and of the completion.")] = 0,
    embedder: EmbedderOption = "embedded",
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the passages that answer a question beside the one it was written for: judge similar pairs, complete others.

    What is found replaces what an earlier fill stored, also where that was more.
    A completion that does not predict held-out judgements better than their mean does is refused, and only what was
    judged is stored. The same fill again costs nothing.

    Example: querywright questions fill textbooks --percentile 99.5 --most 5000
    """
    from querywright.models.embedder import resolve_embedder
    from querywright.optimize.question_fill import fill as fill_in

    workspace = Workspace.open(home, lm, api_base=api_base, api_key_env=api_key_env, max_calls=max_calls)
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
            threads=threads,
            max_failures=max_failures,
            seed=seed,
            progress=update,
        )
    if as_json:
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
