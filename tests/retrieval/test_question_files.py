"""Questions out to a Parquet file and back in: exact when nothing was edited, checked as a whole when something was."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from querywright.data.types import Passage
from querywright.errors import CollectionError, DataError, InputError
from querywright.models.embedder import Embedder
from querywright.retrieval.collection import building, published_passages
from querywright.retrieval.generated_questions import (
    COMPLETE,
    IMPORTED,
    LOCK,
    NONE,
    PARTIAL,
    RECORDS,
    PassageRecord,
    WrittenQuestion,
    publish_questions,
    questions_folder,
    read_records,
)
from querywright.retrieval.index import build_collection
from querywright.retrieval.question_files import COLUMNS, export_questions, import_questions

IRON = Passage("iron", "Tea hinders the uptake of iron.")
TEA = Passage("tea", "Tea is drunk in the afternoon.", "Tea")
SALT = Passage("salt", "Bread brings salt.")


class HashModel:
    def encode(self, texts: list[str], **_: Any) -> np.ndarray:
        seeds = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) for text in texts]
        return np.array([np.random.default_rng(seed).normal(size=8) for seed in seeds], dtype=np.float32)


EMBEDDER = Embedder("hash:8", HashModel, dimension=8)


def record(passage: Passage, *questions: tuple[str, ...]) -> PassageRecord:
    return PassageRecord(passage.id, passage.text_digest(), "s", tuple(WrittenQuestion(*one) for one in questions), 2)


RECORDS_BEFORE = [
    record(IRON, ("What hinders iron?", COMPLETE, "it says so"), ("What is iron?", NONE, ""), ("Is it \u6c34?", "")),
    record(SALT),
    record(TEA, ("When is tea drunk?", PARTIAL, 'only "roughly",\nso to say')),
]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    build_collection("foods", [IRON, SALT, TEA], embedder=EMBEDDER, home=folder)
    publish_questions("foods", RECORDS_BEFORE, embedder=EMBEDDER, home=folder)
    return folder


@pytest.fixture
def edit(home: Path, tmp_path: Path) -> Callable[..., Any]:
    """Exports, edits the table, and imports it."""

    def run(change: Callable[[pd.DataFrame], pd.DataFrame], **options: Any) -> Any:
        file = tmp_path / "q.parquet"
        export_questions("foods", file, home)
        change(pd.read_parquet(file)).to_parquet(file)
        return import_questions("foods", file, embedder=EMBEDDER, home=home, **options)

    return run


def on_disk(home: Path) -> bytes:
    return (questions_folder("foods", home) / RECORDS).read_bytes()


def row(passage: str, question: str, **others: str | None) -> pd.DataFrame:
    return pd.DataFrame([{"passage": passage, "question": question, **others}])


def test_the_file_holds_every_question_in_order(home: Path, tmp_path: Path) -> None:
    assert export_questions("foods", tmp_path / "q.parquet", home) == 4
    table = pd.read_parquet(tmp_path / "q.parquet")
    assert tuple(table.columns) == COLUMNS
    assert table.values.tolist() == [
        ["iron", "What hinders iron?", "complete", "it says so", IRON.text_digest()],
        ["iron", "What is iron?", "none", "", IRON.text_digest()],
        ["iron", "Is it \u6c34?", "", "", IRON.text_digest()],
        ["tea", "When is tea drunk?", "partial", 'only "roughly",\nso to say', TEA.text_digest()],
    ]


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table,
        lambda table: table.iloc[::-1],
        lambda table: table.drop(columns="passage_digest"),
        lambda table: table.assign(question=table["question"] + " \n", passage_digest=None),
    ],
)
def test_what_was_not_edited_comes_back_to_the_byte(edit: Callable[..., Any], home: Path, change: Any) -> None:
    before, generation = on_disk(home), published_passages(questions_folder("foods", home), home)
    report = edit(change)
    assert on_disk(home) == before
    assert published_passages(questions_folder("foods", home), home) == generation
    assert (report.added, report.changed, report.removed, report.passages, report.kept) == (0, 0, 0, 0, 2)


def test_questions_are_added_changed_and_removed(edit: Callable[..., Any], home: Path) -> None:
    def change(table: pd.DataFrame) -> pd.DataFrame:
        table.loc[1, "label"] = "partial"
        return pd.concat([table.drop(index=2), row("salt", "What brings  salt?"), row("iron", "Does tea matter?")])

    report = edit(change)
    assert (report.added, report.changed, report.removed, report.passages, report.kept) == (2, 1, 1, 2, 5)
    assert (report.absent, report.pruned) == (0, False)
    after = read_records(questions_folder("foods", home))
    assert after["iron"] == replace(
        RECORDS_BEFORE[0],
        settings=IMPORTED,
        questions=(
            WrittenQuestion("What hinders iron?", COMPLETE, "it says so"),
            WrittenQuestion("What is iron?", PARTIAL),
            WrittenQuestion("Does tea matter?", COMPLETE),
        ),
    )
    assert after["salt"].questions == (WrittenQuestion("What brings salt?", COMPLETE),)
    assert (after["salt"].digest, after["salt"].settings) == (SALT.text_digest(), IMPORTED)
    assert after["tea"] == RECORDS_BEFORE[2]
    _, index = published_passages(questions_folder("foods", home), home)
    assert {(one.text, one.metadata["passage"]) for one in index.values()} == {
        ("What hinders iron?", "iron"),
        ("What is iron?", "iron"),
        ("Does tea matter?", "iron"),
        ("What brings salt?", "salt"),
        ("When is tea drunk?", "tea"),
    }


def test_passages_without_a_row_keep_their_questions(edit: Callable[..., Any], home: Path) -> None:
    before = on_disk(home)
    report = edit(lambda table: table[table["passage"] == "tea"])
    assert (report.removed, report.passages, report.absent, report.pruned, report.kept) == (0, 0, 1, False, 2)
    assert on_disk(home) == before


def test_pruning_forgets_passages_without_a_row(edit: Callable[..., Any], home: Path) -> None:
    """So that a build writes them anew; that of salt, of which the file cannot have a row, stays as it was."""
    report = edit(lambda table: table[table["passage"] == "tea"], prune=True)
    assert (report.removed, report.passages, report.absent, report.pruned, report.kept) == (3, 1, 1, True, 1)
    assert read_records(questions_folder("foods", home)) == {"salt": RECORDS_BEFORE[1], "tea": RECORDS_BEFORE[2]}


def test_a_cleared_label_is_vouched_for(edit: Callable[..., Any], home: Path) -> None:
    edit(lambda table: table.assign(label=["", None, "", "partial"]))
    assert [one.label for one in read_records(questions_folder("foods", home))["iron"].questions] == [
        COMPLETE,
        COMPLETE,
        "",
    ]


def test_everything_that_is_wrong_is_told_at_once_and_nothing_is_changed(edit: Callable[..., Any], home: Path) -> None:
    before = on_disk(home)
    wrong = [
        row("milk", "What is milk?"),
        row("tea", " "),
        row("tea", "Who drinks tea?", label="maybe"),
        row("tea", "when is  tea drunk?"),
        row("", "Whose?"),
        row("salt", "What brings salt?", passage_digest="0" * 64),
    ]
    with pytest.raises(DataError) as told:
        edit(lambda table: pd.concat([table, *wrong]))
    problems = told.value.problems
    assert [problem.partition(": ")[2] for problem in problems] == [
        "the question is empty; to remove it, remove the row",
        "the label is 'maybe', not one of complete, partial, none, or empty",
        "the passage's id is empty",
        "there is no passage 'milk' in the collection",
        "the passage 'salt' was changed after its questions were exported; run querywright questions build foods "
        "first and export them again, or empty passage_digest where they fit the passage as it is now",
        "the question 'when is tea drunk?' is asked in q.parquet row 4 already",
    ]
    assert problems[0].startswith("q.parquet row 6: ")
    assert on_disk(home) == before


def test_stale_questions_stay_until_they_are_vouched_for(edit: Callable[..., Any], home: Path) -> None:
    changed = replace(TEA, text="Tea is drunk at five.")
    build_collection("foods", [IRON, changed], embedder=EMBEDDER, home=home, prune=True)
    before = on_disk(home)
    edit(lambda table: table)
    assert on_disk(home) == before
    with pytest.raises(DataError, match="'tea' was changed after"):
        edit(lambda table: table.assign(label="complete"))
    edit(lambda table: table[table["passage"] != "tea"])  # not the same as questions that fit the passage as it is
    assert on_disk(home) == before
    report = edit(lambda table: table.assign(passage_digest=""))
    assert (report.passages, report.changed) == (1, 0)
    assert read_records(questions_folder("foods", home))["tea"].digest == changed.digest()


def test_mistakes(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "q.parquet"
    with pytest.raises(InputError, match=r"ends in \.parquet, not 'q\.csv'"):
        export_questions("foods", tmp_path / "q.csv", home)
    with pytest.raises(InputError, match="there is no file"):
        import_questions("foods", file, embedder=EMBEDDER, home=home)
    with pytest.raises(CollectionError, match="no questions were written for the collection 'drinks'"):
        export_questions("drinks", file, home)
    export_questions("foods", file, home)
    with pytest.raises(CollectionError, match="'foods' was built with the embedder 'hash:8'"):
        import_questions("foods", file, embedder=Embedder("other", HashModel, dimension=8), home=home)
    with pytest.raises(CollectionError, match="there is no collection 'drinks'"):
        import_questions("drinks", file, embedder=EMBEDDER, home=home)
    pd.read_parquet(file).assign(label="none").to_parquet(file)
    before = on_disk(home)
    with pytest.raises(CollectionError, match="none is kept; nothing was published"):
        import_questions("foods", file, embedder=EMBEDDER, home=home)
    folder = questions_folder("foods", home)
    with building(folder, "foods", LOCK), pytest.raises(CollectionError, match="is being built by another process"):
        import_questions("foods", file, embedder=EMBEDDER, home=home)
    assert on_disk(home) == before
