"""``--log``: log the results of a command to MLflow. A logging error does not change the results."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from querywright.cli.show import note
from querywright.errors import InputError


def tracking(log: str | None) -> Callable[..., None]:
    """Check the ``--log`` option, and return a function that logs a result or warns if it cannot."""
    if log is None:
        return lambda found, **given: None
    from querywright.models.engine_errors import redact

    tool, _, uri = log.partition(":")
    if tool != "mlflow":
        raise InputError(f"--log must be mlflow or mlflow:URI, but got {redact(log)!r}")
    # By default, MLflow waits minutes for a missing server and prints an address into the JSON on standard output.
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
        except Exception as error:  # noqa: BLE001 - no server error may end the command
            why = redact(str(error).strip().partition("\n")[0])
            note(
                f"warning: could not log to MLflow at {redact(place)}: {type(error).__name__}: {why}; the results are "
                "valid, and rerunning the command logs the results without LM calls",
                style="bold",
            )
        else:
            note(f"logged to MLflow at {redact(place)} as run {run}")

    return to
