"""``querywright rewriter``: a small model is taught to write what techniques search for, looked at and measured."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from querywright.cli import options as opt
from querywright.cli.checks import check_place
from querywright.cli.compile import Sizes, split_sizes
from querywright.cli.show import emit, note, progress, say, show_facts, show_scores, show_verdicts
from querywright.data import Question, Splits, split_questions
from querywright.errors import InputError
from querywright.workspace import Workspace

if TYPE_CHECKING:
    from querywright.optimize.evaluate import Progress
    from querywright.optimize.rewriter.recipes import Recipe
    from querywright.optimize.rewriter.settings import Given, TrainSettings
    from querywright.optimize.rewriter.train import Trained

rewriter_app = opt.make_app(
    "rewriter", "Teach a small model to write what techniques search for, and look at what it learnt."
)

Number = Annotated[float, Parameter(metavar="X")]


@Parameter(name="*", group="Rewrites")
@dataclass(frozen=True)
class RewriteOptions:
    """What is learnt, and from whom.

    Args:
        collection: The collection that is searched.
        technique: Whose rewrites are learnt, as the command names it.
        base: embedded, a folder, or a model of the Hugging Face hub.
        recipe: ours, seed or paper.
        metric: What retrieval is measured by.
        teacher: The LM whose rewrites are collected, or evidence: no LM, the names that the evidence of a question is
            about, or for qb_rag what was asked of a passage. Default: the base itself where that is embedded.
        teacher_api_base: Address of the teacher's server.
        teacher_api_key_env: Variable that holds the teacher's key.
        candidates: Rewrites a question.
        ties: Also learn a best rewrite that finds as much as the question, and not more.
        sizes: Questions in train,dev,test. Default: 30 %, 30 %, 40 % of all.
        seed: Of the split and of all draws.
    """

    collection: opt.Name
    technique: Annotated[str, Parameter(parse=False)] = "rrr"
    base: opt.Name = "embedded"
    recipe: opt.Name = "ours"
    metric: opt.Name = "ndcg@10"
    teacher: opt.Name | None = None
    teacher_api_base: opt.Url | None = None
    teacher_api_key_env: opt.Name | None = None
    candidates: opt.Count = 4
    ties: opt.Flag = False
    sizes: Sizes | None = None
    seed: opt.Whole = 0
    reader: opt.Reader = "auto"

    def settings(self, search: opt.SearchOptions, threads: int, **training: Any) -> TrainSettings:
        """The settings of a training, or of the collection for one; everything is checked."""
        from querywright.metrics.dspy_metrics import metric_named
        from querywright.named import knob_values
        from querywright.optimize.rewriter.evaluation import DEEPEST
        from querywright.optimize.rewriter.settings import TrainSettings
        from querywright.programs import technique_class

        knobs = knob_values(self.technique, search.knobs)
        metric_named(self.metric)
        # Where no number was given, as many passages as the metric and those of the card look at.
        default = next(
            (one.default for one in technique_class(self.technique).KNOBS if one.name == "max_passages"), None
        )
        if default is not None:
            knobs = {"max_passages": max(int(self.metric.partition("@")[2] or 0), default, DEEPEST), **knobs}
        return TrainSettings(
            self.technique, knobs, base=self.base, metric=self.metric, seed=self.seed, candidates=self.candidates,
            ties=self.ties, threads=threads, **{"recipe": _recipe(self.recipe), **training},
        )  # fmt: skip

    def given(
        self,
        workspace: Workspace,
        asked: list[Question],
        splits: Splits,
        search: opt.SearchOptions,
        *,
        teaches: bool = True,
        **more: Any,
    ) -> Given:
        """What a training or a collection works with; the base teaches itself where it can and none is named."""
        from querywright.optimize.rewriter.settings import EVIDENCE, Given
        from querywright.programs.qb_rag import QBRAG
        from querywright.programs.readers import reader_for
        from querywright.retrieval.engines import check_engine

        # The questions of passages, which qb_rag learns, are written before there are any to search.
        written = self.technique == QBRAG.NAME
        engine: Any = check_engine(search.engine or "dense") if written else search.engine_of(self.technique)
        teacher: Any = (self.teacher or ("embedded" if self.base == "embedded" else None)) if teaches else None
        if teacher not in (None, EVIDENCE):
            named = opt.LMOptions(teacher, self.teacher_api_base, self.teacher_api_key_env)
            teacher = named.beside(workspace)
        reads = self.reader != "none" and _recipe(self.recipe).needs_reader
        read_by = reader_for(asked, self.reader) if reads else None
        return Given(
            splits, workspace.retriever(self.collection, search.embedder, engine), self.collection, teacher=teacher,
            reader=read_by, reader_lm=workspace.lm if read_by else None, **more,
        )  # fmt: skip


@Parameter(name="*", group="Training")
@dataclass(frozen=True)
class TrainingOptions:
    """How it is trained.

    Args:
        stages: Of collect,warmup,reinforce.
        pairs: Pairs of rewriter collect, of any technique and collection. Repeatable.
        epochs: Of the warm-up.
        warmup_lr: Learning rate of the warm-up.
        steps: Of the reinforcement; else the recipe's.
        lr: Of the reinforcement; else the recipe's.
        batch: Questions a step; else the recipe's.
        group: Samples a question; else the recipe's.
        rank: Of the adapter.
        full: Train all weights, and no adapter.
        device: cpu, cuda:0, or auto: a GPU if there is one.
        work: Where the work is kept, and taken up again. Default: in the working folder, named as --out.
    """

    stages: Annotated[str, Parameter(metavar="LIST")] = "collect,warmup,reinforce"
    pairs: Annotated[tuple[Path, ...], Parameter(metavar="FILE", show_default=False)] = ()
    epochs: opt.Count = 3
    warmup_lr: Number = 2e-4
    steps: opt.Count | None = None
    lr: Number | None = None
    batch: opt.Count | None = None
    group: opt.Count | None = None
    rank: opt.Count = 16
    full: opt.Flag = False
    device: opt.Name = "auto"
    work: opt.Folder | None = None

    def settings(self, rewrites: RewriteOptions, search: opt.SearchOptions, threads: int) -> TrainSettings:
        """The settings of a training."""
        from querywright.optimize.rewriter.settings import check_stages

        changes = {name: getattr(self, name) for name in ("steps", "lr", "batch", "group")}
        same = ("epochs", "warmup_lr", "device")
        return rewrites.settings(
            search,
            threads,
            stages=check_stages([one.strip() for one in self.stages.split(",") if one.strip()]),
            recipe=_recipe(rewrites.recipe, changes),
            rank=None if self.full else self.rank,
            **{name: getattr(self, name) for name in same},
        )


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
    """Collect rewrites, warm the model up on the best, and reinforce it by what its own retrieve.

    A training that was ended, whichever way, goes on with the same command. The reader and --lm are asked by the
    recipes seed and paper only. 10 passages are found, or as many as the metric looks at, unless --knob max_passages
    says otherwise.

    Example: querywright rewriter train rrr --data questions.jsonl --collection mine
    --teacher openai/gpt-4o-mini --out artifacts/mine

    Args:
        technique: Whose rewrites are learnt.
        save_to: Where the rewriter is written.
    """
    from querywright.models.rewriters import check_target
    from querywright.optimize.rewriter.pairs import read_pairs
    from querywright.optimize.rewriter.train import train

    rewrites = replace(rewrites, technique=technique)
    settings = training.settings(rewrites, search, run.threads or 4)
    asked = data.questions()
    splits = split_questions(asked, seed=rewrites.seed, sizes=split_sizes(rewrites.sizes))
    check_target(save_to)
    check_place(save_to, "--out")
    workspace = lm.open(output.home, run.threads)
    given = rewrites.given(
        workspace, asked, splits, search, teaches="collect" in settings.stages,
        pairs=[pair for file in training.pairs for pair in read_pairs(file)],
        open_lm=lambda name: opt.LMOptions(name).beside(workspace),
    )  # fmt: skip
    work = training.work or output.folder / "rewriters" / save_to.absolute().name
    try:
        with progress("opening base and data") as update:
            trained = train(settings, given, out=save_to, work=work, progress=_with_looks(update, work))
    except KeyboardInterrupt:
        note(f"what was learnt up to the last checkpoint is in {work}; to go on: {shlex.join(sys.argv)}")
        raise

    def shown() -> None:
        _show_trained(trained)
        say(f"report: {trained.report}")
        say(f"rewriter: {save_to}")
        say(workspace.cost_line())

    emit(output.as_json, {"rewriter": save_to.name, "report": trained.report.name, **trained.card}, shown)


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

    The train questions are those of rewriter train with the same --seed and --sizes. A collection that was ended begins
    again with the same command and asks nothing twice. The base is the model that will learn: what it cannot write is
    not kept. The reader and --lm are asked by the recipes seed and paper only. For qb_rag, with --teacher evidence, a
    pair is a passage and the train questions that it answers, from which the writer of its questions learns.

    Example: querywright rewriter collect hcqr --data questions.jsonl --collection mine
    --teacher openai/gpt-4o-mini --out pairs.jsonl

    Args:
        technique: Whose rewrites are learnt.
        save_to: Where the pairs are written; an older file of pairs is replaced.
    """
    from querywright.optimize.rewriter.collect import collect
    from querywright.optimize.rewriter.pairs import check_pairs_file, write_pairs

    rewrites = replace(rewrites, technique=technique)
    settings = rewrites.settings(search, run.threads or 4)
    check_pairs_file(save_to)
    check_place(save_to, "--out")
    asked = data.questions()
    splits = split_questions(asked, seed=rewrites.seed, sizes=split_sizes(rewrites.sizes))
    workspace = lm.open(output.home, run.threads)
    given = rewrites.given(workspace, asked, splits, search)
    with progress("collecting") as update:
        found = collect(settings, given, progress=update)
    write_pairs(save_to, found.pairs)
    told = {**asdict(replace(found, pairs=())), "pairs": len(found.pairs)}
    names = {"pairs_file": save_to.name, "technique": rewrites.technique, "collection": rewrites.collection}
    emit(output.as_json, {**names, **told}, cost=workspace.cost_line())
    if not found.measure:
        note("a pair is a passage with the questions that were asked of it; nothing is searched or scored")
    elif found.answered < found.questions:
        left = found.questions - found.answered
        note(f"no rewrite of {left} questions could be scored; they are in no mean")


