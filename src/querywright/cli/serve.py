"""``querywright serve`` and ``querywright mcp``: a compiled program over HTTP, and as tools for an assistant."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from querywright.cli import options as opt
from querywright.models.keys import api_key
from querywright.serving.settings import ServeSettings

_DEFAULTS = ServeSettings()

Seconds = Annotated[float, Parameter(metavar="SECONDS")]
Address = Annotated[str, Parameter(metavar="ADDRESS")]


@Parameter(name="*", group="Limits")
@dataclass(frozen=True)
class Limits:
    """What a server takes on.

    Args:
        concurrency: Questions under way at a time.
        waiting: Questions that may wait; further ones get 503.
        deadline: From request to answer, then 504.
        grace: For requests under way when the server stops.
    """

    concurrency: opt.Count = _DEFAULTS.concurrency
    waiting: opt.Whole = _DEFAULTS.waiting
    deadline: Seconds = _DEFAULTS.deadline
    grace: Seconds = _DEFAULTS.grace


def serve(
    artifact: Path,
    /,
    *,
    host: Address = _DEFAULTS.host,
    port: Annotated[int, Parameter(metavar="N", validator=Number(gte=0, lte=65_535))] = _DEFAULTS.port,
    token_env: opt.Name | None = None,
    verify: opt.Flag = False,
    digest: opt.Digest | None = None,
    accept: opt.Flag = False,
    limits: Limits = Limits(),
    lm: opt.LMOptions = opt.LMOptions(),
    helpers: opt.Helpers = opt.Helpers(),
    place: opt.Home = opt.Home(),
) -> None:
    """Serve an artifact: an API, a page for people, and metrics for Prometheus. Logs are JSON lines on standard output.

    Ctrl-C stops once requests under way are answered; twice, at once.

    Example: querywright serve artifacts/hcqr-sample

    Args:
        artifact: A compiled program's folder.
        host: Where to listen.
        port: 0 for any that is free.
        token_env: Environment variable that holds the token which callers must send.
        verify: Replay the golden answers first.
        digest: Refuse anything else; artifact show prints it.
        accept: Load the artifact even if most of its collection changed.
    """
    settings = ServeSettings(
        host=host, port=port, token=api_key(token_env, what="token", option="--token-env"), **asdict(limits)
    )
    from querywright.optimize.artifacts.load import load
    from querywright.serving.server import serve as run
    from querywright.serving.server import write_logs

    write_logs()
    program = load(
        artifact, lm=lm.for_artifact(artifact, place.home), **helpers.given(lm), home=place.home, verify=verify,
        digest=digest, accept=accept,
    )  # fmt: skip
    signal.set_wakeup_fd(-1)  # the command line ends soon after Ctrl-C, but here requests under way are finished first
    write_logs()
    name = artifact.absolute().name or "artifact"
    run(program, settings, name=name)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)  # every answer is out; a thread that works on an abandoned question must not hold this up


def mcp(
    artifact: Path,
    /,
    *,
    verify: opt.Flag = False,
    digest: opt.Digest | None = None,
    accept: opt.Flag = False,
    lm: opt.LMOptions = opt.LMOptions(),
    helpers: opt.Helpers = opt.Helpers(),
    place: opt.Home = opt.Home(),
) -> None:
    """Serve a compiled program to an assistant, over standard input and output.

    The tools are ask and retrieve of the Model Context Protocol. Standard output holds its messages and nothing else.

    Example, as a client is told to start it: querywright mcp artifacts/hcqr-sample

    Args:
        artifact: A compiled program.
        verify: Replay the artifact's golden answers first.
        digest: Refuse anything else; artifact show prints it.
        accept: Load the artifact even if most of its collection changed.
    """
    with contextlib.redirect_stdout(sys.stderr):
        from querywright.adapters.mcp import server
        from querywright.optimize.artifacts.load import load

        serving = server(load(
            artifact, lm=lm.for_artifact(artifact, place.home), **helpers.given(lm), home=place.home, verify=verify,
            digest=digest, accept=accept,
        ))  # fmt: skip
    serving.run()
