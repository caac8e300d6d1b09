"""How a server behaves: where it listens, who may ask, and how much at a time."""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from querywright.errors import InputError

SHORTEST_TOKEN = 16
_LEAST = {
    "max_body": 1, "max_question": 1, "max_options": 2, "max_option": 1, "concurrency": 1, "waiting": 0,
    "connections": 1, "rate": 0, "burst": 1, "deadline": 0.001, "body_seconds": 0.001, "grace": 0.001, "port": 0,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Settings of a server.

    Args:
        artifact: The artifact's folder; None if a program is given to ``make_app``. Default None.
        host: Address to listen on. Default 127.0.0.1.
        port: Port to listen on; 0 for any that is free. Default 8080.
        token: What a caller must send as ``Authorization: Bearer ...``; at least 16 characters. None for no token,
            which only a loopback address allows.
        lm: An LM or its name; None for the LM that the artifact names.
        reranker: A reranker, or the name or folder of one; None for the artifact's own.
        writer_lm: What the technique asks in place of the LM: an LM, its name or a rewriter's folder; None for the one
            that the artifact names.
        home: The working folder that holds the collection and the rewriters.
        verify: Replay the golden answers before the artifact is used. Default False.
        digest: The digest that the artifact must have; None for any.
        max_body: Bytes of a request's body at most. Default 65536.
        max_question: Characters of a question at most. Default 4000.
        max_options: Options of a question at most, 2 or more. Default 20.
        max_option: Characters of an option at most. Default 1000.
        concurrency: Questions under way at a time. Default 64.
        waiting: Questions that may wait for their turn; further ones get 503. Default 128.
        connections: Open connections at most; requests on further ones get 503. Default 512.
        rate: Requests a second that one client may make in the long run; 0 for no limit. Default 20.
        burst: Requests that one client may make at once. Default 40.
        deadline: Seconds from a request to its answer, waiting included; then it gets 504. Default 60.
        body_seconds: Seconds in which a request's body must arrive; then it gets 408. Default 10.
        grace: Seconds that requests under way are given when the server stops. Default 30.
        trusted_proxy: Address of a proxy whose ``X-Forwarded-For`` is believed; None to believe nobody's.
        log_questions: Write questions and messages of failures to the log. Default False.

    Raises:
        InputError: A value is out of range, or anyone on the network could ask.
    """

    artifact: Path | None = None
    host: str = "127.0.0.1"
    port: int = 8080
    token: str | None = field(default=None, repr=False)
    lm: Any = None
    reranker: Any = None
    writer_lm: Any = None
    home: Path | None = None
    verify: bool = False
    digest: str | None = None
    max_body: int = 65_536
    max_question: int = 4000
    max_options: int = 20
    max_option: int = 1000
    concurrency: int = 64
    waiting: int = 128
    connections: int = 512
    rate: float = 20.0
    burst: int = 40
    deadline: float = 60.0
    body_seconds: float = 10.0
    grace: float = 30.0
    trusted_proxy: str | None = None
    log_questions: bool = False

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if not least <= value < (65_536 if name == "port" else math.inf):
                rule = "from 0 to 65535" if name == "port" else f"{least} or more, and finite"
                raise InputError(f"{name} must be {rule}, but got {value}; give another number")
        if self.token is not None and (
            len(self.token) < SHORTEST_TOKEN or not self.token.isascii() or not self.token.isprintable()
        ):
            raise InputError(
                f"the token must have {SHORTEST_TOKEN} or more printable ASCII characters, but has {len(self.token)}; "
                "make one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
            )
        if self.token is None and not is_loopback(self.host):
            raise InputError(
                f"{self.host!r} can be reached from other machines, where anyone could ask; put a token into an "
                "environment variable and name it with --token-env, or listen on 127.0.0.1"
            )


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine alone; a name other than localhost might be anything."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
