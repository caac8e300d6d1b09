"""``querywright ask``: answer one question, and show the passages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from querywright.cli import options as opt
from querywright.cli.show import emit, note, say
from querywright.data.types import Question
from querywright.errors import InputError

if TYPE_CHECKING:
    from querywright.models.transcript import Exchange
    from querywright.programs import Record

SHOWN_PASSAGES = 5
"""Number of passages per search to show in a trace."""

Program = Callable[..., Any]


def ask(
    question: str,
    /,
    *,
    option: Annotated[tuple[str, ...], Parameter(metavar="TEXT", show_default=False)] = (),
    artifact: opt.Folder | None = None,
    technique: opt.Technique | None = None,
    reader: opt.Reader = "auto",
    history: Annotated[tuple[str, ...], Parameter(metavar="TURN", show_default=False)] = (),
    verify: opt.Flag = False,
    accept: opt.Flag = False,
    trace: opt.Flag = False,
    prompts: opt.Flag = False,
    search: opt.Searching = opt.Searching(),
    lm: opt.LMOptions = opt.LMOptions(),
    output: opt.Output = opt.Output(),
) -> None:
    """Ask a compiled program, or a technique over a collection.

    Example: querywright ask "Which test?" --artifact artifacts/hcqr-sample --option HbA1c --option ECG

    Args:
        question: The question.
        option: An option to choose from. Repeatable.
        artifact: A compiled program.
        technique: An untuned technique to use instead of an artifact, by name or as FILE.py:NAME. With --artifact,
            use this option only to say where (FILE.py:NAME) the artifact's own technique is defined.
        history: A turn of the conversation before the question, earliest first. Repeatable.
        verify: Replay the artifact's golden answers first.
        accept: Load the artifact even if most of its collection changed.
        trace: Show the LM calls and searches of each step.
        prompts: Show the prompt and answer of each LM call.
    """
    from querywright.models.transcript import Transcript
    from querywright.models.usage import metered
    from querywright.optimize.failures import Failures
    from querywright.programs.base import checked_options
    from querywright.technique_names import import_technique

    options = list(option)
    checked_options(question, options or None)
    before = {"history": list(history)} if history else {}
    if artifact is not None:
        given = {
            "--knob": search.knob, "--reader": reader != "auto",
            "--embedder": search.embedder != "embedded", "--engine": search.engine,
        }  # fmt: skip
        clashing = [name for name, value in given.items() if value]
        if clashing:
            raise InputError(
                f"an artifact has its own knobs, reader, embedder, and engine; remove {', '.join(clashing)}"
            )
        import_technique(technique)
        program = _compiled(artifact, options, search, lm, output.home, verify, accept)
    elif verify:
        raise InputError("--verify replays the golden answers of an artifact; add --artifact FOLDER")
    elif technique is None:
        raise InputError("choose a program: use --artifact FOLDER, or --technique NAME with --collection NAME")
    else:
        program = _technique(technique, Question("asked", question, tuple(options)), reader, search, lm, output.home)
    with Transcript() as transcript, metered() as meter:
        found = program(question, options or None, **before)
    if meter.total.unreadable == meter.total.answers:
        Failures("ask", 1, 0.0).check_read(meter)
    asked = transcript.exchanges if prompts else ()
    data = _as_data(found) | ({"prompts": [one.to_json() for one in asked]} if prompts else {})
    emit(output.as_json, data, lambda: _show(found, trace, asked))


def _compiled(
    artifact: Path,
    options: list[str],
    search: opt.Searching,
    lm: opt.LMOptions,
    home: Path | None,
    verify: bool,
    accept: bool,
) -> Program:
    from querywright.optimize.artifacts.files import read_artifact
    from querywright.optimize.artifacts.load import load

    manifest = read_artifact(artifact).manifest
    if manifest.reader == "multiple_choice" and not options:
        raise InputError("the reader in this artifact chooses between options; pass at least two with --option")
    return load(
        artifact, lm=lm.for_artifact(manifest, home), **search.searched.given, **search.helpers.given(lm), home=home,
        verify=verify, accept=accept,
    )  # fmt: skip


def _technique(
    technique: str, question: Question, reader: str, search: opt.Searching, lm: opt.LMOptions, home: Path | None
) -> Program:
    """Open a technique's program. All options are checked first."""
    from querywright.arms import ArmDefaults
    from querywright.opening import open_experiment
    from querywright.optimize.contexts import asking
    from querywright.technique_names import technique_named

    engine, compares = search.engine_of(technique), technique_named(technique).NEEDS_OPTIONS
    if not question.options and (compares or reader == "multiple_choice"):
        what = technique if compares else "the 'multiple_choice' reader"
        raise InputError(f"{what} chooses between options; pass at least two with --option")
    workspace = lm.open(home, keeps=False, asks=False)
    defaults = ArmDefaults(**search.given(lm), engine=engine, reader=reader)
    ready = open_experiment([technique], [question], workspace, defaults=defaults, tell=note)
    (program,) = ready.programs.values()

    def call(question: str, given: list[str] | None, **before: Any) -> Any:
        with asking(workspace.lm):
            return program(question=question, options=given, **before)

    return call


