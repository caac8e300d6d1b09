"""The embedded models, in processes of their own, without a network: what was compiled here is used there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
EXAMPLE = Path(__file__).parents[2] / "examples" / "load_artifact.py"
GUARD = """
import os, sys

def guard(event, args):
    inner = event == "socket.connect" and isinstance(args[1], tuple)
    if inner or event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        with open(os.environ["OPENED"], "a") as file:
            file.write(f"{event} {args[1:] if inner else args}\\n")
        raise OSError(101, "no network in this test")

sys.addaudithook(guard)
"""
CARDS = [
    {"id": "home", "title": "Readings at home", "text": "Sit for five minutes, take two readings a minute apart in the "
     "morning and evening for a week, and write down the average."},
    {"id": "feet", "title": "Feet", "text": "Look at both feet every evening and show any new sore to the team."},
    {"id": "eyes", "title": "Eyes", "text": "The eye clinic photographs the retina once a year."},
]  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a collection and an artifact as a demo leaves them, but small, and a guard against connections."""
    from querywright.data.types import Passage
    from querywright.models.embedder import resolve_embedder
    from querywright.models.store import open_store
    from querywright.optimize.artifacts.files import Golden, write_artifact
    from querywright.optimize.artifacts.load import load
    from querywright.programs import make_program
    from querywright.retrieval.chroma import ChromaRetriever
    from querywright.retrieval.index import build_collection

    folder = tmp_path_factory.mktemp("place")
    home = folder / ".querywright"
    embedder = resolve_embedder("embedded", store=open_store(home))
    passages = [Passage(card["id"], card["text"], card["title"]) for card in CARDS]
    build_collection("sample", passages, embedder=embedder, home=home)
    retriever = ChromaRetriever("sample", embedder=embedder, home=home)
    folder_of_artifact = folder / "artifacts" / "hcqr-sample"
    program = make_program("plain", retriever, reader="multiple_choice", max_passages=2)
    golden: list[Golden] = []
    for _ in range(2):  # the second time with what the first one answers
        write_artifact(
            folder_of_artifact,
            program,
            lm="embedded:SmolLM2-135M-Instruct",
            embedder=embedder.id,
            collection="sample",
            engine="dense",
            reranker=None,
            fingerprint=retriever.fingerprint,
            created="2026-01-01",
            made={},
            golden=golden,
            card="# hcqr-sample\n",
        )
        asked = ("What photographs the retina?", ["The eye clinic", "A cuff"])
        answer = load(folder_of_artifact, home=home)(*asked)
        passages_found = [passage.id for passage in answer.passages]
        golden = [Golden(question=asked[0], options=asked[1], answer=answer.answer, passages=passages_found)]
    guard = folder / "guard"
    guard.mkdir()
    (guard / "sitecustomize.py").write_text(GUARD)
    return folder


@pytest.fixture
def alone(place):
    """Runs Python in that folder, without a network where the system can take it away; no connection is tried."""

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        opened = place / "opened.txt"
        opened.unlink(missing_ok=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "QUERYWRIGHT", "COV"))}
        done = subprocess.run(
            [*_without_network(), sys.executable, *arguments],
            cwd=place,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
            env={**kept, "PYTHONPATH": str(place / "guard"), "OPENED": str(opened)},
        )
        assert not opened.exists(), opened.read_text()
        return done

    return call


def _without_network() -> list[str]:
    for command in (["unshare", "-n"], ["unshare", "-rn"]):
        if (
            shutil.which("unshare")
            and subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0
        ):
            return command
    return []


def test_the_guard_sees_a_connection(place, alone):
    with pytest.raises(AssertionError, match=r"127\.0\.0\.1"):
        alone("-c", "import socket; socket.socket().connect_ex(('127.0.0.1', 9))")


def test_ask_an_artifact_without_a_network(alone):
    done = alone(
        "-m", "querywright", "ask", "Which reading at home should I write down?",
        "--artifact", "artifacts/hcqr-sample", "--json",
        "--option", "The average of a week of readings", "--option", "The retina",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    answer = json.loads(done.stdout)
    assert answer["passages"][0]["id"] == "home"
    assert len(answer["passages"]) == 2
    assert answer["answer"] in ("The average of a week of readings", "The retina")
    assert answer["fallbacks"] == []


def test_the_example_loads_what_a_demo_wrote(alone):
    done = alone(str(EXAMPLE))
    assert done.returncode == 0, done.stderr
    answer, _, found = done.stdout.strip().partition(" [")
    assert f'"{answer}"' in EXAMPLE.read_text(encoding="utf-8")
    assert "'home'" in found


def test_the_example_has_five_lines_of_python():
    text = EXAMPLE.read_text(encoding="utf-8")
    code = text.partition("import querywright")[1] + text.partition("import querywright")[2]
    statements = [line for line in code.splitlines() if line and not line.startswith((" ", ")"))]
    assert len(statements) <= 5
    assert code.count('", "') + 1 == 4, "four options, as in the sample"
