from __future__ import annotations

import copy
import errno
import math
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from querywright.data.types import Passage
from querywright.errors import InputError
from querywright.files import file_digests
from querywright.models.embedder import Embedder, Vectors
from querywright.models.store import open_store
from querywright.retrieval import bm25
from querywright.retrieval.bm25 import FACTS, FILES, BM25Retriever
from querywright.retrieval.chroma import ChromaRetriever
from querywright.retrieval.index import build_collection
from querywright.retrieval.types import Hit, Retriever, VectorRetriever, kind_of
from querywright.retrieval.words import query_terms, terms


class AnyModel:
    """Vectors that nobody looks at."""

    def encode(self, texts: Sequence[str], **options: object) -> Vectors:
        rows = np.stack([np.random.default_rng(abs(hash(text)) % 2**32).normal(size=8) for text in texts])
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def _embedder(home: Path) -> Embedder:
    return Embedder("any:8", AnyModel, dimension=8, store=open_store(home))


def _build(home: Path, passages: Sequence[Passage], name: str = "books", *, prune: bool = False) -> None:
    build_collection(name, passages, embedder=_embedder(home), home=home, prune=prune)


def _ids(hits: Sequence[Hit]) -> list[str]:
    return [hit.passage.id for hit in hits]


@pytest.fixture(scope="module")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("home")
    _build(home, THREE, "three")
    _build(home, RANDOM, "random")
    yield home
    open_store(home).close()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A small collection that a test may damage."""
    _build(tmp_path, THREE)
    yield tmp_path
    open_store(tmp_path).close()


THREE = [
    Passage("a", "Salt, salt water"),
    Passage("b", "water cuff"),
    Passage("c", "cuff CUFF cuff", "Arm", {"source": "nih"}),
]
_random = random.Random(5)
WORDS = [f"w{number}" for number in range(60)]
RANDOM = [
    Passage(
        f"p{number:03}",
        " ".join(_random.choices(WORDS, weights=range(1, 61), k=_random.randint(1, 40))),
        _random.choice(["", "title w3"]),
    )
    for number in range(300)
]


# Scores.


def test_scores_by_hand(shared_home: Path) -> None:
    """N = 3, mean length 3; idf of a word in one passage ln(8/3), in two ln(1.6); k1 1.5, b 0.75.

    tf / (tf + 1.5 * (0.25 + 0.75 * length / 3)): 2/3.5 for salt in a, 1/2.5 for water in a, 1/2.125 for either word
    of b, 3/4.875 for cuff and 1/2.875 for arm, the title, in c.
    """
    found = BM25Retriever("three", home=shared_home).search(["salt", "water", "cuff", "ARM!", "salt water"], 3)
    assert [[(hit.passage.id, hit.rank) for hit in hits] for hits in found] == [
        [("a", 1)],
        [("b", 1), ("a", 2)],
        [("c", 1), ("b", 2)],
        [("c", 1)],
        [("a", 1), ("b", 2)],
    ]
    scores = [[hit.score for hit in hits] for hits in found]
    assert scores[0] == pytest.approx([0.560474])
    assert scores[1] == pytest.approx([0.221178, 0.188001], abs=2e-6)
    assert scores[2] == pytest.approx([0.289233, 0.221178], abs=2e-6)
    assert scores[3] == pytest.approx([math.log(8 / 3) / 2.875])
    assert scores[4] == pytest.approx([0.748475, 0.221178], abs=2e-6)


def _exact(query: str, k1: float, b: float) -> dict[str, float]:
    """BM25 by its formula, passage by passage."""
    rows = [terms(passage.content) for passage in RANDOM]
    mean = sum(map(len, rows)) / len(rows)
    words = {word: sum(word in row for row in rows) for word in set(query_terms(query))}
    scores = {}
    for passage, row in zip(RANDOM, rows, strict=True):
        score = 0.0
        for word in query_terms(query):
            idf = math.log(1 + (len(rows) - words[word] + 0.5) / (words[word] + 0.5))
            often = row.count(word)
            score += idf * often / (often + k1 * (1 - b + b * len(row) / mean)) if often else 0.0
        scores[passage.id] = score
    return scores


@pytest.mark.parametrize(("k1", "b"), [(1.5, 0.75), (0.9, 0.4), (2.0, 1.0)])
def test_random_lists_equal_the_formula(shared_home: Path, k1: float, b: float) -> None:
    retriever = BM25Retriever("random", home=shared_home, k1=k1, b=b)
    chosen = random.Random(7)
    for length in range(1, 13):
        query = " ".join(chosen.choices([*WORDS, "unknown", "title"], k=length))
        exact = _exact(query, k1, b)
        (hits,) = retriever.search([query], 300)
        assert {hit.passage.id for hit in hits} == {id for id, score in exact.items() if score > 0}
        assert [hit.score for hit in hits] == pytest.approx([exact[hit.passage.id] for hit in hits], rel=1e-5)
        assert [hit.rank for hit in hits] == list(range(1, len(hits) + 1))
        assert [(-hit.score, hit.passage.id) for hit in hits] == sorted((-hit.score, hit.passage.id) for hit in hits)
        for k in (1, 2, 5, 10, len(hits)):
            assert retriever.search([query], k)[0] == hits[:k]


# What is asked.


def test_bad_requests(shared_home: Path) -> None:
    retriever = BM25Retriever("three", home=shared_home)
    assert retriever.search([], 3) == []
    with pytest.raises(InputError, match=r"list of queries, but got one text: 'salt'; write \[query\]"):
        retriever.search("salt", 3)
    with pytest.raises(InputError, match="k must be 1 or more, but got 0"):
        retriever.search(["salt"], 0)


def test_a_collection_without_any_word(tmp_path: Path) -> None:
    _build(tmp_path, [Passage("a", "!!!"), Passage("b", "...")])
    for _ in range(2):  # built, then loaded
        assert BM25Retriever("books", home=tmp_path).search(["!!!", "a"], 2) == [[], []]
    open_store(tmp_path).close()


# The face of a retriever.


def test_what_a_retriever_tells_about_itself(shared_home: Path) -> None:
    retriever = BM25Retriever("three", home=shared_home)
    assert isinstance(retriever, Retriever)
    assert not isinstance(retriever, VectorRetriever)
    assert (kind_of(retriever), retriever.name, retriever.count) == ("lexical", "three", 3)
    assert list(retriever.passages()) == THREE
    assert retriever.get(["c", "a"]) == [THREE[2], THREE[0]]
    with pytest.raises(InputError, match="not in the collection 'three': 'x', 'y'"):
        retriever.get(["a", "x", "y"])
    assert "a" in retriever
    assert "x" not in retriever
    assert copy.copy(retriever) is retriever
    assert copy.deepcopy([retriever])[0] is retriever
    assert repr(retriever) == "BM25Retriever('three', k1=1.5, b=0.75, count=3)"


def test_the_fingerprint_changes_with_what_is_searched(shared_home: Path) -> None:
    def fingerprint(name: str = "three", **settings: Any) -> str:
        return BM25Retriever(name, home=shared_home, **settings).fingerprint

    others = [fingerprint(k1=1.2), fingerprint(b=0.5), fingerprint(where={"source": "nih"}), fingerprint("random")]
    dense = ChromaRetriever("three", embedder=_embedder(shared_home), home=shared_home).fingerprint
    assert fingerprint() == fingerprint()
    assert len({fingerprint(), dense, *others}) == 6


def test_beside_a_dense_retriever_is_the_same(shared_home: Path) -> None:
    where = {"source": "nih"}
    for given in (None, where):
        dense = ChromaRetriever("three", embedder=_embedder(shared_home), home=shared_home, where=given)
        beside, alone = (
            BM25Retriever("three", home=shared_home, where=given, beside=dense),
            BM25Retriever("three", home=shared_home, where=given),
        )
        assert beside.fingerprint == alone.fingerprint
        assert beside.search(["cuff"], 3) == alone.search(["cuff"], 3)
        assert beside.get(["a"])[0] is dense.get(["a"])[0]


# The index on disk.


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many passages each build had."""
    counted: list[int] = []
    build = bm25._build

    def counting(passages: Sequence[Passage], *settings: Any) -> Any:
        counted.append(len(passages))
        return build(passages, *settings)

    monkeypatch.setattr(bm25, "_build", counting)
    return counted


