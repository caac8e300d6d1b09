from __future__ import annotations

import copy
import gc
import hashlib
import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from querywright.data.types import Passage
from querywright.errors import CollectionError, InputError
from querywright.models.embedder import Embedder, Vectors
from querywright.models.store import open_store
from querywright.retrieval.chroma import ChromaRetriever
from querywright.retrieval.index import build_collection
from querywright.retrieval.types import Hit, Retriever

DIMENSION = 32
COUNT = 400


class HashModel:
    """Random but repeatable vectors."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def encode(self, texts: Sequence[str], **options: object) -> Vectors:
        self.calls.append(list(texts))
        return np.stack([self.vector(text) for text in texts])

    @staticmethod
    def vector(text: str) -> Vectors:
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
        vector = np.random.default_rng(seed).normal(size=DIMENSION).astype(np.float32)
        return vector / np.linalg.norm(vector)


def _embedder(home: Path, model: HashModel | None = None, id: str = "hash:32") -> Embedder:
    return Embedder(id, lambda: model or HashModel(), dimension=DIMENSION, store=open_store(home))


PASSAGES = [
    Passage(
        f"p{number:03}",
        f"text {number}",
        "Title" if number % 2 else "",
        {"n": number, "third": number % 3 == 0},
    )
    for number in range(COUNT)
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("home")
    build_collection("books", PASSAGES, embedder=_embedder(home), home=home)
    yield home
    open_store(home).close()


@pytest.fixture
def retriever(home: Path) -> ChromaRetriever:
    return ChromaRetriever("books", embedder=_embedder(home), home=home)


@pytest.fixture
def own_home(home: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy that a test may damage."""
    open_store(home).close()
    shutil.copytree(home, tmp_path / "home")
    yield tmp_path / "home"
    open_store(tmp_path / "home").close()


def _exact(query: str, k: int, passages: Sequence[Passage] = PASSAGES) -> tuple[list[str], list[float]]:
    vectors = np.stack([HashModel.vector(passage.content) for passage in passages] or [np.zeros(DIMENSION)])
    scores = vectors @ HashModel.vector(query)
    best = sorted(range(len(passages)), key=lambda row: (-scores[row], passages[row].id))[:k]
    return [passages[row].id for row in best], [float(scores[row]) for row in best]


def _ids(hits: Sequence[Hit]) -> list[str]:
    return [hit.passage.id for hit in hits]


def test_search_equals_exact_search(retriever: ChromaRetriever) -> None:
    queries = [f"query {number}" for number in range(100)]
    for query, hits in zip(queries, retriever.search(queries, 10), strict=True):
        ids, scores = _exact(query, 10)
        assert _ids(hits) == ids
        assert [hit.score for hit in hits] == pytest.approx(scores, abs=1e-5)
        assert [hit.rank for hit in hits] == list(range(1, 11))


