"""The command line: ``querywright COMMAND``. Heavy imports happen inside the commands."""

from __future__ import annotations

import errno
import io
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from cyclopts import App, CycloptsError, MissingArgumentError

from querywright import __version__
from querywright.cli.artifact import artifact_app
from querywright.cli.ask import ask
from querywright.cli.collections import collections_app
from querywright.cli.compile import compile_command
from querywright.cli.demo import demo
from querywright.cli.evaluate import compare_command, evaluate_command
from querywright.cli.index import index
from querywright.cli.judge import judge_app
from querywright.cli.options import make_app
from querywright.cli.questions import questions_app, testset_app
from querywright.cli.recording import recording_app
from querywright.cli.rewriter import rewriter_app
from querywright.cli.serve import mcp, serve
from querywright.cli.show import err, note
from querywright.cli.study import study_app
from querywright.cli.techniques import techniques
from querywright.cli.view import view
from querywright.errors import BudgetError, InputError, QuerywrightError

WRONG_INPUT, STOPPED, INTERRUPTED = 2, 3, 130
INTERRUPTED_LINE = "stopped; finished answers are cached. To resume, run the same command again"
GRACE_SECONDS = 5.0
OPTIONS = {
    "--retriever": "--collection",
    "--api-key": "--api-key-env",
    "--questions": "--data",
    "--columns": "--column",
}
"""Options whose names differ from the Python arguments."""
ARGUMENT = re.compile(
    r"""\b([a-z_]+)= (?: \{"(?P<key>\w+)":[ ]\.\.\.\} | ["'](?P<value>[\w.-]+)["']
                      | (?:\.\.\.|True\b)? (?![\w"'{\[(-]) )""",
    re.VERBOSE,
)
"""A Python argument in a message: its name, and its value as a mapping with one key, as a string, or left open."""

SYNONYMS = {
    "compile": ("--metric", "--objective"),
    **dict.fromkeys(("compare", "evaluate"), ("--objective", "--metric")),
}
"""For each command, an option of other commands, and this command's option for the same setting."""

LAST_ANSWERS_SECONDS = 60.0
_NO_ROOM_OR_RIGHT = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM}

app = make_app(
    "querywright",
    "Retrieval programs in DSPy, compiled for decision-useful retrieval over Chroma.",
    help_epilogue="Exit status: 0 success, 2 invalid input, 3 stopped (outage, budget, or failures), 130 Ctrl-C.",
    version=f"querywright {__version__}",
)
COMMANDS: dict[str, Any] = {
    "demo": demo,
    "index": index,
    "collections": collections_app,
    "ask": ask,
    "evaluate": evaluate_command,
    "compare": compare_command,
    "compile": compile_command,
    "artifact": artifact_app,
    "judge": judge_app,
    "questions": questions_app,
    "recording": recording_app,
    "rewriter": rewriter_app,
    "study": study_app,
    "testset": testset_app,
    "mcp": mcp,
    "techniques": techniques,
    "serve": serve,
    "view": view,
}
for place, (name, command) in enumerate(COMMANDS.items()):
    app.command(command, name=name)
    app[name].sort_key = place


app.register_install_completion_command(help="Install tab completion for your shell.", result_action="return_none")


def every_command(group: App = app, path: str = "querywright") -> Iterator[tuple[str, App]]:
    """Yield every command that is not a group, with its full name."""
    for name in group:
        if not name.startswith("-"):
            is_group = group[name].default_command is None
            yield from every_command(group[name], f"{path} {name}") if is_group else [(f"{path} {name}", group[name])]


def main() -> None:
    """Run the command line, and exit the process with its exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    _watch_for_interrupt()
    status = run()
    if status in (STOPPED, INTERRUPTED):
        _end(status)
    sys.exit(status)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command, by default this process's command line, and return its exit status.

    A user's mistake prints one message and never a traceback.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        _, apps, rest = app.parse_commands(given)
        ended = app(given, exit_on_error=False, print_error=False)
        if apps[-1].default_command is None and not rest:  # a group without a subcommand has shown its help
            return WRONG_INPUT
    except CycloptsError as error:
        command = " ".join(["querywright", *(error.command_chain or ())])
        wrong, right = SYNONYMS.get((error.command_chain or ("",))[0], ("none", ""))
        text = re.sub(rf"(Unknown option: {wrong}\b).*", rf"\1. Did you mean {right}?", str(error))
        if isinstance(error, MissingArgumentError) and error.argument is not None and error.keyword is None:
            text = _missing(error.argument)
        note(f"error: {text}", style="bold red")
        note(f"for usage, run {command} --help")
        return WRONG_INPUT
    except (KeyboardInterrupt, Exception) as error:
        end = _end_of(error)
        if end is None:
            raise
        note(_in_options(end[1], given), style="bold red")
        return end[0]
    if ended == INTERRUPTED:
        note(INTERRUPTED_LINE, style="bold red")
    return ended if isinstance(ended, int) else 0


def _missing(argument: Any) -> str:
    """Return the message for a required argument that is not on the command line."""
    while not argument.parameter.metavar and argument.children:  # a group of options
        argument = next((one for one in argument.children if one.required), argument.children[0])
    name = argument.name
    return f"{name} is missing; pass {name} {argument.parameter.metavar}" if name[0] == "-" else f"{name} is missing"


def _end_of(error: BaseException) -> tuple[int, str] | None:
    """Return the exit status and the message for an error; None for a bug."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED, INTERRUPTED_LINE
    if isinstance(error, InputError):
        return WRONG_INPUT, f"error: {error}"
    if isinstance(error, BudgetError):
        from querywright.pool import let_work_end

        let_work_end(LAST_ANSWERS_SECONDS)
        return STOPPED, f"stopped: {error}"
    if isinstance(error, QuerywrightError):
        return STOPPED, f"failed: {' '.join(str(error).split())}"
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return (
            WRONG_INPUT,
            f"error: the file name {str(error.filename)[:60]!r}... is too long; use a shorter name",
        )
    if isinstance(error, OSError) and error.errno in _NO_ROOM_OR_RIGHT:
        return STOPPED, (
            f"failed: {error.strerror}: {error.filename or 'a file in the workspace'}; free up disk space, or make the "
            "file writable. Finished answers are cached"
        )
    from dspy.utils.exceptions import LMError

    if isinstance(error, LMError):
        answered = "answers received so far are cached"
        return STOPPED, f"failed: the LM did not answer: {' '.join(str(error).split())}; {answered}"
    return None


def _in_options(text: str, words: Sequence[str]) -> str:
    """Replace Python arguments in an error by the command's options: ``max_passages=`` by ``--max-passages``.

    ``columns={"id": ...}`` becomes ``--column id=...``, and ``split="train"`` becomes ``--split train``. A command for
    studies has most arguments in the study's file, so there ``sizes=...`` becomes ``sizes: ...``.
    """
    command, apps, _ = app.parse_commands(words)
    known = {name for one in apps[-1].assemble_argument_collection() for name in one.names}

    def named(found: re.Match[str]) -> str:
        option = "--" + found[1].replace("_", "-")
        option = OPTIONS.get(option, option)
        if option not in known:
            key = found[0].removesuffix("=").replace("=", ": ", 1)
            return key if command[:1] == ("study",) else found[0]
        value = f"{found['key']}=..." if found["key"] else found["value"]
        return " ".join(filter(None, [option, value]))

    return ARGUMENT.sub(named, text)


def _watch_for_interrupt() -> None:
    """End the process soon after Ctrl-C, even if the main thread is busy inside a library."""
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
    """End the process at once. A normal exit would wait for threads that are running a model, or crash."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)
