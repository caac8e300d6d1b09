"""Runs the application with uvicorn: listens, stops without dropping requests under way, and writes logs."""

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
    raise InputError("serving needs the extra serve: pip install 'querywright[serve]'") from error
from querywright.serving.settings import ServeSettings

if TYPE_CHECKING:
    from fastapi import FastAPI

    from querywright.optimize.artifacts.loaded import LoadedProgram

_BACKLOG = 2048
_PLAIN = ("querywright", "uvicorn")
"""Loggers whose messages hold no question. Records of other loggers show only their place in the code."""


def serve(program: LoadedProgram, settings: ServeSettings, *, name: str) -> None:
    """Serve a program until SIGINT or SIGTERM, which only the main thread hears.

    The log names the address once the server listens. After the first signal the server accepts nothing more and
    finishes requests under way, for up to ``grace`` seconds.

    Args:
        program: The program.
        settings: Address, token and limits.
        name: The artifact's name in answers and logs.

    Raises:
        InputError: The server cannot listen on the address.
        ModelError: The program's embedder cannot be used.
        KeyboardInterrupt: A second signal ended it at once; threads may still be at work.
    """
    with listening(settings.host, settings.port) as heard:
        if program.manifest.collection is not None:  # an uncached search, so that a missing model is an error now
            program.program.technique.searched.search([f"ready {uuid.uuid4().hex}"], 1)
        server = Server(make_app(program, settings, name=name), settings)
        host, port = heard.getsockname()[:2]
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        log_event("listening", url=url, artifact=name, version=program.id)
        server.run([heard])
    if server.force_exit:
        raise KeyboardInterrupt


class Server(uvicorn.Server):
    """uvicorn for an application of ``make_app``."""

    def __init__(self, app: FastAPI, settings: ServeSettings) -> None:
        super().__init__(
            uvicorn.Config(
                app, log_config=None, access_log=False, server_header=False, proxy_headers=False, lifespan="on",
                ws="none", backlog=_BACKLOG, timeout_graceful_shutdown=math.ceil(settings.grace),
            )
        )  # fmt: skip

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop at the first signal and end at the second; neither is raised again afterwards."""
        self.force_exit = self.should_exit
        self.should_exit = True


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens; clients that connect while the artifact loads wait.

    Raises:
        InputError: The address is not valid, or is taken.
    """
    try:
        family, *_, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address, family=family, backlog=_BACKLOG)
    except OSError as error:
        raise InputError(f"cannot listen on {host}:{port}: {error.strerror}; give another --port or --host") from None


class JsonLines(logging.Formatter):
    """Formats every record as one JSON object; messages of other libraries may hold a question and are left out."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
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
    """Send all logs of this process to a stream as JSON lines; for a process that only serves.

    Call it again once all libraries are imported, because some install handlers.
    """
    logging.raiseExceptions = False  # if nobody reads the log any more, nobody reads tracebacks about it either
    handler = logging.StreamHandler(sys.stdout if stream is None else stream)
    handler.setFormatter(JsonLines())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    for other in logging.Logger.manager.loggerDict.values():
        if isinstance(other, logging.Logger):  # some libraries write to standard error with their handlers
            other.handlers.clear()
            other.propagate = True
    for name in (LOGGER, "uvicorn"):
        logging.getLogger(name).setLevel(logging.INFO)
