from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from querywright.serving import ServeSettings, middleware
from querywright.serving.failures import RequestError
from querywright.serving.metrics import ServerMetrics
from querywright.serving.middleware import MOST_CLIENTS, Front, Rates
from querywright.serving.work import Work

JSON = {"Content-Type": "application/json"}


def raw(server: Any, data: bytes, *, close: bool = False) -> bytes:
    """What the server sends on a bare connection."""
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=10) as connection:
        connection.sendall(data)
        if close:
            return b""
        found = b""
        while part := connection.recv(65536):
            found += part
        return found


WRONG = [
    (b"", 422, "invalid"),
    (b"{", 400, "not_json"),
    (b'{"question": "\\ud800"}', 422, "invalid"),
    (b"[" * 5000, 400, "not_json"),
    (b"\xff\xfe", 400, "not_json"),
    (b"[]", 422, "invalid"),
    (b"{}", 422, "invalid"),
    (b'{"question": 7}', 422, "invalid"),
    (b'{"question": " \\n"}', 422, "invalid"),
    (b'{"question": "q", "else": 1}', 422, "invalid"),
    (b'{"question": "q", "stream": "yes"}', 422, "invalid"),
    (b'{"question": "q", "options": []}', 422, "invalid"),
    (b'{"question": "q", "options": ["a"]}', 422, "invalid"),
    (b'{"question": "q", "options": ["a", " a "]}', 422, "invalid"),
    (b'{"question": "q", "options": ["a", ""]}', 422, "invalid"),
    (b'{"question": "q", "options": ["a", "bbbbbb"]}', 422, "invalid"),
    (b'{"question": "q", "options": ["a", "b", "c", "d"]}', 422, "invalid"),
    (b'{"question": "01234567890"}', 422, "invalid"),
    (b'{"question": "q", "artifact": "' + b"x" * 300 + b'"}', 422, "invalid"),
    (b'{"question": "q", "artifact": "x"}', 404, "artifact"),
    (b'{"question": "' + b"x" * 7000 + b'"}', 413, "too_large"),
    (b'{"question": "' + b"x" * 200_000 + b'"}', 413, "too_large"),
]


def test_what_cannot_be_asked_is_told(run: Any, make: Any, scripted: Any) -> None:
    server = run(make(scripted), max_body=6000, max_question=10, max_options=3, max_option=5)
    for body, status, kind in WRONG:
        answer = server.client.post("/ask", content=body, headers=JSON)
        assert (answer.status_code, answer.json()["error"]["kind"]) == (status, kind), body[:80]
    assert scripted.asked == []


def test_other_places_methods_and_forms(run: Any, make: Any, scripted: Any) -> None:
    server = run(make(scripted))
    assert server.client.get("/nowhere").json()["error"]["kind"] == "address"
    wrong = server.client.get("/ask")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert server.client.post("/ask", content=b"question=q").status_code == 415
    assert server.client.post("/ask/", json={}).status_code == 404


def test_a_body_that_does_not_come_is_not_waited_for(run: Any, make: Any, scripted: Any) -> None:
    server = run(make(scripted), body_seconds=0.2)
    found = raw(server, b"POST /ask HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{")
    assert found.startswith(b"HTTP/1.1 408")


def test_who_asks_too_often_is_told_when_to_come_back(run: Any, make: Any, scripted: Any) -> None:
    server = run(make(scripted), rate=0.5, burst=2)
    assert [server.ask(n).status_code for n in range(3)] == [200, 200, 429]
    late = server.ask()
    assert late.json()["error"]["kind"] == "rate"
    assert 1 <= int(late.headers["retry-after"]) <= 2
    assert server.client.get("/health").status_code == 200


def test_rates_are_kept_for_each_client_and_for_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(middleware.time, "monotonic", lambda: now)
    rates = Rates(1, 2)

    def allowed(client: str) -> bool:
        try:
            rates.take(client)
        except RequestError:
            return False
        return True

    assert [allowed("a"), allowed("a"), allowed("a"), allowed("b")] == [True, True, False, True]
    now = 1.0
    assert [allowed("a"), allowed("a")] == [True, False]
    assert allowed("2001:db8::1")
    assert allowed("2001:db8::2")
    assert not allowed("2001:db8::3")  # one network
    assert [allowed("::ffff:1.2.3.4"), allowed("::ffff:1.2.3.4"), allowed("1.2.3.4")] == [True, True, False]
    assert allowed("::ffff:1.2.3.5")
    for number in range(MOST_CLIENTS + 10):
        allowed(f"client {number}")
    assert len(rates._buckets) == MOST_CLIENTS


