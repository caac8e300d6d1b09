from __future__ import annotations

import hashlib
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from querywright.data.types import Passage
from querywright.errors import ArtifactError, CollectionError, ModelError
from querywright.models.embedder import Embedder, Vectors
from querywright.models.store import open_store
from querywright.optimize.artifacts.files import read_artifact, write_artifact
from querywright.optimize.artifacts.load import load
from querywright.optimize.artifacts.save import save_compiled
from querywright.optimize.study.compile import CompileSettings, compile_program
from querywright.programs import make_program
from querywright.retrieval.chroma import ChromaRetriever
from querywright.retrieval.engines import open_retriever
from querywright.retrieval.generated_questions import COMPLETE, PassageRecord, WrittenQuestion, publish_questions
from querywright.retrieval.index import build_collection
from querywright.retrieval.types import kind_of

load_module = sys.modules[load.__module__]  # the package gives its name to the function

FACTS = {"lm", "embedder", "collection", "engine", "reranker", "fingerprint", "created", "made"}


class NumberModel:
    """Texts about one number lie close together, but for questions, which lie anywhere."""

    def encode(self, texts: Sequence[str], **options: object) -> Vectors:
        return np.stack([self._vector(text) for text in texts])

    def _vector(self, text: str) -> Vectors:
        number = re.findall(r"\d+", text)[0]
        weight = 0 if text.startswith("What of") else 1 if text.startswith("Nothing") else 4
        vector = weight * _random(f"number {number}") + _random(text)
        return vector / np.linalg.norm(vector)


def _random(text: str) -> Vectors:
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    return np.random.default_rng(seed).normal(size=32).astype(np.float32)


def number_embedder(home: Path, name: str = "numbers") -> Embedder:
    return Embedder(f"st:{name}", NumberModel, dimension=32, store=open_store(home))


@pytest.fixture(scope="module")
def home(tmp_path_factory, make_world):
    home = tmp_path_factory.mktemp("home")
    world = make_world()
    passages = [*world.deciding.values(), *world.others]
    build_collection("cards", passages, embedder=number_embedder(home), home=home)
    yield home
    open_store(home).close()


@pytest.fixture(scope="module")
def saved(home, tmp_path_factory, make_world, make_lm):
    """HCQR compiled on the collection, and saved."""
    splits, lm = make_world().splits, make_lm()
    retriever = ChromaRetriever("cards", embedder=number_embedder(home), home=home)
    compiled = compile_program(
        "hcqr",
        splits,
        retriever=retriever,
        lm=make_lm(),
        knobs={"max_passages": 1},
        settings=CompileSettings(n_trials=5, demo_sizes=(1,), threads=2),
    )
    folder = tmp_path_factory.mktemp("saved") / "hcqr"
    save_compiled(folder, compiled, splits, lm=lm, threads=2)
    return folder


@pytest.fixture
def artifact(saved, tmp_path):
    """A copy that a test may change."""
    return Path(shutil.copytree(saved, tmp_path / "artifact"))


@pytest.fixture
def resolved(monkeypatch, home):
    """Embedders and LMs that are looked for by name: the embedders are ours, the LMs are counted only."""
    names = []

    def embedder(name, **settings):
        names.append(name)
        return number_embedder(home, name)

    def lm(name, **settings):
        names.append(name)
        raise ModelError(f"no {name} in this test")

    monkeypatch.setattr("querywright.models.embedder.resolve_embedder", embedder)
    monkeypatch.setattr(load_module, "resolve_lm", lm)
    return names


def rewrite(folder, **changes):
    """The artifact of the folder, written again by our own hand with other facts."""
    read = read_artifact(folder)
    program = make_program(
        read.state.technique, lambda query, k: [], reader=read.state.reader, **changes.pop("knobs", read.state.knobs)
    )
    facts = read.manifest.model_dump(include=FACTS)
    write_artifact(
        folder, changes.pop("program", program), **{**facts, "golden": read.golden, "card": "# card\n", **changes}
    )


def test_a_loaded_program_answers(saved, home, resolved, make_lm, no_connection):
    loaded = load(saved, lm=make_lm(), home=home)
    prediction = loaded("What of number 4?", ["wrong 4", "right 4"])
    assert prediction.answer == "right 4"
    assert [passage.id for passage in prediction.passages] == ["decides-4"]
    assert resolved == ["numbers"]
    assert "lm='scripted/model', collection='cards'" in repr(loaded)


