"""Collections of Chroma that others made, searched where they lie; nothing is written into them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import chromadb
import httpx
import numpy as np
import pytest

import querywright as qw
from querywright.errors import CollectionError, InputError, ModelError
from querywright.models.embedder import resolve_embedder
from querywright.models.store import open_store
from querywright.programs import make_program
from querywright.retrieval import addresses
from querywright.retrieval.callable import as_retriever
from querywright.retrieval.chroma import ChromaRetriever, ForeignChromaRetriever
from querywright.retrieval.engines import open_retriever

TEXTS = {
    "heart": "The heart pumps blood through the body.",
    "lung": "The lungs take in oxygen and give off carbon dioxide.",
    "tea": "Tea is drunk hot in the afternoon.",
}


@pytest.fixture(autouse=True)
def _home(monkeypatch, tmp_path):
    monkeypatch.setenv("QUERYWRIGHT_HOME", str(tmp_path / "home"))
    yield
    open_store(tmp_path / "home").close()


@pytest.fixture(scope="module")
def embedder():
    return resolve_embedder()


@pytest.fixture(scope="module")
def fill(embedder):
    """Fills a client as LangChain (langchain-chroma 1.1) and LlamaIndex (llama-index-vector-stores-chroma 0.6) do."""

    def both(client):
        lang = client.get_or_create_collection("langchain", embedding_function=None, metadata=None, configuration=None)
        told = [{"source": f"{name}.txt", "title": name, "topic": name} for name in TEXTS]
        lang.upsert(
            ids=[f"00000000-0000-4000-8000-{number:012}" for number in range(3)],
            documents=list(TEXTS.values()),
            embeddings=embedder.encode(list(TEXTS.values())).tolist(),
            metadatas=told,
        )
        llama = client.get_or_create_collection("llamaindex")  # whose vectors Chroma's default did not make
        rows = [
            {
                "file_name": f"{name}.txt",
                "topic": name,
                "_node_content": json.dumps({"id_": name, "text": "", "class_name": "TextNode"}),
                "_node_type": "TextNode",
                "document_id": name,
                "doc_id": name,
                "ref_doc_id": name,
            }
            for name in TEXTS
        ]
        embedded = [f"file_name: {name}.txt\ntopic: {name}\n\n{text}" for name, text in TEXTS.items()]
        vectors = embedder.encode(embedded).tolist()
        llama.add(
            embeddings=vectors, ids=[f"node-{name}" for name in TEXTS], metadatas=rows, documents=[*TEXTS.values()]
        )

    return both


@pytest.fixture
def folder(tmp_path, fill):
    fill(chromadb.PersistentClient(str(tmp_path / "shelf")))
    return tmp_path / "shelf"


@pytest.fixture
def server(tmp_path):
    """The address of a Chroma server, and its process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-c",
        "from chromadb.cli.cli import app; app()",
        "run",
        "--path",
        str(tmp_path / "served"),
    ]
    process = subprocess.Popen([*command, "--host", "127.0.0.1", "--port", str(port)], stdout=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    while True:
        try:
            httpx.get(f"{address}/api/v2/heartbeat").raise_for_status()
            break
        except httpx.HTTPError:
            assert process.poll() is None
            time.sleep(0.1)
    yield address, process
    process.kill()
    process.wait()


def snapshot(folder):
    """Bytes and times of all that is in a folder."""
    return {
        path.relative_to(folder): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in [folder, *folder.rglob("*")]
    }


def collection(name="own", vectors=(), **options):
    client = chromadb.EphemeralClient()
    if name in [one.name for one in client.list_collections()]:
        client.delete_collection(name)
    made = client.create_collection(name, **options)
    if len(vectors):
        made.add(
            ids=[str(n) for n in range(len(vectors))], documents=[*TEXTS.values()][: len(vectors)], embeddings=vectors
        )
    return made


@pytest.mark.parametrize("name", ["langchain", "llamaindex"])
def test_what_others_wrote_is_searched_as_it_is_and_left_as_it_is(folder, name):
    before = snapshot(folder)
    os.chmod(folder / "chroma.sqlite3", 0o400)
    os.chmod(folder, 0o500)
    for where, ids in ((None, 2), ({"topic": "tea"}, 1)):
        retriever = open_retriever(f"{folder}#{name}", embedder=resolve_embedder(), where=where)
        assert isinstance(retriever, ForeignChromaRetriever)
        found = make_program("plain", retriever, max_passages=2)(question="What pumps blood?").passages
        assert [len(found), found[0].text] == [ids, TEXTS["tea" if where else "heart"]]
        assert found[0].title == (found[0].metadata["topic"] if name == "langchain" else "")
        assert {"topic", "_node_content"} & found[0].metadata.keys() == {"topic"}
    assert [one.text for one in retriever.passages()] == list(TEXTS.values())
    os.chmod(folder, 0o700)
    assert snapshot(folder) == before


def test_a_collection_is_what_every_entrance_takes(tmp_path, embedder):
    table = collection(vectors=embedder.encode(list(TEXTS.values())), embedding_function=None)
    rows = [{"id": "q", "question": "What pumps blood?", "answer": "heart", "evidence": {"0": "ENTAILED"}}]
    found = make_program("plain", table, max_passages=1)(question="What pumps blood?")
    assert [one.id for one in found.passages] == ["0"]
    options = {"retriever": table, "reader": None, "metrics": ["recall@1"], "home": tmp_path / "home"}
    compared = qw.compare(["plain"], rows, references=False, **options)
    assert compared.arms[0].average("recall@1") == 1
    with pytest.raises(InputError, match=r'filter {"topic": "none"} matches 0 of 3 .* metadata key \'topic\''):
        qw.evaluate("plain", rows, where={"topic": "none"}, **options)
    assert (table.count(), table.metadata) == (3, None)
    with pytest.raises(InputError, match="where= works only with a collection, but got the retriever"):
        qw.evaluate("plain", rows, **options | {"retriever": as_retriever(table)}, where={"a": 1})


def test_a_server_two_clients_at_once_and_its_end(server, fill):
    address, process = server
    fill(chromadb.HttpClient(port=int(address.rpartition(":")[2])))
    both = [ChromaRetriever(f"{address}#langchain"), ChromaRetriever(f"{address}/#llamaindex")]
    with ThreadPoolExecutor(8) as pool:
        lists = list(pool.map(lambda n: both[n % 2].search([f"What pumps blood? {n}", "hot tea"], 2), range(40)))
    assert {one[0][0].passage.text for one in lists} == {TEXTS["heart"]}
    assert {one[1][0].passage.text for one in lists} == {TEXTS["tea"]}
    with pytest.raises(CollectionError, match="available: langchain, llamaindex"):
        ChromaRetriever(f"{address}#lang")
    with pytest.raises(CollectionError, match=r"has the collections langchain, llamaindex; choose one with .*#NAME"):
        ChromaRetriever(address)
    process.kill()
    process.wait()
    for use in (lambda: both[0].search(["tea"], 1), lambda: both[0].get(["x"]), lambda: both[0].count):
        with pytest.raises(CollectionError, match=r"'langchain' cannot be read .*; check that its server is running"):
            use()
    with pytest.raises(CollectionError, match=r"no Chroma server responds at http.* with chroma run --path"):
        ChromaRetriever(f"{address}#langchain")


def test_a_server_that_is_silent_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(addresses, "HEARTBEAT_SECONDS", 0.2)
    said = r"no Chroma server responds .*timed out"
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(CollectionError, match=said):
        ChromaRetriever(f"http://127.0.0.1:{silent.getsockname()[1]}#any")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("{here}#any", r"has no Chroma data \(no chroma.sqlite3\); use FOLDER#NAME"),
        ("ftp://somewhere#any", "is not the address of a Chroma server"),
        ("http://somewhere/tenant/database#any", "only a host and a port.*--retriever MODULE:FUNCTION"),
    ],
)
def test_wrong_addresses(tmp_path, address, said):
    with pytest.raises(InputError, match=said):
        ChromaRetriever(address.format(here=tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_vectors_of_another_model_are_told_before_the_first_search():
    random = np.random.default_rng(0).normal(size=(3, 384))
    for vectors, said in (
        (
            random[:, :16],
            "have 16 dimensions instead of the 384 from the embedder 'embedded:.*', and the collection has no emb",
        ),
        (random, r"do not match the vectors for the same texts \(cosine -?0.0.* from the embedder "),
    ):
        for options in ({"embedding_function": None}, {}):  # Chroma's default is only what nobody chose
            with pytest.raises(CollectionError, match=f"{said}.*embedder=.*--retriever MODULE:FUNCTION"):
                make_program("plain", collection(vectors=vectors, **options))
    given = SimpleNamespace(id="given", dimension=384, encode=lambda texts: random[: len(texts)])
    with pytest.raises(CollectionError, match="have 16 dimensions instead of the 384 from the embedder 'given'"):
        ChromaRetriever(collection(vectors=random[:, :16]), embedder=given)
    assert ChromaRetriever(collection(vectors=random), embedder=given).search(["x"], 1)[0][0].passage.id == "0"


def test_an_embedding_function_that_lacks_something_says_so(monkeypatch):
    from chromadb.utils.embedding_functions import OpenAIEmbeddingFunction

    monkeypatch.setenv("CHROMA_OPENAI_API_KEY", "sk-none")
    function = OpenAIEmbeddingFunction(api_key_env_var="CHROMA_OPENAI_API_KEY")
    collection(vectors=np.eye(3), embedding_function=function)
    monkeypatch.delenv("CHROMA_OPENAI_API_KEY")
    kept = chromadb.EphemeralClient().get_collection("own", embedding_function=None)
    with pytest.raises(
        ModelError, match=r"'openai' of the collection 'own' cannot be used .*API_KEY.*API key.*embedder="
    ):
        ChromaRetriever(kept).search(["tea"], 1)


def test_what_cannot_be_searched():
    async def get():
        return {}

    asynchronous = SimpleNamespace(query=get, get=get, count=get, modify=get)
    bare = collection("bare")
    bare.add(ids=["a"], embeddings=[[1.0, 2.0]])
    for wrong, said in (
        (7, "int is not a retriever"),
        (collection("nothing"), "'nothing' is empty"),
        (bare, "'bare' has no documents"),
        (asynchronous, "belongs to an async client; open the collection with chromadb.HttpClient"),
    ):
        with pytest.raises(InputError, match=said):
            as_retriever(wrong)


def test_records_without_a_document_are_skipped_and_counted(embedder, caplog):
    table = collection(embedding_function=None)
    vectors = embedder.encode(list(TEXTS.values()))
    table.add(ids=[f"empty {n}" for n in range(9)], embeddings=vectors[[0] * 9])
    table.add(ids=[*TEXTS], documents=[*TEXTS.values()], embeddings=vectors)
    retriever = ChromaRetriever(table)
    nearest = [hit.passage.id for hit in retriever.search([TEXTS["heart"]], 2)[0]]
    assert (nearest[0], len(nearest), nearest[1] in TEXTS) == ("heart", 2, True)
    assert len(retriever.search(["tea"], 50)[0]) == len(TEXTS)
    assert [one.id for one in retriever.passages()] == [*TEXTS]
    assert ("tea" in retriever, "empty 1" in retriever) == (True, False)
    with pytest.raises(InputError, match="not in the collection 'own': 'empty 1'"):
        retriever.get(["tea", "empty 1"])
    told = [one.getMessage() for one in caplog.records]
    assert told == [
        "skipping records without a document in the Chroma collection 'own'",
        "skipping records without a document in the Chroma collection 'own' (9 of 12)",
    ]