def _indexes(home: Path) -> list[Path]:
    return sorted(path for path in (home / "collections" / "books" / "bm25").iterdir() if path.is_dir())


def _check(home: Path) -> None:
    assert _ids(BM25Retriever("books", home=home).search(["water cuff"], 3)[0]) == ["b", "c", "a"]


def test_it_is_built_once(home: Path, builds: list[int]) -> None:
    done: list[tuple[int, int]] = []
    first = BM25Retriever("books", home=home, progress=lambda n, total: done.append((n, total)))
    second = BM25Retriever("books", home=home, progress=lambda n, total: done.append((n, total)))
    assert builds == [3]
    assert done == [(0, 3), (3, 3)]
    assert first.search(["salt", "cuff"], 3) == second.search(["salt", "cuff"], 3)
    assert sorted(path.name for path in _indexes(home)[0].iterdir()) == sorted([FACTS, *FILES])


def test_other_passages_make_a_new_index_and_remove_the_old(home: Path, builds: list[int]) -> None:
    old = BM25Retriever("books", home=home)
    (before,) = _indexes(home)
    _build(home, [Passage("d", "arm arm")])
    new = BM25Retriever("books", home=home)
    assert builds == [3, 4]
    assert before not in _indexes(home)
    assert len(_indexes(home)) == 1
    assert _ids(old.search(["arm"], 3)[0]) == ["c"]
    assert _ids(new.search(["arm"], 3)[0]) == ["d", "c"]
    assert old.fingerprint != new.fingerprint


@pytest.mark.parametrize("name", [FACTS, *FILES])
@pytest.mark.parametrize("damage", ["missing", "flipped"])
def test_a_damaged_index_is_built_again(home: Path, builds: list[int], name: str, damage: str) -> None:
    _check(home)
    path = _indexes(home)[0] / name
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        middle = len(data) // 2
        flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        path.write_bytes({"short": data[:-3], "empty": b"", "flipped": flipped}[damage])
    _check(home)
    assert builds == [3, 3]
    _check(home)
    assert builds == [3, 3]


class Payload:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (os.environ["QUERYWRIGHT_HOME"] + "/owned",)


def test_nothing_is_unpickled(home: Path, builds: list[int], working_folder: Path) -> None:
    """Also where someone who knows the checksums put the pickle there."""
    _check(home)
    folder = _indexes(home)[0]
    np.save(folder / FILES[0], np.array([Payload()], dtype=object), allow_pickle=True)
    facts = bm25.IndexFacts.read(folder / FACTS)
    assert facts is not None
    facts.model_copy(update={"files": file_digests(folder, FILES)}).write(folder / FACTS)
    _check(home)
    assert builds == [3, 3]
    assert not (working_folder / "owned").exists()


def test_no_room_leaves_it_in_memory(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import bm25s

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(bm25s.BM25, "save", full)
        _check(home)
    assert _indexes(home) == []
    assert "cannot be saved" in caplog.text
    _check(home)
    assert len(_indexes(home)) == 1
