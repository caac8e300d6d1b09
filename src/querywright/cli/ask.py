"""``querywright ask``: one question, its answer, and the passages that it came from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from querywright.cli.checks import (
    check_engine,
    check_reader,
    check_reranker,
    check_rewriter,
    engine_for,
    knob_values,
    note_unlearnt,
    open_reranker,
    pairs,
)
from querywright.cli.options import (
    ApiBaseOption,
    HomeOption,
    JsonOption,
    KeyOption,
    KnobOption,
    RerankerOption,
    RewriterOption,
    TechniqueEngineOption,
)
from querywright.cli.show import print_json, say
from querywright.cli.trace import show_steps, steps_data
from querywright.cli.workspace import Workspace, lm_failures
from querywright.errors import InputError

Asked = Callable[[str, list[str] | None], Any]


def ask(
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="The question.")],
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="TEXT", help="An option to choose from. Repeatable.", show_default=False),
    ] = None,
    artifact: Annotated[
        Path | None,
        typer.Option("--artifact", metavar="FOLDER", help="A compiled program.", show_default=False),
    ] = None,
    technique: Annotated[
        str | None,
        typer.Option("--technique", metavar="NAME", help="Or a technique as it is written.", show_default=False),
    ] = None,
    collection: Annotated[
        str | None,
        typer.Option("--collection", metavar="NAME", help="What the technique searches.", show_default=False),
    ] = None,
    knob: KnobOption = None,
    reader: Annotated[
        str | None,
        typer.Option(
            "--reader",
            metavar="NAME",
            help="auto, multiple_choice, short_answer, grounded or none. Default: auto.",
            show_default=False,
        ),
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Replay the artifact's golden answers first.")] = False,
    trace: Annotated[bool, typer.Option("--trace", help="Show what was asked and searched, step by step.")] = False,
    lm: Annotated[
        str | None,
        typer.Option("--lm", metavar="NAME", help="LM. Default: the artifact's own, or embedded.", show_default=False),
    ] = None,
    api_base: ApiBaseOption = None,
    api_key_env: KeyOption = None,
    embedder: Annotated[
        str | None,
        typer.Option(
            "--embedder", metavar="NAME", help="As the collection was built. Default: embedded.", show_default=False
        ),
    ] = None,
    engine: TechniqueEngineOption = None,
    reranker: RerankerOption = None,
    rewriter: RewriterOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask a compiled program, or a technique over a collection.

    Example: querywright ask "Which test?" --artifact artifacts/hcqr-sample --option HbA1c --option ECG
    """
    options = list(option or ())
    _check(question, options)
    if artifact is not None:
        clashing = {
            "--technique": technique, "--collection": collection, "--knob": knob, "--reader": reader,
            "--embedder": embedder, "--engine": engine,
        }  # fmt: skip
        given = [name for name, value in clashing.items() if value]
        if given:
            raise InputError(
                f"an artifact brings its own technique, knobs, reader and collection; leave out {', '.join(given)}"
            )
        program = _compiled(artifact, options, lm, api_base, api_key_env, home, verify, reranker, rewriter)
    else:
        if verify:
            raise InputError("--verify replays an artifact's golden answers; name one with --artifact")
        if technique is None:
            raise InputError("name what is asked: --artifact FOLDER, or --technique NAME with --collection NAME")
        engine = engine_for(technique, None if engine is None else check_engine(engine)) or "dense"
        check_reranker(technique, reranker)
        check_rewriter(technique, rewriter)
        note_unlearnt(rewriter, [technique])
        make = _technique(technique, collection, options, reader or "auto", knob)
        workspace = Workspace.open(home, lm or "embedded", api_base=api_base, api_key_env=api_key_env)
        program = make(workspace, embedder or "embedded", engine, reranker, rewriter)
    with lm_failures():
        prediction = program(question, options or None)
    if as_json:
        print_json(_as_data(prediction))
    else:
        _show(prediction, trace)


