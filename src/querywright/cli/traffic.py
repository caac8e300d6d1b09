"""``querywright traffic`` and ``querywright drift``: what was recorded, what can be made of it, and what it shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from querywright.cli import options as opt
from querywright.cli.checks import check_file
from querywright.cli.show import emit, note, progress, say, show_table, written
from querywright.errors import InputError

if TYPE_CHECKING:
    from querywright.models.usage import Cost
    from querywright.optimize.artifacts.loaded import LoadedProgram
    from querywright.optimize.artifacts.watchers import Exchange
    from querywright.watching.drift import Drift

DRIFTED = 1
"""Exit status where drift is shown."""
SHOWN_PROBLEMS = 5
SHARES = ("value", "reference", "low", "high", "difference")
HIDDEN = ("kind", "note", "p", "method")
"""What the table of a comparison leaves out; --json has it."""

traffic_app = opt.make_app("traffic", "Make use of recorded traffic.")


@traffic_app.command(name="questions")
def traffic_questions(traffic: Path, /, *, labels: opt.File, out: opt.OutFile, as_json: opt.Json = False) -> None:
    """Make a file of questions from recorded traffic and labels; compile, evaluate and study take it as it is.

    Example: querywright traffic questions traffic.jsonl --labels labels.csv --out questions.jsonl

    Args:
        traffic: The file that a JsonLines watcher wrote.
        labels: JSON lines, JSON or CSV: id of an exchange, and answer, evidence (ids of passages that help) or
            feedback (up, down).
        out: Questions are written here, JSON lines.
    """
    from querywright.watching.labelled import labelled_questions, write_questions

    check_file(out, "--out")
    if out.suffix not in {".jsonl", ".ndjson"}:
        raise InputError(f"questions are written as JSON lines; name {out.name!r} with the ending .jsonl")
    found = labelled_questions(_recorded(traffic), labels)
    if not as_json:
        _tell("left out: ", found.left_out)
    if not found.questions:
        raise InputError(f"no label of {labels.name!r} makes a question; nothing was written")
    write_questions(out, found.questions)
    summary = {
        "labels": found.labels,
        "questions": len(found.questions),
        "with_answer": sum(one.answer is not None for one in found.questions),
        "with_evidence": sum(bool(one.evidence) for one in found.questions),
        "merged": found.merged,
        "left_out": list(found.left_out),
    }
    emit(as_json, summary, lambda: say(
        f"{out.name}: {len(found.questions)} questions from {found.labels} labels ({found.merged} of a question "
        f"that had one), {summary['with_answer']} with an answer, {summary['with_evidence']} with evidence"
    ))  # fmt: skip


def drift_command(
    artifact: Path,
    traffic: Path,
    /,
    *,
    data: opt.DataOptions,
    lm: opt.LMOptions = opt.LMOptions(),
    helpers: opt.Helpers = opt.Helpers(),
    run: opt.Threads = opt.Threads(),
    output: opt.Output = opt.Output(),
) -> int:
    """Compare recorded traffic with the questions that a program was compiled on, and say when to compile again.

    --data is what it was compiled on, as compile takes it, and is asked now; or a file of earlier traffic.

    Exit status: 0 nothing shown, or too few questions to tell; 1 drift shown; 2 wrong input; 3 stopped.

    Example: querywright drift artifacts/mine traffic.jsonl --data questions.jsonl

    Args:
        artifact: The program that was asked.
        traffic: The file that a JsonLines watcher wrote.
    """
    from querywright.optimize.artifacts.files import read_artifact
    from querywright.optimize.artifacts.load import collection_of, load
    from querywright.watching.drift import distinct, find_drift, too_few
    from querywright.watching.traffic import is_traffic

    manifest, against = read_artifact(artifact).manifest, data.source
    ours = _of(traffic, manifest.id)
    theirs: list[Exchange] | None = None
    asked: list[Any] = []
    if is_traffic(against):
        if data != opt.DataOptions(source=against):
            raise InputError(
                f"{Path(against).name!r} is recorded traffic, and --column, --limit and --split are of questions; "
                "leave them out"
            )
        theirs = _of(Path(against), manifest.id)
    else:
        asked = data.questions(multiple_choice=manifest.reader == "multiple_choice")
    few = too_few(len(distinct(ours)), len(asked if theirs is None else distinct(theirs)))
    if few:  # then nothing is spent on the reference
        emit(output.as_json, {"verdict": "too_few", "sentence": few}, lambda: say(few, style="bold"))
        return 0
    cost = None
    if theirs is None:
        asked_of = lm.for_artifact(manifest, output.home)
        program = load(artifact, lm=asked_of, **helpers.given(lm), home=output.home)
        searched = program.program.technique.retriever
        reads = any(one.answer is not None for one in ours)
        theirs, cost = _asked_now(program, asked, reads=reads, threads=run.threads or 8)
    else:
        searched = collection_of(manifest, output.home)
    found = find_drift(ours, theirs, embed=getattr(searched, "embed", None))
    emit(output.as_json, found.to_json(), lambda: _show(found, traffic.name, Path(against).name))
    if cost is not None:
        note(f"the reference was asked now: LM calls: {cost.calls} made, {cost.saved} saved")
    return DRIFTED if found.verdict == "drift" else 0


def _recorded(path: Path) -> list[Exchange]:
    """Recorded traffic; lines that cannot be read are told and left out."""
    from querywright.watching.traffic import read_traffic

    problems: list[str] = []
    found = read_traffic(path, problems=problems)
    if problems:
        note(f"{path.name}: {len(problems)} lines cannot be read and are left out", style="yellow")
        _tell("  ", problems)
    return found


def _tell(head: str, lines: Sequence[str]) -> None:
    more = [f"... and {len(lines) - SHOWN_PROBLEMS} more"] if len(lines) > SHOWN_PROBLEMS else []
    for line in [*(f"{head}{one}" for one in lines[:SHOWN_PROBLEMS]), *more]:
        note(line, style="yellow")


def _of(path: Path, artifact: str) -> list[Exchange]:
    """The recorded traffic of one artifact."""
    traffic = _recorded(path)
    found = [one for one in traffic if one.artifact == artifact]
    others = sorted({one.artifact for one in traffic} - {artifact})
    if not found:
        whose = f"of {', '.join(others[:3])}" if others else "empty"
        raise InputError(
            f"{path.name}: the traffic is {whose}, and holds no question that the artifact {artifact} was asked"
        )
    if others:
        note(f"{path.name}: {len(traffic) - len(found)} requests of other artifacts are left out")
    return found


def _asked_now(
    program: LoadedProgram, questions: Sequence[Any], *, reads: bool, threads: int
) -> tuple[list[Exchange], Cost]:
    from querywright.models.usage import metered
    from querywright.watching.drift import recorded_now

    ask = program if reads else program.retrieve
    with metered() as meter, progress("opening the program") as update:
        found = recorded_now(ask, questions, artifact=program.id, threads=threads, progress=update)
    return found, meter.total


def _show(found: Drift, traffic: str, against: str) -> None:
    rows = [
        {
            "p" if name == "p_holm" else name: f"{100 * value:.1f} %"
            if one["kind"] == "share" and name in SHARES and math.isfinite(value)
            else written(value)
            for name, value in one.items()
            if name not in HIDDEN
        }
        for one in found.to_json()["measures"]
    ]
    show_table(
        f"{traffic}: {found.requests} requests, {found.questions} distinct questions; against {against}: "
        f"{found.reference}",
        rows,
        notes=[
            "each question counts once, as it went last; difference with its 95 % interval; p Holm-corrected",
            *(f"{one.name} is not tested: {one.note}" for one in found.measures if one.note),
        ],
    )
    say(found.sentence, style="bold red" if found.verdict == "drift" else "bold")
