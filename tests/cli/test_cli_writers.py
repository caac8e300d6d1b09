"""An LM that writes beside the one that reads, in every command that names a technique."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from querywright.models.response_parsing import text_response
from querywright.models.rewriters import Rewriter

small_rewriter = runpy.run_path(str(Path(__file__).parents[1] / "small_rewriter.py"))["small_rewriter"]
QUESTION = "What is said about bread and ready meals?"
OPTIONS = ("--option", "salt", "--option", "feet")


class WritingEngine:
    """In the place of the model: every text that it writes leads to the passage about feet."""

    deterministic = decides_by_likelihood = supports_response_schema = True
    supported_params = frozenset({"temperature", "max_tokens", "response_format", "seed"})

    def __init__(self, rewriter: Rewriter, asked: list[Any]) -> None:
        self.rewriter, self.identity, self.asked = rewriter, rewriter.identity, asked

    def __deepcopy__(self, memo: dict[int, Any]) -> WritingEngine:
        return self

    @property
    def answers_identity(self) -> str:
        return self.identity

    def complete(self, request: Any) -> Any:
        self.asked.append(self.identity)
        form = request.config.response_format
        inner = form.get("json_schema", form)
        fields = inner.get("schema", inner)["properties"]
        text = "feet every evening sore"
        return text_response(
            json.dumps({name: [text] if one.get("type") == "array" else text for name, one in fields.items()}),
            "stop", request.model, 10, 5,
        )  # fmt: skip


@pytest.fixture
def trained(home: Path, tmp_path: Path) -> Rewriter:
    return small_rewriter(tmp_path / "trained" / "mine")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Whom of the rewriters was asked, call by call."""
    requests: list[Any] = []
    monkeypatch.setattr("querywright.models.lm.rewriter_engine", lambda one, _: WritingEngine(one, requests))
    return requests


def test_evaluate_counts_the_calls_of_both_and_notes_what_was_not_learnt(
    cli: Any, questions: Path, collection: str, server: Any, trained: Rewriter, asked: list[Any]
) -> None:
    def evaluated(*arms: str, more: Any = (), limit: str = "2") -> Any:
        reads = ("--limit", limit, "--reader", "none")
        return cli(
            "evaluate", *arms, "--data", questions, "--collection", collection, *reads, *server.lm, *more, width=200
        )

    found = evaluated("plain", "rrr:writer=none", "rrr", more=("--writer-lm", trained.path, "--json"))
    assert found.status == 0, found.err
    assert [arm["cost"]["calls"] for arm in found.data["arms"]] == [0, 2, 2]
    assert (len(server.requests), len(asked)) == (2, 2)
    assert f"rrr: writer LM {trained.identity}, reader LM openai/scripted" in found.data["notes"]
    assert "LM calls: 0 made (2 cached)" in evaluated("plain", f"rrr:writer={trained.path}").out
    said = f"the rewriter {trained.name!r} was trained for rrr, but not for"
    told = evaluated("plain", "rrr", "hcqr", "step_back", more=("--writer-lm", trained.path), limit="1")
    assert f"{said} hcqr, step_back; before you use the rewriter" in told.err
    assert told.err.count(said) == 1
    assert said not in evaluated("plain", "rrr", more=("--writer-lm", trained.path), limit="1").err


def test_a_writer_beside_a_technique_that_asks_no_lm_is_refused_before_anything_is_asked(
    cli: Any, questions: Path, collection: str, server: Any, trained: Rewriter
) -> None:
    given = ("--collection", collection, "--writer-lm", trained.path, *server.lm)
    found = cli("compile", "plain", "--data", questions, "--out", "o", *given, width=500)
    assert (found.status, "no technique here calls an LM before the reader" in " ".join(found.err.split())) == (
        2,
        True,
    )
    assert server.requests == []


@pytest.fixture
def riddles(write: Any, rows_of_questions: Any) -> Path:
    """Questions whose own words lead nowhere, and what the rewriter writes to the passage that decides."""
    return write("riddles.jsonl", [
        {
            **row, "question": f"Riddle {number}, salt or what?", "answer": "feet", "options": ["salt", "feet"],
            "evidence": {"p-feet": "ENTAILED"},
        }
        for number, row in enumerate(rows_of_questions(8))
    ])  # fmt: skip


