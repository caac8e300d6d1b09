"""``querywright serve`` and ``querywright mcp``: serve a compiled program over HTTP, or as tools for an assistant."""

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
    """A server's limits.

    Args:
        concurrency: Number of questions to run in parallel.
        waiting: Maximum number of waiting questions; further requests get HTTP 503.
        deadline: Time limit from request to answer, in seconds; slower requests get HTTP 504.
        grace: Time for in-flight requests to finish when the server stops, in seconds.
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
    technique: opt.OwnTechnique = None,
    limits: Limits = Limits(),
    lm: opt.LMOptions = opt.LMOptions(),
    helpers: opt.Helpers = opt.Helpers(),
    place: opt.Home = opt.Home(),
) -> None:
    """Serve an artifact over HTTP.

    The server has an API, a web page for people, and metrics for Prometheus. Logs are JSON lines on standard output.
    After Ctrl-C, the server finishes in-flight requests and stops; after a second Ctrl-C, the server stops
    immediately.

    Example: querywright serve artifacts/hcqr-sample

    Args:
        artifact: A compiled program's folder.
        host: Address to listen on.
        port: Port to listen on; 0 for any free port.
        token_env: Environment variable that contains the token that callers must send.
        verify: Replay the golden answers first.
        digest: Required digest of the artifact, as printed by artifact show.
        accept: Load the artifact even if most of its collection changed.
    """
    settings = ServeSettings(
        host=host, port=port, token=api_key(token_env, what="token", option="--token-env"), **asdict(limits)
    )
    from querywright.optimize.artifacts.load import load
    from querywright.serving.server import serve as run
    from querywright.serving.server import write_logs
    from querywright.technique_names import import_technique

    import_technique(technique)
    write_logs()
    program = load(
        artifact, lm=lm.for_artifact(artifact, place.home), **helpers.given(lm), home=place.home, verify=verify,
        digest=digest, accept=accept,
    )  # fmt: skip
    signal.set_wakeup_fd(-1)  # other commands end soon after Ctrl-C, but a server finishes in-flight requests first
    write_logs()
    name = artifact.absolute().name or "artifact"
    run(program, settings, name=name)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)  # all answers are sent, and a thread with an abandoned question must not delay the exit


def mcp(
    artifact: Path,
    /,
    *,
    verify: opt.Flag = False,
    digest: opt.Digest | None = None,
    accept: opt.Flag = False,
    technique: opt.OwnTechnique = None,
    lm: opt.LMOptions = opt.LMOptions(),
    helpers: opt.Helpers = opt.Helpers(),
    place: opt.Home = opt.Home(),
) -> None:
    """Serve a compiled program to an assistant.

    The server uses standard input and output, and offers two Model Context Protocol tools, ask and retrieve. Standard
    output contains only protocol messages.

    Example, for a client's configuration: querywright mcp artifacts/hcqr-sample

    Args:
        artifact: A compiled program.
        verify: Replay the artifact's golden answers first.
        digest: Required digest of the artifact, as printed by artifact show.
        accept: Load the artifact even if most of its collection changed.
    """
    with contextlib.redirect_stdout(sys.stderr):
        from querywright.adapters.mcp import server
        from querywright.optimize.artifacts.load import load
        from querywright.technique_names import import_technique

        import_technique(technique)
        serving = server(load(
            artifact, lm=lm.for_artifact(artifact, place.home), **helpers.given(lm), home=place.home, verify=verify,
            digest=digest, accept=accept,
        ))  # fmt: skip
    serving.run()
