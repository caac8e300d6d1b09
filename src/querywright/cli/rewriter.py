"""``querywright rewriter``: a small model is taught to write what techniques search for, looked at and measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from querywright.cli.checks import check_engine, check_place, check_reader, engine_for, knob_values, pairs, reader_for
from querywright.cli.compile import split_sizes
from querywright.cli.options import (
    ApiBaseOption,
    CallsOption,
    ColumnOption,
    EmbedderOption,
    HomeOption,
    JsonOption,
    KeyOption,
    KnobOption,
    LimitOption,
    LMOption,
    QuestionsArgument,
    ReaderOption,
    SplitOption,
    TechniqueEngineOption,
    ThreadsOption,
)
from querywright.cli.rewriter_collect import collect_command
from querywright.cli.rewriter_evaluate import evaluate_command
from querywright.cli.rewriter_options import (
    BaseOption,
    CandidatesOption,
    MeasureOption,
    RecipeOption,
    RewritesOption,
    SearchedOption,
    SeedOption,
    SizesOption,
    TeacherApiBaseOption,
    TeacherKeyOption,
    TeacherOption,
    TiesOption,
    WorkOption,
    deep_enough,
    recipe_with,
    resumable,
    teacher_named,
    work_folder,
)
from querywright.cli.rewriter_show import show_trained, told, watched
from querywright.cli.show import print_json, progress, say, show_table
from querywright.cli.workspace import Workspace, lm_failures

if TYPE_CHECKING:
    from querywright.optimize.rewriter.settings import TrainSettings
    from querywright.optimize.rewriter.types import Pair

rewriter_app = typer.Typer(
    help="Teach a small model to write what techniques search for, and look at what it learnt.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

rewriter_app.command("collect")(collect_command)
rewriter_app.command("evaluate")(evaluate_command)

PathArgument = Annotated[
    Path, typer.Argument(metavar="PATH", help="A rewriter's folder, or the working folder of a training.")
]


@rewriter_app.command("train")
def train_command(
    questions: QuestionsArgument,
    collection: SearchedOption,
    save_to: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where the rewriter is written.")],
    technique: RewritesOption = "rrr",
    knob: KnobOption = None,
    base: BaseOption = "embedded",
    stages: Annotated[
        str, typer.Option("--stages", metavar="LIST", help="Of collect,warmup,reinforce.")
    ] = "collect,warmup,reinforce",
    recipe: RecipeOption = "ours",
    metric: MeasureOption = "ndcg@10",
    teacher: TeacherOption = None,
    teacher_api_base: TeacherApiBaseOption = None,
    teacher_api_key_env: TeacherKeyOption = None,
    pairs_files: Annotated[
        list[Path] | None,
        typer.Option(
            "--pairs",
            metavar="FILE",
            help="Pairs of rewriter collect, of any technique and collection. Repeatable.",
            show_default=False,
        ),
    ] = None,
    from_study: Annotated[
        Path | None,
        typer.Option(
            "--from-study",
            metavar="FOLDER",
            help="A study of these questions, whose kept answers to the first half of its dev questions are learnt "
            "from. The other half is dev, and test stays test; --seed and --sizes of the split are the study's.",
            show_default=False,
        ),
    ] = None,
    candidates: CandidatesOption = 4,
    ties: TiesOption = False,
    epochs: Annotated[int, typer.Option("--epochs", metavar="N", min=1, help="Of the warm-up.")] = 3,
    warmup_lr: Annotated[
        float | None,
        typer.Option("--warmup-lr", metavar="X", help="Learning rate of the warm-up.", show_default=False),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps", metavar="N", min=1, help="Of the reinforcement; else the recipe's.", show_default=False
        ),
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option("--lr", metavar="X", help="Of the reinforcement; else the recipe's.", show_default=False),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option("--batch", metavar="N", min=1, help="Questions a step; else the recipe's.", show_default=False),
    ] = None,
    group: Annotated[
        int | None,
        typer.Option("--group", metavar="N", min=1, help="Samples a question; else the recipe's.", show_default=False),
    ] = None,
    look_each: Annotated[int, typer.Option("--look-each", metavar="N", min=1, help="Steps between looks at dev.")] = 20,
    patience: Annotated[
        int, typer.Option("--patience", metavar="N", min=1, help="Looks without a better one before it ends.")
    ] = 5,
    rank: Annotated[int, typer.Option("--rank", metavar="N", min=1, help="Of the adapter.")] = 16,
    full: Annotated[bool, typer.Option("--full", help="Train all weights, and no adapter.")] = False,
    device: Annotated[
        str,
        typer.Option("--device", metavar="NAME", help="cpu, cuda:0, cuda:0,cuda:1 to share, or auto: a GPU if any."),
    ] = "auto",
    dtype: Annotated[str, typer.Option("--dtype", metavar="NAME", help="auto, float32 or bfloat16.")] = "auto",
    sizes: SizesOption = None,
    seed: SeedOption = 0,
    work: WorkOption = None,
    reader: ReaderOption = "auto",
    lm: LMOption = "embedded",
    api_base: ApiBaseOption = None,
    api_key_env: KeyOption = None,
    max_calls: CallsOption = None,
    column: ColumnOption = None,
    limit: LimitOption = None,
    split: SplitOption = None,
    embedder: EmbedderOption = "embedded",
    engine: TechniqueEngineOption = None,
    threads: ThreadsOption = 4,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Collect rewrites, warm the model up on the best, and reinforce it by what its own retrieve.

    A training that was ended, whichever way, goes on with the same command. The reader and --lm are asked by the
    recipes seed and paper only. 10 passages are found, or as many as the metric looks at, unless --knob max_passages
    says otherwise.

    Example: querywright rewriter train questions.jsonl --collection mine --teacher openai/gpt-4o-mini --out artifacts/r
    """
    from querywright.data import read_questions, split_questions
    from querywright.errors import InputError
    from querywright.optimize.rewriter.collect import EVIDENCE
    from querywright.optimize.rewriter.given import Given, splits_after
    from querywright.optimize.rewriter.settings import check_stages, check_training
    from querywright.optimize.rewriter.train import train

    check_reader(reader)
    engine = engine_for(technique, None if engine is None else check_engine(engine)) or "dense"
    settings = _settings(
        technique=technique,
        knobs=deep_enough(technique, metric, knob_values(technique, pairs(knob, "--knob"))),
        base=base,
        stages=check_stages([one.strip() for one in stages.split(",") if one.strip()]),
        metric=metric,
        seed=seed,
        device=device,
        dtype=dtype,
        recipe=recipe_with(recipe, {"steps": steps, "lr": lr, "batch": batch, "group": group}),
        collecting=(candidates, ties, threads),
        warming=(epochs, warmup_lr),
        looks=(look_each, patience),
        rank=None if full else rank,
    )
    asked = read_questions(questions, columns=pairs(column, "--column"), limit=limit, split=split)
    counts = split_sizes(sizes)
    collects = "collect" in settings.stages
    study = from_study if collects else None
    if study is None:
        splits = split_questions(asked, seed=seed, sizes=counts)
    elif counts is None:
        splits = splits_after(study, asked)
    else:
        raise InputError("--sizes does not go with --from-study, whose questions stay in their parts; leave it out")
    named = teacher or (base if base == "embedded" and from_study is None else None)
    learnt = _read_pairs(pairs_files or ())
    read_by = None if reader == "none" or not settings.recipe.needs_reader else reader_for(asked, reader)
    writes = named is not None or from_study is not None
    check_training(
        settings,
        splits,
        pairs=learnt,
        writes=writes,
        reader=read_by is not None,
        by_evidence=named == EVIDENCE,
        collection=collection,
    )
    _check_out(save_to)
    workspace = Workspace.open(home, lm, api_base=api_base, api_key_env=api_key_env, max_calls=max_calls)

    def opened(name: str) -> Any:
        return workspace.another_lm(name, api_base=None, api_key_env=None, max_calls=None)

    given = Given(
        splits,
        workspace.retriever(collection, embedder, engine),
        collection,
        teacher=teacher_named(workspace, named if collects else None, teacher_api_base, teacher_api_key_env, max_calls),
        pairs=learnt,
        study=study,
        home=workspace.home,
        reader=read_by,
        reader_lm=workspace.lm if read_by else None,
        open_lm=opened,
    )
    kept_in = work_folder(home, work, save_to.absolute().name)
    with resumable(kept_in, "what was learnt up to the last checkpoint"), progress() as update, lm_failures():
        trained = train(settings, given, out=save_to, work=kept_in, progress=watched(update, kept_in))
    if as_json:
        print_json({"rewriter": save_to.name, "report": trained.report.name, **trained.card})
        return
    show_trained(trained)
    say(f"report: {trained.report}")
    say(f"rewriter: {save_to}")
    say(workspace.cost_line())


