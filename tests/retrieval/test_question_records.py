"""The records of written questions: what a killed build leaves, and what is published."""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from querywright.data.types import Passage
from querywright.errors import CollectionError, InputError
from querywright.models.embedder import Embedder, TextEmbedder, Vectors, resolve_embedder
from querywright.retrieval.chroma import ChromaRetriever
from querywright.retrieval.collection import MANIFEST, published_passages
from querywright.retrieval.index import build_collection
from querywright.retrieval.question_records import (
    COMPLETE,
    NONE,
    PARTIAL,
    RECORDS,
    PassageRecord,
    WrittenQuestion,
    add_record,
    publish_questions,
    question_id,
    questions_folder,
    questions_name,
    read_records,
)


@pytest.fixture(scope="module")
def embedded() -> TextEmbedder:
    return resolve_embedder("embedded")


def record(passage: str, *questions: tuple[str, str]) -> PassageRecord:
    return PassageRecord(passage, f"digest of {passage}", "s", tuple(WrittenQuestion(*pair) for pair in questions), 1)


IRON = record("iron", ("What hinders the uptake of iron?", COMPLETE), ("What is tea?", NONE))
TEA = record("tea", ("When is tea drunk?", PARTIAL))


def test_a_record_comes_back_as_it_was_added(tmp_path: Path) -> None:
    add_record(tmp_path, IRON)
    add_record(tmp_path, TEA)
    assert read_records(tmp_path) == {"iron": IRON, "tea": TEA}


def test_the_last_record_of_a_passage_counts(tmp_path: Path) -> None:
    again = record("iron", ("Which food holds iron?", COMPLETE))
    add_record(tmp_path, IRON)
    add_record(tmp_path, again)
    assert read_records(tmp_path) == {"iron": again}


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_half_a_line_of_a_killed_build_is_passed_over_and_written_over(tmp_path: Path, cut: int) -> None:
    add_record(tmp_path, IRON)
    whole = (tmp_path / RECORDS).read_bytes()
    add_record(tmp_path, TEA)
    (tmp_path / RECORDS).write_bytes((tmp_path / RECORDS).read_bytes()[: len(whole) + cut])
    assert read_records(tmp_path) == {"iron": IRON}
    add_record(tmp_path, TEA)
    assert read_records(tmp_path) == {"iron": IRON, "tea": TEA}


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    (tmp_path / RECORDS).write_text('{"passage": "iron"}\n')
    with pytest.raises(CollectionError, match=r"line 1 of records\.jsonl"):
        read_records(tmp_path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"passage": 7}, "TypeError: 7 is no text"),
        ({"digest": None}, "TypeError: None is no text"),
        ({"settings": []}, r"TypeError: \[\] is no text"),
        ({"questions": [{"text": 1, "label": "complete"}]}, "TypeError: 1 is no text"),
        ({"questions": [{"text": "What?", "label": None}]}, "TypeError: None is no text"),
        ({"questions": [{"text": "What?", "label": "complete", "reason": 0.5}]}, r"TypeError: 0\.5 is no text"),
        ({"questions": [{"text": "What?", "label": "complete", "mine": ""}]}, "TypeError: .*'mine'"),
        ({"questions": "What?"}, "TypeError: .* must be a mapping"),
        ({"repeated": "1"}, "TypeError: '1' is no whole number from 0"),
        ({"repeated": True}, "TypeError: True is no whole number from 0"),
        ({"repeated": -1}, "TypeError: -1 is no whole number from 0"),
        ({"unfit": {"no_words": 1.5}}, r"TypeError: 1\.5 is no whole number from 0"),
        ({"unfit": 3}, "TypeError: 'int' object is not iterable"),
    ],
)
def test_a_line_with_a_value_of_another_kind_is_named(tmp_path: Path, change: dict[str, object], told: str) -> None:
    add_record(tmp_path, TEA)
    with (tmp_path / RECORDS).open("a") as file:
        file.write(json.dumps(IRON.to_json() | change) + "\n")
    with pytest.raises(CollectionError, match=rf"line 2 of records\.jsonl in .* is damaged \({told}"):
        read_records(tmp_path)


@pytest.mark.parametrize("line", ["3", "[]", "null", '"iron"', "[" * 100_000])
def test_a_line_that_is_no_record_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / RECORDS).write_text(line + "\n")
    with pytest.raises(CollectionError, match=r"line 1 of records\.jsonl"):
        read_records(tmp_path)


