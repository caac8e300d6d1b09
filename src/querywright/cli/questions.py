"""``querywright questions``: questions written for the passages of a collection, which a search goes through."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from querywright.cli.common import (
    ApiBaseOption,
    CallsOption,
    EmbedderOption,
    HomeOption,
    JsonOption,
    JudgeApiBaseOption,
    JudgeKeyOption,
    KeyOption,
    LMOption,
    Workspace,
    check_judge_lm,
    lm_failures,
)
from querywright.cli.show import note, print_json, progress, say

if TYPE_CHECKING:
    from querywright.optimize.question_build import QuestionsReport

CollectionArgument = Annotated[str, typer.Argument(metavar="COLLECTION", help="Name of a collection that was built.")]

questions_app = typer.Typer(
    help="Write questions for the passages of a collection, and look at them.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@questions_app.command("build")
def build(
    collection: CollectionArgument,
    num_questions: Annotated[
        int, typer.Option("--num-questions", metavar="N", min=1, help="Questions a passage at most.")
    ] = 20,
    batch: Annotated[int, typer.Option("--batch", metavar="N", min=1, help="Questions asked for in one call.")] = 5,
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
    judge_lm: Annotated[
        str | None,
        typer.Option(
            "--judge-lm",
            metavar="NAME",
            help="The LM that judges. Default: --lm, with its address and key.",
            show_default=False,
        ),
    ] = None,
    judge_api_base: JudgeApiBaseOption = None,
    judge_api_key_env: JudgeKeyOption = None,
    max_calls: CallsOption = None,
    max_failures: Annotated[
        float,
        typer.Option("--max-failures", metavar="SHARE", min=0.0, max=1.0, help="Share of passages that may fail."),
    ] = 0.05,
    threads: Annotated[int, typer.Option("--threads", metavar="N", min=1, help="LM calls under way at a time.")] = 4,
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
    writer = QuestionWriter(num_questions, batch)
    workspace = Workspace.open(home, lm, api_base=api_base, api_key_env=api_key_env, max_calls=max_calls)
    judging = workspace.judge_lm(
        lm, judge_lm, api_base=judge_api_base, api_key_env=judge_api_key_env, max_calls=max_calls
    )
    with progress() as update, lm_failures():
        report = build_questions(
            collection,
            lm=workspace.lm,
            judge_lm=judging,
            embedder=resolve_embedder(embedder, store=workspace.store),
            writer=writer,
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


def _show_build(report: QuestionsReport) -> None:
    failed = sum(report.failed.values())
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(report.failed.items()))
    say(
        f"{report.collection}: {report.passages} passages, {report.written} written now, {report.current} there "
        f"already, {failed} failed{f' ({kinds})' if kinds else ''}; {report.index.count} questions kept; "
        f"{report.seconds:.1f} s"
    )
    say(f"written by {report.made.lm}, judged by {report.made.judge_lm}, which was not measured against people here")
    if failed:
        note("the same command tries the failed passages again")
    if report.removed:
        state = "are removed" if report.pruned else "stay; --prune removes them"
        note(f"the questions of {report.removed} passages that are in the collection no more {state}")
