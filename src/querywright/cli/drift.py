"""``querywright drift``: does recorded traffic still look like the questions that a program was compiled on?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from querywright.cli.options import DataOptions, Flag, Folder, Helpers, Output, OwnLimitedLM, Threads
from querywright.cli.show import note, print_json, progress, say, show_table
from querywright.cli.traffic import recorded
from querywright.errors import InputError
from querywright.workspace import lm_failures

if TYPE_CHECKING:
    from querywright.models.usage import Cost
    from querywright.optimize.artifacts.loaded import LoadedProgram
    from querywright.optimize.artifacts.watchers import Exchange
    from querywright.watching.drift import Drift
    from querywright.watching.measures import Measure

SHOWN = 1


def drift_command(
    traffic: Path,
    /,
    *,
    artifact: Folder,
    against: Annotated[str, Parameter(metavar="QUESTIONS")],
    retrieval_only: Flag = False,
    data: DataOptions = DataOptions(),
    lm: OwnLimitedLM = OwnLimitedLM(),
    helpers: Helpers = Helpers(),
    run: Threads = Threads(),
    output: Output = Output(),
) -> int:
    """Compare recorded traffic with the questions that a program was compiled on, and say when to compile again.

    Exit status: 0 nothing shown, or too few questions to tell; 1 drift shown; 2 wrong input; 3 stopped.

    Example: querywright drift traffic.jsonl --artifact artifacts/mine --against questions.jsonl

    Args:
        traffic: The file that a JsonLines watcher wrote.
        artifact: The program that was asked.
        against: What it was compiled on, as compile takes it, asked now; or a file of earlier traffic.
        retrieval_only: Ask no reader; what it would say is not compared.
    """
    from querywright.optimize.artifacts.files import read_artifact
    from querywright.optimize.artifacts.load import check_rewriter_for, load
    from querywright.optimize.artifacts.rewriters import find_rewriter
    from querywright.watching.drift import distinct, find_drift, too_few
    from querywright.watching.traffic import is_traffic

    manifest = read_artifact(artifact).manifest
    program_id = manifest.id
    ours = _of(recorded(traffic), program_id, traffic.name)
    earlier = is_traffic(against)
    if earlier and (retrieval_only or data != DataOptions()):
        raise InputError(
            "--retrieval-only, --column, --limit and --split are of questions, but "
            f"{Path(against).name!r} is recorded traffic; leave them out"
        )
    theirs = _of(recorded(Path(against)), program_id, Path(against).name) if earlier else None
    asked = [] if earlier else data.questions(against, options=manifest.reader == "multiple_choice")
    few = too_few(len(distinct(ours)), len(asked if theirs is None else distinct(theirs)))
    if few:  # then nothing is spent on the reference
        print_json({"verdict": "too_few", "sentence": few}) if output.as_json else say(few, style="bold")
        return 0
    with lm_failures():
        check_rewriter_for(manifest, helpers.rewriter)
        named = lm.is_given or lm.max_calls is not None
        workspace = lm.instead_of(manifest.lm, lm.max_calls).open(output.home) if named else None
        given = None if workspace is None else workspace.lm
        writer: Any = helpers.rewriter
        if workspace is not None and manifest.rewriter is not None:  # one limit for what writes and what reads
            writer = workspace.rewriter(helpers.rewriter or find_rewriter(manifest.rewriter, output.home))
        program = load(artifact, lm=given, reranker=helpers.reranker, rewriter=writer, home=output.home)
    cost = None
    if theirs is None:
        reads = not retrieval_only and any(one.answer is not None for one in ours)
        theirs, cost = _asked_now(program, asked, reads=reads, threads=run.threads)
    found = find_drift(ours, theirs, embed=_embed(program))
    if output.as_json:
        print_json(found.to_json())
    else:
        _show(found, traffic.name, Path(against).name)
    if cost is not None:
        note(f"the reference was asked now: LM calls: {cost.calls} made, {cost.saved} saved")
    return SHOWN if found.verdict == "drift" else 0


def _of(traffic: Sequence[Exchange], artifact: str, file: str) -> list[Exchange]:
    """The traffic of one artifact."""
    found = [one for one in traffic if one.artifact == artifact]
    others = sorted({one.artifact for one in traffic} - {artifact})
    if not found:
        whose = f"of {', '.join(others[:3])}" if others else "empty"
        raise InputError(
            f"{file}: the traffic is {whose}, and holds no question that the artifact {artifact} was asked"
        )
    if others:
        note(f"{file}: {len(traffic) - len(found)} requests of other artifacts are left out")
    return found


def _asked_now(
    program: LoadedProgram, questions: Sequence[Any], *, reads: bool, threads: int
) -> tuple[list[Exchange], Cost]:
    from querywright.models.usage import metered
    from querywright.watching.drift import recorded_now

    ask = program if reads else program.retrieve
    with metered() as meter, progress() as update, lm_failures():
        found = recorded_now(ask, questions, artifact=program.id, threads=threads, progress=update)
    return found, meter.total


def _embed(program: LoadedProgram) -> Any:
    return getattr(program.program.technique.retriever, "embed", None)


def _show(found: Drift, traffic: str, against: str) -> None:
    show_table(
        f"{traffic}: {found.requests} requests, {found.questions} distinct questions; against {against}: "
        f"{found.reference}",
        [_row(one) for one in found.measures],
        notes=[
            "each question counts once, as it went last; difference with its 95 % interval; p Holm-corrected",
            *(f"{one.name} is not tested: {one.note}" for one in found.measures if one.note),
        ],
    )
    say(found.sentence, style="bold red" if found.verdict == "drift" else "bold")


def _row(one: Measure) -> dict[str, str]:
    return {
        "measure": one.name,
        "traffic": _value(one, one.value),
        "n": str(one.n),
        "reference": _value(one, one.reference),
        "reference n": str(one.n_reference),
        "difference": _value(one, one.difference, sign="+"),
        "95 %": "-" if one.low != one.low else f"{_value(one, one.low, sign='+')} to {_value(one, one.high, sign='+')}",
        "effect": _number(one.effect, sign="+"),
        "p": _number(one.p_holm),
    }


def _value(one: Measure, value: float, *, sign: str = "") -> str:
    if value != value:
        return "-"
    return f"{100 * value:{sign}.1f} %" if one.kind == "share" else f"{value:{sign}.3f}"


def _number(value: float, *, sign: str = "") -> str:
    return "-" if value != value else f"{value:{sign}.3f}"
