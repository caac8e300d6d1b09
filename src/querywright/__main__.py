"""``python -m querywright``: the command line."""

from __future__ import annotations

from querywright.cli.main import main

main()
