"""What a source is: rows given in Python, the sample, a dataset, a folder or a file. Nowhere else is that asked."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

from querywright.data.cells import plain
from querywright.data.folders import folder_rows, holds_files
from querywright.data.hub import RECIPES, dataset_rows
from querywright.data.tables import Kind, Row, file_rows, format_of
from querywright.data.types import Passage, Question
from querywright.errors import DataError

SAMPLES: dict[str, dict[Kind, str]] = {
    "sample": {"questions": "questions.jsonl", "passages": "cards.jsonl"},
    "sample-hard": {"questions": "questions-hard.jsonl", "passages": "cards.jsonl"},
}
"""Files of the packaged sample, by the name of the source."""

HUB_PREFIX = "hf:"
KNOWN_SOURCES = (
    "a .jsonl, .json, .csv, .tsv or .parquet file (.gz too, but not for Parquet), a folder with such files, "
    f"{', '.join(map(repr, SAMPLES))}, or hf:NAME[:CONFIG] for a dataset of the Hugging Face hub; names of ours: "
    f"{', '.join(RECIPES)}"
)
ROWS = "a list of dicts, of dspy.Example, of Question or Passage, a DataFrame or a datasets.Dataset"

Source = str | os.PathLike[str] | Iterable[Any] | Mapping[str, Any]
"""What questions and passages are read from; a DataFrame and a ``datasets.Dataset`` are rows as well."""


def name_of(source: Source) -> str:
    """What the source is called in messages."""
    return os.fspath(source) if isinstance(source, str | os.PathLike) else "the rows given"


def iterate_rows(source: Source, *, kind: Kind, split: str | None, problems: list[str]) -> Iterator[Row]:
    """The rows of a source, one at a time, without looking at what they mean.

    A row that cannot be read is a problem; the rows behind it still come. A split is refused where there are none.

    Raises:
        DataError: The source does not exist, has no known format, or has no such split.
    """
    name = name_of(source)
    is_path = isinstance(source, str | os.PathLike)
    path = Path(name).expanduser()
    sample = SAMPLES.get(source) if isinstance(source, str) else None  # a Path of that name is a folder of yours
    dataset = _dataset_name(source) if isinstance(source, str) and sample is None else None
    if dataset is not None:
        yield from dataset_rows(*dataset, kind=kind, split=split)
        return
    if is_path and sample is None and source != "" and os.path.isdir(path):
        if holds_files(path):
            yield from folder_rows(path, name, kind=kind, split=split, problems=problems)
        else:
            yield from dataset_rows(str(path), None, kind=kind, split=split)
        return
    if isinstance(source, Mapping):  # a datasets.DatasetDict, or a mapping like it
        split = next(iter(source)) if split is None and len(source) == 1 else split
        if split is None or split not in source:
            raise DataError(
                f"split={split!r}: the data given has the keys {', '.join(map(str, source))}; give one of them, "
                f"such as data[{str(next(iter(source), 'test'))!r}], name it with split=, or give a list of rows"
            )
        source, split = source[split], None
    if split is not None:
        raise DataError(f"split={split!r}: only datasets have splits, and {name} is none; leave split out")
    if not is_path:
        yield from _given_rows(source, problems)
    elif sample is not None:
        with resources.as_file(resources.files("querywright.data.sample") / sample[kind]) as file:
            yield from _checked_file(file, f"sample/{sample[kind]}", problems)
    else:
        yield from _checked_file(path, name, problems)


def _checked_file(path: Path, name: str, problems: list[str]) -> Iterator[Row]:
    if not os.path.isfile(path):
        raise DataError(f"{name}: no such file or folder; a source is {KNOWN_SOURCES}")
    if not format_of(path.name)[0]:
        raise DataError(f"{name}: unknown format; a source is {KNOWN_SOURCES}")
    return file_rows(path, name, problems)


def _given_rows(rows: Any, problems: list[str]) -> Iterator[Row]:
    if hasattr(rows, "iterrows"):  # a DataFrame, which gives its columns when it is iterated
        rows = rows.to_dict("records")
    if not isinstance(rows, Iterable):
        raise DataError(f"found {type(rows).__name__}; expected {ROWS}, or {KNOWN_SOURCES}")
    for number, row in enumerate(rows, start=1):
        values = asdict(row) if isinstance(row, Question | Passage) else row
        if hasattr(values, "items"):
            yield Row(f"row {number}", {key: plain(value) for key, value in values.items()})
        else:
            problems.append(f"row {number}: found {type(row).__name__}; expected a row of {ROWS}")


def _dataset_name(source: str) -> tuple[str, str | None] | None:
    """Name and configuration when the source is a dataset by name, None when it is anything else."""
    is_named = source.startswith(HUB_PREFIX)
    looks_like_file = format_of(source)[0] or source[:1] in "./~" or source.endswith("/") or os.path.exists(source)
    if not is_named and ("/" not in source or looks_like_file):
        return None
    dataset, _, config = source.removeprefix(HUB_PREFIX).partition(":")
    if not dataset:
        raise DataError(
            f"{source!r} names no dataset; write hf:NAME or hf:NAME:CONFIG; names of ours: {', '.join(RECIPES)}"
        )
    return dataset, config or None
