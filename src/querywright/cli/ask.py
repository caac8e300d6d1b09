"""``querywright ask``: one question, its answer, and the passages that it came from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from querywright.cli.options import Flag, Folder, Helpers, LMOptions, Name, Output, OwnLM, SearchOptions
from querywright.cli.show import note, print_json, say
from querywright.cli.trace import show_steps, steps_data
from querywright.errors import InputError
from querywright.workspace import Workspace, lm_failures

Asked = Callable[[str, list[str] | None], Any]


@dataclass(frozen=True, slots=True)
class OwnSearch(SearchOptions):
    """What a technique searches with; an artifact brings its own.

    Args:
        embedder: As the collection was built. Default: embedded.
    """

    embedder: Name = ""


def ask(
    question: str,
    /,
    *,
    option: Annotated[tuple[str, ...], Parameter(metavar="TEXT", show_default=False)] = (),
    artifact: Folder | None = None,
    technique: Name | None = None,
    collection: Name | None = None,
    reader: Name | None = None,
    verify: Flag = False,
    trace: Flag = False,
    search: OwnSearch = OwnSearch(),
    helpers: Helpers = Helpers(),
    lm: OwnLM = OwnLM(),
    output: Output = Output(),
) -> None:
    """Ask a compiled program, or a technique over a collection.

    Example: querywright ask "Which test?" --artifact artifacts/hcqr-sample --option HbA1c --option ECG

    Args:
        question: The question.
        option: An option to choose from. Repeatable.
        artifact: A compiled program.
        technique: Or a technique as it is written.
        collection: What the technique searches.
        reader: auto, multiple_choice, short_answer, grounded or none. Default: auto.
        verify: Replay the artifact's golden answers first.
        trace: Show what was asked and searched, step by step.
    """
    from querywright.named import check_reranker, check_rewriter, tell_unlearnt

    options = list(option)
    _check(question, options)
    if artifact is not None:
        clashing = {
            "--technique": technique, "--collection": collection, "--knob": search.knob, "--reader": reader,
            "--embedder": search.embedder, "--engine": search.engine,
        }  # fmt: skip
        given = [name for name, value in clashing.items() if value]
        if given:
            raise InputError(
                f"an artifact brings its own technique, knobs, reader and collection; leave out {', '.join(given)}"
            )
        program = _compiled(artifact, options, lm, helpers, output.home, verify)
    else:
        if verify:
            raise InputError("--verify replays an artifact's golden answers; name one with --artifact")
        if technique is None:
            raise InputError("name what is asked: --artifact FOLDER, or --technique NAME with --collection NAME")
        engine = search.engine_of(technique)
        check_reranker(technique, helpers.reranker)
        check_rewriter(technique, helpers.rewriter)
        tell_unlearnt(helpers.rewriter, [technique], note)
        make = _technique(technique, collection, options, reader or "auto", search)
        workspace = LMOptions(lm.lm or "embedded", lm.api_base, lm.api_key_env).open(output.home)
        program = make(workspace, engine, helpers)
    with lm_failures():
        prediction = program(question, options or None)
    if output.as_json:
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
    artifact: Path, options: list[str], lm: OwnLM, helpers: Helpers, home: Path | None, verify: bool
) -> Asked:
    """The artifact's program; an address or a key alone is for the LM that the artifact names."""
    from querywright.optimize.artifacts.files import read_artifact
    from querywright.optimize.artifacts.load import load

    manifest = read_artifact(artifact).manifest
    if manifest.reader == "multiple_choice" and not options:
        raise InputError("this artifact chooses between options; give at least two with --option")
    given = lm.open(manifest, home)
    with lm_failures():
        return load(
            artifact, lm=given, reranker=helpers.reranker, rewriter=helpers.rewriter, home=home, verify=verify
        )  # fmt: skip


def _technique(
    technique: str, collection: str | None, options: list[str], reader: str, search: SearchOptions
) -> Callable[[Workspace, str, Helpers], Asked]:
    """What makes the program once the working folder is open; everything given is checked before."""
    import dspy

    from querywright.models.adapter import PromptAdapter
    from querywright.named import check_reader, knob_values, open_reranker
    from querywright.programs import make_program, technique_class

    check_reader(reader)
    kind = technique_class(technique)
    knobs = knob_values(technique, search.knobs)
    if kind.SEARCHES != "0" and collection is None:
        raise InputError(f"{technique} searches; name a collection with --collection")
    if not options and (kind.NEEDS_OPTIONS or reader == "multiple_choice"):
        what = technique if kind.NEEDS_OPTIONS else "the reader multiple_choice"
        raise InputError(f"{what} compares options; give at least two with --option")
    chosen = reader if reader != "auto" else ("multiple_choice" if options else "short_answer")

    def make(workspace: Workspace, engine: str, helpers: Helpers) -> Asked:
        searches = kind.SEARCHES != "0" and collection is not None
        retriever = workspace.retriever(str(collection), search.embedder or "embedded", engine) if searches else None
        program = make_program(
            technique,
            retriever,
            reader=None if chosen == "none" else chosen,
            reranker=open_reranker(helpers.reranker),
            rewriter=workspace.rewriter(helpers.rewriter),
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
