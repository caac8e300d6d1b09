"""``querywright questions``: questions written for the passages of a collection, which a search goes through."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from querywright.cli.options import (
    Count,
    Flag,
    Integer,
    JudgeLM,
    LimitedLM,
    Name,
    Output,
    RunOptions,
    make_app,
)
from querywright.cli.questions_files import export, import_
from querywright.cli.questions_fill import fill
from querywright.cli.show import note, print_json, progress, say, show_table
from querywright.errors import InputError
from querywright.workspace import lm_failures

if TYPE_CHECKING:
    from querywright.optimize.question_build import QuestionsMade, QuestionsReport
    from querywright.optimize.question_stats import QuestionStats

SHOWN = 10
"""Ids that are named at most."""
THREADS, RAY = "threads", "ray"
"""What a build runs on."""
WORKERS = 2

questions_app = make_app("questions", "Write questions for the passages of a collection, and look at them.")
questions_app.command(fill, name="fill")
questions_app.command(export, name="export")
questions_app.command(import_, name="import")


@questions_app.command(name="build")
def build(
    collection: str,
    /,
    *,
    num_questions: Count = 20,
    batch_size: Count = 5,
    limit: Count | None = None,
    prune: Flag = False,
    engine: Name = THREADS,
    workers: Count | None = None,
    embedder: Name = "embedded",
    lm: LimitedLM = LimitedLM(),
    judge: JudgeLM = JudgeLM(),
    run: RunOptions = RunOptions(),
    output: Output = Output(),
) -> None:
    """Write questions for every passage, judge whether it answers them, and publish those it does.

    Passages whose questions are there already cost nothing; a build that was stopped goes on where it was.

    Example: querywright questions build textbooks --lm openai/gpt-4o-mini --threads 16

    Args:
        collection: Name of a collection that was built.
        num_questions: Questions a passage at most.
        batch_size: Questions asked for in one call.
        limit: For a trial: only the first N passages, by id.
        prune: Remove the questions of passages that are in the collection no more.
        engine: threads, or ray: processes, which need the extra of that name; each has its own --threads.
        workers: Processes of ray. Default: 2.
        embedder: embedded, or a sentence-transformers name or path.
    """
    from querywright.models.embedder import resolve_embedder
    from querywright.optimize.question_build import build_questions
    from querywright.programs.question_writer import QuestionWriter

    judge.check()
    if engine not in (THREADS, RAY):
        raise InputError(f"unknown engine {engine!r}; questions are written on {THREADS} or {RAY}")
    if workers is not None and engine != RAY:
        raise InputError(f"--workers is of --engine {RAY}; {THREADS} are told by --threads")
    writer = QuestionWriter(num_questions, batch_size)
    workspace = lm.open(output.home)
    judging = judge.open(workspace, lm)
    runner = None
    if engine == RAY:
        from querywright.optimize.question_ray import LMName, RayBuild, in_ray

        other = judge.other(lm)
        names = RayBuild(
            home=str(workspace.home),
            lm=LMName(lm.lm, lm.api_base, lm.api_key_env),
            judge_lm=None if other is None else LMName(other.lm, other.api_base, other.api_key_env),
            num_questions=num_questions,
            batch_size=batch_size,
            threads=run.threads,
            max_calls=lm.max_calls,
        )
        runner = in_ray(names, workers=workers or WORKERS, ledger=workspace.ledger)
    # Ray tells on standard output that a process died.
    with progress() as update, lm_failures(), contextlib.redirect_stdout(sys.stderr):
        report = build_questions(
            collection,
            lm=workspace.lm,
            judge_lm=judging,
            embedder=resolve_embedder(embedder, store=workspace.store),
            writer=writer,
            runner=runner,
            **run.given,
            limit=limit,
            prune=prune,
            home=workspace.home,
            progress=update,
        )
    if output.as_json:
        print_json(report.to_json())
        return
    _show_build(report)
    say(workspace.cost_line())


@questions_app.command(name="stats")
def stats(
    collection: str,
    /,
    *,
    embedder: Name = "embedded",
    sample: Count = 1000,
    seed: Integer = 0,
    output: Output = Output(),
) -> None:
    """Say how many questions are kept, which passages have none, how near they lie, and what they cost.

    Example: querywright questions stats textbooks

    Args:
        collection: Name of a collection that was built.
        embedder: embedded, or a sentence-transformers name or path.
        sample: Questions whose similarities are looked at, about.
        seed: Of the choice of these questions.
    """
    from querywright.home import home as working_folder
    from querywright.models.embedder import resolve_embedder
    from querywright.models.store import open_store
    from querywright.optimize.question_stats import question_stats

    folder = working_folder(output.home)
    embeds = resolve_embedder(embedder, store=open_store(folder))
    found = question_stats(collection, embedder=embeds, home=folder, size=sample, seed=seed)
    if output.as_json:
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
