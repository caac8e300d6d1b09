from __future__ import annotations

import json
from typing import Any

import pytest

from querywright.data.types import Passage


def events(text: str) -> list[tuple[str, Any]]:
    found = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if lines:
            found.append((lines["event"], json.loads(lines["data"])))
    return found


def test_a_question_is_answered_with_what_it_came_from(run: Any, make: Any, scripted: Any) -> None:
    server = run(make(scripted))
    answer = server.ask(7)
    assert answer.status_code == 200
    told = answer.json()
    assert told.pop("seconds") > 0
    assert told.pop("id") == answer.headers["x-request-id"]
    passages = told.pop("passages")
    assert told == {
        "answer": "answer 7", "support": None, "queries": [{"role": "original", "text": "What of 7?"}],
        "fallbacks": [], "declined": False, "artifact": "sample", "version": "a" * 12,
    }  # fmt: skip
    assert passages[0] == {"id": "p7-1", "title": "Title 1", "text": "Text 1 on 7.", "metadata": {}}


def test_options_are_chosen_from(run: Any, make: Any, scripted: Any) -> None:
    server = run(make(scripted, reader="multiple_choice"))
    assert server.ask(7, options=["first", "second"]).json()["answer"] == "first"
    missing = server.ask(7)
    assert missing.status_code == 422
    assert "options" in missing.json()["error"]["message"]


def test_retrieve_asks_no_reader(run: Any, make: Any, scripted: Any) -> None:
    server = run(make(scripted, reader="multiple_choice"))
    told = server.client.post("/retrieve", json={"question": "What of 7?"}).json()
    assert told["answer"] is None
    assert [passage["id"] for passage in told["passages"]] == ["p7-1", "p7-2", "p7-3"]
    assert scripted.asked == []


def test_two_artifacts_are_told_apart(run: Any, make: Any, scripted: Any) -> None:
    server = run({"one": make(scripted), "two": make(scripted, mark="b")})
    assert server.ask().json()["artifact"] == "one"
    assert server.ask(artifact="two").json()["version"] == "b" * 12
    unknown = server.ask(artifact="three")
    assert unknown.status_code == 404
    assert "one, two" in unknown.json()["error"]["message"]
    told = server.client.get("/health").json()
    assert [one["name"] for one in told["artifacts"]] == ["one", "two"]
    assert told["live"]
    assert told["ready"]


@pytest.mark.parametrize("how", ["accept", "stream"])
def test_an_answer_is_streamed(run: Any, make: Any, scripted: Any, how: str) -> None:
    server = run(make(scripted))
    answer = server.client.post(
        "/ask",
        json={"question": "What of 7?"} | ({"stream": True} if how == "stream" else {}),
        headers={"Accept": "text/event-stream"} if how == "accept" else {},
    )
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = events(answer.text)
    names = [name for name, _ in found]
    assert names[:2] == ["queries", "passages"]
    assert names[-1] == "done"
    assert set(names[2:-1]) == {"text"}
    assert "".join(data["text"] for name, data in found if name == "text") == "answer 7"
    assert found[0][1]["queries"][0]["text"] == "What of 7?"
    assert found[1][1]["passages"][0]["id"] == "p7-1"
    assert found[-1][1]["answer"] == "answer 7"
    assert found[-1][1]["id"] == answer.headers["x-request-id"]


def test_whatever_a_program_gives_is_valid_json(run: Any, make: Any, scripted: Any, retriever: Any) -> None:
    odd = Passage("p", "half a pair \ud83d and </script>", metadata={"score": float("nan")})
    retriever._hits = lambda query: [type("H", (), {"passage": odd, "score": 1.0, "rank": 1})()]
    scripted.answer = lambda number: "\ud83d"
    server = run(make(scripted, retriever))
    for headers in ({}, {"Accept": "text/event-stream"}):
        answer = server.client.post("/ask", json={"question": "What of 7?"}, headers=headers)
        assert answer.status_code == 200
        told = events(answer.text)[-1][1] if headers else answer.json()
        assert told["passages"][0]["text"] == odd.text
        assert told["passages"][0]["metadata"] == {"score": None}


def test_what_is_counted(run: Any, make: Any, scripted: Any) -> None:
    server = run(make(scripted))
    server.ask(1)
    server.ask(2)
    server.client.get("/no/such/place")
    assert server.metric("requests_total", route="/ask", status="200") == 2
    assert server.metric("requests_total", route="other", status="404") == 1
    assert server.metric("lm_calls_total", how="made") == 2
    assert server.metric("request_seconds_count", route="/ask") == 2
    assert server.metric("in_flight") == 1  # the one that asks for it
