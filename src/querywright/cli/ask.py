"""``querywright ask``: one question, its answer, and the passages that it came from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from querywright.cli.common import (
    ApiBaseOption,
    EmbedderOption,
    HomeOption,
    JsonOption,
    KeyOption,
    KnobOption,
    Workspace,
    knob_values,
    out,
    pairs,
    print_json,
)
from querywright.errors import InputError


def ask(
    question: Annotated[str, typer.Argument(help="The question.")],
    option: Annotated[
        list[str] | None,
        typer.Option("--option", help="An option to choose from. Repeatable.", show_default=False),
    ] = None,
    artifact: Annotated[
        Path | None, typer.Option("--artifact", help="A compiled program.", show_default=False)
    ] = None,
    technique: Annotated[
        str | None, typer.Option("--technique", help="Or a technique.", show_default=False)
    ] = None,
    collection: Annotated[
        str | None, typer.Option("--collection", help="And a collection.", show_default=False)
    ] = None,
    knob: KnobOption = None,
    reader: Annotated[str, typer.Option("--reader", help="auto, multiple_choice or short_answer.")] = "auto",
    verify: Annotated[
        bool, typer.Option("--verify", help="Replay the artifact's golden answers first.")
    ] = False,
    trace: Annotated[
        bool, typer.Option("--trace", help="Show the queries and what they were written from.")
    ] = False,
    lm: Annotated[
        str | None,
        typer.Option("--lm", help="LM; default: the artifact's own, or embedded.", show_default=False),
    ] = None,
    api_base: ApiBaseOption = None,
    api_key_env: KeyOption = None,
    embedder: EmbedderOption = "embedded",
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask a compiled program, or a technique over a collection.

    Example: querywright ask --artifact artifacts/hcqr-sample "Which test ...?" --option "..." --option "..."
    """
    options = list(option or ())
    program: Any
    if artifact is not None:
        if technique is not None or knob:
            raise InputError("an artifact brings its technique and knobs; leave out --technique and --knob")
        from querywright.optimize.load import load

        given = None
        if lm is not None or api_base is not None:
            given = Workspace.open(home, lm or "embedded", api_base=api_base, api_key_env=api_key_env).lm
        program = load(artifact, lm=given, home=home, verify=verify)
        if program.manifest.reader == "multiple_choice" and not options:
            raise InputError("this artifact chooses between options; give at least two with --option")
    else:
        program = _plain_program(
            technique,
            collection,
            options,
            reader,
            knob,
            Workspace.open(home, lm or "embedded", api_base=api_base, api_key_env=api_key_env),
            embedder,
        )
    prediction = program(question, options or None)
    if as_json:
        print_json(
            {
                "answer": prediction.answer,
                "passages": [{"id": p.id, "title": p.title, "text": p.text} for p in prediction.passages],
                "queries": [{"role": q.role, "text": q.text} for q in prediction.queries],
                "notes": dict(prediction.notes),
                "fallbacks": list(prediction.fallbacks),
            }
        )
        return
    out.print(f"answer: {prediction.answer or '(none)'}", style="bold", highlight=False, markup=False)
    if trace:
        for name, value in prediction.notes.items():
            out.print(f"  {name}: {value}", highlight=False, markup=False)
        for query in prediction.queries:
            out.print(f"  query ({query.role}): {query.text}", highlight=False, markup=False)
    for number, passage in enumerate(prediction.passages, 1):
        out.print(f"[{number}] {passage.id}  {passage.title}", style="cyan", highlight=False, markup=False)
        out.print(f"    {passage.text}", highlight=False, markup=False)
    if prediction.fallbacks:
        out.print(
            f"fell back: {', '.join(prediction.fallbacks)}", style="yellow", highlight=False, markup=False
        )


def _plain_program(
    technique: str | None,
    collection: str | None,
    options: list[str],
    reader: str,
    knob: list[str] | None,
    workspace: Workspace,
    embedder: str,
) -> Any:
    import dspy

    from querywright.models.adapter import PromptAdapter
    from querywright.programs import make_program, technique_class

    if technique is None:
        raise InputError("give --artifact PATH, or --technique NAME with --collection NAME")
    knobs = knob_values(technique, pairs(knob, "--knob"))
    retriever = None
    if technique_class(technique).SEARCHES != "0":
        if collection is None:
            raise InputError(f"{technique} searches; name a collection with --collection")
        retriever = workspace.retriever(collection, embedder)
    chosen = reader if reader != "auto" else ("multiple_choice" if options else "short_answer")
    program = make_program(technique, retriever, reader=chosen, **knobs)

    def call(question: str, given: list[str] | None) -> Any:
        with dspy.context(lm=workspace.lm, adapter=PromptAdapter()):
            return program(question=question, options=given)

    return call
