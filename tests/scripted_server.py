"""An OpenAI-compatible chat server on 127.0.0.1 that answers from a script, faults included."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

INPUT_TOKENS, OUTPUT_TOKENS = 11, 7
PAUSE = 0.001
"""Seconds between two chunks of a stream, so that they are read one by one."""


@dataclass(frozen=True)
class Reply:
    """What the server does with one request.

    Args:
        status: HTTP status.
        body: JSON, or bytes sent as they are.
        headers: Headers beside the usual ones.
        hang: Send nothing until the server is closed.
        drop: Close the connection without an answer.
        chunks: What is sent instead of the body, one after another, to a request that asks for a stream.
        before: Called with the number of each chunk before it is sent.
        promised: Bytes that the head promises beyond the chunks: the connection breaks before they come.
        drip: Send a space every so many seconds, and never the answer; as an event where a stream is asked for.
    """

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    hang: bool = False
    drop: bool = False
    chunks: Sequence[bytes] = ()
    before: Callable[[int], object] = lambda number: None
    promised: int = 0
    drip: float = 0.0


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128


class ScriptedServer:
    """Answers with the steps in turn, the last one again and again.

    A step is the text of an answer, a mapping that becomes ``Reply(**step)``, or a function from the request's
    body to one of them. A mapping with ``answer`` is an answer with ``finish_reason`` or ``usage`` of its own. One with
    ``pieces`` is a stream of them, for a request that asks for one; else it is their text.
    """

    def __init__(self, steps: Sequence[Any]) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.left = 0  # connections with drops that the client closed
        self._steps = steps or ("{}",)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    @property
    def count(self) -> int:
        with self._lock:
            return len(self.bodies)

    def close(self) -> None:
        self._closed.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _next(self, body: dict[str, Any], headers: dict[str, str]) -> Reply:
        with self._lock:
            step = self._steps[min(len(self.bodies), len(self._steps) - 1)]
            self.bodies.append(body)
            self.headers.append(headers)
        if callable(step):
            step = step(body)
        if isinstance(step, str):
            step = {"answer": step}
        if "pieces" in step:
            pieces, streamed = step["pieces"], {key: value for key, value in step.items() if key != "pieces"}
            if body.get("stream"):
                return Reply(chunks=[event(piece) for piece in pieces] + ENDING, **streamed)
            step = {"answer": "".join(pieces)}
        if "answer" in step:
            return Reply(body=_answer(body["model"], **step))
        return Reply(**step)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        script = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                reply = script._next(body, dict(self.headers))
                if reply.hang:
                    script._closed.wait(60)
                if reply.hang or reply.drop:
                    with contextlib.suppress(OSError):
                        self.connection.shutdown(socket.SHUT_RDWR)
                    return
                if reply.drip:
                    self.send_drops(reply.drip, event(" ") if body.get("stream") else b" ")
                    return
                if reply.chunks and body.get("stream"):
                    self.send_stream(reply)
                    return
                data = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body or {}).encode()
                with contextlib.suppress(OSError):
                    self.send_response(reply.status)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(data)))
                    for name, value in reply.headers.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(data)

            def send_drops(self, seconds: float, drop: bytes) -> None:
                with contextlib.suppress(OSError):
                    self.send_response(200)
                    self.send_header("Content-Type", "application/json" if drop == b" " else "text/event-stream")
                    self.send_header("Content-Length", "1000000")
                    self.end_headers()
                    while not script._closed.wait(seconds):
                        self.wfile.write(drop)
                script.left += not script._closed.is_set()

            def send_stream(self, reply: Reply) -> None:
                self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with contextlib.suppress(OSError):
                    self.send_response(200)
                    self.send_header("Content-Type", "text/event-stream")
                    self.send_header("Content-Length", str(sum(map(len, reply.chunks)) + reply.promised))
                    self.end_headers()
                    for number, chunk in enumerate(reply.chunks):
                        time.sleep(PAUSE)
                        reply.before(number)
                        self.wfile.write(chunk)

            def log_message(self, *args: Any) -> None:
                pass

        return Handler


def event(piece: str, **delta: Any) -> bytes:
    """A piece of an answer as an event of a stream."""
    choice = {"index": 0, "delta": {"content": piece, **delta}, "finish_reason": None}
    return _event({"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "x", "choices": [choice]})


def _event(data: Mapping[str, Any]) -> bytes:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


ENDING = [
    _event({"model": "x", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}),
    _event({"model": "x", "choices": [], "usage": {
        "prompt_tokens": INPUT_TOKENS, "completion_tokens": OUTPUT_TOKENS, "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
    }}),
    b"data: [DONE]\n\n",
]  # fmt: skip
"""How a stream ends."""


def _answer(
    model: str, answer: str, finish_reason: str = "stop", usage: Mapping[str, int] | None = None
) -> dict[str, Any]:
    counted = {
        "prompt_tokens": INPUT_TOKENS,
        "completion_tokens": OUTPUT_TOKENS,
        "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
    }
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": answer}, "finish_reason": finish_reason}],
        "usage": counted if usage is None else usage,
    }


def prompt(body: dict[str, Any], role: str) -> str:
    """What was sent under a role, in one text."""
    texts = []
    for message in body["messages"]:
        if message["role"] == role:
            content = message["content"]
            texts.append(content if isinstance(content, str) else "".join(part["text"] for part in content))
    return "\n".join(texts)


def fill_in(body: dict[str, Any]) -> str:
    """An answer in the form asked for: the choice that the passages mention first, else the first one."""
    asked = prompt(body, "user").lower()
    answer: dict[str, Any] = {}
    for name, form in re.findall(r"^- (\w+):? ?(.*)$", prompt(body, "system"), re.MULTILINE):
        if "one of " in form:
            choices = json.loads("[" + form.partition("one of ")[2].replace(" | ", ",") + "]")
            said = asked.partition("passages:")[2].partition("question:")[0]
            places = {one: said.find(one.lower()) for one in choices}
            answer[name] = min((one for one in choices if places[one] >= 0), key=places.__getitem__, default=choices[0])
        else:
            words = " ".join(asked.split()[-8:])
            answer[name] = [words] if "list of texts" in form else words
    return json.dumps(answer)
