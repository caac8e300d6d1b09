"""Forms of artifacts: older ones are brought up to date step by step as they are read, any other is refused.

A new form has a number of its own (``FORMAT``) and an entry in ``MIGRATIONS`` for the one before it. What is on the
disk is never changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from querywright.errors import ArtifactError
from querywright.optimize.program_state import FORMAT

Content = dict[str, Any]
"""The content of ``program.json``."""

_LONGEST_NAME = 40


def _from_2(content: Content) -> Content:
    """All demonstrations were shown at every call, and there were no ensembles."""
    if {"nearest", "members"} & set(content):
        raise ArtifactError("program.json: format 2 has neither nearest nor members; compile again")
    return {**content, "nearest": 0, "members": 0}


def _from_3(content: Content) -> Content:
    """A program had no rewriter, which only ``manifest.json`` tells of."""
    return content


REWRITERS = 4
"""The first form whose ``manifest.json`` names a rewriter."""

MIGRATIONS: Mapping[int, Callable[[Content], Content]] = {2: _from_2, 3: _from_3}
"""By the format that is read: makes a program of the next one of it."""

READABLE = (*sorted(MIGRATIONS), FORMAT)
"""Formats that are read."""


def check_format(manifest: Any) -> None:
    """Refuse an artifact of a form that is not read, before anything else of it is looked at.

    Args:
        manifest: The content of ``manifest.json``.

    Raises:
        ArtifactError: Its format is older than any that is read, newer than this version of querywright, or no number.
    """
    if not isinstance(manifest, dict):
        return  # no form at all: that is said where its fields are read
    written = manifest.get("format")
    if type(written) is not int:
        raise ArtifactError(
            f"manifest.json: field format: must be a whole number, but is {written!r:.80}; compile again"
            if "format" in manifest
            else "manifest.json: field format: Field required; compile again"
        )
    if written in READABLE:
        return
    reads = f"{', '.join(map(str, READABLE[:-1]))} and {READABLE[-1]}"
    by = _writer(manifest)
    if written > FORMAT:
        raise ArtifactError(
            f"manifest.json: the artifact has format {written}, this version of querywright reads {reads}; it was "
            f"written by a newer version{by}: install that one (pip install --upgrade querywright), or compile again"
        )
    raise ArtifactError(
        f"manifest.json: the artifact has format {written}, this version of querywright reads {reads}; compile again, "
        f"or install the version of querywright that wrote it{by}"
    )


def migrated(content: Any) -> Any:
    """A program of an older form in the present one; anything else as it is.

    Args:
        content: The content of ``program.json``; it is not changed.

    Raises:
        ArtifactError: It is not of the form that it says it is of.
    """
    if not isinstance(content, dict) or type(content.get("format")) is not int:
        return content
    while (step := MIGRATIONS.get(content["format"])) is not None:
        content = {**step(content), "format": content["format"] + 1}
    return content


def _writer(manifest: Mapping[str, Any]) -> str:
    """Which version of querywright wrote it, where the manifest says so."""
    versions = manifest.get("versions")
    name = versions.get("querywright") if isinstance(versions, dict) else None
    plain = isinstance(name, str) and name.isascii() and name.isprintable() and 0 < len(name) <= _LONGEST_NAME
    return f" ({name})" if plain else ""