@rewriter_app.command(name="evaluate")
def evaluate_command(
    path: Path,
    technique: Annotated[tuple[str, ...], Parameter(metavar="TECHNIQUE...", show_default=False)] = (),
    /,
    *,
    data: opt.DataOptions,
    collection: opt.Name,
    metric: opt.Names = (),
    max_passages: opt.Count | None = None,
    search: opt.SearchOptions = opt.SearchOptions(),
    lm: opt.LMOptions = opt.LMOptions(),
    run: opt.Threads = opt.Threads(),
    output: opt.Output = opt.Output(),
) -> None:
    """Measure a rewriter as it is used: beside no rewriting, and beside --lm in the same techniques.

    The knobs are those that the rewriter was trained with, where none are given.

    Example: querywright rewriter evaluate artifacts/mine --data questions.jsonl --collection mine

    Args:
        path: A rewriter's folder.
        collection: The collection that is searched.
        technique: Default: those it was trained for.
        metric: What passages are measured by. Repeatable. Default: exact_recovery@1, recall@5, ndcg@10 and
            decision_useful, which need labelled evidence.
        max_passages: Of every arm. Default: as many as it was trained with, else 10.
    """
    from querywright.models.rewriters import read_rewriter
    from querywright.named import knob_values, tell_unlearnt
    from querywright.optimize.comparison import compare
    from querywright.optimize.judging import judged_metrics
    from querywright.optimize.results import NO_REWRITING
    from querywright.optimize.rewriter.evaluation import METRICS
    from querywright.programs import make_program, technique_class

    rewriter = read_rewriter(path)
    tell_unlearnt(rewriter, technique, note)
    asked = data.questions()
    metrics = judged_metrics([*(metric or METRICS)])
    # The questions of passages are written before a search, and no technique asks for them.
    names = [*technique] or [name for name in rewriter.techniques if technique_class(name).LM_STAGES]
    if not names:
        raise InputError(
            f"{rewriter.name} learnt the prompts of {', '.join(rewriter.techniques)}, which no search asks; name a "
            "technique to measure it there"
        )
    engine = search.engine_of(names[0])  # no technique that an LM writes for has one of its own
    learnt = {rewriter.card.get("technique"): dict(rewriter.card.get("knobs") or {})}
    knobs = [knob_values(name, search.knobs) if search.knobs else learnt.get(name, {}) for name in names]
    passages = max_passages or max((one.get("max_passages", 0) for one in knobs), default=0) or 10
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
    """Show what a rewriter is and what it is worth.

    Example: querywright rewriter show artifacts/mine

    Args:
        path: A rewriter's folder.
    """
    from querywright.models.rewriters import read_rewriter

    rewriter = read_rewriter(path)
    facts = {"name": rewriter.name, "identity": rewriter.identity, "form": rewriter.form}

    def shown() -> None:
        show_facts({**facts, "base": f"{rewriter.base.name} ({rewriter.base.digest})"})
        say((rewriter.path / "README.md").read_text(encoding="utf-8"))

    emit(as_json, {**facts, **rewriter.card}, shown)


def _with_looks(update: Callable[..., None], work: Path) -> Progress:
    """Progress that says what the last look at dev saw, and the first."""
    from querywright.optimize.rewriter.checkpoints import read_lines
    from querywright.optimize.rewriter.reinforce import LOG

    def both(what: str, done: int, total: int) -> None:
        lines = read_lines(work / "reinforce" / LOG) if what == "reinforce" else []
        looks = [f"{line['value']:.3f}" for line in lines if line["kind"] == "dev"]
        update(what, done, total, f"dev {looks[-1]}, at the start {looks[0]}" if looks else "")

    return both


def _recipe(name: str, changes: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe of that name, with the values that were given; None for those that were not."""
    from querywright.optimize.rewriter.recipes import recipe_named

    return replace(recipe_named(name), **{key: one for key, one in (changes or {}).items() if one is not None})


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
