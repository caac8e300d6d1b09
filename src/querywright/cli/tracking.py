"""``--log``: what a command found, logged where people keep runs; it never costs a result."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from querywright.cli.show import note
from querywright.errors import InputError


def tracking(log: str | None) -> Callable[..., None]:
    """What logs a result, as ``adapters.mlflow.log`` takes it, and warns where that fails; checked before any work."""
    if log is None:
        return lambda found, **given: None
    from querywright.models.engine_errors import redact

    tool, _, uri = log.partition(":")
    if tool != "mlflow":
        raise InputError(f"--log takes mlflow, or mlflow:URI, but got {redact(log)!r}")
    # Its defaults wait minutes for a server that is away, and print an address a run where JSON may be expected.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    import mlflow

    from querywright.adapters.mlflow import log as logged

    def to(found: Any, **given: Any) -> None:
        if uri:
            mlflow.set_tracking_uri(uri)
        place = mlflow.get_tracking_uri()
        try:
            run = logged(found, **given)
        except Exception as error:  # noqa: BLE001 - whatever a server or its client does, the result stands
            why = redact(str(error).strip().partition("\n")[0])
            note(
                f"warning: not logged to MLflow at {redact(place)}: {type(error).__name__}: {why}; the result stands, "
                "and the same command logs it and asks nothing again",
                style="bold",
            )
        else:
            note(f"logged to MLflow at {redact(place)}: run {run}")

    return to
