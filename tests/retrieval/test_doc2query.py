"""Search by words over passages with their questions: what is found, what is given, and what is left out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from querywright.data.types import Passage
from querywright.models.embedder import Embedder, Vectors
from querywright.models.store import open_store
from querywright.retrieval.bm25 import BM25Retriever
from querywright.retrieval.doc2query import ExpandedRetriever
from querywright.retrieval.generated_questions import (
    COMPLETE,
    NONE,
    PARTIAL,
    PassageRecord,
    WrittenQuestion,
    publish_questions,
    questions_folder,
    write_records,
)
from querywright.retrieval.index import build_collection
from querywright.retrieval.words import terms

TEA = Passage("tea", "Tannins bind iron in the gut.", "Tea", {"source": "nih"})
SALT = Passage("salt", "Sodium raises blood pressure.")
MILK = Passage("milk", "Calcium builds bone; calcium hinders iron too.")
ALL = [TEA, SALT, MILK]
RECORDS = [
    PassageRecord(
        "tea",
        TEA.text_digest(),
        "s",
        (
            WrittenQuestion("Why avoid a cuppa with dinner?", COMPLETE),
            WrittenQuestion("Does coffee do it as well?", PARTIAL),
            WrittenQuestion("Who discovered radium?", NONE),
            WrittenQuestion("Is zebra edible?", ""),
        ),
    ),
    PassageRecord("salt", SALT.text_digest(), "s", ()),
]


class AnyModel:
    """Vectors that nobody looks at."""

    def encode(self, texts: Sequence[str], **options: object) -> Vectors:
        rows = np.stack([np.random.default_rng(len(text)).normal(size=8) for text in texts])
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def any_embedder(home: Path) -> Embedder:
    return Embedder("any:8", AnyModel, dimension=8, store=open_store(home))


def build(home: Path, passages: Sequence[Passage] = ALL) -> None:
    build_collection("foods", passages, embedder=any_embedder(home), home=home)


def publish(home: Path, *records: PassageRecord) -> None:
    publish_questions("foods", records, embedder=any_embedder(home), home=home)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    build(tmp_path)
    publish(tmp_path, *RECORDS)
    yield tmp_path
    open_store(tmp_path).close()


def found(home: Path, query: str) -> list[str]:
    return [hit.passage.id for hit in ExpandedRetriever("foods", home=home).search([query], 5)[0]]


def test_a_passage_is_found_by_the_words_of_its_kept_questions_and_given_as_it_is(home: Path) -> None:
    assert BM25Retriever("foods", home=home).search(["a cuppa"], 5) == [[]]
    ((hit,),) = ExpandedRetriever("foods", home=home).search(["cuppa"], 5)
    assert (hit.passage, hit.rank) == (TEA, 1)
    assert found(home, "radium zebra coffee") == []  # of the other labels


def test_questions_that_are_not_published_are_not_searched(home: Path) -> None:
    """A build that was killed has added a record; the published questions are still the ones that are searched."""
    before = ExpandedRetriever("foods", home=home)
    tea, _ = RECORDS
    folder = questions_folder("foods", home)
    edited = replace(tea, questions=(WrittenQuestion("Is matcha green?", COMPLETE),))
    milk = PassageRecord("milk", MILK.text_digest(), "s", (WrittenQuestion("Is kefir milk?", COMPLETE),))
    write_records(folder, [edited, milk])
    assert found(home, "matcha kefir") == []
    assert found(home, "cuppa") == ["tea"]
    assert ExpandedRetriever("foods", home=home).fingerprint == before.fingerprint
    (folder / "records.jsonl").unlink()
    assert found(home, "cuppa") == ["tea"]


def test_scores_are_those_of_bm25_over_the_texts_with_their_questions(home: Path) -> None:
    """Lucene's formula by hand, over passages and questions put together here."""
    texts = [TEA.content + "\nWhy avoid a cuppa with dinner?", SALT.content, MILK.content]
    words = [terms(text) for text in texts]
    mean = sum(map(len, words)) / 3
    held = sum("iron" in one for one in words)
    rare = math.log(1 + (3 - held + 0.5) / (held + 0.5))
    expected = {
        id: rare * one.count("iron") / (one.count("iron") + 1.5 * (0.25 + 0.75 * len(one) / mean))
        for id, one in zip(("tea", "salt", "milk"), words, strict=True)
        if "iron" in one
    }
    hits = ExpandedRetriever("foods", home=home).search(["iron"], 5)[0]
    assert {hit.passage.id: hit.score for hit in hits} == pytest.approx(expected, rel=1e-5)


def test_the_fingerprint_changes_with_questions_and_with_nothing_else(home: Path) -> None:
    one = ExpandedRetriever("foods", home=home)
    assert ExpandedRetriever("foods", home=home).fingerprint == one.fingerprint
    assert BM25Retriever("foods", home=home).fingerprint != one.fingerprint
    (tea, salt), reason = RECORDS, WrittenQuestion("Why avoid a cuppa with dinner?", COMPLETE, "another reason")
    publish(home, replace(tea, questions=(reason, *tea.questions[1:])), salt)
    assert ExpandedRetriever("foods", home=home).fingerprint == one.fingerprint
    publish(home, replace(tea, questions=tea.questions[1:]))
    assert ExpandedRetriever("foods", home=home).fingerprint != one.fingerprint


def test_questions_of_a_passage_that_changed_are_left_out_with_a_warning(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ExpandedRetriever("foods", home=home)
    assert caplog.messages == []
    changed = replace(TEA, text="Tannins bind zinc.")
    build(home, [changed])
    one = ExpandedRetriever("foods", home=home)
    (warned,) = caplog.messages
    assert warned.startswith("2 of 2 questions of the collection 'foods' are of passages that are gone or were changed")
    assert warned.endswith("replace them: querywright questions build foods")
    assert one.appended == 0
    assert one.search(["cuppa"], 5) == [[]]
    assert one.search(["zinc"], 5)[0][0].passage == changed
