"""Runs the application: listens, and stops without dropping what is under way."""

from __future__ import annotations

import math
import os
import socket
import uuid
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from querywright.errors import InputError

try:
    import uvicorn
except ImportError as error:
    raise InputError("serving needs the extra serve: pip install 'querywright[serve]'") from error

from querywright.serving.app import Service, make_app
from querywright.serving.logging import log_event
from querywright.serving.settings import ServeSettings

if TYPE_CHECKING:
    from querywright.optimize.artifacts.loaded import LoadedProgram

_BACKLOG = 2048


def serve(settings: ServeSettings, *, on_start: Callable[[str], None] | None = None) -> None:
    """Load the artifact and serve it until SIGINT or SIGTERM.

    The first signal stops accepting; requests under way are finished for ``grace`` seconds. Signals are only heard in
    the main thread.

    Args:
        settings: What is served, and how.
        on_start: Called with the address once it listens.

    Raises:
        ArtifactError: The artifact is missing or damaged.
        CollectionError: Its collection cannot be used.
        ModelError: Its LM or reranker cannot be used.
        InputError: The address cannot be listened on.
        KeyboardInterrupt: A second signal ended it at once; threads may still be at work.
    """
    if settings.artifact is None:
        raise InputError("there is nothing to serve; name an artifact")
    with listening(settings.host, settings.port) as heard:
        name = Path(os.path.abspath(settings.artifact)).name or "artifact"
        server = Server(make_app(_loaded(settings.artifact, settings), settings, name=name), settings, on_start)
        server.run([heard])
    if server.force_exit:
        raise KeyboardInterrupt


def _loaded(artifact: Path, settings: ServeSettings) -> LoadedProgram:
    from querywright.optimize.artifacts.load import load

    program = load(
        artifact, lm=settings.lm, reranker=settings.reranker, writer_lm=settings.writer_lm, home=settings.home,
        verify=settings.verify, digest=settings.digest,
    )  # fmt: skip
    if program.manifest.collection is not None:
        # Search once for what nobody searched for: a missing model is found now.
        program.program.technique.searched.search([f"ready {uuid.uuid4().hex}"], 1)
    return program


class Server(uvicorn.Server):
    """uvicorn with our way to stop, and an application of ``make_app``."""

    def __init__(self, app: Any, settings: ServeSettings, on_start: Callable[[str], None] | None = None) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host=settings.host,
                port=settings.port,
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=settings.trusted_proxy is not None,
                forwarded_allow_ips=settings.trusted_proxy,
                timeout_graceful_shutdown=math.ceil(settings.grace),
                lifespan="on",
                limit_concurrency=settings.connections + 1,
                ws="none",
                backlog=_BACKLOG,
            )
        )
        self._service: Service = app.state.service
        self._settings = settings
        self._on_start = on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept."""
        await super().startup(sockets)
        host, port = (sockets or [])[0].getsockname()[:2]
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        log_event("listening", url=url, artifact=self._service.name, version=self._service.program.id)
        if self._on_start is not None:
            self._on_start(url)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, and finish what is under way as long as there is time for it."""
        log_event("stopping", in_flight=self._service.work.running, grace=self._settings.grace)
        await super().shutdown(sockets)
        log_event("stopped", forced=self.force_exit)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal stops, the second ends at once; neither is raised again afterwards."""
        self.force_exit = self.should_exit
        self.should_exit = True


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens; who connects before the artifact is loaded waits for them.

    Raises:
        InputError: The address is none, or is taken.
    """
    try:
        family, *_, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()  # :: takes IPv4 as well
        return socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=both)
    except OSError as error:
        raise InputError(f"cannot listen on {host}:{port}: {error.strerror}; give another --port or --host") from None
