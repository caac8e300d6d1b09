"""What the commands share: options, the working folder, progress, tables and errors."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from querywright.errors import InputError

if TYPE_CHECKING:
    import dspy

    from querywright.data.types import Question
    from querywright.models.ledger import Ledger
    from querywright.models.store import Store
    from querywright.retrieval.chroma import ChromaRetriever

out = Console()
err = Console(stderr=True)

HomeOption = Annotated[
    Path | None,
    typer.Option(
        "--home", help="Working folder. Default: $QUERYWRIGHT_HOME, or .querywright here.", show_default=False
    ),
]
LMOption = Annotated[
    str, typer.Option("--lm", help="embedded, gguf:PATH, or a DSPy model string (openai/...).")
]
ApiBaseOption = Annotated[
    str | None, typer.Option("--api-base", help="Address of an OpenAI-compatible server.", show_default=False)
]
KeyOption = Annotated[
    str | None,
    typer.Option("--api-key-env", help="Environment variable that holds the key.", show_default=False),
]
EmbedderOption = Annotated[
    str, typer.Option("--embedder", help="embedded, or a sentence-transformers name or path.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
ColumnOption = Annotated[
    list[str] | None,
    typer.Option(
        "--column", help="OURS=THEIRS: the data's name of a column. Repeatable.", show_default=False
    ),
]
LimitOption = Annotated[
    int | None, typer.Option("--limit", help="Read the first so many rows.", show_default=False)
]
KnobOption = Annotated[
    list[str] | None,
    typer.Option("--knob", help="NAME=VALUE, such as max_passages=10. Repeatable.", show_default=False),
]
ThreadsOption = Annotated[int, typer.Option("--threads", min=1, help="Questions under way at a time.")]
CallsOption = Annotated[
    int | None, typer.Option("--max-calls", min=1, help="Stop after so many LM calls.", show_default=False)
]


@dataclass(slots=True)
class Workspace:
    """The working folder and the LM of one command."""

    home: Path
    store: Store
    ledger: Ledger
    lm: dspy.LM

    @classmethod
    def open(
        cls,
        home: Path | None,
        lm: str = "embedded",
        *,
        api_base: str | None = None,
        api_key_env: str | None = None,
        max_calls: int | None = None,
    ) -> Workspace:
        """Open the working folder and make the LM ready."""
        from querywright.home import home as working_folder
        from querywright.models.guard import Limits
        from querywright.models.ledger import Ledger
        from querywright.models.lm import resolve_lm
        from querywright.models.store import open_store

        folder = working_folder(home)
        # The re-encoded model and everything else that a library of ours writes goes to the same folder.
        os.environ["QUERYWRIGHT_HOME"] = str(folder.resolve())
        store, ledger = open_store(folder), Ledger()
        key = None
        if api_key_env is not None:
            key = os.environ.get(api_key_env)
            if not key:
                raise InputError(f"the environment variable {api_key_env} is not set; put the key there")
        made = resolve_lm(
            lm, store=store, ledger=ledger, limits=Limits(max_calls=max_calls), api_base=api_base, api_key=key
        )
        return cls(folder, store, ledger, made)

    def retriever(self, collection: str, embedder: str) -> ChromaRetriever:
        """Open a collection."""
        from querywright.models.embedder import resolve_embedder
        from querywright.retrieval.chroma import ChromaRetriever

        return ChromaRetriever(
            collection, embedder=resolve_embedder(embedder, store=self.store), home=self.home
        )


def pairs(values: Sequence[str] | None, option: str) -> dict[str, str]:
    """``NAME=VALUE`` options as a mapping."""
    found: dict[str, str] = {}
    for value in values or ():
        name, separator, rest = value.partition("=")
        if not separator or not name.strip():
            raise InputError(f"{option} takes NAME=VALUE, but got {value!r}")
        found[name.strip()] = rest.strip()
    return found


def knob_values(technique: str, given: Mapping[str, str], *, strict: bool = True) -> dict[str, Any]:
    """Knob options in the types of a technique.

    Args:
        technique: Its name.
        given: Texts by knob.
        strict: Refuse a knob that the technique does not have; otherwise leave it out.
    """
    from querywright.programs import technique_class
    from querywright.programs.knobs import Knobs

    knobs = Knobs(technique_class(technique).KNOBS)
    return {name: knobs.knob(name).parse(text) for name, text in given.items() if strict or name in knobs}


def reader_for(questions: Sequence[Question], reader: str) -> str:
    """The reader of that name; ``auto`` reads options where every question has them."""
    if reader != "auto":
        return reader
    return "multiple_choice" if all(question.options for question in questions) else "short_answer"


def show_table(title: str, rows: Sequence[Mapping[str, str]], *, notes: Sequence[str] = ()) -> None:
    """A table, one mapping a row, its columns in the order of the first."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in rows[0] if rows else ():
        table.add_column(column, justify="left" if column in {"arm", "technique"} else "right")
    for row in rows:
        table.add_row(*row.values())
    out.print(table)
    for note in notes:
        out.print(note, highlight=False, markup=False)


def print_json(data: Any) -> None:
    """Data as JSON on standard output, and nothing else there."""
    sys.stdout.write(json.dumps(data, ensure_ascii=False, indent=2, allow_nan=False) + "\n")


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """A progress line a piece of work, on standard error; only a line at its end where that is no terminal."""
    if not err.is_terminal:

        def note(what: str, done: int, total: int) -> None:
            if done == total:
                err.print(f"{what}: {done} of {total}", highlight=False, markup=False)

        yield note
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as bars:
        tasks: dict[str, Any] = {}

        def update(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total, visible=done < total)

        yield update