def test_one_batch_and_one_call_for_all_queries(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = HashModel()
    retriever = ChromaRetriever("books", embedder=Embedder("hash:32", lambda: model, dimension=DIMENSION), home=home)
    model.calls.clear()
    calls: list[int] = []
    query = retriever._index._table.query

    def spy(**options: Vectors) -> object:
        calls.append(len(options["query_embeddings"]))
        return query(**options)

    monkeypatch.setattr(retriever._index, "_table", type("Table", (), {"query": staticmethod(spy)}))
    assert len(retriever.search(["a", "b", "a", "c"], 3)) == 4
    assert model.calls == [["a", "b", "c"]]
    assert calls == [4]


@pytest.mark.parametrize(
    ("search", "message"),
    [
        (lambda r: r.search(["a"], 0), "k must be 1 or more, but got 0"),
        (lambda r: r.search("a", 3), r"list of queries.*write \[query\]"),
        (lambda r: r.search_vectors(np.ones((1, 5)), 3), r"shape \(n, 32\), but got \(1, 5\)"),
        (lambda r: r.search_vectors(np.ones(DIMENSION), 3), r"but got \(32,\)"),
        (lambda r: r.search_vectors(np.zeros((1, DIMENSION)), 3), "finite and not zero"),
        (lambda r: r.search_vectors(np.full((1, DIMENSION), np.nan), 3), "finite and not zero"),
        (lambda r: r.get(["p001", "nope", "neither"]), "not in the collection 'books': 'nope', 'neither'"),
    ],
)
def test_bad_requests(retriever: ChromaRetriever, search: Callable[[ChromaRetriever], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        search(retriever)


@pytest.mark.parametrize(
    ("where", "keep"),
    [
        ({"n": {"$lt": 20}}, lambda passage: passage.metadata["n"] < 20),
        ({"third": True}, lambda passage: passage.metadata["third"]),
        (
            {"third": True, "n": {"$gte": 300}},
            lambda passage: passage.metadata["third"] and passage.metadata["n"] >= 300,
        ),
        ({"n": 5}, lambda passage: passage.metadata["n"] == 5),
        ({"n": -1}, lambda passage: False),
    ],
)
def test_a_filter_over_metadata_is_exact(home: Path, where: dict[str, object], keep: Callable[[Passage], bool]) -> None:
    kept = [passage for passage in PASSAGES if keep(passage)]
    retriever = ChromaRetriever("books", embedder=_embedder(home), home=home, where=where)
    for query in ("one query", "another"):
        (hits,) = retriever.search([query], 12)
        assert _ids(hits) == _exact(query, 12, kept)[0]


def test_equal_passages_come_in_the_order_of_their_ids(tmp_path: Path) -> None:
    twins = [Passage(f"twin-{letter}", "the same words") for letter in "dbeac"]
    passages = [*twins, *PASSAGES[:50]]
    embedder = _embedder(tmp_path)
    build_collection("twins", passages, embedder=embedder, home=tmp_path)
    retriever = ChromaRetriever("twins", embedder=embedder, home=tmp_path)
    for k in range(1, 6):
        assert _ids(retriever.search(["the same words"], k)[0]) == [f"twin-{letter}" for letter in "abcde"[:k]]
    open_store(tmp_path).close()


def test_what_a_retriever_tells_about_itself(home: Path, retriever: ChromaRetriever) -> None:
    assert isinstance(retriever, Retriever)
    assert retriever.count == COUNT
    assert list(retriever.passages()) == PASSAGES
    assert retriever.get(["p003", "p001"]) == [PASSAGES[3], PASSAGES[1]]
    assert "p001" in retriever
    assert "nope" not in retriever
    assert copy.deepcopy(retriever) is retriever
    assert copy.copy(retriever) is retriever


def test_the_fingerprint_changes_with_what_is_searched(home: Path, retriever: ChromaRetriever) -> None:
    again = ChromaRetriever("books", embedder=_embedder(home), home=home)
    filtered = ChromaRetriever("books", embedder=_embedder(home), home=home, where={"third": True})
    build_collection("fewer", PASSAGES[1:], embedder=_embedder(home), home=home)
    build_collection("other", PASSAGES, embedder=_embedder(home), home=home)
    fewer = ChromaRetriever("fewer", embedder=_embedder(home), home=home)
    other = ChromaRetriever("other", embedder=_embedder(home), home=home)
    assert again.fingerprint == retriever.fingerprint
    assert len({one.fingerprint for one in (retriever, filtered, fewer, other)}) == 4


def test_a_missing_collection_names_the_known(home: Path) -> None:
    with pytest.raises(
        CollectionError, match=r"no collection 'bookz' \(known: .*books.*\); build it: querywright index"
    ):
        ChromaRetriever("bookz", embedder=_embedder(home), home=home)


def test_another_embedder_is_refused_without_loading_it(home: Path) -> None:
    def load() -> HashModel:
        raise AssertionError("the model was loaded")

    with pytest.raises(CollectionError, match=r"embedder 'hash:32', but the one given is 'other'"):
        ChromaRetriever("books", embedder=Embedder("other", load, dimension=DIMENSION), home=home)
    with pytest.raises(CollectionError, match=r"vectors of 32 numbers, the embedder 'hash:32' makes 16"):
        ChromaRetriever("books", embedder=Embedder("hash:32", load, dimension=16), home=home)


def _only(folder: Path, pattern: str) -> Path:
    (path,) = folder.glob(pattern)
    return path


def _segment(folder: Path) -> Path:
    return _only(folder, "generation-1/chroma/*/index_metadata.pickle").parent


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _sql(folder: Path, statement: str) -> None:
    connection = sqlite3.connect(folder / "generation-1" / "chroma" / "chroma.sqlite3")
    connection.execute(statement)
    connection.commit()
    connection.close()


def _edit_manifest(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "embedder": "other"}))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "segment deleted": (lambda f: shutil.rmtree(_segment(f)), "damaged or missing"),
    "segment metadata deleted": (
        lambda f: (_segment(f) / "index_metadata.pickle").unlink(),
        "damaged or missing",
    ),
    "one bit of the vectors": (lambda f: _flip(_segment(f) / "data_level0.bin"), "damaged or missing"),
    "one bit of the links": (lambda f: _flip(_segment(f) / "link_lists.bin"), "damaged or missing"),
    "folder deleted": (lambda f: shutil.rmtree(f / "generation-1" / "chroma"), "damaged or missing"),
    "database deleted": (lambda f: (f / "generation-1" / "chroma" / "chroma.sqlite3").unlink(), "damaged or missing"),
    "database empty": (
        lambda f: (f / "generation-1" / "chroma" / "chroma.sqlite3").write_bytes(b""),
        "cannot be opened",
    ),
    "database garbage": (
        lambda f: (f / "generation-1" / "chroma" / "chroma.sqlite3").write_bytes(b"x" * 9999),
        "cannot be opened",
    ),
    "rows deleted": (
        lambda f: _sql(f, "DELETE FROM embeddings WHERE id % 2 = 0"),
        "it holds 200 passages by 'cosine', 400 by",
    ),
    "segments deleted": (lambda f: _sql(f, "DELETE FROM segments"), "cannot be read"),
    "passages edited": (
        lambda f: _flip(f / "generation-1" / "passages.jsonl"),
        "passages.jsonl of the collection 'books' is damaged",
    ),
    "passages deleted": (
        lambda f: (f / "generation-1" / "passages.jsonl").unlink(),
        "passages.jsonl of the collection 'books' is missing",
    ),
    "manifest edited": (_edit_manifest, "its checksum does not fit"),
    "manifest cut": (
        lambda f: os.truncate(f / "manifest.json", 100),
        "the manifest of the collection 'books' is damaged",
    ),
    "manifest no object": (lambda f: (f / "manifest.json").write_text("[1]"), "is damaged"),
    "all deleted": (lambda f: shutil.rmtree(f / "generation-1"), "the generation of the collection 'books' is missing"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_refused_and_named(own_home: Path, name: str) -> None:
    damage, message = DAMAGES[name]
    damage(own_home / "collections" / "books")
    with pytest.raises(CollectionError, match=message) as caught:
        ChromaRetriever("books", embedder=_embedder(own_home), home=own_home)
    assert "querywright index" in str(caught.value)


def test_readers_keep_their_generation_while_a_new_one_is_published(own_home: Path) -> None:
    embedder = _embedder(own_home)
    folder = own_home / "collections" / "books"
    old = ChromaRetriever("books", embedder=embedder, home=own_home)
    build_collection("books", [Passage("p000", "changed")], embedder=embedder, home=own_home)
    new = ChromaRetriever("books", embedder=embedder, home=own_home)

    assert old.search([PASSAGES[0].content], 1)[0][0].passage == PASSAGES[0]
    assert new.search(["changed"], 1)[0][0].passage == Passage("p000", "changed")
    assert old.fingerprint != new.fingerprint
    assert (folder / "generation-1").exists()
    del old
    gc.collect()
    build_collection("books", [Passage("p000", "changed")], embedder=embedder, home=own_home)
    assert [path.name for path in folder.glob("*-*")] == ["generation-2"]
    assert new.search(["changed"], 1)[0][0].score == pytest.approx(1, abs=1e-5)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_is_refused_at_once(retriever: ChromaRetriever, home: Path) -> None:
    retriever.search(["query"], 1)
    child = os.fork()
    if child == 0:
        refused = 0
        try:
            retriever.search(["query"], 1)
        except CollectionError as error:
            refused += "'spawn'" in str(error)
        try:
            ChromaRetriever("books", embedder=retriever.embedder, home=home)
        except CollectionError as error:
            refused += "'spawn'" in str(error)
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    assert retriever.search(["query"], 1)
