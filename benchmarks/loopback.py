"""An OpenAI-compatible LM server on 127.0.0.1 with a fixed latency, which runs as a separate process.

Usage: python benchmarks/loopback.py [--latency 0.2] [--port 0]

Answers depend only on the prompt, so a second run gets the same answers as the first, and no two questions share a
query. For a request with a JSON schema, the server fills in the schema; for a prompt from DSPy's ChatAdapter or from
querywright, it fills in the fields; for any other prompt, it writes as many lines as the prompt asks for.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import random
import re
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

BACKLOG = 2048

Write = Callable[[dict[str, Any], int], str]
"""Function that returns the answer to a request, given its body and the number of identical earlier requests."""

_WORDS = re.findall(
    r"\w+",
    """
    account album ancient annual archive award battle border bridge broadcast building capital career castle census
    century channel charter church citizen coast college colony comedy commission composer concert council county
    cricket critic culture debut decade defence degree director district drama dynasty early economy edition
    election empire episode estate event exhibition expedition factory famous festival fiction film final fleet
    football founder frontier garden genre government governor guitar harbour heritage history hospital household
    industry island journal journey judge kingdom label landmark language league legend library lyric magazine
    manager market medal memoir merchant military minister mission museum musical narrative national navy northern
    novel office opera orchestra origin palace parish parliament partner passage patron period pianist planet poet
    policy premiere president prize producer professor province publisher railway record region remake republic
    research reserve residence review river route royal sailor school science season senate series settlement singer
    society soldier southern species stadium station statue strategy studio style successor summit symphony teacher
    temple territory theatre title tournament tower trade tradition treaty tribe university valley venture verse
    victory village war western winner winter writer
    """,
)
_LONG = {"passage": 55, "answer": 18, "reasoning": 14, "thought": 14, "next_sentence": 14, "best_guess": 4}
_USUAL, _ITEMS = 9, 3
_ANSWER_MARK = re.compile(r"`\[\[ ## (\w+) ## \]\]`([^`]*)")
_ASKS_JSON = re.compile(r"JSON object with these fields:$", re.MULTILINE)
_FIELD = re.compile(r"^- (\w+)(?:: (.*))?$", re.MULTILINE)
_LINES = re.compile(r"(\d+) (?:different versions|search queries)")


def write(body: Mapping[str, Any], draw: int = 0) -> str:
    """Return the answer to a chat request.

    Args:
        body: The request as JSON.
        draw: Number of identical earlier requests; it matters only if the request samples.
    """
    messages = [_text(message.get("content")) for message in body.get("messages", ())]
    prompt = "\n".join(messages)
    seed = f"{body.get('seed')} {draw}" if body.get("temperature") else ""
    rng = random.Random(hashlib.sha256(f"{seed}\n{prompt}".encode()).digest())
    own = sorted(set(re.findall(r"[^\W_]{4,}", messages[-1] if messages else "")))
    writer = _Writer(rng, own, prompt)
    schema = ((body.get("response_format") or {}).get("json_schema") or {}).get("schema")
    if schema is None and _ASKS_JSON.search(messages[0] if messages else ""):
        schema = {"properties": {name: _schema(form) for name, form in _FIELD.findall(messages[0])}}
    if schema is not None:
        return json.dumps(writer.value("", schema, schema), ensure_ascii=False)
    marks = [mark for mark in _ANSWER_MARK.findall(messages[-1] if messages else "") if mark[0] != "completed"]
    if marks:
        parts = [f"[[ ## {name} ## ]]\n{writer.field(name, 'list' in kind)}" for name, kind in marks]
        return "\n\n".join([*parts, "[[ ## completed ## ]]"])
    lines = _LINES.search(prompt)
    return "\n".join(writer.words(_USUAL) for _ in range(int(lines[1]) if lines else 1))


def sentence(number: int) -> str:
    """Return a text as long as a query; each number has a different text."""
    return _Writer(random.Random(number), [], "").words(_USUAL)


class _Writer:
    """Writes text from the prompt's words and other words."""

    def __init__(self, rng: random.Random, own: list[str], prompt: str) -> None:
        self._rng, self._own, self._prompt = rng, own, prompt

    def words(self, count: int) -> str:
        """Return ``count`` words, about half of them from the prompt."""
        pick = self._rng.choice
        return " ".join(pick(self._own if self._own and self._rng.random() < 0.5 else _WORDS) for _ in range(count))

    def field(self, name: str, several: bool) -> str:
        """Return a field's value in the form that DSPy's ChatAdapter reads."""
        return json.dumps([self.words(_USUAL) for _ in range(self._items(name))]) if several else self._line(name)

    def value(self, name: str, schema: Mapping[str, Any], root: Mapping[str, Any]) -> Any:
        """Return a value that a JSON schema allows.

        Args:
            name: Name of the field.
            schema: The schema to fill in.
            root: The schema in which ``$ref`` is resolved.
        """
        if "$ref" in schema:
            target: Any = root
            for key in schema["$ref"].removeprefix("#/").split("/"):
                target = target[key]
            return self.value(name, target, root)
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return self._rng.choice(schema["enum"])
        for key in ("anyOf", "oneOf", "allOf"):
            if schema.get(key):
                return self.value(name, next(one for one in schema[key] if one.get("type") != "null"), root)
        kind = schema.get("type", "object" if "properties" in schema else "string")
        if kind == "object":
            return {key: self.value(key, one, root) for key, one in schema.get("properties", {}).items()}
        if kind == "array":
            count = schema.get("minItems") or min(self._items(name), schema.get("maxItems", _ITEMS * 9))
            return [self.value(name[:-1], schema.get("items", {"type": "string"}), root) for _ in range(count)]
        if kind == "boolean":
            return self._rng.random() < 0.5
        if kind in {"integer", "number"}:
            low = schema.get("minimum", 0)
            return self._rng.randint(int(low), int(schema.get("maximum", low + 9)))
        return self._line(name)[: schema.get("maxLength")]

    def _line(self, name: str) -> str:
        return f"{self.words(_LONG.get(name, _USUAL)).capitalize()}."

    def _items(self, name: str) -> int:
        """Return the number of items that the prompt requests for a field: the last number in the field's line."""
        line = re.search(rf"^- {re.escape(name)}:(.*)$", self._prompt, re.MULTILINE) if name else None
        numbers = re.findall(r"\d+", line[1]) if line else []
        return int(numbers[-1]) if numbers else _ITEMS


