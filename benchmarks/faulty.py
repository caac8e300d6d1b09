"""An LM on 127.0.0.1 that often fails: 429, no answer, broken JSON, dropped connections. A process of its own.

Usage: python benchmarks/faulty.py [--latency 0.05] [--share 0.05]

Each fault comes with the given share of the requests. What it answers to a question is made from the number in the
question alone, so that an answer which belongs to another question is seen.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import random
import re
from typing import Any

import loopback

FAULTS = ("429", "no answer", "broken JSON", "dropped")
BROKEN_OFF = "answ"
"""The text of an answer that breaks off."""
_NUMBER = re.compile(r"number (\d+)")


def right_answer(number: int) -> str:
    """The answer to the question of that number."""
    return f"answer {hashlib.sha256(str(number).encode()).hexdigest()[:12]}"


def write(body: dict[str, Any], draw: int = 0) -> str:
    """As the loopback LM writes, but for the reader's answer."""
    messages = [message.get("content") or "" for message in body.get("messages", ())]
    made = loopback.write(body, draw)
    numbers = _NUMBER.findall(messages[-1]) if messages else []
    if not numbers:
        return made
    with contextlib.suppress(ValueError):
        values = json.loads(made)
        if "answer" in values:
            return json.dumps(values | {"answer": right_answer(int(numbers[-1]))})
    return made


class Faulty(loopback._Connection):
    """One connection, on which a request may go wrong."""

    share = 0.05

    def _request(self, path: str, body: bytes) -> None:
        if path.endswith(("/counts", "/forget")):
            super()._request(path, body)
            return
        drawn = random.random() / self.share
        fault = FAULTS[int(drawn)] if drawn < len(FAULTS) else None
        if fault is None:
            super()._request(path, body)
            return
        self._state.counts.calls += 1
        if fault == "429":
            self._send_raw(b"HTTP/1.1 429 Too Many\r\nRetry-After: 0\r\nContent-Length: 2\r\n\r\n{}")
        elif fault == "dropped":
            self._transport.abort()
        elif fault == "broken JSON":
            whole = random.random() < 0.5  # half of them break the service's own JSON, half the LM's
            content = f'{{"answer": "{BROKEN_OFF}' if whole else ""
            text = json.dumps(_completion(content)) if whole else '{"id": "chatcmpl-1", "choices": [{"mess'
            data = text.encode()
            self._send_raw(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(data), data)
            )

    def _send_raw(self, data: bytes) -> None:
        self._transport.write(data)


def _completion(content: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": content}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "bench",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency", type=float, default=0.05, help="seconds from request to answer (default: 0.05)")
    parser.add_argument("--share", type=float, default=0.05, help="share of each fault (default: 0.05)")
    given = parser.parse_args()
    Faulty.share = given.share
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(loopback.serve(given.latency, Faulty, write))


if __name__ == "__main__":
    main()
