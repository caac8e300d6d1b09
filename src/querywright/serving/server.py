"""Run the application with uvicorn: listen, stop without dropping in-flight requests, and write logs."""

from __future__ import annotations

import json
import logging
import math
import socket
import sys
import uuid
from datetime import UTC, datetime
from types import FrameType
from typing import IO, TYPE_CHECKING, Any

from querywright.errors import InputError

try:
    import uvicorn

    from querywright.serving.app import make_app
    from querywright.serving.middleware import LOGGER, log_event
except ImportError as error:
    raise InputError("serving requires the 'serve' extra; install it with pip install 'querywright[serve]'") from error
from querywright.serving.settings import ServeSettings

if TYPE_CHECKING:
    from fastapi import FastAPI

    from querywright.optimize.artifacts.loaded import LoadedProgram

_BACKLOG = 2048
_PLAIN = ("querywright", "uvicorn")
"""Loggers whose messages never contain a question. Records from other loggers show only their place in the code."""


def serve(program: LoadedProgram, settings: ServeSettings, *, name: str) -> None:
    """Serve a program until SIGINT or SIGTERM, which only the main thread receives.

    The address is logged once the server is listening. After the first signal, the server accepts no more requests and
    waits up to ``grace`` seconds for in-flight requests to finish.

    Args:
        program: The program.
        settings: Address, token, and limits.
        name: Name of the artifact in answers and logs.

    Raises:
        InputError: The server cannot listen on the address.
        ModelError: The program's embedder cannot be used.
        KeyboardInterrupt: A second signal stopped the server immediately; threads may still be running.
    """
    with listening(settings.host, settings.port) as heard:
        if program.manifest.collection is not None:  # an uncached search, so that a missing model causes an error now
            program.program.technique.searched.search([f"ready {uuid.uuid4().hex}"], 1)
        server = Server(make_app(program, settings, name=name), settings)
        host, port = heard.getsockname()[:2]
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        log_event("listening", url=url, artifact=name, version=program.id)
        server.run([heard])
    if server.force_exit:
        raise KeyboardInterrupt


class Server(uvicorn.Server):
    """uvicorn server for an application from ``make_app``."""

    def __init__(self, app: FastAPI, settings: ServeSettings) -> None:
        super().__init__(
            uvicorn.Config(
                app, log_config=None, access_log=False, server_header=False, proxy_headers=False, lifespan="on",
                ws="none", backlog=_BACKLOG, timeout_graceful_shutdown=math.ceil(settings.grace),
            )
        )  # fmt: skip

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Shut down on the first signal, and exit on the second. Neither signal is raised again afterward."""
        self.force_exit = self.should_exit
        self.should_exit = True


def listening(host: str, port: int) -> socket.socket:
    """Return a listening socket; clients that connect while the artifact is loading have to wait.

    Raises:
        InputError: The address is not valid or is already in use.
    """
    try:
        family, *_, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address, family=family, backlog=_BACKLOG)
    except OSError as error:
        raise InputError(
            f"cannot listen on {host}:{port}: {error.strerror}; try a different --port or --host"
        ) from None


class JsonLines(logging.Formatter):
    """Formats each record as a JSON object, without messages from other libraries, which may contain a question."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {"at": at, "level": record.levelname.lower()}
        if record.name == LOGGER:
            line |= {"event": record.msg, **record.__dict__["fields"]}
        else:
            line |= {"event": "log", "logger": record.name, "where": f"{record.module}:{record.lineno}"}
            if record.name.split(".", 1)[0] in _PLAIN:
                line["message"] = record.getMessage()
            if record.exc_info and record.exc_info[0] is not None:
                line["error"] = record.exc_info[0].__name__
        return json.dumps(line, default=str)


def write_logs(stream: IO[str] | None = None) -> None:
    """Send all of this process's logs to a stream as JSON lines; for a process that does nothing but serve.

    Call it again after all libraries are imported, because some of them install handlers.
    """
    logging.raiseExceptions = False  # if the log can no longer be written, print no tracebacks about it
    handler = logging.StreamHandler(sys.stdout if stream is None else stream)
    handler.setFormatter(JsonLines())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    for other in logging.Logger.manager.loggerDict.values():
        if isinstance(other, logging.Logger):  # some libraries' handlers write to standard error
            other.handlers.clear()
            other.propagate = True
    for name in (LOGGER, "uvicorn"):
        logging.getLogger(name).setLevel(logging.INFO)
