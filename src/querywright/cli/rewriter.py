"""``querywright rewriter``: teach a small model to write what techniques search for, and measure it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from querywright.cli import options as opt
from querywright.cli.checks import check_place
from querywright.cli.compile import Sizes, split_sizes
from querywright.cli.show import emit, note, progress, say, show_facts, show_scores, show_verdicts
from querywright.data import split_questions
from querywright.errors import InputError
from querywright.workspace import Workspace

if TYPE_CHECKING:
    from querywright.optimize.rewriter.settings import Given, TrainSettings
    from querywright.optimize.rewriter.train import Trained

rewriter_app = opt.make_app("rewriter", "Teach a small model to write what techniques search for, and measure it.")

Number = Annotated[float, Parameter(metavar="X")]


@Parameter(name="*", group="Rewrites")
@dataclass(frozen=True)
class RewriteOptions:
    """Options of the rewrites to learn.

    Args:
        collection: The collection to search.
        technique: The technique whose rewrites are learned.
        base: The model to train: embedded, a folder, or a model of the Hugging Face hub.
        metric: Metric of retrieval that rewards a rewrite.
        teacher: lm: --lm writes the rewrites. evidence: the labelled evidence does, without an LM.
        candidates: Rewrites of --lm per question.
        sizes: Questions in train,dev,test. Default: 30 %, 30 %, 40 % of all.
        seed: Seed of the split and of all draws.
    """

    collection: opt.Name
    technique: Annotated[str, Parameter(parse=False)] = "rrr"
    base: opt.Name = "embedded"
    metric: opt.Name = "ndcg@10"
    teacher: Literal["lm", "evidence"] = "lm"
    candidates: opt.Count = 4
    sizes: Sizes | None = None
    seed: opt.Whole = 0

    def settings(self, search: opt.SearchOptions, threads: int, **training: Any) -> TrainSettings:
        """Return the settings of a training or a collection, checked."""
        from querywright.arms import knob_values
        from querywright.metrics.dspy_metrics import metric_named
        from querywright.optimize.rewriter.evaluation import DEEPEST
        from querywright.optimize.rewriter.settings import TrainSettings
        from querywright.programs import technique_class

        knobs = knob_values(self.technique, search.knobs)
        metric_named(self.metric)
        # By default as many passages as the metric and the metrics of the card look at.
        default = next(
            (one.default for one in technique_class(self.technique).KNOBS if one.name == "max_passages"), None
        )
        if default is not None:
            knobs = {"max_passages": max(int(self.metric.partition("@")[2] or 0), default, DEEPEST), **knobs}
        return TrainSettings(
            self.technique, knobs, base=self.base, metric=self.metric, seed=self.seed, candidates=self.candidates,
            threads=threads, **training,
        )  # fmt: skip

    def given(
        self, data: opt.DataOptions, search: opt.SearchOptions, lm: opt.LMOptions, workspace: Workspace, **more: Any
    ) -> Given:
        """Return the inputs of a training or a collection; --lm must be named to teach another base than its own."""
        from querywright.optimize.rewriter.settings import EVIDENCE, Given
        from querywright.programs.qb_rag import QBRAG
        from querywright.retrieval.engines import check_engine

        splits = split_questions(data.questions(), seed=self.seed, sizes=split_sizes(self.sizes))
        # The questions of passages, which qb_rag learns, are written before there are any to search.
        is_written = self.technique == QBRAG.NAME
        engine: Any = check_engine(search.engine or "dense") if is_written else search.engine_of(self.technique)
        asked = workspace.lm if lm.lm or self.base == "embedded" else None
        teacher: Any = EVIDENCE if self.teacher == "evidence" else asked
        retriever = workspace.retriever(self.collection, search.embedder, engine)
        return Given(splits, retriever, self.collection, **{"teacher": teacher, **more})


@Parameter(name="*", group="Training")
@dataclass(frozen=True)
class TrainingOptions:
    """Options of the training.

    Args:
        stages: Stages to run, of collect,warmup,reinforce.
        pairs: Pairs of rewriter collect, of any technique and collection. Repeatable.
        epochs: Epochs of the warm-up.
        warmup_lr: Learning rate of the warm-up.
        steps: Steps of the reinforcement.
        lr: Learning rate of the reinforcement.
        device: cpu, cuda:0, or auto: a GPU if there is one.
        work: Folder of the checkpoints. Default: in the workspace, named as --out.
    """

    stages: Annotated[str, Parameter(metavar="LIST")] = "collect,warmup,reinforce"
    pairs: Annotated[tuple[Path, ...], Parameter(metavar="FILE", show_default=False)] = ()
    epochs: opt.Count = 3
    warmup_lr: Number = 2e-4
    steps: opt.Count = 200
    lr: Number = 1e-4
    device: opt.Name = "auto"
    work: opt.Folder | None = None

    def settings(self, rewrites: RewriteOptions, search: opt.SearchOptions, threads: int) -> TrainSettings:
        """Return the settings of a training."""
        from querywright.optimize.rewriter.settings import check_stages

        stages = check_stages([one.strip() for one in self.stages.split(",") if one.strip()])
        named = {name: getattr(self, name) for name in ("epochs", "warmup_lr", "steps", "lr", "device")}
        return rewrites.settings(search, threads, stages=stages, **named)


@rewriter_app.command(name="train")
def train_command(
    technique: opt.Technique = "rrr",
    /,
    *,
    data: opt.DataOptions,
    save_to: opt.OutFolder,
    rewrites: RewriteOptions,
    training: TrainingOptions = TrainingOptions(),
    search: opt.SearchOptions = opt.SearchOptions(),
    lm: opt.LMOptions = opt.LMOptions(),
    run: opt.Threads = opt.Threads(),
    output: opt.Output = opt.Output(),
) -> None:
    """Collect rewrites, learn the best, and reinforce what retrieves more.

    An interrupted training resumes with the same command. --lm writes the rewrites to learn from. 10 passages are
    retrieved, or as many as the metric looks at, unless --knob max_passages says otherwise.

    Example: querywright rewriter train rrr --data questions.jsonl --collection mine
    --lm openai/gpt-4o-mini --out artifacts/mine

    Args:
        technique: The technique whose rewrites are learned.
        save_to: Folder of the rewriter.
    """
    from querywright.models.rewriters import check_target
    from querywright.optimize.rewriter.pairs import read_pairs
    from querywright.optimize.rewriter.train import train

    rewrites = replace(rewrites, technique=technique)
    settings = training.settings(rewrites, search, run.threads or 4)
    check_target(save_to)
    check_place(save_to, "--out")
    pairs = [pair for file in training.pairs for pair in read_pairs(file)]
    collects = "collect" in settings.stages
    workspace = lm.open(output.home, run.threads, asks=collects and rewrites.teacher == "lm")
    teacher: dict[str, Any] = {} if collects else {"teacher": None}
    given = rewrites.given(
        data, search, lm, workspace, pairs=pairs, open_lm=lambda name: opt.LMOptions(name).beside(workspace), **teacher
    )
    work = training.work or output.folder / "rewriters" / save_to.absolute().name
    try:
        with progress("opening base and data") as update:
            trained = train(settings, given, out=save_to, work=work, progress=update)
    except KeyboardInterrupt:
        note(f"the last checkpoint is in {work}; to resume: {shlex.join(sys.argv)}")
        raise

    def shown() -> None:
        _show_trained(trained)
        say(f"rewriter: {save_to}")
        say(workspace.cost_line())

    emit(output.as_json, {"rewriter": save_to.name, **trained.card}, shown)


@rewriter_app.command(name="collect")
def collect_command(
    technique: opt.Technique = "rrr",
    /,
    *,
    data: opt.DataOptions,
    save_to: opt.OutFile,
    rewrites: RewriteOptions,
    search: opt.SearchOptions = opt.SearchOptions(),
    lm: opt.LMOptions = opt.LMOptions(),
    run: opt.Threads = opt.Threads(),
    output: opt.Output = opt.Output(),
) -> None:
    """Collect rewrites of train questions, for rewriter train --pairs FILE.

    The train questions are those of rewriter train with the same --seed and --sizes. An interrupted collection starts
    again with the same command and finds the answers of --lm in the cache. The base is the model that will learn:
    rewrites that it cannot write are dropped. For qb_rag, with --teacher evidence, a pair is a passage and the train
    questions that it answers.

    Example: querywright rewriter collect hcqr --data questions.jsonl --collection mine
    --lm openai/gpt-4o-mini --out pairs.jsonl

    Args:
        technique: The technique whose rewrites are learned.
        save_to: File of the pairs; an older file of pairs is replaced.
    """
    from querywright.optimize.rewriter.collect import collect
    from querywright.optimize.rewriter.pairs import check_pairs_file, write_pairs

    rewrites = replace(rewrites, technique=technique)
    settings = rewrites.settings(search, run.threads or 4)
    check_pairs_file(save_to)
    check_place(save_to, "--out")
    workspace = lm.open(output.home, run.threads, asks=rewrites.teacher == "lm")
    given = rewrites.given(data, search, lm, workspace)
    with progress("collecting") as update:
        found = collect(settings, given, progress=update)
    write_pairs(save_to, found.pairs)
    facts = {**asdict(replace(found, pairs=())), "pairs": len(found.pairs)}
    names = {"pairs_file": save_to.name, "technique": rewrites.technique, "collection": rewrites.collection}
    emit(output.as_json, {**names, **facts}, cost=workspace.cost_line())
    if not found.measure:
        note("a pair is a passage with the questions that were asked of it; nothing is searched or scored")
    elif found.answered < found.questions:
        note(f"no rewrite of {found.questions - found.answered} questions could be scored; the means leave them out")


@rewriter_app.command(name="evaluate")
def evaluate_command(
    path: Path,
    technique: Annotated[tuple[str, ...], Parameter(metavar="TECHNIQUE...", show_default=False)] = (),
    /,
    *,
    data: opt.DataOptions,
    collection: opt.Name,
    metric: opt.Names = (),
    search: opt.SearchOptions = opt.SearchOptions(),
    lm: opt.LMOptions = opt.LMOptions(),
    run: opt.Threads = opt.Threads(),
    output: opt.Output = opt.Output(),
) -> None:
    """Compare a rewriter with the baseline and with --lm.

    Without --knob, the knobs are those of the training.

    Example: querywright rewriter evaluate artifacts/mine --data questions.jsonl --collection mine

    Args:
        path: The rewriter's folder.
        collection: The collection to search.
        technique: Techniques to measure. Default: those that the rewriter was trained for.
        metric: Metrics of retrieval. Repeatable. Default: exact_recovery@1, recall@5, ndcg@10 and decision_useful,
            which need labelled evidence.
    """
    from querywright.arms import knob_values
    from querywright.models.rewriters import read_rewriter
    from querywright.opening import tell_unlearnt
    from querywright.optimize.comparison import compare
    from querywright.optimize.judging import judged_metrics
    from querywright.optimize.results import NO_REWRITING
    from querywright.optimize.rewriter.evaluation import DEEPEST, METRICS
    from querywright.programs import make_program, technique_class

    rewriter = read_rewriter(path)
    tell_unlearnt(rewriter, technique, note)
    asked = data.questions()
    metrics = judged_metrics([*(metric or METRICS)])
    # The questions of passages are written before a search, and no technique asks for them.
    names = [*technique] or [name for name in rewriter.techniques if technique_class(name).LM_STAGES]
    if not names:
        raise InputError(
            f"{rewriter.name} learned the prompts of {', '.join(rewriter.techniques)}, which no search asks; name a "
            "technique to measure it with"
        )
    engine = search.engine_of(names[0])  # no technique that an LM writes for has its own engine
    learned = {rewriter.card.get("technique"): dict(rewriter.card.get("knobs") or {})}
    knobs = [knob_values(name, search.knobs) if search.knobs else learned.get(name, {}) for name in names]
    passages = max((one.get("max_passages", 0) for one in knobs), default=0) or DEEPEST
    workspace = lm.open(output.home, run.threads)
    writers = {lm.lm or "embedded": None, rewriter.name: opt.LMOptions(f"rewriter:{path}").beside(workspace)}
    with progress("opening the collection") as update:
        retriever = workspace.retriever(collection, search.embedder, engine)
        programs = {NO_REWRITING: make_program("plain", retriever, max_passages=passages)} | {
            f"{name}, {called}": make_program(name, retriever, writer_lm=writer, **{**values, "max_passages": passages})
            for name, values in zip(names, knobs, strict=True)
            for called, writer in writers.items()
        }
        compared = compare(
            programs, asked, lm=workspace.lm, baseline=NO_REWRITING, references=False, metrics=metrics,
            threads=run.threads or workspace.threads, progress=update,
        )  # fmt: skip

    def shown() -> None:
        show_scores(f"{rewriter.name} on {len(asked)} questions", compared.arms, workspace, verbose=False)
        show_verdicts(compared.comparisons, verbose=False)

    found = {name: compared.to_json()[name] for name in ("arms", "comparisons")}
    emit(output.as_json, found, shown, cost=workspace.cost_line())


@rewriter_app.command(name="show")
def show_command(path: Path, /, *, as_json: opt.Json = False) -> None:
    """Show a rewriter and its measured quality.

    Example: querywright rewriter show artifacts/mine

    Args:
        path: The rewriter's folder.
    """
    from querywright.models.rewriters import read_rewriter

    rewriter = read_rewriter(path)
    facts = {"name": rewriter.name, "identity": rewriter.identity}

    def shown() -> None:
        show_facts({**facts, "base": f"{rewriter.base.name} ({rewriter.base.digest})"})
        say((rewriter.path / "README.md").read_text(encoding="utf-8"))

    emit(as_json, {**facts, **rewriter.card}, shown)


def _show_trained(trained: Trained) -> None:
    card: Mapping[str, Any] = trained.card
    for name, found in (("dev", trained.dev), ("test", trained.test)):
        if found is None:
            continue
        standing = card["standing"][name]
        show_scores(f"{name}, {len(found.arms[0].rows)} questions", found.arms, verbose=False)
        show_verdicts([one for one in found.comparisons if one.metric == card["metric"]], verbose=False)
        if standing["warning"]:
            say(f"{name}: {standing['warning']}", style="bold red" if standing["verdict"] == "loss" else "bold")
    for one in card["guards"]["warnings"]:
        say(f"guard: {one}", style="bold")
