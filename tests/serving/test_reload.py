from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from querywright.errors import ArtifactError

MARKS = "bcdef"


def test_a_question_ends_with_the_program_that_it_began_with(run: Any, make: Any, scripted: Any) -> None:
    go = threading.Event()
    scripted.before = lambda number: number == 1 and go.wait(10)
    server = run(make(scripted), load=lambda name, before: make(scripted, mark="b"))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(server.ask, 1)
        server.wait_for(lambda: scripted.asked == [1])
        told = server.client.post("/reload")
        assert told.status_code == 200
        assert told.json() == {"artifacts": [{"name": "sample", "before": "a" * 12, "after": "b" * 12}]}
        assert server.ask(2).json()["version"] == "b" * 12
        go.set()
        assert first.result().json()["version"] == "a" * 12
    assert server.client.get("/health").json()["artifacts"][0]["version"] == "b" * 12
    assert server.metric("reloads_total", result="done") == 1


def test_where_one_cannot_be_loaded_all_go_on_as_they_were(run: Any, make: Any, scripted: Any) -> None:
    def load(name: str, before: Any) -> Any:
        if name == "two":
            raise ArtifactError("manifest.json was edited")
        return make(scripted, mark="c")

    server = run({"one": make(scripted), "two": make(scripted, mark="b")}, load=load)
    told = server.client.post("/reload")
    assert told.status_code == 409
    assert "manifest.json was edited" in told.json()["error"]["message"]
    assert [one["version"][0] for one in server.client.get("/health").json()["artifacts"]] == ["a", "b"]
    assert server.metric("reloads_total", result="failed") == 1
    assert server.ask().json()["version"] == "a" * 12


def test_no_request_is_lost_while_programs_are_replaced(run: Any, make: Any, scripted: Any) -> None:
    marks = iter(MARKS)
    server = run(make(scripted), load=lambda name, before: make(scripted, mark=next(marks)))
    ended = threading.Event()

    def ask(worker: int) -> list[tuple[int, Any]]:
        found, number = [], worker * 1000
        while not ended.is_set():
            found.append((number, server.ask(number)))
            number += 1
        return found

    with ThreadPoolExecutor(8) as pool:
        workers = [pool.submit(ask, worker) for worker in range(8)]
        swaps = []
        for _ in MARKS:
            before = len(scripted.asked)
            server.wait_for(lambda before=before: len(scripted.asked) > before + 8)
            swaps.append(server.client.post("/reload").status_code)
        ended.set()
        answers = [one for worker in workers for one in worker.result()]
    assert swaps == [200] * len(MARKS)
    assert all(answer.status_code == 200 for _, answer in answers)
    assert all(answer.json()["answer"] == f"answer {number}" for number, answer in answers)
    assert {answer.json()["version"][0] for _, answer in answers} >= set("abcde")