def _schema(form: str) -> dict[str, Any]:
    """Return the schema of a field from its one-line description in a querywright prompt."""
    _, one_of, values = form.rpartition("one of ")
    if one_of and values.startswith('"'):
        return {"enum": [json.loads(value) for value in re.findall(r'"(?:[^"\\]|\\.)*"', values)]}
    if form.endswith(("list", "list of texts")):
        return {"type": "array"}
    kinds = {"true or false": "boolean", "a whole number": "integer", "a number": "number"}
    return {"type": next((kind for words, kind in kinds.items() if form.endswith(words)), "string")}


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content or ())


@dataclass
class Counts:
    """The server's counts since the last call to ``forget``.

    Args:
        calls: Number of answers sent.
        cpu: CPU seconds used.
        late: Total time that answers took beyond the latency, in seconds.
        latest: The longest such delay.
        most: Maximum number of concurrent requests.
    """

    calls: int = 0
    cpu: float = 0.0
    late: float = 0.0
    latest: float = 0.0
    most: int = 0


class _State:
    def __init__(self, latency: float, write: Write) -> None:
        self.latency = latency
        self.write = write
        self.forget()
        self.under_way = 0

    def forget(self) -> None:
        self.counts, self.cpu, self.draws = Counts(), time.process_time(), Counter[bytes]()

    def told(self) -> dict[str, Any]:
        return {**vars(self.counts), "cpu": time.process_time() - self.cpu}


