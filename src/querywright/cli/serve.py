"""``querywright serve``: an artifact, or two side by side, over HTTP."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from querywright.cli.options import Count, File, Flag, Helpers, Home, Name, OwnLM, Whole
from querywright.cli.show import note
from querywright.errors import InputError
from querywright.models.keys import api_key
from querywright.serving.settings import ServeSettings
from querywright.workspace import lm_failures

_DEFAULTS = ServeSettings()


Seconds = Annotated[float, Parameter(metavar="SECONDS")]
Address = Annotated[str, Parameter(metavar="ADDRESS")]


@Parameter(name="*", group="Limits")
@dataclass(frozen=True, slots=True)
class Limits:
    """What a server takes on.

    Args:
        concurrency: Questions under way at a time.
        waiting: Questions that may wait; further ones get 503.
        connections: Open connections; requests on further ones get 503.
        rate: Requests a second of one client; 0 for no limit.
        burst: Requests of one client at once.
        deadline: From request to answer; then 504.
        grace: For requests under way when it is stopped.
        max_body: Of a request.
        max_question: Characters of a question.
        max_options: Options of a question.
    """

    concurrency: Count = _DEFAULTS.concurrency
    waiting: Whole = _DEFAULTS.waiting
    connections: Count = _DEFAULTS.connections
    rate: Annotated[float, Parameter(metavar="N", validator=Number(gte=0))] = _DEFAULTS.rate
    burst: Count = _DEFAULTS.burst
    deadline: Seconds = _DEFAULTS.deadline
    grace: Seconds = _DEFAULTS.grace
    max_body: Annotated[int, Parameter(metavar="BYTES", validator=Number(gte=1))] = _DEFAULTS.max_body
    max_question: Count = _DEFAULTS.max_question
    max_options: Annotated[int, Parameter(metavar="N", validator=Number(gte=2))] = _DEFAULTS.max_options


def serve(
    artifact: Path,
    artifact_b: Path | None = None,
    /,
    *,
    host: Address = _DEFAULTS.host,
    port: Annotated[int, Parameter(metavar="N", validator=Number(gte=0, lte=65_535))] = _DEFAULTS.port,
    token_env: Name | None = None,
    insecure_no_token: Flag = False,
    verify: Flag = False,
    digest: Annotated[tuple[str, ...], Parameter(metavar="SHA256", show_default=False)] = (),
    trusted_proxy: Address | None = None,
    log_questions: Flag = False,
    record: File | None = None,
    record_hashes: Flag = False,
    limits: Limits = Limits(),
    lm: OwnLM = OwnLM(),
    helpers: Helpers = Helpers(),
    place: Home = Home(),
) -> None:
    """Serve an artifact: an API, a page for people, and what Prometheus wants. Logs are JSON lines on standard output.

    SIGHUP or POST /reload loads the artifact again. Ctrl-C stops once requests under way are answered; twice, at once.

    Example: querywright serve artifacts/hcqr-sample

    Args:
        artifact: A compiled program's folder.
        artifact_b: Another one to compare it with.
        host: Where to listen.
        port: 0 for any that is free.
        token_env: Environment variable that holds the token which callers must send.
        insecure_no_token: Let other machines ask without a token.
        verify: Replay the golden answers first, at a reload too.
        digest: Refuse anything else; one for each artifact, in order.
        trusted_proxy: A proxy whose X-Forwarded-For is believed.
        log_questions: Write questions to the log, which they are kept out of.
        record: Append every question and what came of it to this file, for querywright drift and traffic.
        record_hashes: With --record: salted hashes in the place of texts.
    """
    settings = ServeSettings(
        artifacts=(artifact,) if artifact_b is None else (artifact, artifact_b),
        host=host, port=port, token=api_key(token_env, what="token", option="--token-env"),
        insecure_no_token=insecure_no_token, reranker=helpers.reranker, rewriter=helpers.rewriter,
        home=place.home, verify=verify, digests=digest, trusted_proxy=trusted_proxy,
        log_questions=log_questions, watchers=_recorder(record, hashes=record_hashes), **asdict(limits),
    )  # fmt: skip
    _run(settings, lm)


def _run(settings: ServeSettings, lm: OwnLM) -> None:
    from dataclasses import replace

    from querywright.optimize.artifacts.watchers import flush
    from querywright.serving.logging import write_logs
    from querywright.serving.server import serve as run

    write_logs(questions=settings.log_questions)
    given = _lm(settings, lm)
    signal.set_wakeup_fd(-1)  # the command line ends soon after Ctrl-C, but here requests under way are finished first

    def started(url: str) -> None:
        write_logs(questions=settings.log_questions)
        note(f"serving on {url} (Ctrl-C stops)")

    with lm_failures():
        run(replace(settings, lm=given), on_start=started)
    flush()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)  # every answer is out; a thread that still asks for one which nobody waits for must not hold this up


def _lm(settings: ServeSettings, lm: OwnLM) -> Any:
    """The LM that was named; an address or a key alone is for the one that each artifact names."""
    if lm.lm is not None:
        return lm.instead_of("").open(settings.home).lm
    return (lambda manifest: lm.open(manifest, settings.home)) if lm.is_given else None


def _recorder(path: Path | None, *, hashes: bool) -> tuple[Callable[[Any], object], ...]:
    """What writes traffic to a file, if one was named."""
    if path is None:
        if hashes:
            raise InputError("--record-hashes says how --record FILE writes texts; name the file as well")
        return ()
    from querywright.watching.traffic import JsonLines

    return (JsonLines(path, questions=not hashes),)
