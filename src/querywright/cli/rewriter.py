"""``querywright rewriter``: a small model is taught to write what techniques search for, looked at and measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from querywright.cli.checks import check_place, reader_for
from querywright.cli.compile import split_sizes
from querywright.cli.options import (
    Count,
    DataOptions,
    Flag,
    Folder,
    Json,
    LimitedLM,
    LMOptions,
    Name,
    OutFolder,
    Output,
    Questions,
    SearchOptions,
    Threads,
    make_app,
)
from querywright.cli.rewriter_collect import collect_command
from querywright.cli.rewriter_evaluate import evaluate_command
from querywright.cli.rewriter_options import RewriteOptions, recipe_with, resumable
from querywright.cli.rewriter_show import show_trained, told, watched
from querywright.cli.show import print_json, progress, say, show_table
from querywright.cli.workspace import Workspace, lm_failures

if TYPE_CHECKING:
    from querywright.optimize.rewriter.settings import TrainSettings
    from querywright.optimize.rewriter.types import Pair

rewriter_app = make_app(
    "rewriter", "Teach a small model to write what techniques search for, and look at what it learnt."
)
rewriter_app.command(collect_command, name="collect")
rewriter_app.command(evaluate_command, name="evaluate")

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
        device: cpu, cuda:0, cuda:0,cuda:1 to share, or auto: a GPU if any.
        dtype: auto, float32 or bfloat16.
    """

    stages: Annotated[str, Parameter(metavar="LIST")] = "collect,warmup,reinforce"
    pairs: Annotated[tuple[Path, ...], Parameter(metavar="FILE", show_default=False)] = ()
    from_study: Folder | None = None
    epochs: Count = 3
    warmup_lr: Number | None = None
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

    def settings(self, recipe: str, given: dict[str, Any]) -> TrainSettings:
        """The settings of a training.

        Args:
            recipe: Name of the recipe.
            given: What a collection is set to as well.
        """
        from querywright.optimize.rewriter.lora import LoraSettings
        from querywright.optimize.rewriter.reinforce import ReinforceSettings
        from querywright.optimize.rewriter.settings import TrainSettings, check_stages
        from querywright.optimize.rewriter.warmup import WarmupSettings

        warmup = WarmupSettings(epochs=self.epochs)
        changes = {"steps": self.steps, "lr": self.lr, "batch": self.batch, "group": self.group}
        return TrainSettings(
            **given,
            stages=check_stages([one.strip() for one in self.stages.split(",") if one.strip()]),
            recipe=recipe_with(recipe, changes),
            device=self.device,
            dtype=self.dtype,
            warmup=warmup if self.warmup_lr is None else replace(warmup, lr=self.warmup_lr),
            reinforce=ReinforceSettings(look_each=self.look_each, patience=self.patience),
            lora=None if self.full else LoraSettings(rank=self.rank, alpha=2 * self.rank),
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
    from querywright.optimize.rewriter.collect import EVIDENCE
    from querywright.optimize.rewriter.given import Given, splits_after
    from querywright.optimize.rewriter.settings import check_training
    from querywright.optimize.rewriter.train import train

    engine = search.engine_of(rewrites.technique)
    settings = training.settings(rewrites.recipe, rewrites.settings(search, run.threads))
    asked = data.questions(questions)
    counts = split_sizes(rewrites.sizes)
    collects = "collect" in settings.stages
    study = training.from_study if collects else None
    if study is None:
        splits = split_questions(asked, seed=rewrites.seed, sizes=counts)
    elif counts is None:
        splits = splits_after(study, asked)
    else:
        raise InputError("--sizes does not go with --from-study, whose questions stay in their parts; leave it out")
    by_itself = rewrites.base == "embedded" and training.from_study is None
    named = rewrites.teacher or (rewrites.base if by_itself else None)
    learnt = _read_pairs(training.pairs)
    reads = rewrites.reader != "none" and settings.recipe.needs_reader
    read_by = reader_for(asked, rewrites.reader) if reads else None
    check_training(
        settings,
        splits,
        pairs=learnt,
        writes=named is not None or training.from_study is not None,
        reader=read_by is not None,
        by_evidence=named == EVIDENCE,
        collection=rewrites.collection,
    )
    _check_out(save_to)
    workspace = Workspace.open(output.home, lm)
    given = Given(
        splits,
        workspace.retriever(rewrites.collection, search.embedder, engine),
        rewrites.collection,
        teacher=rewrites.opened_teacher(workspace, named if collects else None, lm),
        pairs=learnt,
        study=study,
        home=workspace.home,
        reader=read_by,
        reader_lm=workspace.lm if read_by else None,
        open_lm=lambda name: workspace.another_lm(LMOptions(name)),
    )
    kept_in = rewrites.work_folder(output, save_to.absolute().name)
    with resumable(kept_in, "what was learnt up to the last checkpoint"), progress() as update, lm_failures():
        trained = train(settings, given, out=save_to, work=kept_in, progress=watched(update, kept_in))
    if output.as_json:
        print_json({"rewriter": save_to.name, "report": trained.report.name, **trained.card})
        return
    show_trained(trained)
    say(f"report: {trained.report}")
    say(f"rewriter: {save_to}")
    say(workspace.cost_line())


@rewriter_app.command(name="show")
def show_command(path: Path, /, *, as_json: Json = False) -> None:
    """Show what a rewriter is and what it is worth, or how far a training has come.

    Example: querywright rewriter show artifacts/mine

    Args:
        path: A rewriter's folder, or the working folder of a training.
    """
    from querywright.models.rewriters import read_rewriter
    from querywright.optimize.rewriter.settings import RUN

    if (path / RUN).is_file():
        found = told(path)
        if as_json:
            print_json(found)
        else:
            show_table(f"training in {path.name}", [{"what": k, "value": str(v)} for k, v in found.items()])
        return
    rewriter = read_rewriter(path)
    if as_json:
        print_json({"name": rewriter.name, "identity": rewriter.identity, "form": rewriter.form, **rewriter.card})
        return
    facts = {
        "identity": rewriter.identity,
        "base": f"{rewriter.base.name} ({rewriter.base.digest})",
        "form": rewriter.form,
        "techniques": ", ".join(rewriter.techniques),
        "recipe": rewriter.recipe,
        "created": rewriter.created,
    }
    show_table(rewriter.name, [{"what": name, "value": value} for name, value in facts.items()])
    say((rewriter.path / "README.md").read_text(encoding="utf-8"))


def _read_pairs(files: Sequence[Path]) -> list[Pair]:
    from querywright.optimize.rewriter.pairs import read_pairs

    return [pair for file in files for pair in read_pairs(file)]


def _check_out(target: Path) -> None:
    """Raise when a rewriter could not be written there, before hours are spent."""
    from querywright.models.rewriters import check_target

    check_target(target)
    check_place(target.absolute().parent, target.name, "--out")