def test_more_questions_than_may_wait_are_refused(run: Any, make: Any, scripted: Any) -> None:
    go = threading.Event()
    scripted.before = lambda number: go.wait(10)
    server = run(make(scripted), concurrency=1, waiting=1)
    under_way = server.server._service.work
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(server.ask, 1)
        server.wait_for(lambda: under_way.running == 1)
        second = pool.submit(server.ask, 2)
        server.wait_for(lambda: under_way.waiting == 1)
        third = server.ask(3)
        streamed = server.ask(4, stream=True)
        go.set()
        assert [first.result().json()["answer"], second.result().json()["answer"]] == ["answer 1", "answer 2"]
    for refused in (third, streamed):
        assert (refused.status_code, refused.json()["error"]["kind"]) == (503, "busy")
        assert refused.headers["retry-after"] == "1"
    assert sorted(scripted.asked) == [1, 2]


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_takes_too_long_is_given_up(run: Any, make: Any, scripted: Any, stream: bool) -> None:
    go = threading.Event()
    scripted.before = lambda number: go.wait(10)
    server = run(make(scripted), deadline=0.3)
    answer = server.ask(7, stream=stream)
    go.set()
    if stream:  # what was found was sent before
        assert answer.text.rstrip().endswith('"no answer within 0.3 seconds"}}')
        assert "event: passages" in answer.text
    else:
        assert (answer.status_code, answer.json()["error"]["kind"]) == (504, "deadline")
    server.wait_for(lambda: bool(server.lines()))
    assert server.lines()[0]["status"] == 504
    assert server.metric("requests_total", route="/ask", status="504") == 1
    assert server.metric("requests_total", route="/ask", status="200") == 0
    assert server.server._service.work.running == 0


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_further_is_done_for_a_client_that_went_away(
    run: Any, make: Any, scripted: Any, retriever: Any, stream: bool
) -> None:
    searching, go = threading.Event(), threading.Event()

    def wait() -> None:
        searching.set()
        go.wait(10)

    retriever.before = wait
    server = run(make(scripted, retriever))
    with pytest.raises(httpx.ReadTimeout):
        server.client.post("/ask", json={"question": "What of 7?", "stream": stream}, timeout=0.3)
    assert searching.is_set()
    server.wait_for(lambda: server.server._service.work.running == 0)
    server.wait_for(lambda: bool(server.lines()))
    go.set()
    time.sleep(0.1)
    assert scripted.asked == []
    assert server.lines()[0]["status"] == 499
    assert server.ask(8).json()["answer"] == "answer 8"
    assert server.metric("requests_total", route="/ask", status="499") == 1


def test_further_connections_than_may_be_are_refused(run: Any, make: Any, scripted: Any) -> None:
    server = run(make(scripted), connections=2)
    port = int(server.url.rpartition(":")[2])
    held = [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(2)]
    server.wait_for(lambda: len(server.server.server_state.connections) == 2)
    asked = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert raw(server, asked).startswith(b"HTTP/1.1 503")
    for one in held:
        one.close()
    server.wait_for(lambda: not server.server.server_state.connections)
    assert server.ask().status_code == 200


def test_the_work_for_a_client_that_takes_nothing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "SLOWEST_SECONDS", 0.05)
    given = [{"type": "http.request", "body": b"", "more_body": False}]
    ended = []

    async def endless() -> AsyncGenerator[tuple[str, Any], None]:
        try:
            while True:
                yield "text", {"text": "x"}
                await asyncio.sleep(0.001)
        finally:
            ended.append(True)

    async def receive() -> Any:
        return given.pop() if given else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        response = await Work(1, 1, 30).streamed(receive, endless(), lambda error: pytest.fail(str(error)))
        await response(scope, receive, send)

    async def stream() -> None:
        front = Front(app, settings=ServeSettings(), metrics=ServerMetrics([]), open_paths=frozenset("/"))
        await front({"type": "http", "headers": [(b"host", b"localhost")], "path": "/", "method": "GET"}, receive, send)
        await asyncio.sleep(0.05)
        assert ended == [True]

    asyncio.run(stream())
