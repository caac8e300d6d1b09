"""``querywright rewriter collect``: a teacher's rewrites of train questions, as pairs that trainings learn from."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from querywright.cli.checks import check_engine, check_place, reader_for
from querywright.cli.compile import split_sizes
from querywright.cli.options import DataOptions, LimitedLM, OutFile, Output, Questions, SearchOptions, Threads
from querywright.cli.rewriter_options import RewriteOptions, recipe_with, resumable
from querywright.cli.show import print_json, progress, say, show_table
from querywright.cli.workspace import Workspace, lm_failures

if TYPE_CHECKING:
    from querywright.optimize.rewriter.collecting import Collected


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

    The train questions are those of rewriter train with the same --seed and --sizes. A collection that was ended,
    whichever way, goes on with the same command. The base is the model that will learn: what it cannot write is not
    kept. The reader and --lm are asked by the recipes seed and paper only. For qb_rag, with --teacher evidence, a pair
    is a passage and the train questions that it answers, from which the writer of its questions learns.

    Example: querywright rewriter collect questions.jsonl --collection mine --technique hcqr
    --teacher openai/gpt-4o-mini --out pairs.jsonl

    Args:
        save_to: Where the pairs are written.
    """
    from querywright.data import split_questions
    from querywright.errors import InputError
    from querywright.optimize.rewriter.collect import EVIDENCE
    from querywright.optimize.rewriter.collecting import check_pairs_file, collect_pairs
    from querywright.optimize.rewriter.given import Given
    from querywright.optimize.rewriter.settings import TrainSettings, check_collecting
    from querywright.programs.qb_rag import QBRAG

    named_engine = None if search.engine is None else check_engine(search.engine)
    # The questions of passages are written before there are any to search.
    engine = named_engine or "dense" if rewrites.technique == QBRAG.NAME else search.engine_of(rewrites.technique)
    settings = TrainSettings(**rewrites.settings(search, run.threads), recipe=recipe_with(rewrites.recipe, {}))
    named = rewrites.teacher or (rewrites.base if rewrites.base == "embedded" else None)
    if named is None:
        raise InputError(
            f"there is nothing to collect rewrites from for the base {rewrites.base!r}: give --teacher NAME"
        )
    kept_in = rewrites.work_folder(output, save_to.stem)
    check_pairs_file(save_to, kept_in)
    check_place(save_to.absolute().parent, save_to.name, "--out")
    asked = data.questions(questions)
    splits = split_questions(asked, seed=rewrites.seed, sizes=split_sizes(rewrites.sizes))
    reads = rewrites.reader != "none" and settings.recipe.needs_reader
    read_by = reader_for(asked, rewrites.reader) if reads else None
    check_collecting(settings, splits.train, reader=read_by is not None, by_evidence=named == EVIDENCE)
    workspace = Workspace.open(output.home, lm)
    given = Given(
        splits,
        workspace.retriever(rewrites.collection, search.embedder, engine),
        rewrites.collection,
        teacher=rewrites.opened_teacher(workspace, named, lm),
        reader=read_by,
        reader_lm=workspace.lm if read_by else None,
    )
    with resumable(kept_in, "what was collected"), progress() as update, lm_failures():
        found = collect_pairs(settings, given, out=save_to, work=kept_in, progress=update)
    if output.as_json:
        print_json(
            {
                "pairs_file": save_to.name,
                "technique": rewrites.technique,
                "collection": rewrites.collection,
                **found.to_json(),
            }
        )
        return
    show_table(f"{rewrites.technique} on {rewrites.collection}, train questions", [_row(found)], notes=_notes(found))
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
