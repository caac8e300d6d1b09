"""Who may ask, what, how often and how long: everything else is refused with a reason."""

from __future__ import annotations

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from querywright.errors import InputError
from querywright.serving.middleware import PAGES
from querywright.serving.server import listening
from querywright.serving.settings import ServeSettings

OPEN = ["/", "/page.js", "/page.css", "/health"]
CLOSED = ["/metrics", "/openapi.json", "/nowhere"]
ASKED = {"question": "What of 7?"}


# Who asks.


def test_the_token_is_needed_for_all_but_health_and_the_pages(run, token):
    server = run(token=token)
    assert server.ask().status_code == 200
    with httpx.Client(base_url=server.url) as stranger:
        assert [stranger.get(path).status_code for path in OPEN] == [200] * len(OPEN)
        refused = [stranger.get(path) for path in CLOSED]
        refused.append(stranger.post("/ask", json={"question": "q"}))
        for given in ("", "Bearer", "Bearer x", f"Basic {token}", f"Bearer {token}x", "Bearer \xff", token):
            refused.append(stranger.get("/metrics", headers={"Authorization": given.encode("latin-1")}))
        assert {answer.status_code for answer in refused} == {401}
        assert {answer.headers["www-authenticate"] for answer in refused} == {"Bearer"}
        assert stranger.get("/metrics", headers={"Authorization": f"bearer {token}"}).status_code == 200
        assert stranger.get("/health").json()["token"]
    assert token not in server.logs.getvalue() + repr(ServeSettings(token=token))