def test_verify_asks_the_golden_questions(saved, home, resolved, make_lm, make_engine):
    golden = read_artifact(saved).golden
    assert [one.answer for one in golden] == [f"right {n}" for n in (6, 7, 8)]
    engine = make_engine()
    load(saved, lm=make_lm(engine), home=home, verify=True)
    assert {asked.number for asked in engine.asked if asked.step == "reader"} == {6, 7, 8}


def test_verify_notices_other_passages(saved, home, resolved, make_lm):
    def other(query, k):
        return [Passage("else", "Decides 6. Decides 7. Decides 8.")]

    with pytest.raises(ArtifactError, match=r"golden.jsonl line 1: it now finds \['else'\], but found"):
        load(saved, lm=make_lm(), retriever=other, verify=True)


# Everything that is wrong is said before anything is asked.


@pytest.fixture
def refused(home, resolved, make_lm, make_engine, no_connection):
    """Loads what must be refused; nothing may be asked, and no model looked for unless it is said."""

    def refuse(error, message, path, *, looked_for=(), **given):
        engine = make_engine()
        with pytest.raises(error, match=message):
            load(path, **{"lm": make_lm(engine), "home": home, **given})
        assert engine.asked == []
        assert resolved == list(looked_for)

    return refuse


def test_a_collection_that_is_missing_is_refused(artifact, refused, tmp_path):
    refused(
        CollectionError,
        r"needs the collection 'cards', but there is none \(known: none\); build it: querywright index",
        artifact,
        home=tmp_path / "other",
    )


def test_another_embedder_is_refused_before_it_is_looked_for(artifact, refused):
    rewrite(artifact, embedder="st:someone/elses-model")
    refused(CollectionError, "built with the embedder 'st:numbers'.*compiled with 'st:someone/elses-model'", artifact)


