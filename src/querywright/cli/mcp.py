"""``querywright mcp``: a compiled program as tools for an assistant."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from querywright.cli.options import Digest, Flag, Helpers, Home, OwnLM
from querywright.workspace import lm_failures


def mcp(
    artifact: Path,
    /,
    *,
    verify: Flag = False,
    digest: Digest | None = None,
    lm: OwnLM = OwnLM(),
    helpers: Helpers = Helpers(),
    place: Home = Home(),
) -> None:
    """Serve a compiled program to an assistant, over standard input and output.

    The tools are ask and retrieve of the Model Context Protocol. Standard output holds its messages and nothing else.

    Example, as a client is told to start it: querywright mcp artifacts/hcqr-sample

    Args:
        artifact: A compiled program.
        verify: Replay the artifact's golden answers first.
        digest: Refuse anything else; artifact show prints it.
    """
    with contextlib.redirect_stdout(sys.stderr):
        from querywright.adapters.mcp import server
        from querywright.optimize.artifacts.load import load

        given = lm.open(artifact, place.home)
        with lm_failures():
            program = load(
                artifact, lm=given, reranker=helpers.reranker, rewriter=helpers.rewriter, home=place.home,
                verify=verify, digest=digest,
            )  # fmt: skip
        serving = server(program)
    serving.run()
