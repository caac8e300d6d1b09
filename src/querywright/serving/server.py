"""Runs the application: listens, loads again on SIGHUP, and stops without dropping what is under way."""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from querywright.errors import InputError

try:
    import uvicorn
except ImportError as error:
    raise InputError("serving needs the extra serve: pip install 'querywright[serve]'") from error

from querywright.serving.app import Service, make_app
from querywright.serving.failures import RequestError
from querywright.serving.logging import log_event
from querywright.serving.programs import loader
from querywright.serving.settings import ServeSettings

if TYPE_CHECKING:
    from querywright.optimize.artifacts.loaded import LoadedProgram

_BACKLOG = 2048


def serve(settings: ServeSettings, *, on_start: Callable[[str], None] | None = None) -> None:
    """Load the artifacts and serve them until SIGINT or SIGTERM.

    The first signal stops accepting; requests under way are finished for ``grace`` seconds. SIGHUP loads the artifacts
    again. Signals are only heard in the main thread.

    Args:
        settings: What is served, and how.
        on_start: Called with the address once it listens.

    Raises:
        ArtifactError: An artifact is missing or damaged.
        CollectionError: Its collection cannot be used.
        ModelError: Its LM or reranker cannot be used.
        InputError: The address cannot be listened on.
        KeyboardInterrupt: A second signal ended it at once; threads may still be at work.
    """
    if not settings.names():
        raise InputError("there is nothing to serve; name at least one artifact")
    with listening(settings.host, settings.port) as heard:
        load = loader(settings)
        programs: dict[str, LoadedProgram] = {}
        for name in settings.names():
            programs[name] = load(name, next(iter(programs.values()), None))
        server = Server(make_app(programs, settings, load=load), settings, on_start)
        server.run([heard])
    if server.force_exit:
        raise KeyboardInterrupt


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
        if threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._load_again)
        host, port = (sockets or [])[0].getsockname()[:2]
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        log_event("listening", url=url, artifacts={one.name: one.version for one in self._service.programs})
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

    def _load_again(self) -> None:
        async def reload() -> None:
            with contextlib.suppress(RequestError):  # it is in the log
                await self._service.programs.reload()

        self._reload = asyncio.ensure_future(reload())


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens; who connects before the artifacts are loaded waits for them.

    Raises:
        InputError: The address is none, or is taken.
    """
    try:
        family, *_, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()  # :: takes IPv4 as well
        return socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=both)
    except OSError as error:
        raise InputError(f"cannot listen on {host}:{port}: {error.strerror}; give another --port or --host") from None
