"""What a source is: rows given in Python, the sample, a dataset, a folder or a file. Nowhere else is that asked."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

from querywright.data.folders import folder_rows, holds_files
from querywright.data.hub import RECIPES, dataset_rows
from querywright.data.tables import Kind, Row, file_rows, format_of
from querywright.data.types import Passage, Question
from querywright.errors import DataError

SAMPLE = "sample"
HUB_PREFIX = "hf:"
KNOWN_SOURCES = (
    "a .jsonl, .json, .csv, .tsv or .parquet file (.gz too, but not for Parquet), a folder with such files, "
    f"'sample', or hf:NAME[:CONFIG] for a dataset of the Hugging Face hub; names of ours: {', '.join(RECIPES)}"
)
ROWS = "a list of dicts, of dspy.Example, of Question or Passage, a DataFrame or a datasets.Dataset"
_SAMPLE_FILES: dict[Kind, str] = {"questions": "questions.jsonl", "passages": "cards.jsonl"}


class Example(Protocol):
    """What a ``dspy.Example`` and a dict have in common."""

    def items(self) -> Iterable[tuple[str, object]]:
        """Names and values."""
        ...


Source = str | os.PathLike[str] | Iterable[Example] | Mapping[str, Any]
"""What questions and passages are read from; a DataFrame and a ``datasets.Dataset`` are rows as well."""


def name_of(source: Source) -> str:
    """What the source is called in messages."""
    return os.fspath(source) if isinstance(source, str | os.PathLike) else "the rows given"


def iterate_rows(source: Source, *, kind: Kind, split: str | None, problems: list[str]) -> Iterator[Row]:
    """The rows of a source, one at a time, without looking at what they mean.

    Args:
        source: Rows (each a dict or a ``dspy.Example``), the path of a file or folder, ``sample``,
            ``hf:NAME[:CONFIG]``, or a name with a slash that is no existing file.
        kind: What is wanted, where a source holds both.
        split: The split of a dataset or folder; refused for what has none.
        problems: Gets a line for each row that cannot be read; the rows behind it still come.

    Raises:
        DataError: The source does not exist, has no known format, or has no such split.
    """
    name = name_of(source)
    dataset = _dataset_name(source)
    if dataset is not None:
        yield from dataset_rows(*dataset, kind=kind, split=split)
        return
    path = Path(name).expanduser()
    if isinstance(source, str | os.PathLike) and source not in (SAMPLE, "") and path.is_dir():
        if holds_files(path):
            yield from folder_rows(path, name, kind=kind, split=split, problems=problems)
        else:
            yield from dataset_rows(str(path), None, kind=kind, split=split)
        return
    source, split = _of_splits(source, split)
    if split is not None:
        raise DataError(f"split={split!r}: only datasets have splits, and {name} is none; leave split out")
    if not isinstance(source, str | os.PathLike):
        yield from _given_rows(source, problems)
    elif source == SAMPLE:  # also where a folder of that name stands here: ./sample names the folder
        packaged = resources.files("querywright.data.sample") / _SAMPLE_FILES[kind]
        with resources.as_file(packaged) as file:
            yield from _checked_file(file, f"{SAMPLE}/{_SAMPLE_FILES[kind]}", problems)
    else:
        yield from _checked_file(path, name, problems)


def _checked_file(path: Path, name: str, problems: list[str]) -> Iterator[Row]:
    if not path.is_file():
        raise DataError(f"{name}: no such file; a source is {KNOWN_SOURCES}")
    if not format_of(path.name)[0]:
        raise DataError(f"{name}: unknown format; a source is {KNOWN_SOURCES}")
    return file_rows(path, name, problems)


def _of_splits(source: Any, split: str | None) -> tuple[Any, str | None]:
    """The split of a ``datasets.DatasetDict``, or of a mapping like it; any other source as it is."""
    if not isinstance(source, Mapping):
        return source, split
    if split is None and len(source) == 1:
        (split,) = source
    if split not in source:
        raise DataError(
            f"split={split!r}: the data given has the keys {', '.join(map(str, source))}; name one of its splits, or "
            "give a list of rows"
        )
    return source[split], None


def _given_rows(rows: Any, problems: list[str]) -> Iterator[Row]:
    if hasattr(rows, "iterrows"):  # a DataFrame, which gives its columns when it is iterated
        rows = rows.to_dict("records")
    if not isinstance(rows, Iterable):
        raise DataError(f"found {type(rows).__name__}; expected {ROWS}, or {KNOWN_SOURCES}")
    for number, row in enumerate(rows, start=1):
        values = asdict(row) if isinstance(row, Question | Passage) else row
        if isinstance(values, Mapping) or hasattr(values, "items"):
            yield Row(f"row {number}", {key: _plain(value) for key, value in values.items()})
        else:
            problems.append(f"row {number}: found {type(row).__name__}; expected a row of {ROWS}")


def _plain(value: Any) -> Any:
    """The value as a file would hold it: arrays, tuples and sets as lists, pandas' missing value as None."""
    if hasattr(value, "tolist"):  # NumPy
        value = value.tolist()
    if isinstance(value, set | frozenset):
        value = sorted(value, key=str)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value


def _dataset_name(source: Source) -> tuple[str, str | None] | None:
    """Name and configuration when the source is a dataset by name, None when it is anything else."""
    if not isinstance(source, str) or source == SAMPLE:
        return None
    if source.startswith(HUB_PREFIX):
        dataset, _, config = source.removeprefix(HUB_PREFIX).partition(":")
        if not dataset:
            raise DataError(
                f"{source!r} names no dataset; write hf:NAME or hf:NAME:CONFIG; names of ours: {', '.join(RECIPES)}"
            )
        return dataset, config or None
    looks_like_file = format_of(source)[0] or source[:1] in "./~"
    if "/" in source and not looks_like_file and not Path(source).exists():
        dataset, _, config = source.partition(":")
        return dataset, config or None
    return None
