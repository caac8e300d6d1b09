"""``querywright rewriter``: a small model is taught to write what techniques search for, looked at and measured."""

from __future__ import annotations

import math
import shlex
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from querywright.cli.checks import check_place
from querywright.cli.compile import split_sizes
from querywright.cli.options import (
    Count,
    DataOptions,
    Flag,
    Folder,
    LimitedLM,
    LMOptions,
    Name,
    OutFile,
    OutFolder,
    Output,
    Questions,
    SearchOptions,
    Threads,
    make_app,
)
from querywright.cli.rewriter_evaluate import evaluate_command
from querywright.cli.rewriter_options import RewriteOptions, recipe_with
from querywright.cli.rewriter_show import show_command, show_trained, watched
from querywright.cli.show import note, print_json, progress, say, show_table
from querywright.workspace import lm_failures

if TYPE_CHECKING:
    from querywright.optimize.rewriter.collect import Collected
    from querywright.optimize.rewriter.settings import TrainSettings

rewriter_app = make_app(
    "rewriter", "Teach a small model to write what techniques search for, and look at what it learnt."
)
rewriter_app.command(evaluate_command, name="evaluate")
rewriter_app.command(show_command, name="show")

Number = Annotated[float, Parameter(metavar="X")]


@Parameter(name="*", group="Training")
@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """How it is trained.

    Args:
        stages: Of collect,warmup,reinforce.
        pairs: Pairs of rewriter collect, of any technique and collection. Repeatable.
        from_study: A study of these questions, whose kept answers to the first half of its dev questions are learnt
            from. The other half is dev, and test stays test; --seed and --sizes of the split are the study's.
        epochs: Of the warm-up.
        warmup_lr: Learning rate of the warm-up.
        steps: Of the reinforcement; else the recipe's.
        lr: Of the reinforcement; else the recipe's.
        batch: Questions a step; else the recipe's.
        group: Samples a question; else the recipe's.
        look_each: Steps between looks at dev.
        patience: Looks without a better one before it ends.
        rank: Of the adapter.
        full: Train all weights, and no adapter.
        device: cpu, cuda:0, or auto: a GPU if there is one.
        dtype: auto, float32 or bfloat16.
        work: Where the work is kept, and taken up again. Default: in the working folder, named as --out.
    """

    stages: Annotated[str, Parameter(metavar="LIST")] = "collect,warmup,reinforce"
    pairs: Annotated[tuple[Path, ...], Parameter(metavar="FILE", show_default=False)] = ()
    from_study: Folder | None = None
    epochs: Count = 3
    warmup_lr: Number = 2e-4
    steps: Count | None = None
    lr: Number | None = None
    batch: Count | None = None
    group: Count | None = None
    look_each: Count = 20
    patience: Count = 5
    rank: Count = 16
    full: Flag = False
    device: Name = "auto"
    dtype: Name = "auto"
    work: Folder | None = None

    def settings(self, rewrites: RewriteOptions, search: SearchOptions, threads: int) -> TrainSettings:
        """The settings of a training."""
        from querywright.optimize.rewriter.settings import check_stages

        changes = {"steps": self.steps, "lr": self.lr, "batch": self.batch, "group": self.group}
        return rewrites.settings(
            search,
            threads,
            stages=check_stages([one.strip() for one in self.stages.split(",") if one.strip()]),
            recipe=recipe_with(rewrites.recipe, changes),
            rank=None if self.full else self.rank,
            **{
                name: getattr(self, name)
                for name in ("epochs", "warmup_lr", "look_each", "patience", "device", "dtype")
            },
        )


