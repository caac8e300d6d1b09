"""The main job over Ray, a Chroma server and PostgreSQL, with a process killed in every part of it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from querywright.models.embedder import resolve_embedder
from querywright.models.store import open_store
from querywright.retrieval.collection import collection_folder, published_passages
from querywright.retrieval.generated_questions import RECORDS, questions_folder

CHROMA = [sys.executable, "-c", "from chromadb.cli.cli import app; app()", "run"]
FILLED_UP = 700
"""Passages beside the six, so that there are several batches to embed."""


def children(number: int) -> list[int]:
    """All processes below a process."""
    found, below = [number], list[int]()
    while found:
        with contextlib.suppress(OSError):
            mine = Path(f"/proc/{found[0]}/task/{found[0]}/children").read_text().split()
            found.extend(map(int, mine))
            below.extend(map(int, mine))
        found.pop(0)
    return below


def named(number: int, word: str) -> list[int]:
    """Those processes below a process that are called so."""
    kept = []
    for one in children(number):
        with contextlib.suppress(OSError):
            kept += [one] if word in Path(f"/proc/{one}/cmdline").read_text() else []
    return kept


@pytest.fixture
def chroma_server(tmp_path, studies):
    """A server of an empty Chroma; gives its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = (tmp_path / "chroma.log").open("w")
    command = [*CHROMA, "--path", str(tmp_path / "served"), "--host", "127.0.0.1", "--port", str(port)]
    with log, subprocess.Popen(command, stdout=log, stderr=log) as process:

        def answers():
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return True

        studies.wait_for(answers)
        yield port
        process.kill()


@pytest.fixture
def command(tmp_path, studies, monkeypatch):
    """Runs a command in a process of its own; ``kill`` names one below it that is killed once ``when`` says so."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    started = []

    def run(home, *arguments, kill=None, when=lambda: True):
        environment = {**os.environ, "QUERYWRIGHT_HOME": str(home)}
        given = [sys.executable, "-W", "ignore", "-m", "querywright", *map(str, arguments)]
        out = tmp_path / f"out-{len(started)}"
        with out.open("w") as said:
            process = subprocess.Popen(given, env=environment, stdout=said, stderr=said)
            started.append(process)
            if kill is not None:
                studies.wait_for(lambda: process.poll() is not None or (when() and named(process.pid, kill)), 300)
                assert process.poll() is None, out.read_text()
                os.kill(named(process.pid, kill)[0], signal.SIGKILL)
            assert process.wait(600) == 0, out.read_text()

    yield run
    for one in started:
        one.kill()


def answers(sent):
    """Writes and judges questions; queries and answers are as the prompt's fields have them."""

    def reply(body, fill_in):
        text = sent(body)
        topic = re.search(r"passage: (?:\[1\] )?(\w+):", text)
        if "already_asked" in text or "- questions" in text:
            count = text.partition("already_asked:")[2].count("\n- ")
            return json.dumps({"questions": [f"What of {topic[1]}, case {count + n}?" for n in range(1, 6)]})
        if topic and "case" in text:
            return json.dumps({"reason": f"It speaks of {topic[1]}.", "label": "complete"})
        return fill_in(body)

    return reply


@pytest.mark.slow
def test_the_main_job_over_three_engines_gives_what_one_process_gives(
    command, studies, server, sent, passages, more_questions, postgres, chroma_server, tmp_path
):
    pytest.importorskip("ray", reason="needs the ray extra")
    import chromadb

    rows = passages.read_text() + "".join(
        json.dumps({"id": f"z-{n}", "text": f"Shelf {n} holds the files of street {n * 7} and year {1900 + n % 90}."})
        + "\n"
        for n in range(FILLED_UP)
    )
    passages.write_text(rows)
    server.reply, fill_in = (lambda body: answers(sent)(body, fill_in)), server.reply
    one, many = tmp_path / "one", tmp_path / "many"

    def embedded():
        """Whether a part of the passages is embedded."""
        with contextlib.suppress(sqlite3.OperationalError), sqlite3.connect(many / "store.sqlite") as store:
            (count,) = store.execute("SELECT count(*) FROM querywright_entries WHERE kind LIKE 'vector:%'").fetchone()
            return count > 0
        return False

    build = ("questions", "build", "small", "--num-questions", 10, "--limit", 6, *server.lm)
    spec = {
        "questions": str(more_questions), "sizes": [4, 10, 6], "lm": "openai/scripted", "api_base": server.address,
        "api_key_env": "SCRIPTED_KEY", "fixed": {"max_passages": 2}, "trials": 8, "threads": 2, "pruner": "none",
        "sampler": {"name": "random"}, "objectives": ["accuracy"],
        "techniques": {"rag_fusion": {"knobs": {"n_queries": {"low": 1, "high": 3}}, "search": "named"}},
    }  # fmt: skip

    def study(name, collection):
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump({"name": "job", "collection": collection, **spec}), encoding="utf-8")
        return path

    command(one, "index", "small", passages)
    command(one, *build)
    command(one, "study", "run", study("one", "small"), "--out", tmp_path / "whole")

    command(many, "index", "small", passages, "--workers", 2, kill="ray::_Worker", when=embedded)
    server.requests.clear()
    server.delay = 0.05
    command(many, *build, "--workers", 2, kill="ray::_Worker", when=lambda: len(server.requests) > 9)
    assert (questions_folder("small", many) / RECORDS).read_bytes() == (
        questions_folder("small", one) / RECORDS
    ).read_bytes()

    _, found = published_passages(collection_folder("small", many))
    vectors = resolve_embedder(store=open_store(many)).encode([passage.content for passage in found.values()])
    client = chromadb.HttpClient("127.0.0.1", chroma_server)
    exact = {"space": "cosine", "ef_construction": 400, "ef_search": 1000}  # Chroma's own settings miss some passages
    table = client.create_collection("small", configuration={"hnsw": exact}, embedding_function=None)
    table.add(
        ids=list(found), embeddings=vectors, documents=[passage.text for passage in found.values()],
        metadatas=[{"title": passage.title} for passage in found.values()],
    )  # fmt: skip
    server.requests.clear()
    command(
        many, "study", "run", study("many", f"http://127.0.0.1:{chroma_server}#small"), "--out", tmp_path / "shared",
        "--workers", 2, "--storage", url := postgres.new_database(),
        kill="resume", when=lambda: len(server.requests) > 20,
    )  # fmt: skip
    whole = studies.arms(studies.table(tmp_path / "whole"))
    assert studies.arms(studies.table(tmp_path / "shared", url)) == whole
    assert studies.outcome(tmp_path / "shared", url)["arms"] == studies.outcome(tmp_path / "whole")["arms"]
