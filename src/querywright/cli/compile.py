"""``querywright compile``: tune a technique on labelled questions and save what won."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from querywright.cli.common import (
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
    ThreadsOption,
    Workspace,
    knob_values,
    out,
    pairs,
    print_json,
    progress,
    reader_for,
    show_table,
)
from querywright.errors import InputError


def compile_command(
    technique: Annotated[str, typer.Argument(help="The technique, as querywright techniques lists it.")],
    questions: Annotated[str, typer.Argument(help="A file of labelled questions, hf:NAME, or sample.")],
    collection: Annotated[str, typer.Option("--collection", help="The collection that is searched.")],
    save_to: Annotated[Path, typer.Option("--out", help="The artifact's folder.")],
    sizes: Annotated[
        str | None,
        typer.Option(
            "--sizes",
            help="Questions in train,dev,test, such as 20,40,80. Default: 30 %, 30 %, 40 %.",
            show_default=False,
        ),
    ] = None,
    objective: Annotated[
        str,
        typer.Option(
            "--objective",
            help="decision_useful, accuracy, both; auto: the first with evidence, else accuracy.",
        ),
    ] = "auto",
    trials: Annotated[int, typer.Option("--trials", min=1, help="Trials of the search.")] = 30,
    seed: Annotated[int, typer.Option("--seed", help="Of the split, the demonstrations and the search.")] = 0,
    knob: KnobOption = None,
    reader: Annotated[
        str, typer.Option("--reader", help="auto, multiple_choice, short_answer or none.")
    ] = "auto",
    column: ColumnOption = None,
    limit: LimitOption = None,
    split: Annotated[
        str | None, typer.Option("--split", help="Split of a dataset.", show_default=False)
    ] = None,
    lm: LMOption = "embedded",
    api_base: ApiBaseOption = None,
    api_key_env: KeyOption = None,
    max_calls: CallsOption = None,
    threads: ThreadsOption = 4,
    embedder: EmbedderOption = "embedded",
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tune prompts and knobs together on dev, hold the winner against no rewriting on test, save it.

    A knob given here is fixed and not searched; max_passages is the budget of every arm (default 5).

    Example: querywright compile hcqr questions.jsonl --collection textbooks --out artifacts/hcqr-textbooks
    """
    from querywright.data import read_questions, split_questions
    from querywright.optimize.search import CompileSettings
    from querywright.programs import technique_class

    technique_class(technique)
    asked = read_questions(questions, columns=pairs(column, "--column"), limit=limit, split=split)
    splits = split_questions(asked, seed=seed, sizes=_sizes(sizes))
    if objective == "auto":
        objective = "decision_useful" if any(q.evidence for q in splits.dev) else "accuracy"
    if objective not in {"decision_useful", "accuracy", "both"}:
        raise InputError(
            f"the objective must be decision_useful, accuracy, both or auto, but got {objective!r}"
        )
    workspace = Workspace.open(home, lm, api_base=api_base, api_key_env=api_key_env, max_calls=max_calls)
    run_compile(
        workspace,
        technique,
        splits,
        retriever=workspace.retriever(collection, embedder),
        reader=None if reader == "none" else reader_for(asked, reader),
        knobs=knob_values(technique, pairs(knob, "--knob")),
        settings=CompileSettings(objective=objective, n_trials=trials, seed=seed, threads=threads),  # type: ignore[arg-type]
        save_to=save_to,
        as_json=as_json,
    )


def run_compile(
    workspace: Workspace,
    technique: str,
    splits: Any,
    *,
    retriever: Any,
    reader: str | None,
    knobs: dict[str, Any],
    settings: Any,
    save_to: Path,
    as_json: bool,
) -> None:
    """Compile, save and show."""
    from querywright.optimize.report import compiled_json, save_compiled
    from querywright.optimize.search import compile_program

    with progress() as update:
        compiled = compile_program(
            technique,
            splits,
            retriever=retriever,
            lm=workspace.lm,
            reader=reader,
            knobs=knobs,
            settings=settings,
            progress=update,
        )
        save_compiled(
            save_to, compiled, splits, lm=workspace.lm, retriever=retriever, threads=settings.threads
        )
    if as_json:
        print_json({**compiled_json(compiled), "artifact": save_to.name})
        return
    show_compiled(compiled, splits, workspace, save_to)


def show_compiled(compiled: Any, splits: Any, workspace: Workspace, save_to: Path) -> None:
    """The tables and verdicts of a compilation."""
    from querywright.data.types import Label
    from querywright.optimize.report import table_rows
    from querywright.optimize.search import objective_value

    objective = compiled.settings.objective
    arms = [
        {
            "arm": arm.name,
            objective: f"{100 * objective_value(arm.dev, objective):.1f}",
            "ENTAILED": f"{100 * arm.dev.label_share(Label.ENTAILED):.1f}",
            "demonstrations": "-" if arm.demo_set is None else f"set {arm.demo_set}",
            "knobs": ", ".join(f"{k}={v}" for k, v in arm.knobs.items() if k != "max_passages"),
        }
        for arm in sorted(compiled.arms, key=lambda arm: -objective_value(arm.dev, objective))[:8]
    ]
    shown = f"best {len(arms)} of {len(compiled.arms)} arms"
    show_table(f"dev, {len(splits.dev)} questions, per cent: {shown}", arms)
    budget = compiled.program.technique.knobs["max_passages"]
    notes = [
        f"test, met once: mean in per cent with its 95 % interval; every arm shows at most {budget} passages; LM "
        f"{workspace.lm.model}; usefulness from labelled evidence; p-values Holm-corrected",
        *(one.sentence for one in compiled.comparisons),
        f"recommended: {compiled.recommended} (chosen on dev); demonstrations: technique "
        f"{'none' if compiled.compiled.demo_set is None else 'yes'}, reader {'yes' if compiled.reader_demos else 'none'}",
    ]
    if compiled.recommended == "no rewriting":
        notes.append(
            f"{compiled.technique} was not better than no rewriting on dev, so plain retrieval is what was saved; "
            "a stronger LM may change that: --lm openai/..."
        )
    show_table(f"test, {len(splits.test)} questions", table_rows(compiled.test), notes=notes)
    stages = "; ".join(
        f"{stage} {cost.calls} made, {cost.saved} saved" for stage, cost in compiled.costs.items()
    )
    total = workspace.ledger.total
    out.print(
        f"LM calls: {stages}. In all {total.calls} made, {total.saved} saved, {total.tokens} tokens, "
        f"{total.seconds:.0f} LM seconds.",
        highlight=False,
    )
    out.print(f"artifact: {save_to}", highlight=False, markup=False)


def _sizes(text: str | None) -> tuple[int, int, int] | None:
    if text is None:
        return None
    parts = text.split(",")
    if len(parts) != 3 or not all(part.strip().isdigit() for part in parts):
        raise InputError(f"--sizes takes three whole numbers such as 20,40,80, but got {text!r}")
    train, dev, test = (int(part) for part in parts)
    return train, dev, test
