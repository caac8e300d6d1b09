"""Logs: one JSON line for each request and each event, without the text of a question."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import IO, Any

LOGGER = "querywright.serving"
_PLAIN = ("querywright", "uvicorn")
"""Loggers whose messages hold no question. Records of other loggers show only their place in the code."""

logger = logging.getLogger(LOGGER)


def log_event(event: str, level: int = logging.INFO, **fields: Any) -> None:
    """Write one line."""
    logger.log(level, event, extra={"fields": fields})


class JsonLines(logging.Formatter):
    """Formats every record as one JSON object; messages of other libraries may hold a question and are left out."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {"at": at, "level": record.levelname.lower()}
        if record.name == LOGGER:
            line |= {"event": record.msg, **record.__dict__["fields"]}
        else:
            line |= {"event": "log", "logger": record.name, "where": f"{record.module}:{record.lineno}"}
            if record.name.split(".", 1)[0] in _PLAIN:
                line["message"] = record.getMessage()
            if record.exc_info and record.exc_info[0] is not None:
                line["error"] = record.exc_info[0].__name__
        return json.dumps(line, default=str)


def write_logs(stream: IO[str] | None = None) -> None:
    """Send all logs of this process to a stream as JSON lines; for a process that only serves.

    Call it again once all libraries are imported, because some install handlers.
    """
    logging.raiseExceptions = False  # if nobody reads the log any more, nobody reads tracebacks about it either
    handler = logging.StreamHandler(sys.stdout if stream is None else stream)
    handler.setFormatter(JsonLines())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    for other in logging.Logger.manager.loggerDict.values():
        if isinstance(other, logging.Logger):  # some libraries write to standard error with their handlers
            other.handlers.clear()
            other.propagate = True
    for name in (LOGGER, "uvicorn"):
        logging.getLogger(name).setLevel(logging.INFO)
