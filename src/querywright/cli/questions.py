"""``querywright questions``: questions written for the passages of a collection, which a search goes through."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from querywright.cli.checks import check_judge_lm
from querywright.cli.options import (
    ApiBaseOption,
    EmbedderOption,
    HomeOption,
    JsonOption,
    JudgeApiBaseOption,
    JudgeKeyOption,
    KeyOption,
    LMOption,
    WriterJudgeLMOption,
)
from querywright.cli.questions_files import export, import_
from querywright.cli.questions_fill import fill
from querywright.cli.show import note, print_json, progress, say, show_table
from querywright.cli.workspace import Workspace, lm_failures
from querywright.errors import InputError

if TYPE_CHECKING:
    from querywright.optimize.question_build import QuestionsReport
    from querywright.optimize.question_made import QuestionsMade
    from querywright.optimize.question_stats import QuestionStats

SHOWN = 10
"""Ids that are named at most."""
THREADS, RAY = "threads", "ray"
"""What a build runs on."""
WORKERS = 2

CollectionArgument = Annotated[str, typer.Argument(metavar="COLLECTION", help="Name of a collection that was built.")]

questions_app = typer.Typer(
    help="Write questions for the passages of a collection, and look at them.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
questions_app.command("fill")(fill)
questions_app.command("export")(export)
questions_app.command("import")(import_)


@questions_app.command("build")
def build(
    collection: CollectionArgument,
    num_questions: Annotated[
        int, typer.Option("--num-questions", metavar="N", min=1, help="Questions a passage at most.")
    ] = 20,
    batch_size: Annotated[
        int, typer.Option("--batch-size", metavar="N", min=1, help="Questions asked for in one call.")
    ] = 5,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", metavar="N", min=1, help="For a trial: only the first N passages, by id.", show_default=False
        ),
    ] = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove the questions of passages that are in the collection no more.")
    ] = False,
    lm: LMOption = "embedded",
    api_base: ApiBaseOption = None,
    api_key_env: KeyOption = None,
    judge_lm: WriterJudgeLMOption = None,
    judge_api_base: JudgeApiBaseOption = None,
    judge_api_key_env: JudgeKeyOption = None,
    max_calls: Annotated[
        int | None,
        typer.Option(
            "--max-calls",
            metavar="N",
            min=1,
            help="Stop after N LM calls, of all processes together; another LM that judges has as many of its own.",
            show_default=False,
        ),
    ] = None,
    max_failures: Annotated[
        float,
        typer.Option("--max-failures", metavar="SHARE", min=0.0, max=1.0, help="Share of passages that may fail."),
    ] = 0.05,
    threads: Annotated[
        int,
        typer.Option(
            "--threads", metavar="N", min=1, help="LM calls under way at a time; with ray in each of its processes."
        ),
    ] = 4,
    engine: Annotated[
        str,
        typer.Option("--engine", metavar="NAME", help="threads, or ray: processes, which need the extra of that name."),
    ] = THREADS,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", metavar="N", min=1, help=f"Processes of ray. Default: {WORKERS}.", show_default=False
        ),
    ] = None,
    embedder: EmbedderOption = "embedded",
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write questions for every passage, judge whether it answers them, and publish those it does.

    Passages whose questions are there already cost nothing; a build that was stopped goes on where it was.

    Example: querywright questions build textbooks --lm openai/gpt-4o-mini --threads 16
    """
    from querywright.models.embedder import resolve_embedder
    from querywright.optimize.question_build import build_questions
    from querywright.programs.question_writer import QuestionWriter

    check_judge_lm(judge_lm, judge_api_base, judge_api_key_env)
    if engine not in (THREADS, RAY):
        raise InputError(f"unknown engine {engine!r}; questions are written on {THREADS} or {RAY}")
    if workers is not None and engine != RAY:
        raise InputError(f"--workers is of --engine {RAY}; {THREADS} are told by --threads")
    writer = QuestionWriter(num_questions, batch_size)
    workspace = Workspace.open(home, lm, api_base=api_base, api_key_env=api_key_env, max_calls=max_calls)
    judging = workspace.judge_lm(
        lm, judge_lm, api_base=judge_api_base, api_key_env=judge_api_key_env, max_calls=max_calls
    )
    records = None
    if engine == RAY:
        from querywright.optimize.question_processes import BuildNames, LMName, in_processes

        names = BuildNames(
            home=str(workspace.home),
            lm=LMName(lm, api_base, api_key_env),
            judge_lm=None if judging is workspace.lm else LMName(judge_lm or lm, judge_api_base, judge_api_key_env),
            num_questions=num_questions,
            batch_size=batch_size,
            threads=threads,
            max_calls=max_calls,
        )
        records = in_processes(names, workers=workers or WORKERS, ledger=workspace.ledger)
    # Ray tells on standard output that a process died.
    with progress() as update, lm_failures(), contextlib.redirect_stdout(sys.stderr):
        report = build_questions(
            collection,
            lm=workspace.lm,
            judge_lm=judging,
            embedder=resolve_embedder(embedder, store=workspace.store),
            writer=writer,
            records=records,
            threads=threads,
            max_failures=max_failures,
            limit=limit,
            prune=prune,
            home=workspace.home,
            progress=update,
        )
    if as_json:
        print_json(report.to_json())
        return
    _show_build(report)
    say(workspace.cost_line())


