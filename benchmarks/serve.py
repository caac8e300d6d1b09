"""Compare the server with calling the program directly.

Usage: python benchmarks/serve.py [--questions 384] [--concurrency 64] [--json]

The same questions run at concurrency 64, alternately through the program's ``acall`` in a separate process and through
the server. The LM takes 0.2 s for every answer, and both run on uvloop. Aim: the ratio of the p95 is at most 1.1. The
server's client runs on the same processors, so with few processors, the client causes part of the ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from loopback import Loopback

HERE = Path(__file__).resolve()
KEY, LM, NAME = "QUERYWRIGHT_BENCH_KEY", "openai/bench", "bench"
ROUNDS = 5


class Hashed:
    """An embedder with meaningless vectors; only the lexical index is searched."""

    id, dimension = "hashed", 8

    def encode(self, texts: Sequence[str], /) -> Any:
        """Return one row per text."""
        rows = [np.frombuffer(hashlib.sha256(text.encode()).digest()[:8], np.uint8) for text in texts]
        vectors = np.array(rows, dtype=np.float32) - 127.5
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float32)


def prepare(folder: Path, technique: str, passages: int) -> None:
    """Create a collection in a workspace, and an artifact with a technique and the short-answer reader."""
    from measured import material

    from querywright.optimize.artifacts.files import write_artifact
    from querywright.programs import make_program
    from querywright.retrieval.engines import open_retriever
    from querywright.retrieval.index import build_collection

    build_collection(NAME, material(None, passages, 4).passages, embedder=Hashed(), home=folder)
    retriever = open_retriever(NAME, engine="bm25", home=folder)
    write_artifact(
        folder / "artifact", make_program(technique, retriever, reader="short_answer", max_passages=5), lm=LM,
        embedder=None, collection=NAME, engine="bm25", reranker=None, fingerprint=retriever.fingerprint,
        created="2026-01-01", made={}, golden=[], card="# bench\n",
    )  # fmt: skip


def question(number: int) -> str:
    """Return a unique question that contains its number."""
    return f"What is said of the bridge and the museum in the year {1500 + number % 500}, number {number}?"


def _lm(url: str, timeout: float) -> Any:
    from querywright.models.circuit_breaker import Limits
    from querywright.models.lm import resolve_lm

    limits = Limits(backoff=0.05, max_wait=1.0, outage_after=50)
    return resolve_lm(LM, api_base=url, api_key="x", timeout=timeout, limits=limits)


def serve(folder: Path, url: str, timeout: float) -> None:
    """Run the server; this is the main function of a separate process."""
    from querywright.optimize.artifacts.load import load
    from querywright.serving.server import serve as run
    from querywright.serving.server import write_logs
    from querywright.serving.settings import ServeSettings

    program = load(folder / "artifact", home=folder, lm=_lm(url, timeout))
    with (folder / "log.jsonl").open("w") as log:
        write_logs(log)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        print(f"http://127.0.0.1:{port}", flush=True)
        run(program, ServeSettings(port=port, waiting=256), name=NAME)
    os._exit(0)


def call(folder: Path, url: str, timeout: float) -> None:
    """Call the program directly: read numbers from a line of input, and print the seconds that each question took."""
    from concurrent.futures import ThreadPoolExecutor

    import uvloop

    from querywright.optimize.artifacts.load import load

    program = load(folder / "artifact", home=folder, lm=_lm(url, timeout))
    print("ready", flush=True)

    async def work() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(72))
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            first, count, concurrency = json.loads(line)
            taken, wall = await at_once(first, count, concurrency, lambda number: program.acall(question(number)))
            print(json.dumps([taken, wall]), flush=True)

    uvloop.run(work())
    os._exit(0)


async def at_once(first: int, count: int, concurrency: int, ask: Callable[[int], Any]) -> tuple[list[float], float]:
    """Ask ``count`` questions concurrently; return the seconds for each question and the total elapsed seconds."""
    numbers, taken = iter(range(first, first + count)), []
    began = time.perf_counter()

    async def worker() -> None:
        for number in numbers:
            start = time.perf_counter()
            await ask(number)
            taken.append(time.perf_counter() - start)

    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return taken, time.perf_counter() - began


class Child:
    """Runs one part of this file as a process during a ``with`` block."""

    def __init__(self, part: str, folder: Path, url: str, timeout: float) -> None:
        self._command = [sys.executable, str(HERE), "--child", part, "--folder", str(folder), "--url", url]
        self._command += ["--timeout", str(timeout)]
        self.said = ""

    def __enter__(self) -> Child:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, KEY: "x"}
        )
        self.said = self.line()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def line(self) -> str:
        """Return the process's next line of output."""
        assert self._process.stdout is not None
        text = self._process.stdout.readline().strip()
        if not text:
            raise RuntimeError(f"{self._command[3]} did not start")
        return text

    def ask(self, first: int, count: int, concurrency: int) -> tuple[list[float], float]:
        """Return the result of ``at_once`` in the process."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([first, count, concurrency]) + "\n")
        self._process.stdin.flush()
        taken, wall = json.loads(self.line())
        return taken, wall


class Client:
    """A minimal HTTP client that keeps connections open and reads bodies by their Content-Length."""

    def __init__(self, address: str) -> None:
        self._port = int(address.rpartition(":")[2])
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def post(self, path: str, body: Any = None) -> tuple[int, Any]:
        """Send a POST request; return the response's status and JSON."""
        reader, writer = (
            self._free.pop() if self._free else await asyncio.open_connection("127.0.0.1", self._port, limit=2**20)
        )
        data = b"" if body is None else json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = int(answer.split("content-length:", 1)[1].split("\r\n", 1)[0])
        told = json.loads(await reader.readexactly(length))
        if "connection: close" in answer:
            writer.close()
        else:
            self._free.append((reader, writer))
        return int(answer.split(" ", 2)[1]), told

    def close(self) -> None:
        """Close the connections."""
        for _, writer in self._free:
            writer.close()
        self._free.clear()


