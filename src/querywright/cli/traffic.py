"""``querywright traffic``: what was recorded, and what can be made of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from querywright.cli.checks import check_file
from querywright.cli.options import File, Json, OutFile, make_app
from querywright.cli.show import note, print_json, say
from querywright.errors import InputError

if TYPE_CHECKING:
    from querywright.optimize.artifacts.watchers import Exchange

SHOWN_PROBLEMS = 5

traffic_app = make_app("traffic", "Make use of recorded traffic.")


@traffic_app.command(name="questions")
def traffic_questions(traffic: Path, /, *, labels: File, out: OutFile, as_json: Json = False) -> None:
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
    found = labelled_questions(recorded(traffic), labels)
    for line in found.left_out[: None if as_json else SHOWN_PROBLEMS]:
        if not as_json:
            note(f"left out: {line}", style="yellow")
    if len(found.left_out) > SHOWN_PROBLEMS and not as_json:
        note(f"... and {len(found.left_out) - SHOWN_PROBLEMS} more", style="yellow")
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
    if as_json:
        print_json(summary)
    else:
        say(
            f"{out.name}: {len(found.questions)} questions from {found.labels} labels ({found.merged} of a question "
            f"that had one), {summary['with_answer']} with an answer, {summary['with_evidence']} with evidence"
        )


def recorded(path: Path) -> list[Exchange]:
    """Recorded traffic; lines that cannot be read are told and left out."""
    from querywright.watching.traffic import read_traffic

    problems: list[str] = []
    found = read_traffic(path, problems=problems)
    if problems:
        note(f"{path.name}: {len(problems)} lines cannot be read and are left out", style="yellow")
        for line in problems[:SHOWN_PROBLEMS]:
            note(f"  {line}", style="yellow")
    return found
