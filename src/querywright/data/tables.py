"""Read files in any supported format as rows."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import os
import sys
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, cast

Kind = Literal["questions", "passages"]
SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")


class Row(NamedTuple):
    """A row and its place in the source, for messages. A value of None is missing."""

    place: str
    values: Mapping[str, Any]


def format_of(name: str) -> tuple[str, bool]:
    """Return the suffix of a file's format ("" if it is not supported), and whether the file is gzipped."""
    plain = name.lower().removesuffix(".gz")
    suffix, compressed = os.path.splitext(plain)[1], plain != name.lower()
    known = suffix in SUFFIXES and not (compressed and suffix == ".parquet")
    return suffix if known else "", compressed


def file_rows(path: Path, name: str, problems: list[str]) -> Iterator[Row]:
    """Yield the rows in a file. If a row cannot be read, an error is added to ``problems``, and reading continues."""
    suffix, compressed = format_of(path.name)
    try:
        if suffix == ".parquet":
            yield from _parquet_rows(path, name, problems)
            return
        with cast(BinaryIO, gzip.open(path)) if compressed else path.open("rb") as stream:
            if suffix == ".json":
                yield from _json_rows(stream, name, problems)
            elif suffix in (".csv", ".tsv"):
                yield from _csv_rows(stream, name, problems, "\t" if suffix == ".tsv" else ",")
            else:
                yield from _json_line_rows(stream, name, problems)
    except (OSError, EOFError, zlib.error) as error:
        problems.append(f"{name}: the file cannot be read to the end ({error}); it may be damaged or incomplete")


def _parse_json(data: bytes) -> Any:
    """Parse JSON, and return the value. The message of a ``ValueError`` describes the error and its position."""
    try:
        return json.loads(data.removeprefix(codecs.BOM_UTF8).decode("utf-8"))
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise ValueError(f"not valid JSON: {error.msg} at {where}character {error.colno}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: byte 0x{data[error.start]:02x} at position {error.start}") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _json_line_rows(stream: BinaryIO, name: str, problems: list[str]) -> Iterator[Row]:
    for number, line in enumerate(stream, start=1):
        place = f"{name} line {number}"
        if not line.strip():
            continue
        try:
            value = _parse_json(line)
        except ValueError as error:
            problems.append(f"{place}: {error}; expected one JSON object per line")
            continue
        if isinstance(value, dict):
            yield Row(place, value)
        else:
            problems.append(f"{place}: found {type(value).__name__}; expected a JSON object with column names as keys")


def _json_rows(stream: BinaryIO, name: str, problems: list[str]) -> Iterator[Row]:
    try:
        value = _parse_json(stream.read())
    except ValueError as error:
        problems.append(f"{name}: {error}; if the file has one object per line, rename it to .jsonl")
        return
    if not isinstance(value, list):
        problems.append(f"{name}: found {type(value).__name__}; expected a list of objects")
        return
    for number, item in enumerate(value, start=1):
        if isinstance(item, dict):
            yield Row(f"{name} row {number}", item)
        else:
            problems.append(f"{name} row {number}: found {type(item).__name__}; expected an object")


def _csv_rows(stream: BinaryIO, name: str, problems: list[str], delimiter: str) -> Iterator[Row]:
    with io.TextIOWrapper(stream, encoding="utf-8-sig", newline="") as text:
        csv.field_size_limit(sys.maxsize)  # for the whole process; JSON lines have no size limit either
        reader = csv.reader(text, delimiter=delimiter, strict=True)
        try:
            header = [column.strip() for column in next(reader, [])]
            repeated = sorted(column for column, count in Counter(header).items() if count > 1)
            if not header or repeated:
                problems.append(f"{name} line 1: expected distinct column names, but found duplicates: {repeated[:20]}")
                return
            last = reader.line_num
            for cells in reader:
                place, last = f"{name} line {last + 1}", reader.line_num
                if len(cells) == len(header):
                    found = [cell if cell.strip() else None for cell in cells]
                    yield Row(place, dict(zip(header, found, strict=True)))
                elif cells:
                    problems.append(f"{place}: number of cells: {len(cells)}; expected {len(header)}, as in line 1")
        except UnicodeDecodeError as error:
            problems.append(f"{name} after line {reader.line_num}: not UTF-8 ({error.reason})")
        except csv.Error as error:
            hint = "correct the quotation marks, or use JSON Lines (.jsonl)"
            problems.append(f"{name} line {reader.line_num}: {error}; {hint}")


def _parquet_rows(path: Path, name: str, problems: list[str]) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024):
                for values in batch.to_pylist():
                    number += 1
                    yield Row(f"{name} row {number}", values)
    except pyarrow.ArrowException as error:
        problems.append(f"{name} after row {number}: cannot read the Parquet file ({str(error).splitlines()[0]})")
