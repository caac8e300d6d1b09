"""``querywright questions`` and ``querywright testset``: build question indexes, and write question sets."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from querywright.cli import options as opt
from querywright.cli.checks import check_file
from querywright.cli.show import emit, note, progress, show_facts

if TYPE_CHECKING:
    from querywright.optimize.testsets import Kind

SHOWN = 10
"""Maximum number of ids to print."""

questions_app = opt.make_app("questions", "Build a question index for a collection.")
testset_app = opt.make_app("testset", "Write labeled question sets for a collection or a question index.")


@questions_app.command(name="build")
def build(
    collection: str,
    /,
    *,
    num_questions: opt.Count = 20,
    batch_size: opt.Count = 5,
    limit: opt.Count | None = None,
    workers: opt.Count | None = None,
    embedder: opt.Embedder = "embedded",
    judge: opt.JudgeLM = opt.JudgeLM(),
    work: opt.Work = opt.Work(),
) -> None:
    """Write questions for every passage and index those it answers.

    A judge decides whether a passage answers its questions. Passages whose questions are up to date cost nothing.
    Questions are removed if their passage is no longer in the collection. To resume an interrupted build, run the same
    command again.

    Example: querywright questions build textbooks --lm openai/gpt-4o-mini --threads 16

    Args:
        collection: Name of an existing collection.
        num_questions: Maximum number of questions per passage.
        batch_size: Number of questions to request per call.
        limit: Use only the first N passages by ID, for a trial run.
        workers: Number of Ray processes, which need the ray extra; --threads applies to each. Default: only this
            process.
    """
    from querywright.models.lm import engine_of
    from querywright.optimize.question_build import build_questions
    from querywright.programs.question_writer import QuestionWriter

    other = judge.beside(work.lm)
    writer = QuestionWriter(num_questions, batch_size)
    workspace = work.open()
    judging = judge.open(workspace, work.lm) or workspace.lm
    runner = None
    if workers is not None:
        from querywright.optimize.question_ray import LMName, RayBuild, in_ray

        writes, judges = (
            None if one is None else LMName(one.lm or "embedded", one.api_base, one.api_key_env)
            for one in (work.lm, other)
        )
        assert writes is not None
        names = RayBuild(
            str(workspace.home), writes, judges, num_questions=num_questions, batch_size=batch_size,
            threads=workspace.threads, max_calls=work.lm.max_calls, limits=engine_of(workspace.lm).limits,
        )  # fmt: skip
        runner = in_ray(names, workers=workers, ledger=workspace.ledger)
    # Ray writes to standard output if a process dies.
    with progress("opening the collection") as update, contextlib.redirect_stdout(sys.stderr):
        report = build_questions(
            collection, lm=workspace.lm, judge_lm=judging, embedder=work.output.embedder(embedder), writer=writer,
            runner=runner, **work.run.at(workspace), limit=limit, home=workspace.home, progress=update,
        )  # fmt: skip
    emit(work.output.as_json, report.to_json(), cost=workspace.cost_line())
    note(f"the judge LM {report.made.judge_lm} was not compared with labels from people on these questions")
    if report.failed:
        note("rerun the command to retry the failed passages")
    if report.removed:
        note(f"removed the questions for passages that are no longer in the collection (passages: {report.removed})")


@questions_app.command(name="stats")
def stats(collection: str, /, *, output: opt.Output = opt.Output()) -> None:
    """Count questions by label, and list passages without questions.

    Example: querywright questions stats textbooks

    Args:
        collection: Name of a collection with generated questions.
    """
    from querywright.optimize.question_build import question_stats

    found = question_stats(collection, output.folder)
    bare = found["bare"]
    emit(output.as_json, found, lambda: show_facts({**found, "bare": f"{len(bare)}: {', '.join(bare[:SHOWN])}"}))


@questions_app.command(name="fill")
def fill(
    collection: str,
    /,
    *,
    most: opt.Count = 10_000,
    complete: Annotated[bool, Parameter(negative="--no-complete")] = True,
    cut: Annotated[float, Parameter(metavar="V", validator=Number(gte=0, lte=1))] = 0.5,
    seed: opt.Integer = 0,
    embedder: opt.Embedder = "embedded",
    work: opt.Work = opt.Work(),
) -> None:
    """Find more passages that answer the indexed questions.

    The most similar pairs of a question and a passage are judged, and some random pairs; the other pairs are estimated.
    The results replace the results of any earlier fill, even if the earlier fill had more pairs. If the estimates do
    not predict held-out judgments better than the mean judgment, the estimates are rejected, and only the judged pairs
    are stored. Repeating the same fill costs nothing.

    Example: querywright questions fill textbooks --most 5000

    Args:
        collection: Name of a collection with generated questions.
        most: Number of pairs to judge, the most similar pairs first.
        complete: Estimate the pairs that are not judged.
        cut: Minimum value of an estimate to store, 0 to 1.
        seed: Seed for the choice of random pairs and for the estimate.
    """
    from querywright.optimize.question_fill import fill as fill_in

    workspace = work.open()
    with progress("opening the collection") as update:
        report = fill_in(
            collection, lm=workspace.lm, embedder=work.output.embedder(embedder), home=workspace.home,
            most=most, complete=complete, cut=cut, **work.run.at(workspace), seed=seed, progress=update,
        )  # fmt: skip
    emit(work.output.as_json, report.to_json(), cost=workspace.cost_line())


@testset_app.command(name="make")
def make_command(
    collection: str,
    /,
    *,
    save_to: opt.OutFile,
    number: opt.Count = 50,
    two_passage: opt.Share = 0.5,
    seed: opt.Integer = 0,
    judge: opt.JudgeLM = opt.JudgeLM(),
    work: opt.Work = opt.Work(),
) -> None:
    """Write a first labeled question set.

    The set contains questions, their answers, and the passages that contain the answers. A question is kept if its
    passages contain the answer, and if an LM finds this answer with all of these passages, but not without passages or
    with only one of two. The set is synthetic, so read it before you rely on a result. If a question is dropped,
    another passage is tried, up to five times as many passages as questions.

    Example: querywright testset make mine --lm openai/gpt-4o-mini --out questions.jsonl

    Args:
        collection: Name of an existing collection.
        save_to: A .jsonl file for the set; NAME.card.json next to it describes how it was made.
        number: Maximum number of questions.
        two_passage: Share of questions that need two passages.
        seed: Seed for the order of passages.
    """
    _make_set("make", collection, save_to, judge, work, number=number, two_passage=two_passage, seed=seed)


@testset_app.command(name="rephrase")
def rephrase_command(
    collection: str,
    /,
    *,
    save_to: opt.OutFile,
    number: opt.Count = 500,
    seed: opt.Integer = 0,
    work: opt.Work = opt.Work(),
) -> None:
    """Rephrase questions from a question index.

    The correct passage is the passage that the original question was generated for. A rephrased question is dropped if
    the index already contains it. Use a different LM than for the index.

    Example: querywright testset rephrase textbooks --out rephrased.jsonl

    Args:
        collection: A collection with a question index.
        save_to: A .jsonl file for the set; NAME.card.json next to it describes how it was made.
        number: Number of questions in the set.
        seed: Seed for the order of questions.
    """
    _make_set("rephrase", collection, save_to, None, work, number=number, seed=seed)


@testset_app.command(name="out-of-distribution")
def out_of_distribution_command(
    collection: str,
    /,
    *,
    save_to: opt.OutFile,
    number: opt.Count | None = None,
    seed: opt.Integer = 0,
    judge: opt.JudgeLM = opt.JudgeLM(),
    work: opt.Work = opt.Work(),
) -> None:
    """Write one new question per passage.

    The passage's stored questions must not already include the new question. A question is kept if the judge finds the
    whole answer in its passage. Use LMs other than those that wrote and judged the index.

    Example: querywright testset out-of-distribution textbooks --out new.jsonl

    Args:
        collection: A collection with a question index.
        save_to: A .jsonl file for the set; NAME.card.json next to it describes how it was made.
        number: Maximum number of questions. Default: one per passage.
        seed: Seed for the order of questions.
    """
    _make_set("out-of-distribution", collection, save_to, judge, work, number=number, seed=seed)


def _make_set(
    kind: Kind,
    collection: str,
    save_to: Path,
    judge: opt.JudgeLM | None,
    work: opt.Work,
    **asked: Any,
) -> None:
    """Make a set of test questions, write it with its card, and print the card."""
    from querywright.optimize.testsets import card_file, check_set_file, make_testset, write_question_set

    check_set_file(save_to)
    for file in (save_to, card_file(save_to)):
        check_file(file, "--out", parents=True)
    if judge is not None:
        judge.beside(work.lm)
    workspace = work.open()
    judging = None if judge is None else judge.open(workspace, work.lm) or workspace.lm
    with progress("opening the collection") as update:
        made = make_testset(
            kind, collection, lm=workspace.lm, judge_lm=judging, **asked, **work.run.at(workspace), home=workspace.home,
            progress=update,
        )  # fmt: skip
    card = write_question_set(save_to, made)
    for line in card["cautions"]:
        note(f"warning: {line}", style="yellow")
    if made.wanted is not None and card["kept"] < made.wanted:
        why = "the other candidates were dropped" if kind == "make" else "the index has no more questions"
        note(f"the set has {card['kept']} of the {made.wanted} requested questions, because {why}", style="yellow")

    emit(work.output.as_json, card, cost=workspace.cost_line())
    note(f"questions: {save_to}; card: {card_file(save_to)}")
