"""Settings of a server: its address, its token and its limits."""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass, field

from querywright.errors import InputError

SHORTEST_TOKEN = 16
_LEAST = {"port": 0, "concurrency": 1, "waiting": 0, "deadline": 0.001, "grace": 0.001}


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Settings of a server.

    Args:
        host: Address to listen on. Default 127.0.0.1.
        port: Port to listen on; 0 for any free port. Default 8080.
        token: Token that callers must send as ``Authorization: Bearer ...``; at least 16 characters. None for no
            token, which only a loopback address allows.
        concurrency: Questions under way at a time. Default 64.
        waiting: Questions that may wait for their turn; further ones get 503. Default 128.
        deadline: Seconds from a request to its answer, waiting included; then it gets 504. Default 60.
        grace: Seconds that requests under way have when the server stops. Default 30.

    Raises:
        InputError: A value is out of range, or anyone on the network could ask.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    token: str | None = field(default=None, repr=False)
    concurrency: int = 64
    waiting: int = 128
    deadline: float = 60.0
    grace: float = 30.0

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if not least <= value < (65_536 if name == "port" else math.inf):
                rule = "from 0 to 65535" if name == "port" else f"{least} or more, and finite"
                raise InputError(f"{name} must be {rule}, but got {value}; give another number")
        token = self.token
        if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
            raise InputError(
                f"the token must have {SHORTEST_TOKEN} or more printable ASCII characters, but has {len(token)}; "
                "make one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
            )
        if token is None and not is_loopback(self.host):
            raise InputError(
                f"other machines can reach {self.host!r}, so anyone could ask; put a token into an environment "
                "variable and name it with --token-env, or listen on 127.0.0.1"
            )


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address; any name but localhost could be another machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