def test_a_collection_that_changed_is_refused(artifact, refused, home, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(home, other)
    build_collection("cards", [Passage("new", "New 99.")], embedder=number_embedder(other), home=other)
    open_store(other).close()
    refused(
        ArtifactError,
        "'cards' is not the one the program was compiled on: its fingerprint.*index the original",
        artifact,
        home=other,
        looked_for=["numbers"],
    )


@pytest.mark.parametrize("name", ["../../etc", "/etc", "a/b", "", "A"])
def test_a_name_that_is_no_collections_is_refused(name, artifact, refused):
    rewrite(artifact, collection=name)
    refused(ArtifactError, "cannot be a collection's name", artifact)


def test_a_program_compiled_on_ones_own_retriever_needs_it_again(artifact, refused, make_lm, world):
    rewrite(artifact, collection=None, engine=None, embedder=None)
    refused(ArtifactError, "retriever of your own.*retriever=", artifact)
    assert load(artifact, lm=make_lm(), retriever=world)


# The engine: the artifact names it, and the collection is opened with it.


@pytest.mark.parametrize("engine", ["bm25", "hybrid"])
def test_the_engine_that_the_artifact_names_is_opened(
    engine, tmp_path, home, resolved, make_world, make_lm, make_engine, no_connection
):
    splits = make_world().splits
    retriever = open_retriever("cards", engine=engine, embedder=number_embedder(home), home=home)
    settings = CompileSettings(n_trials=2, demo_sizes=(1,), reader_demo_sizes=(), threads=2)
    compiled = compile_program("plain", splits, retriever=retriever, lm=make_lm(), settings=settings)
    save_compiled(tmp_path / "saved", compiled, splits, lm=make_lm(), threads=2)
    manifest = read_artifact(tmp_path / "saved").manifest
    embedder = None if engine == "bm25" else "st:numbers"
    assert (manifest.engine, manifest.collection, manifest.embedder) == (engine, "cards", embedder)
    assert (manifest.reranker, manifest.fingerprint) == (None, retriever.fingerprint)

    loaded = load(tmp_path / "saved", lm=make_lm(make_engine()), home=home, verify=True)
    found = loaded.program.technique.retriever
    assert (kind_of(found), found.fingerprint) == ("lexical" if engine == "bm25" else engine, retriever.fingerprint)
    assert resolved == ([] if engine == "bm25" else ["numbers"])
    question = "What of number 4?"
    expected = [hit.passage.id for hit in retriever.search([question], 5)[0]]
    assert [passage.id for passage in loaded(question, ["wrong 4", "right 4"]).passages] == expected


@pytest.mark.parametrize(
    ("engine", "again"),
    [
        (
            "questions",
            "what questions fill stored are others; index, build, import or fill them again",
        ),
        ("expanded", "its passages or its questions are others; index, build or import them again"),
    ],
)
def test_questions_that_changed_are_refused_with_their_remedy(engine, again, artifact, refused, tmp_path):
    home = tmp_path / "other"
    embedder = number_embedder(home)
    passages = [Passage("one", "Number 1."), Passage("two", "Number 2.")]
    build_collection("cards", passages, embedder=embedder, home=home)

    def publish(*texts):
        records = [
            PassageRecord(passage.id, passage.text_digest(), "s", (WrittenQuestion(text, COMPLETE),))
            for passage, text in zip(passages, texts, strict=True)
        ]
        publish_questions("cards", records, embedder=embedder, home=home)
        return open_retriever("cards", engine=engine, embedder=embedder, home=home).fingerprint

    named = None if engine == "expanded" else "st:numbers"
    rewrite(artifact, engine=engine, embedder=named, fingerprint=publish("What is 1?", "What is 2?"))
    assert publish("Which is 1?", "What is 2?") != read_artifact(artifact).manifest.fingerprint
    open_store(home).close()
    looked_for = [] if named is None else ["numbers"]
    refused(
        ArtifactError, f"its fingerprint is .*{again} as.*compile again", artifact, home=home, looked_for=looked_for
    )


# The reranker: by the application, or by the name of a hub model.


class Alphabet:
    """Passages by their ids, the last first."""

    id = "ce:some/alphabet"
    loaded = 0

    def load(self):
        self.loaded += 1

    def score(self, query, passages):
        order = sorted(passage.id for passage in passages)
        return [float(order.index(passage.id)) for passage in passages]


@pytest.fixture
def reranked(artifact, home):
    """The artifact of a program that reranks."""

    def write(reranker):
        retriever = ChromaRetriever("cards", embedder=number_embedder(home), home=home)
        program = make_program("rerank", retriever, reader="multiple_choice", reranker=Alphabet())
        rewrite(artifact, program=program, knobs={}, reranker=reranker, golden=[])
        return artifact

    return write


@pytest.fixture
def hub(monkeypatch):
    """The reranker that every name leads to."""
    found = Alphabet()
    monkeypatch.setattr(load_module, "resolve_reranker", lambda name: found)
    return found


def test_a_reranker_can_be_given(reranked, hub, home, resolved, make_lm):
    own = Alphabet()
    path = reranked("path:mine@12345678")
    assert load(path, lm=make_lm(), home=home, reranker=own).program.technique.reranker is own
    assert load(path, lm=make_lm(), home=home, reranker="a/folder").program.technique.reranker is hub
    assert (own.loaded, hub.loaded) == (0, 1)


@pytest.mark.parametrize(
    "name", ["path:mine@12345678", "ce:../../etc", "ce:/etc", "ce:a/b/c", "ce:some/alphabet#64", "x"]
)
def test_a_reranker_that_cannot_be_had_by_its_name_must_be_given(name, reranked, hub, home, resolved, make_lm):
    with pytest.raises(ArtifactError, match="cannot be had by its name alone; give reranker="):
        load(reranked(name), lm=make_lm(), home=home)
    assert hub.loaded == 0


def test_a_reranker_for_a_program_that_does_not_rerank_is_refused(artifact, refused):
    refused(ArtifactError, "does not rerank; leave the reranker out", artifact, reranker=Alphabet())


# The LM: by the application, or by a name that holds no address.


@pytest.mark.parametrize(
    ("recorded", "looked_for"),
    [
        ("embedded:SmolLM2-135M-Instruct", "embedded"),
        ("openai/gpt-4o-mini", "openai/gpt-4o-mini"),
        ("openrouter/meta-llama/llama-3:free@2", "openrouter/meta-llama/llama-3:free@2"),
    ],
)
def test_the_lm_that_the_artifact_names_is_looked_for(recorded, looked_for, artifact, world, resolved):
    rewrite(artifact, lm=recorded)
    with pytest.raises(ModelError, match="in this test"):
        load(artifact, retriever=world)
    assert resolved == [looked_for]


@pytest.mark.parametrize(
    "recorded",
    [
        "gguf:/etc/model.gguf",
        "gguf:m/m.gguf",
        "huggingface/https://evil.example",
        "openai//evil",
        "no-provider",
        "a/b c",
    ],
)
def test_an_lm_that_cannot_be_had_by_its_name_must_be_given(recorded, artifact, world, resolved, make_lm):
    rewrite(artifact, lm=recorded)
    with pytest.raises(ArtifactError, match="give lm="):
        load(artifact, retriever=world)
    assert resolved == []
    assert load(artifact, retriever=world, lm=make_lm())