@questions_app.command("stats")
def stats(
    collection: CollectionArgument,
    embedder: EmbedderOption = "embedded",
    sample: Annotated[
        int, typer.Option("--sample", metavar="N", min=1, help="Questions whose similarities are looked at, about.")
    ] = 1000,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Of the choice of these questions.")] = 0,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say how many questions are kept, which passages have none, how near they lie, and what they cost.

    Example: querywright questions stats textbooks
    """
    from querywright.home import home as working_folder
    from querywright.models.embedder import resolve_embedder
    from querywright.models.store import open_store
    from querywright.optimize.question_stats import question_stats

    folder = working_folder(home)
    embeds = resolve_embedder(embedder, store=open_store(folder))
    found = question_stats(collection, embedder=embeds, home=folder, size=sample, seed=seed)
    if as_json:
        print_json(found.to_json())
    else:
        _show_stats(found)


def _show_stats(found: QuestionStats) -> None:
    mean, least, most = found.per_passage
    near, judged = found.similarities, found.labels
    figures = {
        "passages": str(found.passages),
        "passages with questions as they are now": str(found.recorded),
        "stale: changed since": str(found.stale),
        "not written yet": str(found.unwritten),
        "gone from the collection": str(found.removed),
        "imported": str(found.imported),
        "written with other settings": str(found.other_settings),
        "questions written": str(found.written),
        **{f"  {label}": str(count) for label, count in judged.items()},
        "kept share: complete of those judged": _number(found.kept_share),
        "complete questions a passage": f"{_number(mean)} ({least} to {most})",
        "passages without a complete question": str(len(found.bare)),
        "coverage: passages of all that have one": _number(found.coverage),
        **{f"dropped unjudged: {why}": str(count) for why, count in found.dropped.items()},
        "cosine, questions of one passage": _number(near.same_passage),
        "cosine, questions of different passages": _number(near.other_passage),
        "cosine, question and its passage": _number(near.own_passage),
        "cosine, question and another passage": _number(near.not_own_passage),
    }
    rows = [{"figure": name, "value": value} for name, value in figures.items()]
    notes = [f"similarities of {near.questions} complete questions"]
    if found.made is not None:
        notes += [_standing(found.made), _cost(found.made)]
    show_table(f"questions of {found.collection}", rows, notes=notes)
    if found.bare:
        say(f"without a complete question: {', '.join(found.bare[:SHOWN])}{' ...' if len(found.bare) > SHOWN else ''}")


def _number(value: float) -> str:
    return "undefined" if value != value else f"{value:.3f}"


def _standing(made: QuestionsMade) -> str:
    return f"written by {made.lm}, judged by {made.judge_lm}, which was not measured against people here"


def _cost(made: QuestionsMade) -> str:
    from querywright.models.usage import Cost

    cost = Cost.from_json(made.cost)
    dollars = f"; {cost.dollars:.4f} US dollars estimated" if cost.dollars else ""
    return (
        f"{made.num_questions} questions a passage asked for, {made.batch_size} a call; {cost.calls} LM calls made, "
        f"{cost.saved} saved; {cost.tokens} tokens; {made.seconds:.0f} s{dollars}"
    )


def _show_build(report: QuestionsReport) -> None:
    failed = sum(report.failed.values())
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(report.failed.items()))
    say(
        f"{report.collection}: {report.passages} passages, {report.written} written now, {report.current} there "
        f"already, {failed} failed{f' ({kinds})' if kinds else ''}; {report.index.count} questions kept; "
        f"{report.seconds:.1f} s"
    )
    say(_standing(report.made))
    if failed:
        note("the same command tries the failed passages again")
    if report.replaced:
        note(f"the text of {report.replaced} passages changed: the questions that were imported for them are replaced")
    if report.removed:
        state = "are removed" if report.pruned else "stay; --prune removes them"
        note(f"the questions of {report.removed} passages that are in the collection no more {state}")