def test_an_artifact_is_asked_shown_and_evaluated_with_its_rewriter(
    ok: Any, cli: Any, riddles: Path, collection: str, server: Any, trained: Rewriter, asked: list[Any]
) -> None:
    made = ok("compile", "rrr", "--data", riddles, "--collection", collection, "--out", "artifacts/mine", "--writer-lm",
        trained.path, "--sizes", "3,8,12", "--trials", "2", "--knob", "max_passages=1", *server.lm)  # fmt: skip
    assert f"rrr compiled: writer LM {trained.identity}, reader LM openai/scripted" in " ".join(made.out.split())
    name = f"mine@{trained.checksum[:12]}"
    assert f"writer: {name}" in cli("artifact", "show", "artifacts/mine").out
    for path in trained.path.iterdir():
        path.unlink()
    found = cli("ask", "Riddle 3?", "--artifact", "artifacts/mine", "--trace", *OPTIONS, *server.lm)
    assert (found.status, trained.identity in found.out) == (0, True), found.err
    limited = cli("ask", "Riddle of a limit?", "--artifact", "artifacts/mine", "--max-calls", "1", *OPTIONS, *server.lm)
    assert (limited.status, "reached the limit of 1 LM calls" in " ".join(limited.err.split())) == (3, True)
    verified = cli("artifact", "verify", "artifacts/mine", *server.lm[2:])
    assert (verified.status, f"ok: writer: {name}" in verified.out) == (0, True), verified.out
    evaluated = cli("evaluate", "artifacts/mine", "--data", riddles, "--limit", "2", "--json", *server.lm)
    assert f"mine: writer LM {trained.identity}, reader LM openai/scripted" in evaluated.data["notes"]


def test_a_study_chooses_between_its_rewriters_and_its_programs_name_one(
    ok: Any, cli: Any, study_file: Callable[..., Path], riddles: Path, server: Any, trained: Rewriter, asked: list[Any],
    tmp_path: Path,
) -> None:  # fmt: skip
    other = small_rewriter(tmp_path / "other", seed=1)
    changes = {
        "questions": str(riddles), "writers": [str(trained.path), str(other.path)],
        "techniques": {"rrr": {"search": "named"}}, "trials": 8,
    }  # fmt: skip
    file = study_file("mine", **changes)
    assert cli("study", "check", file).status == 0
    assert not asked
    ok("study", "run", file, "--out", "studies/mine")
    assert set(asked) == {trained.identity, other.identity}
    prompts = {json.dumps(body["messages"]) for body in server.requests}
    assert not any("search queries" in one for one in prompts), "the LM reads and writes nothing"
    manifests = [json.loads(path.read_text()) for path in Path("studies/mine/artifacts").glob("*/manifest.json")]
    named = {one["technique"]: one["writer"] for one in manifests}
    assert named["plain"] is None
    assert named["rrr"] in [{"name": one.path.name, "checksum": one.checksum} for one in (trained, other)]
    status = json.loads(cli("study", "status", "studies/mine", "--json").out)
    assert status["spent"]["calls"]["made"] == len(asked) + len(server.requests)


def test_a_writer_behind_an_address_of_its_own_is_asked_there_with_its_own_key(
    cli: Any, collection: str, server: Any, chat_server: Any, monkeypatch: Any
) -> None:
    monkeypatch.setenv("WRITER_KEY", "sk-the-writers-own-key-98765")
    other = chat_server('{"thought": "feet", "queries": ["feet every evening sore"]}')
    elsewhere = ("--writer-lm", "openai/other", "--writer-api-base", other.url, "--writer-api-key-env", "WRITER_KEY")
    command = ("ask", QUESTION, "--technique", "rrr", "--collection", collection, *OPTIONS, *server.lm)
    found = cli(*command, *elsewhere, "--json")
    assert found.status == 0, found.err
    assert found.data["passages"][0]["id"] == "p-feet"
    assert [step["lm"] for step in found.data["steps"]] == ["openai/other", None]
    assert (other.count, len(server.requests)) == (1, 1)
    assert other.headers[0]["Authorization"] == "Bearer sk-the-writers-own-key-98765"
    assert "sk-the-writers" not in json.dumps(server.headers)
    wrong = cli(*command, *elsewhere[2:])
    assert (wrong.status, "add --writer-lm" in wrong.err) == (2, True)


@pytest.fixture
def three(server: Any) -> Iterator[tuple[list[Any], list[str]]]:
    """The servers of the LM, a writer and a judge, and the options that name them."""
    servers, options = [server], server.lm
    for whose in ("writer", "judge"):
        servers.append(type(server)())
        options = [*options, f"--{whose}-lm", f"openai/{whose}", f"--{whose}-api-base", servers[-1].address]
        options += [f"--{whose}-api-key-env", "SCRIPTED_KEY"]
    yield servers, options
    for one in servers[1:]:
        one.close()


def test_a_limit_of_tokens_holds_for_every_remote_lm(ok: Any, questions: Path, collection: str, three: Any) -> None:
    servers, options = three
    command = ("evaluate", "query2doc", "--data", questions, "--collection", collection, "--limit", "1", *options)
    for more, limit in (((), 1000), (("--max-tokens", "4000"), 4000)):
        ok(*command, *more)
        assert [{body["max_completion_tokens"] for body in one.bodies} for one in servers] == [{limit}] * 3
        for one in servers:
            one.bodies.clear()
    assert "LM calls: 0 made (" in ok(*command, "--max-tokens", "4000").out
