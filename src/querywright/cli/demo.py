"""``querywright demo``: choose, compile, and ask programs on the packaged data, with recorded answers or a live LM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from querywright.cli import options as opt
from querywright.cli.checks import check_folder
from querywright.cli.compile import compile_and_show
from querywright.cli.index import build
from querywright.cli.show import note, progress, say, show_table
from querywright.errors import InputError

if TYPE_CHECKING:
    from querywright.data.types import Passage, Question
    from querywright.workspace import Workspace

OWN = Path("artifacts/hcqr-sample")
"""The demo's default folder, in which the demo replaces its earlier artifact."""
HANDBOOK_DEV, HANDBOOK_TRAIN = 100, 20
"""Number of questions in the study (the first ones in the file), and how many of these are for training. The other
questions in the file are for test."""
HANDBOOK_BUDGET = 3
"""Number of passages that the reader sees."""
SEARCHED = ("hcqr", "corpus_steered", "rrs")
"""Techniques for the study to choose from, with hybrid search."""
SIZES = (10, 18, 40)
TRIALS = 24
BUDGET, LIVE_BUDGET = 1, 3
"""Number of passages that the reader sees in the second part, with a large LM and with the embedded LM."""
READER_CHECK = 60
"""Number of additional questions for closed book and oracle evidence."""
NEXT = (
    "querywright index mine passages.jsonl",
    "querywright compare plain hcqr --data q.jsonl --collection mine --out results",
    "querywright compile hcqr --data q.jsonl --collection mine --out artifacts/mine",
)
"""Commands that the demo suggests for the user's data; they use the embedded LM unless --lm is added."""


def demo(
    *,
    live: opt.Flag = False,
    save_to: opt.OutFolder = OWN,
    lm: opt.LMOptions = opt.LMOptions(),
    run: opt.Threads = opt.Threads(),
    output: opt.Output = opt.Output(),
) -> None:
    """Choose a technique, then compile HCQR and ask a question.

    The technique is chosen for documents that no LM has read. HCQR is then compiled, saved, loaded, and asked a
    question. By default, a large LM's answers are replayed from a recording; --lm NAME sends the prompts to that
    LM instead.

    Example: querywright demo

    Args:
        live: Only compile, with the embedded model and 3 passages; this takes about ten minutes.
        save_to: Folder for the artifact.
    """
    from querywright.data import load_sample, split_questions
    from querywright.data.splits import left_over
    from querywright.optimize.results import CompileSettings

    check_folder(save_to, "--out")
    recorded, sample = lm == opt.LMOptions() and not live, load_sample()
    place = _opened(lm, "sample", recorded, output, run)
    _index("sample", sample.passages, output)
    if not live and not output.as_json:
        _handbook(_opened(lm, "handbook", recorded, output, run), output, run)
    splits = split_questions(sample.questions, sizes=SIZES)
    workspace = compile_and_show(
        "hcqr", splits, save_to, opt.Results(output.home, output.as_json), lm=place, retriever="sample",
        replace=save_to == OWN, reader="multiple_choice", knobs={"max_passages": LIVE_BUDGET if live else BUDGET},
        settings=CompileSettings(trials=TRIALS, reader_demo_sizes=(), threads=run.threads),
        reader_check=left_over(sample.questions, splits)[:READER_CHECK],
    )  # fmt: skip
    if live or output.as_json:
        return
    _ask(save_to, splits.test[0], workspace)
    say("next steps with your data:", style="bold")
    for line in NEXT:
        say(line, indent=2)


def _opened(lm: opt.LMOptions, name: str, recorded: bool, output: opt.Output, run: opt.Threads) -> Workspace:
    """Open the workspace with the given LM, or with the packaged recording of the given name."""
    from querywright.models.recording import PREFIX, packaged_recording, read_recording

    if recorded:
        head, answers = read_recording(packaged_recording(name))
        note(f"{name}: replaying {len(answers):,} answers from {head.model}, recorded on {head.made}")
    return (replace(lm, lm=f"{PREFIX}{name}") if recorded else lm).open(output.home, run.threads)


