"""``querywright rewriter collect``: a teacher's rewrites of train questions, as pairs that trainings learn from."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from querywright.cli.show import print_json, progress, say, show_table
from querywright.cli.workspace import Workspace, lm_failures

if TYPE_CHECKING:
    from querywright.optimize.rewriter.collecting import Collected


def collect_command(
    questions: QuestionsArgument,
    collection: SearchedOption,
    save_to: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where the pairs are written.")],
    technique: RewritesOption = "rrr",
    knob: KnobOption = None,
    base: BaseOption = "embedded",
    recipe: RecipeOption = "ours",
    metric: MeasureOption = "ndcg@10",
    teacher: TeacherOption = None,
    teacher_api_base: TeacherApiBaseOption = None,
    teacher_api_key_env: TeacherKeyOption = None,
    candidates: CandidatesOption = 4,
    ties: TiesOption = False,
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
    """Collect rewrites of train questions, for rewriter train --pairs FILE.

    The train questions are those of rewriter train with the same --seed and --sizes. A collection that was ended,
    whichever way, goes on with the same command. The base is the model that will learn: what it cannot write is not
    kept. The reader and --lm are asked by the recipes seed and paper only. For qb_rag, with --teacher evidence, a pair
    is a passage and the train questions that it answers, from which the writer of its questions learns.

    Example: querywright rewriter collect questions.jsonl --collection mine --technique hcqr
    --teacher openai/gpt-4o-mini --out pairs.jsonl
    """
    from querywright.data import read_questions, split_questions
    from querywright.errors import InputError
    from querywright.optimize.rewriter.collect import EVIDENCE, CollectSettings
    from querywright.optimize.rewriter.collecting import check_pairs_file, collect_pairs
    from querywright.optimize.rewriter.given import Given
    from querywright.optimize.rewriter.settings import TrainSettings, check_collecting
    from querywright.programs.qb_rag import QBRAG

    check_reader(reader)
    engine = None if engine is None else check_engine(engine)
    # The questions of passages are written before there are any to search.
    engine = (engine if technique == QBRAG.NAME else engine_for(technique, engine)) or "dense"
    settings = TrainSettings(
        technique=technique,
        knobs=deep_enough(technique, metric, knob_values(technique, pairs(knob, "--knob"))),
        base=base,
        recipe=recipe_with(recipe, {}),
        metric=metric,
        seed=seed,
        collect=CollectSettings(candidates=candidates, ties=ties, threads=threads),
    )
    named = teacher or (base if base == "embedded" else None)
    if named is None:
        raise InputError(f"there is nothing to collect rewrites from for the base {base!r}: give --teacher NAME")
    kept_in = work_folder(home, work, save_to.stem)
    check_pairs_file(save_to, kept_in)
    check_place(save_to.absolute().parent, save_to.name, "--out")
    asked = read_questions(questions, columns=pairs(column, "--column"), limit=limit, split=split)
    splits = split_questions(asked, seed=seed, sizes=split_sizes(sizes))
    read_by = None if reader == "none" or not settings.recipe.needs_reader else reader_for(asked, reader)
    check_collecting(settings, splits.train, reader=read_by is not None, by_evidence=named == EVIDENCE)
    workspace = Workspace.open(home, lm, api_base=api_base, api_key_env=api_key_env, max_calls=max_calls)
    given = Given(
        splits,
        workspace.retriever(collection, embedder, engine),
        collection,
        teacher=teacher_named(workspace, named, teacher_api_base, teacher_api_key_env, max_calls),
        reader=read_by,
        reader_lm=workspace.lm if read_by else None,
    )
    with resumable(kept_in, "what was collected"), progress() as update, lm_failures():
        found = collect_pairs(settings, given, out=save_to, work=kept_in, progress=update)
    if as_json:
        print_json({"pairs_file": save_to.name, "technique": technique, "collection": collection, **found.to_json()})
        return
    show_table(f"{technique} on {collection}, train questions", [_row(found)], notes=_notes(found))
    say(f"pairs: {save_to}")
    say(workspace.cost_line())


def _row(found: Collected) -> dict[str, str]:
    measured = {
        f"{found.measure}, as written": _number(found.plain),
        f"{found.measure}, best rewrite": _number(found.best),
    }
    return {
        "questions": str(found.questions),
        "answered": str(found.answered),
        "kept": str(found.kept),
        "pairs": str(len(found.pairs)),
        **(measured if found.measure else {}),
    }


def _notes(found: Collected) -> list[str]:
    if not found.measure:
        return ["a pair is a passage with the questions that were asked of it; nothing is searched or scored"]
    if found.answered == found.questions:
        return []
    return [f"no rewrite of {found.questions - found.answered} questions could be scored; they are in no mean"]


def _number(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "-"
