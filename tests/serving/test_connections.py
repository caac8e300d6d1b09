"""Bare connections, with either of uvicorn's parsers."""

from __future__ import annotations

import importlib
import socket
import time
from typing import Any

import pytest
from uvicorn.protocols.http import h11_impl

from querywright.serving import connections

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(params=["auto", "h11"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What is installed, and what is there in any case."""
    if request.param == "h11":
        with monkeypatch.context() as patch:
            patch.setattr("uvicorn.protocols.http.auto.AutoHTTPProtocol", h11_impl.H11Protocol)
            other = importlib.reload(connections)
        monkeypatch.setattr("querywright.serving.server.bounded", other.bounded)
        importlib.reload(connections)


def connect(server: Any, data: bytes = b"") -> socket.socket:
    made = socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=5)
    made.sendall(data)
    return made


def closed_after(one: socket.socket) -> float:
    """Seconds until the server closes a connection, on which it says nothing."""
    began = time.monotonic()
    with one:
        assert one.recv(100) == b""
    return time.monotonic() - began


def health(one: socket.socket) -> bytes:
    """The first part of an answer on a connection."""
    one.sendall(HEALTH)
    return one.recv(65536)


@pytest.mark.usefixtures("parser")
def test_a_connection_without_a_whole_header_is_closed(run: Any, make: Any, scripted: Any) -> None:
    server = run(make(scripted), body_seconds=0.4)
    silent, half, kept = connect(server), connect(server, HEALTH[:-4]), connect(server)
    assert health(kept).startswith(b"HTTP/1.1 200")
    for letter in b"GET":  # a letter now and then is no header either, and its time does not begin again
        kept.sendall(bytes([letter]))
        time.sleep(0.1)
    assert closed_after(kept) < 1
    assert closed_after(silent) < 1
    assert closed_after(half) < 1


@pytest.mark.usefixtures("parser")
def test_who_asks_is_not_closed(run: Any, make: Any, scripted: Any) -> None:
    scripted.before = lambda number: time.sleep(0.6)
    server = run(make(scripted), body_seconds=0.3)
    assert server.ask(1).status_code == 200  # longer than a header may take
    with connect(server) as one:
        for part in (HEALTH[:10], HEALTH[10:]):
            one.sendall(part)
            time.sleep(0.1)
        assert one.recv(65536).startswith(b"HTTP/1.1 200")
        time.sleep(0.5)
        assert health(one).startswith(b"HTTP/1.1 200")


@pytest.mark.usefixtures("parser")
def test_further_connections_than_may_be_are_closed(run: Any, make: Any, scripted: Any) -> None:
    server = run(make(scripted), connections=3)
    held = [connect(server) for _ in range(3)]
    server.wait_for(lambda: len(server.server.server_state.connections) == 3)
    for _ in range(5):
        assert closed_after(connect(server)) < 1
    assert len(server.lines("connections")) == 1
    assert health(held[0]).startswith(b"HTTP/1.1 200")
    for one in held:
        one.close()
    server.wait_for(lambda: not server.server.server_state.connections)
    assert server.ask().status_code == 200
