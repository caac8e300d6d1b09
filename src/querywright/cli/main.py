"""The command line: ``querywright COMMAND``. Heavy imports are made inside the commands."""

from __future__ import annotations

import sys
from typing import Annotated

import click
import typer

from querywright import __version__
from querywright.cli.ask import ask
from querywright.cli.common import err
from querywright.cli.compile import compile_command
from querywright.cli.demo import demo
from querywright.cli.evaluate import evaluate_command
from querywright.cli.index import index
from querywright.cli.techniques import techniques
from querywright.errors import BudgetError, InputError, QuerywrightError

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
app.command("compile")(compile_command)
app.command("techniques")(techniques)


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
    """Run the command line; a user's mistake is one message and an exit status, never a traceback."""
    try:
        app(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _say("stopped; what was answered so far is kept: the same command goes on from there")
        sys.exit(130)
    except InputError as error:
        _say(f"error: {error}")
        sys.exit(2)
    except BudgetError as error:
        _say(f"stopped: {error}")
        sys.exit(3)
    except QuerywrightError as error:
        _say(f"failed: {error}")
        sys.exit(3)


def _say(text: str) -> None:
    err.print(text, style="bold red", highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()
