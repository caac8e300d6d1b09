"""``querywright demo``: the main job on the packaged sample, end to end."""

from __future__ import annotations

from pathlib import Path

from querywright.cli.checks import check_folder
from querywright.cli.compile import run_compile
from querywright.cli.options import LMOptions, OutFolder, Output, Threads
from querywright.cli.show import note, progress

SIZES = (10, 18, 40)
TRIALS = 24
BUDGET = 3
READER_CHECK = 60
"""Further questions for closed book and oracle evidence."""


def demo(
    *,
    save_to: OutFolder = Path("artifacts/hcqr-sample"),
    run: Threads = Threads(),
    output: Output = Output(),
) -> None:
    """Index the packaged sample, compile HCQR on it with the embedded models, and save the result.

    Example: querywright demo

    Args:
        save_to: Where the artifact is written.
    """
    from querywright.data import load_sample, split_questions
    from querywright.data.splits import left_over
    from querywright.models.embedder import resolve_embedder
    from querywright.optimize.results import CompileSettings
    from querywright.retrieval.index import build_collection

    check_folder(save_to, "--out")
    workspace = LMOptions().open(output.home)
    sample = load_sample()
    with progress() as update:
        report = build_collection(
            "sample",
            sample.passages,
            embedder=resolve_embedder("embedded", store=workspace.store),
            home=workspace.home,
            prune=True,
            progress=lambda done, total: update("embedding", done, total),
        )
    note(f"sample: {report.count} passages, {report.embedded} embedded")
    splits = split_questions(sample.questions, sizes=SIZES)
    run_compile(
        "hcqr",
        splits,
        save_to=save_to,
        output=output,
        workspace=lambda: workspace,
        retriever=workspace.retriever("sample", "embedded"),
        reader="multiple_choice",
        knobs={"max_passages": BUDGET},
        settings=CompileSettings(n_trials=TRIALS, reader_demo_sizes=(), threads=run.threads),
        reader_check=left_over(sample.questions, splits)[:READER_CHECK],
    )
