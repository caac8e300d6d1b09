"""``querywright rewriter``: train a small model that writes queries for techniques."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from querywright.cli import options as opt
from querywright.cli.checks import check_place
from querywright.cli.compile import Sizes, split_sizes
from querywright.cli.show import emit, note, progress, say, show_facts
from querywright.data import split_questions
from querywright.workspace import Workspace

if TYPE_CHECKING:
    from querywright.models.rewriters import Rewriter
    from querywright.optimize.rewriter.settings import TrainingInputs, TrainSettings

rewriter_app = opt.make_app("rewriter", "Train a small model that writes queries for techniques.")

Number = Annotated[float, Parameter(metavar="X")]


@Parameter(name="*", group="Rewrites")
@dataclass(frozen=True)
class RewriteOptions:
    """Options for the rewrites to learn.

    Args:
        collection: The collection to search.
        metric: Retrieval metric to use as the reward.
        sizes: Number of questions in train,dev,test; at most the number in each split. Default: all questions, split by
            a hash of their IDs: about 30%, 30%, and 40%.
        seed: Seed for the split and all random choices.
    """

    collection: opt.Name
    metric: opt.Name = "ndcg@10"
    sizes: Sizes | None = None
    seed: opt.Whole = 0

    def settings(self, technique: str, search: opt.SearchOptions, run: opt.Threads, **training: Any) -> TrainSettings:
        """Return the settings for training or for collecting rewrites, after checking them."""
        from querywright.arms import knob_values
        from querywright.metrics.dspy_metrics import metric_named
        from querywright.optimize.rewriter.settings import TrainSettings
        from querywright.optimize.rewriter.train import DEEPEST
        from querywright.programs import technique_class

        knobs = knob_values(technique, search.knobs)
        metric_named(self.metric)
        # By default, retrieve as many passages as the metric and the card's metrics look at.
        defaults = {one.name: one.default for one in technique_class(technique).KNOBS}
        most = max(int(self.metric.partition("@")[2] or 0), defaults.get("max_passages", 0), DEEPEST)
        knobs = {"max_passages": most, **knobs}
        return TrainSettings(technique, knobs, metric=self.metric, seed=self.seed, threads=run.threads or 4, **training)

    def inputs(
        self, technique: str, data: opt.DataOptions, search: opt.SearchOptions, workspace: Workspace, **more: Any
    ) -> TrainingInputs:
        """Return the inputs for training or for collecting rewrites."""
        from querywright.optimize.rewriter.settings import TrainingInputs

        splits = split_questions(data.questions(), seed=self.seed, sizes=split_sizes(self.sizes))
        retriever = workspace.retriever(self.collection, search.embedder, search.engine_of(technique))
        return TrainingInputs(splits, retriever, self.collection, **more)


@Parameter(name="*", group="Training")
@dataclass(frozen=True)
class TrainingOptions:
    """Options for training.

    Args:
        pairs: File of pairs from rewriter collect, for any technique and collection. Repeatable.
        epochs: Number of warm-up epochs.
        warmup_lr: Learning rate for the warm-up.
        steps: Number of reinforcement learning steps; 0 for none.
        lr: Learning rate for reinforcement learning.
    """

    pairs: Annotated[tuple[Path, ...], Parameter(metavar="FILE")]
    epochs: opt.Count = 3
    warmup_lr: Number = 2e-4
    steps: opt.Whole = 200
    lr: Number = 1e-4


@rewriter_app.command(name="train")
def train_command(
    technique: opt.Technique = "rrr",
    /,
    *,
    data: opt.DataOptions,
    save_to: opt.OutFolder,
    rewrites: RewriteOptions,
    training: TrainingOptions,
    search: opt.SearchOptions = opt.SearchOptions(),
    run: opt.Threads = opt.Threads(),
    output: opt.Output = opt.Output(),
) -> None:
    """Train a rewriter for a technique.

    The rewriter is trained on collected rewrites, then with reinforcement learning that rewards rewrites with better
    retrieval. To resume an interrupted training run, run the same command again. By default, 10 passages are
    retrieved, or more if the metric requires more; to change this number, set --knob max_passages.

    Example: querywright rewriter train rrr --data questions.jsonl --collection mine
    --pairs pairs.jsonl --out artifacts/mine

    Args:
        technique: The technique whose rewriter is trained with reinforcement learning and measured.
        save_to: Folder for the rewriter.
    """
    from querywright.models.rewriters import check_target
    from querywright.optimize.rewriter.pairs import read_pairs
    from querywright.optimize.rewriter.train import train

    options = {name: value for name, value in asdict(training).items() if name != "pairs"}
    settings = rewrites.settings(technique, search, run, **options)
    check_target(save_to)
    check_place(save_to, "--out")
    pairs = [pair for file in training.pairs for pair in read_pairs(file)]
    workspace = Workspace.open(output.home)
    inputs = rewrites.inputs(
        technique, data, search, workspace, pairs=pairs, open_lm=lambda name: opt.LMOptions(name).beside(workspace)
    )
    with progress("opening base model and data") as update:
        result = train(settings, inputs, out=save_to, work=output.folder / "training", progress=update)
    _show(result, output.as_json)


@rewriter_app.command(name="collect")
def collect_command(
    technique: opt.Technique = "rrr",
    /,
    *,
    data: opt.DataOptions,
    save_to: opt.OutFile,
    rewrites: RewriteOptions,
    search: opt.SearchOptions = opt.SearchOptions(),
    run: opt.Threads = opt.Threads(),
    output: opt.Output = opt.Output(),
) -> None:
    """Collect rewrites of training questions for rewriter train --pairs FILE.

    The rewrites are derived from the questions' labeled evidence, without an LM. The training questions are the same as
    in rewriter train with the same --seed and --sizes.

    Example: querywright rewriter collect rrr --data questions.jsonl --collection mine --out pairs.jsonl

    Args:
        technique: The technique to collect rewrites for.
        save_to: File for the pairs; an existing file of pairs is replaced.
    """
    from querywright.optimize.rewriter.collect import collect
    from querywright.optimize.rewriter.pairs import check_pairs_file, write_pairs

    settings = rewrites.settings(technique, search, run)
    check_pairs_file(save_to)
    check_place(save_to, "--out")
    inputs = rewrites.inputs(technique, data, search, Workspace.open(output.home))
    with progress("collecting") as update:
        found = collect(settings, inputs, progress=update)
    write_pairs(save_to, found.pairs)
    facts = {**asdict(replace(found, pairs=())), "pairs": len(found.pairs)}
    emit(
        output.as_json, {"pairs_file": save_to.name, "technique": technique, "collection": rewrites.collection, **facts}
    )
    if found.answered < found.questions:
        note(f"questions without a scored rewrite, excluded from the means: {found.questions - found.answered}")


@rewriter_app.command(name="show")
def show_command(path: Path, /, *, as_json: opt.Json = False) -> None:
    """Show a rewriter and its measured quality.

    Example: querywright rewriter show artifacts/mine

    Args:
        path: The rewriter's folder.
    """
    from querywright.models.rewriters import read_rewriter

    _show(read_rewriter(path), as_json)


def _show(rewriter: Rewriter, as_json: bool) -> None:
    facts = {"name": rewriter.name, "identity": rewriter.identity}

    def shown() -> None:
        show_facts({**facts, "base": f"{rewriter.base.name} ({rewriter.base.digest})"})
        say((rewriter.path / "README.md").read_text(encoding="utf-8"))

    emit(as_json, {**facts, **rewriter.card}, shown)
