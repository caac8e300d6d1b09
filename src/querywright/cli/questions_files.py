"""``querywright questions export`` and ``import``: the questions of a collection as a file that people can edit."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from querywright.cli.checks import check_file
from querywright.cli.options import Flag, Name, OutFile, Output
from querywright.cli.show import note, print_json, progress, say


def export(collection: str, /, *, save_to: OutFile, output: Output = Output()) -> None:
    """Write all questions of a collection, kept or not, into a Parquet file.

    Its columns: passage, question, label (complete, partial, none), reason, passage_digest.

    Example: querywright questions export textbooks --out questions.parquet

    Args:
        collection: The collection whose passages the questions are about.
        save_to: A file .parquet; it is replaced.
    """
    from querywright.home import home as working_folder
    from querywright.retrieval.question_files import check_parquet_name, export_questions

    check_parquet_name(save_to)
    check_file(save_to, "--out")
    count = export_questions(collection, save_to, working_folder(output.home))
    if output.as_json:
        print_json({"questions": count, "file": str(save_to)})
    else:
        say(f"{collection}: {count} questions written to {save_to}")


def import_(
    collection: str,
    file: Path,
    /,
    *,
    prune: Flag = False,
    embedder: Name = "embedded",
    output: Output = Output(),
) -> None:
    """Make the questions of a Parquet file those of its passages.

    Of a passage that has rows, questions that are gone are removed and new ones are added; without a label they count
    as complete. Passages without a row keep their questions, unless --prune is given: then these are removed, and the
    next build writes them anew. All rows are checked before anything is changed. A build leaves edited passages as they
    are until their text changes.

    Example: querywright questions import textbooks questions.parquet

    Args:
        collection: The collection whose passages the questions are about.
        file: A .parquet file that export wrote, edited.
        prune: Remove the questions of passages that have no row in the file.
        embedder: embedded, or a sentence-transformers name or path.
    """
    from querywright.home import home as working_folder
    from querywright.models.embedder import resolve_embedder
    from querywright.models.store import open_store
    from querywright.retrieval.question_files import import_questions

    folder = working_folder(output.home)
    with progress() as update:
        report = import_questions(
            collection,
            file,
            embedder=resolve_embedder(embedder, store=open_store(folder)),
            prune=prune,
            home=folder,
            progress=lambda done, total: update("embedding", done, total),
        )
    if report.ignored:
        note(f"columns that were not read: {', '.join(report.ignored)}", style="yellow")
    if output.as_json:
        print_json(asdict(report))
    else:
        say(
            f"{collection}: {report.added} questions added, {report.changed} changed, {report.removed} removed, of "
            f"{report.passages} passages; {report.kept} in the index"
        )
    if report.absent:
        state = "are removed; the next build writes them anew" if report.pruned else "stay; --prune removes them"
        note(f"the questions of {report.absent} passages that have no row in the file {state}")
