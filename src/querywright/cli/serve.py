"""``querywright serve``: an artifact, or two side by side, over HTTP."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from querywright.cli.options import ApiBaseOption, HomeOption, KeyOption, RerankerOption, RewriterOption
from querywright.cli.show import note
from querywright.cli.workspace import Workspace, artifact_lm, lm_failures
from querywright.errors import InputError
from querywright.models.keys import api_key
from querywright.serving.settings import ServeSettings

_DEFAULTS = ServeSettings()


def serve(
    artifact: Annotated[Path, typer.Argument(metavar="ARTIFACT", help="A compiled program's folder.")],
    artifact_b: Annotated[
        Path | None,
        typer.Argument(metavar="[ARTIFACT_B]", help="Another one to compare it with.", show_default=False),
    ] = None,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Where to listen.")] = _DEFAULTS.host,
    port: Annotated[
        int, typer.Option("--port", metavar="N", min=0, max=65_535, help="0 for any that is free.")
    ] = _DEFAULTS.port,
    token_env: Annotated[
        str | None,
        typer.Option(
            "--token-env",
            metavar="NAME",
            help="Environment variable that holds the token which callers must send.",
            show_default=False,
        ),
    ] = None,
    insecure_no_token: Annotated[
        bool, typer.Option("--insecure-no-token", help="Let other machines ask without a token.")
    ] = False,
    lm: Annotated[
        str | None,
        typer.Option("--lm", metavar="NAME", help="LM. Default: the artifact's own.", show_default=False),
    ] = None,
    api_base: ApiBaseOption = None,
    api_key_env: KeyOption = None,
    reranker: RerankerOption = None,
    rewriter: RewriterOption = None,
    home: HomeOption = None,
    verify: Annotated[bool, typer.Option("--verify", help="Replay the golden answers first, at a reload too.")] = False,
    public_key: Annotated[
        Path | None,
        typer.Option(
            "--public-key", metavar="FILE", help="Key by which the artifact must be signed.", show_default=False
        ),
    ] = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", metavar="N", min=1, help="Questions under way at a time.")
    ] = _DEFAULTS.concurrency,
    waiting: Annotated[
        int, typer.Option("--waiting", metavar="N", min=0, help="Questions that may wait; further ones get 503.")
    ] = _DEFAULTS.waiting,
    connections: Annotated[
        int, typer.Option("--connections", metavar="N", min=1, help="Open connections; further ones are closed.")
    ] = _DEFAULTS.connections,
    rate: Annotated[
        float, typer.Option("--rate", metavar="N", min=0, help="Requests a second of one client; 0 for no limit.")
    ] = _DEFAULTS.rate,
    burst: Annotated[
        int, typer.Option("--burst", metavar="N", min=1, help="Requests of one client at once.")
    ] = _DEFAULTS.burst,
    deadline: Annotated[
        float, typer.Option("--deadline", metavar="SECONDS", help="From request to answer; then 504.")
    ] = _DEFAULTS.deadline,
    grace: Annotated[
        float, typer.Option("--grace", metavar="SECONDS", help="For requests under way when it is stopped.")
    ] = _DEFAULTS.grace,
    max_body: Annotated[
        int, typer.Option("--max-body", metavar="BYTES", min=1, help="Of a request.")
    ] = _DEFAULTS.max_body,
    max_question: Annotated[
        int, typer.Option("--max-question", metavar="N", min=1, help="Characters of a question.")
    ] = _DEFAULTS.max_question,
    max_options: Annotated[
        int, typer.Option("--max-options", metavar="N", min=2, help="Options of a question.")
    ] = _DEFAULTS.max_options,
    trusted_proxy: Annotated[
        str | None,
        typer.Option(
            "--trusted-proxy",
            metavar="ADDRESS",
            help="A proxy whose X-Forwarded-For is believed.",
            show_default=False,
        ),
    ] = None,
    log_questions: Annotated[
        bool, typer.Option("--log-questions", help="Write questions to the log, which they are kept out of.")
    ] = False,
    record: Annotated[
        Path | None,
        typer.Option(
            "--record",
            metavar="FILE",
            help="Append every question and what came of it to this file, for querywright drift and traffic.",
            show_default=False,
        ),
    ] = None,
    record_hashes: Annotated[
        bool, typer.Option("--record-hashes", help="With --record: salted hashes in the place of texts.")
    ] = False,
) -> None:
    """Serve an artifact: an API, a page for people, and what Prometheus wants. Logs are JSON lines on standard output.

    SIGHUP or POST /reload loads the artifact again. Ctrl-C stops once requests under way are answered; twice, at once.

    Example: querywright serve artifacts/hcqr-sample
    """
    settings = ServeSettings(
        artifacts=(artifact,) if artifact_b is None else (artifact, artifact_b),
        host=host, port=port, token=api_key(token_env, what="token", option="--token-env"),
        insecure_no_token=insecure_no_token, reranker=reranker, rewriter=rewriter,
        home=home, verify=verify, public_key=public_key, max_body=max_body, max_question=max_question,
        max_options=max_options,
        concurrency=concurrency, waiting=waiting, connections=connections, rate=rate, burst=burst, deadline=deadline,
        grace=grace, trusted_proxy=trusted_proxy, log_questions=log_questions,
        watchers=_recorder(record, hashes=record_hashes),
    )  # fmt: skip
    with _deaf_to_hangups():
        _run(settings, lm, api_base, api_key_env)


@contextlib.contextmanager
def _deaf_to_hangups() -> Iterator[None]:
    """SIGHUP ends no process that has nothing to load again yet; the server hears it from when it loads."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGHUP"):
        yield
        return
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def _run(settings: ServeSettings, lm: str | None, api_base: str | None, api_key_env: str | None) -> None:
    from dataclasses import replace

    from querywright.optimize.artifacts.watchers import flush
    from querywright.serving.logging import write_logs
    from querywright.serving.server import serve as run

    write_logs(questions=settings.log_questions)
    given = _lm(settings, lm, api_base, api_key_env)
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


def _lm(settings: ServeSettings, lm: str | None, api_base: str | None, api_key_env: str | None) -> Any:
    """The LM that was named; an address or a key alone is for the one that each artifact names."""
    if lm is not None:
        return Workspace.open(settings.home, lm, api_base=api_base, api_key_env=api_key_env).lm
    if api_base is None and api_key_env is None:
        return None
    return lambda manifest: artifact_lm(
        manifest, None, home=settings.home, api_base=api_base, api_key_env=api_key_env
    )  # fmt: skip


def _recorder(path: Path | None, *, hashes: bool) -> tuple[Callable[[Any], object], ...]:
    """What writes traffic to a file, if one was named."""
    if path is None:
        if hashes:
            raise InputError("--record-hashes says how --record FILE writes texts; name the file as well")
        return ()
    from querywright.watching.traffic import JsonLines

    return (JsonLines(path, questions=not hashes),)
