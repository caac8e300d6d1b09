"""Server settings: address, token, and limits."""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass, field

from querywright.errors import InputError

SHORTEST_TOKEN = 16
_LEAST = {"port": 0, "concurrency": 1, "waiting": 0, "deadline": 0.001, "grace": 0.001}


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Settings for a server.

    Args:
        host: Address to listen on. Default 127.0.0.1.
        port: Port to listen on; 0 to use any free port. Default 8080.
        token: Token that callers must send as ``Authorization: Bearer ...``; at least 16 characters. None for no token,
            which is allowed only with a loopback address.
        concurrency: Maximum number of questions to answer in parallel. Default 64.
        waiting: Maximum number of questions that wait for a turn; further questions get HTTP 503. Default 128.
        deadline: Maximum time per request, in seconds, including waiting; slower requests get HTTP 504. Default 60.
        grace: Time for in-flight requests to finish when the server stops, in seconds. Default 30.

    Raises:
        InputError: A value is out of range, or the server would be open to anyone on the network.
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
                rule = "between 0 and 65535" if name == "port" else f"a finite number of at least {least}"
                raise InputError(f"{name} must be {rule}, but got {value}")
        token = self.token
        if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
            raise InputError(
                f"the token ({len(token)} characters) is not valid; use at least {SHORTEST_TOKEN} printable ASCII "
                "characters. To generate a token, run: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
            )
        if token is None and not is_loopback(self.host):
            raise InputError(
                f"other machines can reach {self.host!r}, so a server without a token would answer anyone; set an "
                "environment variable to a token and pass the variable's name with --token-env, or listen on 127.0.0.1"
            )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address. False for any name except localhost."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