@rewriter_app.command("show")
def show_command(path: PathArgument, as_json: JsonOption = False) -> None:
    """Show what a rewriter is and what it is worth, or how far a training has come.

    Example: querywright rewriter show artifacts/mine
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


def _settings(
    *,
    collecting: tuple[int, bool, int],
    warming: tuple[int, float | None],
    looks: tuple[int, int],
    rank: int | None,
    **given: Any,
) -> TrainSettings:
    from querywright.optimize.rewriter.collect import CollectSettings
    from querywright.optimize.rewriter.lora import LoraSettings
    from querywright.optimize.rewriter.reinforce import ReinforceSettings
    from querywright.optimize.rewriter.settings import TrainSettings
    from querywright.optimize.rewriter.warmup import WarmupSettings

    candidates, ties, threads = collecting
    epochs, lr = warming
    return TrainSettings(
        **given,
        collect=CollectSettings(candidates=candidates, ties=ties, threads=threads),
        warmup=WarmupSettings(epochs=epochs) if lr is None else WarmupSettings(epochs=epochs, lr=lr),
        reinforce=ReinforceSettings(look_each=looks[0], patience=looks[1]),
        lora=None if rank is None else LoraSettings(rank=rank, alpha=2 * rank),
    )


def _read_pairs(files: Sequence[Path]) -> list[Pair]:
    from querywright.optimize.rewriter.pairs import read_pairs

    return [pair for file in files for pair in read_pairs(file)]


def _check_out(target: Path) -> None:
    """Raise when a rewriter could not be written there, before hours are spent."""
    from querywright.models.rewriters import check_target

    check_target(target)
    check_place(target.absolute().parent, target.name, "--out")