def test_the_kept_questions_are_published_with_what_they_were_written_for(
    tmp_path: Path, embedded: TextEmbedder
) -> None:
    report = publish_questions("foods", [TEA, IRON], embedder=embedded, home=tmp_path)
    assert report.count == 2
    index = ChromaRetriever(questions_name("foods"), embedder=embedded, home=tmp_path)
    (hits,) = index.search(["What hinders the uptake of iron?"], 2)
    assert hits[0].passage.id == question_id("iron", "What hinders the uptake of iron?")
    assert dict(hits[0].passage.metadata) == {"passage": "iron", "digest": "digest of iron", "label": COMPLETE}
    assert list(read_records(questions_folder("foods", tmp_path))) == ["iron", "tea"]


def test_publishing_nothing_leaves_what_was_published(tmp_path: Path, embedded: TextEmbedder) -> None:
    publish_questions("foods", [IRON], embedder=embedded, home=tmp_path)
    with pytest.raises(CollectionError, match="of 1 questions written for 1 passages of 'foods' none is kept"):
        publish_questions("foods", [record("tea", ("What is tea?", NONE))], embedder=embedded, home=tmp_path)
    assert list(read_records(questions_folder("foods", tmp_path))) == ["iron"]


def test_publishing_holds_one_record_at_a_time(tmp_path: Path) -> None:
    class Model:
        def encode(self, texts: Sequence[str], **_: object) -> Vectors:
            seeds = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) for text in texts]
            return np.stack([np.random.default_rng(seed).normal(size=8) for seed in seeds]).astype(np.float32)

    class Watched(Mapping[str, PassageRecord]):
        """Counts, at each record that is read, those that are in memory."""

        def __init__(self, records: Mapping[str, PassageRecord]) -> None:
            self.records, self.alive = records, list[int]()

        def __getitem__(self, key: str) -> PassageRecord:
            self.alive.append(sum(type(one) is PassageRecord for one in gc.get_objects()))
            return self.records[key]

        def __iter__(self) -> Iterator[str]:
            return iter(self.records)

        def __len__(self) -> int:
            return len(self.records)

    folder = questions_folder("many", tmp_path)
    folder.mkdir(parents=True)
    for number in reversed(range(40)):
        add_record(folder, record(f"p{number:02}", *((f"What is {number} {n}?", COMPLETE) for n in range(3))))
    watched = Watched(read_records(folder))
    gc.collect()
    gc.freeze()  # what other tests left is not looked through at every record
    try:
        before = sum(type(one) is PassageRecord for one in gc.get_objects())
        report = publish_questions("many", watched, embedder=Embedder("h", Model, dimension=8), home=tmp_path)
    finally:
        gc.unfreeze()
    assert report.count == 120
    assert len(watched.alive) == 40
    assert max(watched.alive) <= before + 2
    assert list(read_records(folder)) == [f"p{number:02}" for number in range(40)]
    assert dict(watched) == read_records(folder)


def test_a_name_too_long_for_its_questions_is_refused(tmp_path: Path) -> None:
    assert questions_folder("a" * 53, tmp_path).name == "a" * 53 + "-questions"
    with pytest.raises(InputError, match=r"collection 'a{54}' has 54 characters; one with questions has at most 53"):
        questions_folder("a" * 54, tmp_path)
    with pytest.raises(InputError, match="1 to 63"):
        questions_folder("a" * 64, tmp_path)


def test_a_collection_of_ones_own_is_not_replaced(tmp_path: Path, embedded: TextEmbedder) -> None:
    own = Passage("own", "What is mine?")
    build_collection("foods-questions", [own], embedder=embedded, home=tmp_path)
    with pytest.raises(CollectionError, match=r"'foods-questions' is in the way.* remove the folder"):
        publish_questions("foods", [IRON], embedder=embedded, home=tmp_path)
    folder = questions_folder("foods", tmp_path)
    assert published_passages(folder, tmp_path)[1] == {"own": own}
    assert read_records(folder) == {}


def test_a_damaged_index_of_questions_names_the_command_that_mends_it(tmp_path: Path, embedded: TextEmbedder) -> None:
    publish_questions("foods", [IRON], embedder=embedded, home=tmp_path)
    (questions_folder("foods", tmp_path) / MANIFEST).write_text("{}")
    with pytest.raises(CollectionError, match=r"from all its passages: querywright questions build foods$"):
        published_passages(questions_folder("foods", tmp_path), tmp_path)
