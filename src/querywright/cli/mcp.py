"""``querywright mcp``: a compiled program as tools for an assistant."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from querywright.cli.options import ApiBaseOption, HomeOption, KeyOption, RewriterOption
from querywright.cli.workspace import artifact_lm, lm_failures


def mcp(
    artifact: Annotated[Path, typer.Argument(metavar="ARTIFACT", help="A compiled program.")],
    lm: Annotated[
        str | None,
        typer.Option("--lm", metavar="NAME", help="LM. Default: the artifact's own.", show_default=False),
    ] = None,
    api_base: ApiBaseOption = None,
    api_key_env: KeyOption = None,
    reranker: Annotated[
        str | None,
        typer.Option("--reranker", metavar="NAME", help="A cross-encoder's name or path.", show_default=False),
    ] = None,
    rewriter: RewriterOption = None,
    verify: Annotated[bool, typer.Option("--verify", help="Replay the artifact's golden answers first.")] = False,
    public_key: Annotated[
        Path | None,
        typer.Option(
            "--public-key", metavar="FILE", help="Who must have signed it: their .pub file.", show_default=False
        ),
    ] = None,
    home: HomeOption = None,
) -> None:
    """Serve a compiled program to an assistant, over standard input and output.

    The tools are ask and retrieve of the Model Context Protocol. Standard output holds its messages and nothing else.

    Example, as a client is told to start it: querywright mcp artifacts/hcqr-sample
    """
    with contextlib.redirect_stdout(sys.stderr):
        from querywright.adapters.mcp import server
        from querywright.optimize.artifacts.load import load

        given = artifact_lm(artifact, lm, home=home, api_base=api_base, api_key_env=api_key_env)
        with lm_failures():
            program = load(
                artifact, lm=given, reranker=reranker, rewriter=rewriter, home=home, verify=verify,
                public_key=public_key,
            )  # fmt: skip
        serving = server(program)
    serving.run()