def _index(collection: str, passages: Sequence[Passage], output: opt.Output) -> None:
    """Build a collection of packaged passages.

    Raises:
        InputError: The workspace has a collection with this name and other passages, which would be removed.
    """
    from querywright.retrieval.collection import collection_folder, published_passages, read_manifest

    folder = collection_folder(collection, output.folder)
    held = {} if read_manifest(folder) is None else published_passages(folder, output.folder)[1]
    if others := held.keys() - {one.id for one in passages}:
        raise InputError(
            f"your collection {collection!r} has passages that the demo would remove ({len(others)}); use a different "
            "workspace (--home DIR)"
        )
    report = build(collection, passages, output, prune=True)
    note(f"{collection}: {report.count} passages, {report.embedded} embedded")


def _handbook(workspace: Workspace, output: opt.Output, run: opt.Threads) -> None:
    """Search techniques on the handbook's dev questions, and print accuracy and passages on its test questions."""
    from querywright.api import compare
    from querywright.data import read_passages, read_questions
    from querywright.data.sources import PACKAGED
    from querywright.optimize.tables import percent
    from querywright.studies import study

    _index("handbook", read_passages(f"{PACKAGED}handbook"), output)
    asked = read_questions(f"{PACKAGED}handbook")
    splits = {"train": asked[:HANDBOOK_TRAIN], "dev": asked[HANDBOOK_TRAIN:HANDBOOK_DEV], "test": asked[HANDBOOK_DEV:]}
    given: dict[str, Any] = {
        "lm": workspace, "reader": "multiple_choice", "max_passages": HANDBOOK_BUDGET, "home": workspace.home,
    }  # fmt: skip
    retrievers = {engine: workspace.retriever("handbook", engine=engine) for engine in ("dense", "hybrid")}
    with progress("searching") as update:
        found = study(
            {name: {"engines": ["hybrid"], "search": "named"} for name in SEARCHED}, splits, retriever=retrievers,
            objectives=f"full_recall@{HANDBOOK_BUDGET}", trials=len(SEARCHED) + 1, progress=update, **given,
        )  # fmt: skip
    winner = f"{found.recommended.program.technique.NAME} (chosen on dev)"
    arms = {"closed book": "closed_book", "baseline": "plain", "hcqr": "hcqr@hybrid", winner: found.recommended}
    metrics = {"accuracy": "accuracy", f"full_recall@{HANDBOOK_BUDGET}": "all needed passages"}
    with progress("comparing") as update:
        compared = compare(
            arms, splits["test"], retriever="handbook", metrics=[*metrics], baseline="baseline", references=False,
            progress=update, threads=run.threads, **given,
        )  # fmt: skip
    won = {one.arm: one.test for one in compared.comparisons if one.metric == "accuracy"}
    show_table(
        f"{len(splits['test'])} test questions about a handbook that no LM has read; passages per question: "
        f"{HANDBOOK_BUDGET}; LM: {workspace.lm.model}",
        [
            {
                "arm": one.name,
                **{title: percent(one.mean(metric)) for metric, title in metrics.items()},
                "won : lost": f"{won[one.name].wins} : {won[one.name].losses}" if one.name in won else "-",
                "LM calls": f"{one.calls_per_question:.0f}",
                "tokens": f"{one.tokens_per_question:,.0f}",
            }
            for one in compared.arms
        ],
        notes=[
            "scores in percent; won : lost compares the answers with the baseline's; LM calls and tokens per question",
            f"the study compared {', '.join(SEARCHED)} on {len(splits['dev'])} dev questions: {found.sentence}",
        ],
    )  # fmt: skip


def _ask(artifact: Path, question: Question, workspace: Workspace) -> None:
    """Load the artifact, check its golden answers, and ask it a question, as an application would."""
    from querywright.optimize.artifacts.load import load

    program = load(artifact, lm=workspace.lm, home=workspace.home, verify=True)
    found = program(question.question, list(question.options))
    say(f'load("{artifact}", lm=..., verify=True) replayed the golden answers. Question:', style="bold")
    say(question.question, indent=2)
    for query in found.queries:
        say(f"searched ({query.role}): {query.text}", indent=4)
    for passage in found.passages:
        say(f"found: {passage.title}: {passage.text}", indent=4)
    say(f"answered: {found.answer}", indent=4)
