"""``querywright artifact``: what the commands print, write and refuse, and what never gets into an artifact.

Below: programs on other engines, and with a reranker.
"""

from __future__ import annotations

import getpass
import json
import platform
import re
import shutil
import socket
from pathlib import Path

import pytest

from querywright.optimize.artifacts.files import Golden, write_artifact
from querywright.programs import make_program

QUESTION = "What is said about bread and ready meals?"
OPTIONS = ("--option", "salt", "--option", "feet")
KEY, USER, HOST, PLACE = "sk-planted-4b1c7e0d9f2a", "planted-user-5e2a", "planted-host-93c4", "planted-folder-1f8b"
BARE = dict.fromkeys(("embedder", "collection", "engine", "reranker", "fingerprint"))


@pytest.fixture
def hostile(tmp_path):
    """An artifact whose texts would steer a terminal."""
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e[bold red]red[/]\nok: files: all is well"
    program = make_program("hcqr", lambda query, k: [], reader="multiple_choice")
    predictor = program.technique.write_queries
    predictor.signature = predictor.signature.with_instructions(f"Ask. {evil}")
    predictor.demos = [{"question": evil}]
    made = {
        "verdict": evil, "recommended": evil, evil: evil, "comparisons": [{"sentence": evil}],
        "test": [{"arm": evil, "n": 1, "metrics": {evil: {"value": 0.5, "low": None, "high": None, "n": 1}}}],
    }  # fmt: skip
    golden = [Golden(question=evil, options=[evil], answer=evil, passages=[evil])]
    facts = {**BARE, "reranker": evil, "fingerprint": evil}
    write_artifact(tmp_path / "hostile", program, lm=evil, created=evil, made=made, golden=golden, card=evil, **facts)
    return tmp_path / "hostile"


@pytest.fixture
def address(server):
    return ["--api-base", server.address, "--api-key-env", "SCRIPTED_KEY"]


def test_a_compiled_program_is_shown_and_checked(ok, cli, artifact, address, tmp_path):
    shown = ok("artifact", "show", artifact, width=160)
    for text in (
        "made: ", "LM: openai/scripted", "collection: tiny", "Test results (evaluated once)", "baseline", "Prompts",
        "reader.predict", "How it was made", "seed: ", "versions: chromadb",
    ):  # fmt: skip
        assert text in shown.out
    cost = shown.out.partition("\n  cost\n")[2]
    assert re.match(r"(    [a-z ]+\n(      [a-z_]+: [0-9.]*[1-9][0-9.]*\n)+)+  \w", cost), cost
    card = cli("artifact", "show", artifact, "--json").data
    assert (card["collection"], bool(card["scores"])) == ("tiny", True)
    empty = {name for name, value in card["made"].items() if value in (None, {}, [])}
    assert "failed_arms" in empty
    assert not any(re.search(rf"^  {name}\b", shown.out, re.MULTILINE) for name in empty)
    checked = ok("artifact", "verify", artifact, *address, width=160)
    assert "ok: collection: tiny, embedder " in checked.out
    assert "ok: golden answer 3: " in checked.out
    assert cli("artifact", "verify", artifact, *address, "--json").data["ok"] is True

    other = tmp_path / "other"
    shutil.copytree(artifact, other)
    (other / "README.md").write_text("changed")
    broken = cli("artifact", "verify", other, width=160)
    assert (broken.status, "differs: files: README.md was changed" in broken.out) == (2, True)
    assert cli("artifact", "show", other).status == 2


def test_another_program_is_not_replaced_unasked_and_the_same_command_goes_on(
    compiled, cli, artifact, questions, server, tmp_path
):
    made, asked = (artifact / "manifest.json").read_text(), len(server.requests)
    given = ("--collection", "tiny", "--sizes", "3,4,4", "--trials", "2", "--out", artifact, *server.lm)
    for technique, more, said in (
        ("step_back", (), "technique was hcqr, but is now step_back"),
        ("hcqr", ("--seed", "1"), "seed was 0, but is now 1; questions"),
        ("hcqr", ("--max-passages", "2"), "(knobs)"),
    ):
        refused = cli("compile", technique, "--data", questions, *given, *more)
        assert refused.status == 2
        assert said in " ".join(refused.err.split())
        assert "made' contains a program" in refused.err
        assert "--replace" in refused.err
    assert (len(server.requests), (artifact / "manifest.json").read_text()) == (asked, made)
    compiled("hcqr", artifact)
    assert len(server.requests) == asked
    compiled("step_back", artifact, "--replace", "--max-passages", "2", "--max-failures", "0.2")
    assert json.loads((artifact / "manifest.json").read_text())["made"]["technique"] == "step_back"
    assert json.loads((artifact / "program.json").read_text())["knobs"]["max_passages"] == 2