@rewriter_app.command(name="train")
def train_command(
    questions: Questions,
    /,
    *,
    save_to: OutFolder,
    rewrites: RewriteOptions,
    training: TrainingOptions = TrainingOptions(),
    search: SearchOptions = SearchOptions(),
    data: DataOptions = DataOptions(),
    lm: LimitedLM = LimitedLM(),
    run: Threads = Threads(),
    output: Output = Output(),
) -> None:
    """Collect rewrites, warm the model up on the best, and reinforce it by what its own retrieve.

    A training that was ended, whichever way, goes on with the same command. The reader and --lm are asked by the
    recipes seed and paper only. 10 passages are found, or as many as the metric looks at, unless --knob max_passages
    says otherwise.

    Example: querywright rewriter train questions.jsonl --collection mine --teacher openai/gpt-4o-mini --out artifacts/r

    Args:
        save_to: Where the rewriter is written.
    """
    from querywright.data import split_questions
    from querywright.errors import InputError
    from querywright.home import home as working_folder
    from querywright.models.rewriters import check_target
    from querywright.optimize.rewriter.pairs import read_pairs
    from querywright.optimize.rewriter.study_arms import splits_after
    from querywright.optimize.rewriter.train import train

    settings = training.settings(rewrites, search, run.threads)
    asked = data.questions(questions)
    counts = split_sizes(rewrites.sizes)
    collects = "collect" in settings.stages
    study = training.from_study if collects else None
    if study is not None and counts is not None:
        raise InputError("--sizes does not go with --from-study, whose questions stay in their parts; leave it out")
    splits = split_questions(asked, seed=rewrites.seed, sizes=counts) if study is None else splits_after(study, asked)
    by_itself = rewrites.base if rewrites.base == "embedded" and study is None else None
    check_target(save_to)
    check_place(save_to.absolute().parent, save_to.name, "--out")
    workspace = lm.open(output.home)
    given = rewrites.given(
        workspace,
        asked,
        splits,
        search,
        lm,
        teacher=rewrites.teacher or by_itself if collects else None,
        pairs=[pair for file in training.pairs for pair in read_pairs(file)],
        study=study,
        home=workspace.home,
        open_lm=lambda name: LMOptions(name).beside(workspace),
    )
    work = training.work or working_folder(output.home) / "rewriters" / save_to.absolute().name
    try:
        with progress() as update, lm_failures():
            trained = train(settings, given, out=save_to, work=work, progress=watched(update, work))
    except KeyboardInterrupt:
        note(f"what was learnt up to the last checkpoint is in {work}; to go on: {shlex.join(sys.argv)}")
        raise
    if output.as_json:
        print_json({"rewriter": save_to.name, "report": trained.report.name, **trained.card})
        return
    show_trained(trained)
    say(f"report: {trained.report}")
    say(f"rewriter: {save_to}")
    say(workspace.cost_line())


@rewriter_app.command(name="collect")
def collect_command(
    questions: Questions,
    /,
    *,
    save_to: OutFile,
    rewrites: RewriteOptions,
    search: SearchOptions = SearchOptions(),
    data: DataOptions = DataOptions(),
    lm: LimitedLM = LimitedLM(),
    run: Threads = Threads(),
    output: Output = Output(),
) -> None:
    """Collect rewrites of train questions, for rewriter train --pairs FILE.

    The train questions are those of rewriter train with the same --seed and --sizes. A collection that was ended begins
    again with the same command and asks nothing twice. The base is the model that will learn: what it cannot write is
    not kept. The reader and --lm are asked by the recipes seed and paper only. For qb_rag, with --teacher evidence, a
    pair is a passage and the train questions that it answers, from which the writer of its questions learns.

    Example: querywright rewriter collect questions.jsonl --collection mine --technique hcqr
    --teacher openai/gpt-4o-mini --out pairs.jsonl

    Args:
        save_to: Where the pairs are written; an older file of pairs is replaced.
    """
    from querywright.data import split_questions
    from querywright.optimize.rewriter.collect import collect
    from querywright.optimize.rewriter.pairs import check_pairs_file, write_pairs

    settings = rewrites.settings(search, run.threads)
    check_pairs_file(save_to)
    check_place(save_to.absolute().parent, save_to.name, "--out")
    asked = data.questions(questions)
    splits = split_questions(asked, seed=rewrites.seed, sizes=split_sizes(rewrites.sizes))
    workspace = lm.open(output.home)
    named = rewrites.teacher or (rewrites.base if rewrites.base == "embedded" else None)
    given = rewrites.given(workspace, asked, splits, search, lm, teacher=named)
    with progress() as update, lm_failures():
        found = collect(settings, given, progress=update)
    write_pairs(save_to, found.pairs)
    if output.as_json:
        told = {**asdict(replace(found, pairs=())), "pairs": len(found.pairs)}
        print_json(
            {
                "pairs_file": save_to.name,
                "technique": rewrites.technique,
                "collection": rewrites.collection,
                **{name: told[name] for name in told if name not in ("arms", "missing")},
            }
        )
        return
    show_table(f"{rewrites.technique} on {rewrites.collection}, train questions", [_row(found)], notes=_notes(found))
    say(f"pairs: {save_to}")
    say(workspace.cost_line())


def _row(found: Collected) -> dict[str, str]:
    counts = {"questions": found.questions, "answered": found.answered, "kept": found.questions_kept}
    row = {name: str(count) for name, count in {**counts, "pairs": len(found.pairs)}.items()}
    means = {"as written": found.plain, "best rewrite": found.best} if found.measure else {}
    told = {f"{found.measure}, {of}": f"{one:.3f}" if math.isfinite(one) else "-" for of, one in means.items()}
    return row | told


def _notes(found: Collected) -> list[str]:
    if not found.measure:
        return ["a pair is a passage with the questions that were asked of it; nothing is searched or scored"]
    if found.answered == found.questions:
        return []
    return [f"no rewrite of {found.questions - found.answered} questions could be scored; they are in no mean"]