def test_pages_of_other_sites_cannot_ask_and_ours_load_nothing_from_elsewhere(run):
    server = run()
    for odd in ("https://evil.example", "null", "http://[", "http://]", "//\uff0f", "", "http://127.0.0.1:x"):
        assert server.client.post("/ask", headers={"Origin": odd.encode()}).status_code == 403
    assert server.client.post("/ask", json=ASKED, headers={"Host": "evil.example"}).status_code == 400
    assert server.client.post("/ask", json=ASKED, headers={"Origin": server.url}).status_code == 200
    assert not any("access-control" in name for name in server.ask().headers)
    answer = server.client.get("/")
    policy = answer.headers["content-security-policy"]
    assert ("default-src 'none'" in policy, "unsafe" in policy) == (True, False)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert not any(word in answer.text for word in ("http://", "https://", "<script>", "style="))
    text = server.client.get("/page.js").text
    assert not any(word in text for word in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval("))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        *(({"host": host}, "--token-env") for host in ("0.0.0.0", "qa.example")),
        ({"token": "short"}, "16"),
        ({"token": "with a \n line end in it"}, "printable"),
        ({"concurrency": 0}, "concurrency"),
        ({"deadline": float("nan")}, "deadline"),
        ({"grace": float("inf")}, "grace must be a finite number of at least 0.001, but got inf"),
        ({"port": 70_000}, "port must be between 0 and 65535, but got 70000"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes, named):
    with pytest.raises(InputError, match=named):
        ServeSettings(**changes)


# What is asked.


WRONG = [
    (b"", 422, "invalid"),
    (b"{", 422, "invalid"),
    (b'{"question": "\\ud800"}', 422, "invalid"),
    (b"[" * 5000, 400, "not_json"),
    (b"\xff\xfe", 422, "invalid"),
    (b'{"question": " \\n"}', 422, "invalid"),
    (b'{"question": "q", "else": 1}', 422, "invalid"),
    (b'{"question": "q", "options": ["a"]}', 422, "invalid"),
    (b'{"question": "q", "options": ["a", " a "]}', 422, "invalid"),
    (b'{"question": "q", "options": ["a", "' + b"b" * 1001 + b'"]}', 422, "invalid"),
    (json.dumps({"question": "q", "options": [str(n) for n in range(21)]}).encode(), 422, "invalid"),
    (b'{"question": "' + b"x" * 4001 + b'"}', 422, "invalid"),
    (b'{"question": "q", "artifact": "x"}', 422, "invalid"),
    (b'{"question": "' + b"x" * 66_000 + b'"}', 413, "too_large"),
    (b'{"question": "' + b"x" * 1_000_000 + b'"}', 413, "too_large"),
]


def test_what_cannot_be_asked_is_told(run, scripted):
    server = run()
    for body, status, kind in WRONG:
        answer = server.client.post("/ask", content=body, headers={"Content-Type": "application/json"})
        assert (answer.status_code, answer.json()["error"]["kind"]) == (status, kind), body[:80]
    assert scripted.asked == []
    assert server.client.get("/nowhere").json()["error"]["kind"] == "address"
    wrong = server.client.get("/ask")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert server.client.post("/ask", content=b"question=q").status_code == 415
    assert server.client.post("/ask/", json={}).status_code == 404


# How often, how many, how long.


def test_more_questions_than_may_wait_are_refused(run, scripted):
    go = threading.Event()
    scripted.before = lambda number: go.wait(60)
    server = run(concurrency=1, waiting=1)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(server.ask, 1)
        server.wait_for(lambda: scripted.asked == [1])
        second = pool.submit(server.ask, 2)
        server.wait_for(lambda: server.service.waiting == 1)
        refused = [server.ask(3), server.ask(4, stream=True)]
        go.set()
        assert [first.result().json()["answer"], second.result().json()["answer"]] == ["answer 1", "answer 2"]
    for answer in refused:
        assert (answer.status_code, answer.json()["error"]["kind"]) == (503, "busy")
        assert answer.headers["retry-after"] == "1"
    assert sorted(scripted.asked) == [1, 2]


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_takes_too_long_is_given_up(run, scripted, stream):
    go = threading.Event()
    scripted.before = lambda number: go.wait(60)
    server = run(deadline=1)
    answer = server.ask(7, stream=stream)
    go.set()
    if stream:  # what was found was sent before
        assert answer.text.rstrip().endswith('"no answer within 1 seconds"}}')
        assert "event: passages" in answer.text
    else:
        assert (answer.status_code, answer.json()["error"]["kind"]) == (504, "deadline")
    server.wait_for(lambda: bool(server.lines()))
    assert server.lines()[0]["status"] == 504
    assert server.metric("requests_total", route="/ask", status="504") == 1
    assert server.metric("requests_total", route="/ask", status="200") == 0
    assert server.ask(8).json()["answer"] == "answer 8"


def test_an_address_that_is_taken_is_reported():
    with listening("127.0.0.1", 0) as heard, pytest.raises(InputError, match="cannot listen on"):
        listening("127.0.0.1", heard.getsockname()[1])


def test_pages_are_counted_as_answered(run):
    server = run()
    for _ in range(5):
        assert {server.client.get(path).status_code for path in PAGES} == {200}
    server.wait_for(lambda: len(server.lines()) == 5 * len(PAGES))
    assert {line["status"] for line in server.lines()} == {200}


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_further_is_done_for_a_client_that_went_away(run, scripted, retriever, stream):
    searching, go = threading.Event(), threading.Event()

    def wait():
        searching.set()
        go.wait(60)

    retriever.before = wait
    server = run()
    body = json.dumps(ASKED | {"stream": stream}).encode()
    head = "POST /ask HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=300) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert searching.wait(60)
    server.wait_for(lambda: bool(server.lines()))
    go.set()
    time.sleep(0.1)
    assert scripted.asked == []
    assert server.lines()[0]["status"] == 499
    assert server.ask(8).json()["answer"] == "answer 8"
    assert server.metric("requests_total", route="/ask", status="499") == 1


def test_a_client_that_goes_away_within_a_stream_is_counted_so(run, scripted):
    go = threading.Event()
    scripted.before = lambda number: go.wait(60)
    server = run()
    with server.client.stream("POST", "/ask", json=ASKED | {"stream": True}) as answer:
        assert answer.status_code == 200  # what was found was sent
    server.wait_for(lambda: bool(server.lines()))
    go.set()
    assert server.lines()[0]["status"] == 499


def test_a_stream_that_is_under_way_at_the_end_of_grace_ends_with_a_word(run, scripted, caplog):
    go = threading.Event()
    scripted.before = lambda number: go.wait(60)
    server = run(grace=0.1)
    with server.client.stream("POST", "/ask", json=ASKED | {"stream": True}) as answer:
        server.server.should_exit = True
        text = "".join(answer.iter_text())
    go.set()
    assert 'event: error\ndata: {"error":{"kind":"stopping"' in text
    server.wait_for(lambda: bool(server.lines()))
    assert "without completing response" not in caplog.text
    assert server.lines()[0]["status"] == 503
