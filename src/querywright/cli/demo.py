"""``querywright demo``: compile, compare, and ask on the packaged sample, with recorded answers or the embedded LM."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from querywright.cli import options as opt
from querywright.cli.checks import check_folder
from querywright.cli.compile import compile_and_show
from querywright.cli.index import build
from querywright.cli.show import note, progress, say, show_table
from querywright.data.types import Label

if TYPE_CHECKING:
    from querywright.data.types import Question
    from querywright.workspace import Workspace

OWN = Path("artifacts/hcqr-sample")
"""The default folder of the demo, where it replaces its earlier artifact."""
SIZES = (10, 18, 40)
TRIALS = 24
BUDGET, LIVE_BUDGET = 1, 3
"""Passages shown to the reader, with a large LM and with the embedded LM."""
READER_CHECK = 60
"""Further questions for closed book and oracle evidence."""
ARMS = ("plain", "query2doc", "step_back", "multi_query", "rag_fusion", "rrr", "hcqr", "rrs")
NEXT = (
    "querywright index mine passages.jsonl",
    "querywright compare plain hcqr --data q.jsonl --collection mine --out results",
    "querywright compile hcqr --data q.jsonl --collection mine --out artifacts/mine",
)
"""Commands for the user's data; --lm names a large LM."""
SHORT = 12
"""Number of questions that the embedded model answers."""


def demo(
    *,
    live: opt.Flag = False,
    save_to: opt.OutFolder = OWN,
    lm: opt.LMOptions = opt.LMOptions(),
    run: opt.Threads = opt.Threads(),
    output: opt.Output = opt.Output(),
) -> None:
    """Compile, compare, save, load, and ask a program on the packaged sample.

    The answers of a large LM were recorded. With --lm, another LM is called instead.

    Example: querywright demo

    Args:
        live: Use the embedded LM and 3 passages instead of the recording, for about ten minutes.
        save_to: Folder of the artifact.
    """
    from querywright.data import load_sample, split_questions
    from querywright.data.splits import left_over
    from querywright.models.recording import PACKAGED, packaged_recording, read_recording
    from querywright.optimize.results import CompileSettings

    check_folder(save_to, "--out")
    sample = load_sample()
    recorded = lm == opt.LMOptions() and not live
    place = (replace(lm, lm=PACKAGED) if recorded else lm).open(output.home, run.threads)
    report = build("sample", sample.passages, output, prune=True)
    note(f"sample: {report.count} passages, {report.embedded} embedded")
    splits = split_questions(sample.questions, sizes=SIZES)
    if recorded:
        head, answers = read_recording(packaged_recording())
        note(f"the LM: {head.model}; {len(answers)} answers, recorded on {head.made}")
    workspace = compile_and_show(
        "hcqr", splits, save_to, opt.Results(output.home, output.as_json), lm=place, retriever="sample",
        replace=save_to == OWN, reader="multiple_choice", knobs={"max_passages": LIVE_BUDGET if live else BUDGET},
        settings=CompileSettings(trials=TRIALS, reader_demo_sizes=(), threads=run.threads),
        reader_check=left_over(sample.questions, splits)[:READER_CHECK],
    )  # fmt: skip
    if live or output.as_json:
        return
    _compare(splits.test, workspace, run)
    _ask(save_to, splits.test[0], workspace)
    if recorded:
        _embedded(splits.test[:SHORT], workspace.home, run)
    say("next, your data:", style="bold")
    for line in NEXT:
        say(line, indent=2)


def _compare(questions: list[Question], workspace: Workspace, run: opt.Threads) -> None:
    """Compare untuned techniques with the baseline by the first passage, and print a table."""
    from querywright.metrics.statistics import p_value
    from querywright.optimize.significance import ALPHA

    found = _compared(ARMS, questions, workspace, run, lm=workspace.lm)
    tests = {one.arm: one.test for one in found.comparisons if one.metric == "decision_useful"}
    won = {name: f"{test.wins} : {test.losses}, {p_value(test.p_two_sided, ALPHA)}" for name, test in tests.items()}
    show_table(
        f"test, the same {len(questions)} questions, {BUDGET} passage: untuned techniques with {workspace.lm.model}",
        [
            _row(one, **{"settles it": f"{100 * one.label_share(Label.ENTAILED):.1f}",
                         "won : lost": won.get(one.name, "-")})
            for one in sorted(found.arms, key=lambda one: -one.mean("decision_useful").value)
        ],
        notes=["settles it: the passage alone shows the answer; won : lost against plain, with Holm's p"],
    )  # fmt: skip


def _ask(artifact: Path, question: Question, workspace: Workspace) -> None:
    """Load the artifact, check its golden answers, and ask it, as an application does."""
    from querywright.optimize.artifacts.load import load

    program = load(artifact, lm=workspace.lm, home=workspace.home, verify=True)
    found = program(question.question, list(question.options))
    say(f'load("{artifact}", lm=..., verify=True) repeats its golden answers. Question:', style="bold")
    say(question.question, indent=2)
    for query in found.queries:
        say(f"searched ({query.role}): {query.text}", indent=4)
    for passage in found.passages:
        say(f"found: {passage.title}: {passage.text}", indent=4)
    say(f"answered: {found.answer}", indent=4)


def _embedded(questions: list[Question], home: Path, run: opt.Threads) -> None:
    """Compare two arms on a few questions with the embedded LM, without a recording, and print a table."""
    began = time.monotonic()
    place = opt.LMOptions().open(home)
    found = _compared(("plain", "hcqr"), questions, place, run, lm=place.lm)
    show_table(
        f"{len(questions)} of these questions, answered by {place.lm.model} now ({time.monotonic() - began:.0f} s)",
        [_row(one) for one in found.arms],
        notes=["this LM of 135M parameters does not rewrite well; querywright demo --live compiles with it"],
    )


def _compared(arms: Any, questions: list[Question], workspace: Workspace, run: opt.Threads, *, lm: Any) -> Any:
    from querywright.api import compare

    with progress("comparing") as update:
        return compare(
            list(arms), questions, lm=lm, retriever="sample", reader=None, metrics=("decision_useful",),
            max_passages=BUDGET, references=False, threads=run.threads, home=workspace.home, progress=update,
        )  # fmt: skip


def _row(one: Any, **more: str) -> dict[str, str]:
    from querywright.optimize.tables import percent

    useful = percent(one.mean("decision_useful"))
    return {"arm": one.name, "decision_useful": useful, **more, "LM calls / question": f"{one.calls_a_question:.1f}"}