class _Connection(asyncio.Protocol):
    """One connection with sequential requests, each of which has a Content-Length."""

    def __init__(self, state: _State) -> None:
        self._state = state
        self._buffer = b""
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].decode("latin-1")
            length = re.search(r"(?im)^content-length:\s*(\d+)", head)
            size = end + 4 + (int(length[1]) if length else 0)
            if len(self._buffer) < size:
                return
            body, self._buffer = self._buffer[end + 4 : size], self._buffer[size:]
            self._request(head.split(" ", 2)[1], body)

    def _request(self, path: str, body: bytes) -> None:
        state = self._state
        if path.endswith("/counts"):
            self._send(state.told())
        elif path.endswith("/forget"):
            state.forget()
            self._send({})
        else:
            loop = asyncio.get_running_loop()
            due = loop.time() + state.latency
            state.under_way += 1
            state.counts.most = max(state.counts.most, state.under_way)
            digest = hashlib.sha256(body).digest()
            asked = json.loads(body)
            text = state.write(asked, state.draws[digest])
            state.draws[digest] += 1
            loop.call_at(due, self._answer, asked.get("model", ""), text, len(body) // 4, due)

    def _answer(self, model: str, text: str, tokens: int, due: float) -> None:
        counts = self._state.counts
        self._state.under_way -= 1
        late = max(0.0, asyncio.get_running_loop().time() - due)
        counts.calls, counts.late, counts.latest = counts.calls + 1, counts.late + late, max(counts.latest, late)
        message = {"role": "assistant", "content": text}
        used = {"prompt_tokens": tokens, "completion_tokens": len(text) // 4}
        self._send(
            {
                "id": "chatcmpl-1",
                "object": "chat.completion",
                "created": 1,
                "model": model,
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {**used, "total_tokens": sum(used.values())},
            }
        )

    def _send(self, answer: Mapping[str, Any]) -> None:
        data = json.dumps(answer).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        self._transport.write(head.encode() + data)


class Loopback:
    """Runs the server as a process during a ``with`` block.

    Args:
        latency: Seconds from request to answer.
        port: The port to listen on; 0 for any free port.
    """

    def __init__(self, latency: float, port: int = 0) -> None:
        self.latency = latency
        self.port = port
        self.url = ""

    def __enter__(self) -> Loopback:
        command = [sys.executable, str(Path(__file__).resolve()), "--latency", str(self.latency)]
        command += ["--port", str(self.port)] if self.port else []
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        if not self.url:
            raise RuntimeError("the loopback server did not start")
        self.port = int(self.url.split(":")[2].split("/")[0])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.communicate()

    def forget(self) -> None:
        """Reset the counts, and restart the sampling so that the same answers are sampled again."""
        self._get("forget")

    def counts(self) -> Counts:
        """Return the server's counts since ``forget``."""
        return Counts(**self._get("counts"))

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.url}/{path}", timeout=60) as answer:
            return json.load(answer)

    def overhead(self, concurrency: int, rounds: int = 5) -> float:
        """Return the average time of a call beyond the latency, in seconds, measured by a minimal client.

        Args:
            concurrency: Number of concurrent calls.
            rounds: Number of sequential calls on each connection.
        """
        return asyncio.run(self._overhead(concurrency, rounds))

    async def _overhead(self, concurrency: int, rounds: int) -> float:
        async def calls(number: int) -> list[float]:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            body = json.dumps({"model": "bench", "messages": [{"role": "user", "content": f"Question {number}?"}]})
            taken = []
            for _ in range(rounds):
                began = time.perf_counter()
                writer.write(f"POST /v1/chat HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                await reader.readexactly(int(head.rpartition(":")[2]))
                taken.append(time.perf_counter() - began - self.latency)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            return taken

        every = await asyncio.gather(*(calls(number) for number in range(concurrency)))
        return sum(sum(taken) for taken in every) / (concurrency * rounds)


async def serve(
    latency: float, connection: type[_Connection] = _Connection, write: Write = write, port: int = 0
) -> None:
    """Serve until the parent process ends.

    Args:
        latency: Seconds from request to answer.
        connection: The class that handles a connection's requests.
        write: The function that writes the answers.
        port: The port to listen on; 0 for any free port.
    """
    state = _State(latency, write)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: connection(state), "127.0.0.1", port, backlog=BACKLOG)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)  # until the parent process ends
    server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency", type=float, default=0.2, help="seconds from request to answer (default: 0.2)")
    parser.add_argument("--port", type=int, default=0, help="port to listen on (default: any free port)")
    given = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(given.latency, port=given.port))


if __name__ == "__main__":
    main()