def _check(question: str, options: list[str]) -> None:
    if not question.strip():
        raise InputError("the question is empty; write it in quotes after ask")
    if len(options) == 1:
        raise InputError(
            f"only one --option is given: {options[0]!r}; give at least two, or none for a question without options"
        )
    texts = [text.strip() for text in options]
    if not all(texts):
        raise InputError("an --option is empty; give each its text")
    twice = [text for text in dict.fromkeys(texts) if texts.count(text) > 1]
    if twice:
        raise InputError(f"the --option {twice[0]!r} is given twice; options must differ")


def _compiled(
    artifact: Path,
    options: list[str],
    lm: str | None,
    api_base: str | None,
    api_key_env: str | None,
    home: Path | None,
    verify: bool,
    reranker: str | None,
    rewriter: Path | None,
) -> Asked:
    """The artifact's program; an address or a key alone is for the LM that the artifact names."""
    from querywright.optimize.artifacts.files import read_artifact
    from querywright.optimize.artifacts.load import load

    manifest = read_artifact(artifact).manifest
    if manifest.reader == "multiple_choice" and not options:
        raise InputError("this artifact chooses between options; give at least two with --option")
    given = None
    if lm is not None or api_base is not None or api_key_env is not None:
        name = lm or ("embedded" if manifest.lm.startswith("embedded:") else manifest.lm)
        given = Workspace.open(home, name, api_base=api_base, api_key_env=api_key_env).lm
    with lm_failures():
        return load(artifact, lm=given, reranker=reranker, rewriter=rewriter, home=home, verify=verify)


def _technique(
    technique: str, collection: str | None, options: list[str], reader: str, knob: list[str] | None
) -> Callable[[Workspace, str, str, str | None, Path | None], Asked]:
    """What makes the program once the working folder is open; everything given is checked before."""
    import dspy

    from querywright.models.adapter import PromptAdapter
    from querywright.programs import make_program, technique_class

    check_reader(reader)
    kind = technique_class(technique)
    knobs = knob_values(technique, pairs(knob, "--knob"))
    if kind.SEARCHES != "0" and collection is None:
        raise InputError(f"{technique} searches; name a collection with --collection")
    if not options and (kind.NEEDS_OPTIONS or reader == "multiple_choice"):
        what = technique if kind.NEEDS_OPTIONS else "the reader multiple_choice"
        raise InputError(f"{what} compares options; give at least two with --option")
    chosen = reader if reader != "auto" else ("multiple_choice" if options else "short_answer")

    def make(workspace: Workspace, embedder: str, engine: str, reranker: str | None, rewriter: Path | None) -> Asked:
        searches = kind.SEARCHES != "0" and collection is not None
        retriever = workspace.retriever(str(collection), embedder, engine) if searches else None
        program = make_program(
            technique,
            retriever,
            reader=None if chosen == "none" else chosen,
            reranker=open_reranker(reranker),
            rewriter=workspace.rewriter(rewriter),
            **knobs,
        )

        def call(question: str, given: list[str] | None) -> Any:
            with dspy.context(lm=workspace.lm, adapter=PromptAdapter()):
                return program(question=question, options=given)

        return call

    return make


def _as_data(prediction: Any) -> dict[str, Any]:
    return {
        "answer": prediction.answer,
        "support": prediction.support,
        "passages": [{"id": p.id, "title": p.title, "text": p.text} for p in prediction.passages],
        "queries": [{"role": q.role, "text": q.text} for q in prediction.queries],
        "fallbacks": list(prediction.fallbacks),
        "findings": [{"question": f.question, "answer": f.answer} for f in prediction.findings],
        "steps": steps_data(prediction.steps),
    }


def _show(prediction: Any, trace: bool) -> None:
    if prediction.answer is not None:
        say(f"answer: {prediction.answer or '(none)'}", style="bold")
    if prediction.support is not None:
        say(f"rests on: {', '.join(prediction.support) or '(nothing)'}")
    if trace:
        show_steps(prediction.steps)
    for number, passage in enumerate(prediction.passages, 1):
        say(f"[{number}] {passage.id}  {passage.title}".rstrip(), style="cyan")
        say(passage.text, indent=4)
    if prediction.fallbacks:
        say(f"fell back: {', '.join(prediction.fallbacks)}", style="yellow")