@pytest.mark.parametrize("command", ["show", "show --json", "verify", "verify --json"])
def test_nothing_of_a_hostile_artifact_steers_the_terminal(command, cli, hostile):
    name, *options = command.split()
    done = cli("artifact", name, hostile, *options, width=120)
    assert done.out
    for text in (done.out, done.err):
        assert not re.findall(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
        assert "--json" in options or not any(line.startswith("ok: files: all is well") for line in text.splitlines())
    if command == "show":
        assert not re.findall(r"(?m)^ {0,8}ok: files", done.out)
        assert "[bold red]red[/]" in done.out
    if "--json" in options and name != "verify":
        assert "\\u009b31m" in done.out


def test_no_secret_and_no_name_of_the_machine_is_in_what_is_saved(
    ok, cli, server, questions, collection, tmp_path, monkeypatch
):
    """Planted in every place from which a path, a user, a host or a key could come."""
    place = tmp_path / PLACE
    place.mkdir()
    planted = {"PLANTED_KEY": KEY, "OPENAI_API_KEY": KEY, "HOME": place, "PWD": place, "HOSTNAME": HOST}
    for name, value in {**planted, **dict.fromkeys(("USER", "LOGNAME", "USERNAME"), USER)}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(socket, "gethostname", lambda: HOST)
    monkeypatch.setattr(platform, "node", lambda: HOST)
    data = Path(shutil.copy(questions, place / "questions.jsonl"))
    monkeypatch.chdir(place)
    assert getpass.getuser() == USER
    ok(
        "compile", "hcqr", "--data", data, "--collection", collection, "--out", place / "saved", "--sizes", "3,4,4",
        "--trials", "2", "--lm", "openai/scripted", "--api-base", server.address, "--api-key-env", "PLANTED_KEY",
    )  # fmt: skip
    contents = {path.name: path.read_bytes() for path in (place / "saved").iterdir()}
    assert len(contents) == 4
    words = [KEY, USER, HOST, PLACE, str(tmp_path), tmp_path.name, "127.0.0.1", str(server.server_port),
             str(Path.home()), "PLANTED_KEY"]  # fmt: skip
    assert [(name, one) for name, data in contents.items() for one in words if one.encode() in data] == []


class LongestFirst:
    """Passages by length."""

    id = "ce:some/longest"

    def load(self):
        pass

    def score(self, query, passages):
        return [float(len(passage.content)) for passage in passages]


@pytest.fixture
def longest(monkeypatch):
    monkeypatch.setattr("querywright.retrieval.rerank.resolve_reranker", lambda name: LongestFirst())


def test_compile_on_an_engine_and_ask_and_compare_it_also_over_passages_of_ones_own(
    ok, compiled, collection, passages, questions, server
):
    manifest = json.loads((compiled("plain", "artifacts/hybrid", "--engine", "hybrid") / "manifest.json").read_text())
    assert (manifest["engine"], manifest["collection"], manifest["reranker"]) == ("hybrid", collection, None)
    ok("ask", QUESTION, "--artifact", "artifacts/hybrid", "--verify", *OPTIONS, *server.lm)
    # The engine of --engine is that of techniques; an artifact opens its own.
    done = ok(
        "evaluate", "artifacts/hybrid", "plain", "--data", questions, "--collection", collection, "--engine", "bm25",
        "--limit", "3", "--json", *server.lm,
    )  # fmt: skip
    assert [arm["arm"] for arm in done.data["arms"]] == ["hybrid", "plain"]
    elsewhere = ("--collection", "mine", "--home", "elsewhere")
    ok("index", "mine", passages, "--home", "elsewhere")
    found = ok("ask", QUESTION, "--artifact", "artifacts/hybrid", *elsewhere, *OPTIONS, *server.lm, "--json")
    assert found.data["passages"]
    done = ok(
        "compare", "plain", "artifacts/hybrid", "--data", questions, "--out", "out", "--limit", "3", *elsewhere,
        *server.lm, width=200,
    )  # fmt: skip
    assert f"hybrid was compiled with {collection}, but runs with the given retriever" in " ".join(done.out.split())


def test_a_reranker_orders_what_was_found(ok, collection, server, longest):
    fixed = ("--collection", collection, "--reranker", "some/longest", "--json", *server.lm)
    asked = ok("ask", QUESTION, "--technique", "rerank", *OPTIONS, *fixed)
    lengths = [len(passage["title"]) + len(passage["text"]) for passage in asked.data["passages"]]
    assert lengths == sorted(lengths, reverse=True)
    assert len(lengths) > 2