@contextmanager
def bench(technique: str, latency: float) -> Iterator[tuple[Path, Loopback]]:
    """Create a workspace with an artifact, and start an LM server."""
    with tempfile.TemporaryDirectory() as folder, Loopback(latency) as lm:
        prepare(Path(folder), technique, 500)
        yield Path(folder), lm


def p95(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


def overhead(given: argparse.Namespace) -> dict[str, Any]:
    """Run both ways alternately; return the ratios for each round."""
    count, concurrency = given.questions, given.concurrency
    with bench(given.technique, given.latency) as (folder, lm), contextlib.ExitStack() as stack:
        direct = stack.enter_context(Child("call", folder, lm.url, 30))
        server = stack.enter_context(Child("serve", folder, lm.url, 30))
        found: dict[str, list[Any]] = {"direct": [], "served": []}

        def served(first: int, count: int) -> tuple[list[float], float]:
            async def ask() -> tuple[list[float], float]:
                client = Client(server.said)

                async def one(number: int) -> None:
                    status, told = await client.post("/ask", {"question": question(number)})
                    assert status == 200, told

                try:
                    return await at_once(first, count, concurrency, one)
                finally:
                    client.close()

            return asyncio.run(ask())

        direct.ask(0, 2 * concurrency, concurrency)
        served(0, 2 * concurrency)
        for turn in range(1, ROUNDS + 1):
            one, wall = direct.ask(turn * 100_000, count, concurrency)
            other, other_wall = served(turn * 100_000, count)
            found["direct"].append((p95(one), statistics.median(one), wall))
            found["served"].append((p95(other), statistics.median(other), other_wall))
    pairs = list(zip(found["direct"], found["served"], strict=True))
    report = {
        "technique": given.technique, "concurrency": concurrency, "questions": count, "latency": given.latency,
        "p95 ratio": statistics.median(b[0] / a[0] for a, b in pairs),
        "p95 ratios": [b[0] / a[0] for a, b in pairs],
        "median ratio": statistics.median(b[1] / a[1] for a, b in pairs),
        "wall ratio": statistics.median(b[2] / a[2] for a, b in pairs),
        "p95 direct": statistics.median(a[0] for a, _ in pairs),
        "p95 served": statistics.median(b[0] for _, b in pairs),
    }  # fmt: skip
    print(
        f"overhead, {given.technique}, {count} questions x {ROUNDS}, concurrency {concurrency}, LM {given.latency} s: "
        f"p95 {report['p95 direct']:.3f} s with direct calls, {report['p95 served']:.3f} s through the server; ratio "
        f"of p95: {report['p95 ratio']:.2f} (aim: at most 1.1); ratio of medians: {report['median ratio']:.2f}"
    )
    return report


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--technique", default="multi_query")
    parser.add_argument("--latency", type=float, default=0.2, help="latency of an LM call, in seconds (default: 0.2)")
    parser.add_argument("--questions", type=int, default=384, help="number of questions per round (default: 384)")
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--json", action="store_true", help="print the whole report as JSON at the end")
    parser.add_argument("--child", choices=("serve", "call"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--timeout", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.child is not None:
        (serve if given.child == "serve" else call)(given.folder, given.url, given.timeout)
    report = overhead(given)
    if given.json:
        print(json.dumps(report))
    return report


if __name__ == "__main__":
    main()
