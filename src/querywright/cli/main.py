"""The command line: ``querywright COMMAND``. Heavy imports are made inside the commands."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from querywright import __version__
from querywright.cli.artifact import artifact_app
from querywright.cli.ask import ask
from querywright.cli.compare import compare_command
from querywright.cli.compile import compile_command
from querywright.cli.demo import demo
from querywright.cli.drift import drift_command
from querywright.cli.evaluate import evaluate_command
from querywright.cli.index import index
from querywright.cli.judge import judge_app
from querywright.cli.mcp import mcp
from querywright.cli.questions import questions_app
from querywright.cli.rewriter import rewriter_app
from querywright.cli.serve import serve
from querywright.cli.show import err, note
from querywright.cli.study import study_app
from querywright.cli.techniques import techniques
from querywright.cli.testset import testset_app
from querywright.cli.traffic import traffic_app
from querywright.errors import BudgetError, InputError, OutageError, QuerywrightError

WRONG_INPUT, STOPPED, INTERRUPTED = 2, 3, 130
INTERRUPTED_LINE = "stopped; what was answered so far is kept: the same command goes on from there"
GRACE_SECONDS = 2.0
LAST_ANSWERS_SECONDS = 60.0
_NO_ROOM_OR_RIGHT = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM}

app = typer.Typer(
    name="querywright",
    help="Retrieval programs in DSPy, compiled for decision-useful retrieval over Chroma.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command("demo")(demo)
app.command("index")(index)
app.command("ask")(ask)
app.command("evaluate")(evaluate_command)
app.command("compare")(compare_command)
app.command("compile")(compile_command)
app.add_typer(artifact_app, name="artifact")
app.add_typer(judge_app, name="judge")
app.add_typer(questions_app, name="questions")
app.add_typer(rewriter_app, name="rewriter")
app.add_typer(study_app, name="study")
app.add_typer(testset_app, name="testset")
app.command("drift")(drift_command)
app.add_typer(traffic_app, name="traffic")
app.command("mcp")(mcp)
app.command("techniques")(techniques)
app.command("serve")(serve)


def _version(value: bool) -> None:
    if value:
        sys.stdout.write(f"querywright {__version__}\n")
        raise typer.Exit


@app.callback(
    epilog="Exit status: 0 done, 2 wrong input, 3 the run was stopped (outage, budget, failures), 130 Ctrl-C."
)
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Retrieval programs in DSPy, compiled for decision-useful retrieval over Chroma."""


def main() -> None:
    """Run the command line and end the process with its exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    _watch_for_interrupt()
    status = run()
    if status in (STOPPED, INTERRUPTED):
        _end(status)
    sys.exit(status)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command; a user's mistake is one message and an exit status, never a traceback.

    Args:
        arguments: What follows the program's name; None for those of this process.

    Returns:
        The exit status.
    """
    try:
        given = None if arguments is None else list(arguments)
        ended: Any = app(given, prog_name="querywright", standalone_mode=False)
    except _usage_error() as error:
        _show_usage_error(error)
        return WRONG_INPUT
    except (typer.Abort, KeyboardInterrupt):
        ended = INTERRUPTED
    except InputError as error:
        return _fail(f"error: {error}", WRONG_INPUT)
    except BudgetError as error:
        from querywright.optimize.pool import let_work_end

        let_work_end(LAST_ANSWERS_SECONDS)
        return _fail(f"stopped: {error}", STOPPED)
    except OutageError as error:
        return _fail(f"failed: {' '.join(str(error).split())}", STOPPED)
    except QuerywrightError as error:
        return _fail(f"failed: {error}", STOPPED)
    except OSError as error:
        if error.errno not in _NO_ROOM_OR_RIGHT:
            raise
        return _fail(
            f"failed: {error.strerror}: {error.filename or 'a file of the working folder'}; make room or make it "
            "writable; what was answered so far is kept",
            STOPPED,
        )
    if ended == INTERRUPTED:
        note(INTERRUPTED_LINE, style="bold red")
    return ended if isinstance(ended, int) else 0


def _fail(text: str, status: int) -> int:
    note(text, style="bold red")
    return status


def _usage_error() -> type[Exception]:
    """The class of wrong usage: typer brings its own click or uses the installed one, by version."""
    base = typer.BadParameter.__base__
    return base if base is not None and issubclass(base, Exception) else typer.BadParameter


def _show_usage_error(error: Any) -> None:
    context = error.ctx
    message = error.format_message()
    if context is not None:
        usage = context.command.get_usage(context)
        note(usage if isinstance(usage, str) and usage.strip() else f"Usage: {context.command_path} ...")
    if message.strip():
        note(f"error: {message}", style="bold red")
    if context is not None and message.strip():
        note(f"{context.command_path} --help says more")


def _watch_for_interrupt() -> None:
    """End the process soon after Ctrl-C, also while a library keeps the main thread from noticing it."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def wait() -> None:
        while signal.SIGINT not in os.read(reading, 1):
            pass
        time.sleep(GRACE_SECONDS)
        if err.is_terminal:
            err.show_cursor(True)
        note(INTERRUPTED_LINE, style="bold red")
        _end(INTERRUPTED)

    threading.Thread(target=wait, daemon=True, name="querywright-interrupt").start()


def _end(status: int) -> None:
    """End at once: threads may still be inside a model, which an orderly end would wait for or take down with it."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
