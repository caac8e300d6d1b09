"""``querywright testset``: questions to test an index of questions with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from querywright.cli.checks import check_file
from querywright.cli.options import Count, Integer, JudgeLM, LimitedLM, OutFile, Output, RunOptions, make_app
from querywright.cli.show import note, print_json, progress, say
from querywright.workspace import lm_failures

if TYPE_CHECKING:
    from querywright.optimize.testsets import Kind

testset_app = make_app("testset", "Write questions to test an index of questions with.")


@testset_app.command(name="rephrase")
def rephrase_command(
    collection: str,
    /,
    *,
    save_to: OutFile,
    number: Count = 500,
    seed: Integer = 0,
    lm: LimitedLM = LimitedLM(),
    run: RunOptions = RunOptions(),
    output: Output = Output(),
) -> None:
    """Put questions of the index in other words.

    The passage to find is the one that the question was written for. A wording that is in the index already is
    dropped. Use another LM than the one that wrote the index.

    Example: querywright testset rephrase textbooks --out rephrased.jsonl

    Args:
        collection: A collection with an index of questions.
        save_to: The set, a file .jsonl; beside it NAME.card.json says how it came.
        number: Questions in the set.
        seed: Of the order in which questions are asked for.
    """
    _make("rephrase", collection, save_to, lm, None, run, output, number=number, seed=seed)


@testset_app.command(name="out-of-distribution")
def out_of_distribution_command(
    collection: str,
    /,
    *,
    save_to: OutFile,
    number: Count | None = None,
    seed: Integer = 0,
    lm: LimitedLM = LimitedLM(),
    judge: JudgeLM = JudgeLM(),
    run: RunOptions = RunOptions(),
    output: Output = Output(),
) -> None:
    """Ask of each passage what none of its stored questions asks.

    A question is kept where the judge finds the whole answer in its passage. Use other LMs than those that wrote
    and judged the index.

    Example: querywright testset out-of-distribution textbooks --out new.jsonl

    Args:
        collection: A collection with an index of questions.
        save_to: The set, a file .jsonl; beside it NAME.card.json says how it came.
        number: Questions at most. Default: one a passage.
        seed: Of the order in which questions are asked for.
    """
    _make("out-of-distribution", collection, save_to, lm, judge, run, output, number=number, seed=seed)


def _make(
    kind: Kind,
    collection: str,
    save_to: Path,
    lm: LimitedLM,
    judge: JudgeLM | None,
    run: RunOptions,
    output: Output,
    **asked: Any,
) -> None:
    """Make the set, write it and say what it is."""
    from querywright.optimize.testsets import card_file, check_set_file, index_models, make_testset, write_question_set

    check_set_file(save_to)
    for file in (save_to, card_file(save_to)):
        check_file(file, "--out", parents=True)
    if judge is not None:
        judge.check()
    workspace = lm.open(output.home)
    judging = None if judge is None else judge.open(workspace, lm)
    with progress() as update, lm_failures():
        made = make_testset(
            kind,
            collection,
            lm=workspace.lm,
            judge_lm=judging,
            **asked,
            **run.given,
            home=workspace.home,
            progress=update,
        )
    card = write_question_set(save_to, made, index_models(made.collection, workspace.home))
    for line in card["cautions"]:
        note(f"warning: {line}", style="yellow")
    if made.wanted is not None and card["kept"] < made.wanted:
        note(f"{card['kept']} questions, not {made.wanted}: the index gives no more", style="yellow")
    if output.as_json:
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