def _as_data(found: Any) -> dict[str, Any]:
    return {
        "answer": found.answer,
        "support": found.support,
        "passages": [{"id": p.id, "title": p.title, "text": p.text} for p in found.passages],
        "queries": [{"role": q.role, "text": q.text} for q in found.queries],
        "fallbacks": list(found.fallbacks),
        "findings": [{"question": f.question, "answer": f.answer} for f in found.findings],
        "steps": [
            {"kind": s.kind, "name": s.name, "stage": s.stage, "given": dict(s.given), "made": s.made, "lm": s.lm}
            for s in found.steps
        ],
    }


def _show(found: Any, trace: bool, asked: Sequence[Exchange]) -> None:
    if found.answer is None:
        say("no answer: the program has no reader, so it only finds passages", style="dim")
    else:
        say(f"answer: {found.answer or '(none)'}", style="bold")
    if found.support is not None:
        say(f"based on: {', '.join(found.support) or '(no passages)'}")
    if trace:
        _show_steps(found.steps)
    for number, call in enumerate(asked, 1):
        say(f"{number}. {call.predictor or 'LM'}", style="dim")
        for role, text in [*call.messages, ("answer", call.answer or "")]:
            say(f"{role}:", indent=3, style="dim")
            say(text, indent=6)
    for number, passage in enumerate(found.passages, 1):
        say(f"[{number}] {passage.id}  {passage.title}".rstrip(), style="cyan")
        say(passage.text, indent=4)
    if found.fallbacks:
        say(f"steps that fell back to a simpler method: {', '.join(found.fallbacks)}", style="yellow")


def _show_steps(steps: Iterable[Record]) -> None:
    """Print the LM calls and searches with their stage number. Parallel steps have the same number."""
    for step in steps:
        say(f"{step.stage}. {step.kind}: {step.name}" + (f" ({step.lm})" if step.lm else ""), style="dim")
        for line in _told(step):
            say(line, indent=3)


def _told(step: Record) -> Iterator[str]:
    if step.kind == "search":
        for text, ids in step.made.items():
            more = len(ids) - SHOWN_PASSAGES
            yield f"{text} -> {', '.join(ids[:SHOWN_PASSAGES]) or 'no passages'}" + (f" and {more} more" * (more > 0))
        for id, question in list(step.given.get("through", {}).items())[:SHOWN_PASSAGES]:
            yield f"{id} matched through its question: {question}"
        return
    told = step.made if isinstance(step.made, Mapping) else {}
    if step.kind == "gate":
        told = {**step.given, "verdict": step.made}
    for name, value in told.items():
        yield f"{name}: {'; '.join(map(str, value)) if isinstance(value, list) else value}"
    if not told:
        yield "the LM's answer could not be read" if step.made is None else str(step.made)
