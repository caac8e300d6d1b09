"""``querywright testset``: questions to test an index of questions with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from querywright.cli.checks import check_file, check_judge_lm
from querywright.cli.options import (
    ApiBaseOption,
    CallsOption,
    HomeOption,
    JsonOption,
    JudgeApiBaseOption,
    JudgeKeyOption,
    KeyOption,
    LMOption,
    WriterJudgeLMOption,
)
from querywright.cli.show import note, print_json, progress, say
from querywright.cli.workspace import Workspace, lm_failures

if TYPE_CHECKING:
    from querywright.optimize.question_set import QuestionSet

CollectionArgument = Annotated[
    str, typer.Argument(metavar="COLLECTION", help="A collection with an index of questions.")
]
FileOption = Annotated[
    Path,
    typer.Option("--out", metavar="FILE", help="The set, a file .jsonl; beside it NAME.card.json says how it came."),
]
SeedOption = Annotated[int, typer.Option("--seed", metavar="N", help="Of the order in which questions are asked for.")]
SetThreadsOption = Annotated[int, typer.Option("--threads", metavar="N", min=1, help="Questions under way at a time.")]
SetFailuresOption = Annotated[
    float, typer.Option("--max-failures", metavar="SHARE", min=0.0, max=1.0, help="Share that may fail, 0 to 1.")
]

testset_app = typer.Typer(
    help="Write questions to test an index of questions with.", no_args_is_help=True, rich_markup_mode="rich"
)


@testset_app.command("rephrase")
def rephrase_command(
    collection: CollectionArgument,
    save_to: FileOption,
    number: Annotated[int, typer.Option("--number", metavar="N", min=1, help="Questions in the set.")] = 500,
    seed: SeedOption = 0,
    lm: LMOption = "embedded",
    api_base: ApiBaseOption = None,
    api_key_env: KeyOption = None,
    max_calls: CallsOption = None,
    max_failures: SetFailuresOption = 0.05,
    threads: SetThreadsOption = 4,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put questions of the index in other words.

    The passage to find is the one that the question was written for. A wording that is in the index already is
    dropped. Use another LM than the one that wrote the index.

    Example: querywright testset rephrase textbooks --out rephrased.jsonl
    """
    from querywright.optimize.testsets import rephrase

    _check(save_to)
    workspace = Workspace.open(home, lm, api_base=api_base, api_key_env=api_key_env, max_calls=max_calls)
    with progress() as update, lm_failures():
        made = rephrase(
            collection,
            lm=workspace.lm,
            number=number,
            seed=seed,
            threads=threads,
            max_failures=max_failures,
            home=workspace.home,
            progress=update,
        )
    _finish(made, save_to, workspace, as_json)


@testset_app.command("out-of-distribution")
def out_of_distribution_command(
    collection: CollectionArgument,
    save_to: FileOption,
    number: Annotated[
        int | None,
        typer.Option(
            "--number", metavar="N", min=1, help="Questions at most. Default: one a passage.", show_default=False
        ),
    ] = None,
    seed: SeedOption = 0,
    lm: LMOption = "embedded",
    api_base: ApiBaseOption = None,
    api_key_env: KeyOption = None,
    judge_lm: WriterJudgeLMOption = None,
    judge_api_base: JudgeApiBaseOption = None,
    judge_api_key_env: JudgeKeyOption = None,
    max_calls: CallsOption = None,
    max_failures: SetFailuresOption = 0.05,
    threads: SetThreadsOption = 4,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask of each passage what none of its stored questions asks.

    A question is kept where the judge finds the whole answer in its passage. Use other LMs than those that wrote
    and judged the index.

    Example: querywright testset out-of-distribution textbooks --out new.jsonl
    """
    from querywright.optimize.testsets import out_of_distribution

    _check(save_to)
    check_judge_lm(judge_lm, judge_api_base, judge_api_key_env)
    workspace = Workspace.open(home, lm, api_base=api_base, api_key_env=api_key_env, max_calls=max_calls)
    judging = workspace.judge_lm(
        lm, judge_lm, api_base=judge_api_base, api_key_env=judge_api_key_env, max_calls=max_calls
    )
    with progress() as update, lm_failures():
        made = out_of_distribution(
            collection,
            lm=workspace.lm,
            judge_lm=judging,
            number=number,
            seed=seed,
            threads=threads,
            max_failures=max_failures,
            home=workspace.home,
            progress=update,
        )
    _finish(made, save_to, workspace, as_json)


def _check(save_to: Path) -> None:
    from querywright.optimize.question_set import card_file, check_set_file

    check_set_file(save_to)
    for file in (save_to, card_file(save_to)):
        check_file(file, "--out", parents=True)


def _finish(made: QuestionSet, save_to: Path, workspace: Workspace, as_json: bool) -> None:
    """Write the set and say what it is."""
    from querywright.optimize.question_set import card_file, index_models, write_question_set

    card = write_question_set(save_to, made, index_models(made.collection, workspace.home))
    for line in card["cautions"]:
        note(f"warning: {line}", style="yellow")
    if made.wanted is not None and card["kept"] < made.wanted:
        note(f"{card['kept']} questions, not {made.wanted}: the index gives no more", style="yellow")
    if as_json:
        print_json(card)
        return
    say(f"{made.kind} of {made.collection}: {card['kept']} questions of {made.asked} asked for, seed {made.seed}")
    for title, numbers in (("skipped", made.skipped), ("dropped", made.dropped)):
        if numbers:
            say(f"{title}: {_listed(numbers)}")
    say(f"written by {made.lm}" + (f", judged by {made.judge}" if made.judge else ""))
    say(workspace.cost_line())
    say(f"questions: {save_to}")
    say(f"card: {card_file(save_to)}")


def _listed(numbers: Any) -> str:
    return ", ".join(f"{number} {name}" for name, number in numbers.items())
