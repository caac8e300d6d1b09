"""Logs: one JSON line for each request and each event, without what was asked."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import IO, Any

LOGGER = "querywright.serving"
_PLAIN = ("querywright", "uvicorn")
"""Loggers whose messages hold no question. Of any other only the place is told."""

logger = logging.getLogger(LOGGER)


def log_event(event: str, level: int = logging.INFO, **fields: Any) -> None:
    """Write one line."""
    if logger.isEnabledFor(level):
        logger.log(level, event, extra={"fields": fields})


def log_failure(error: BaseException, *, questions: bool, **fields: Any) -> None:
    """Write down an exception that nobody expected: where it came from, and its message only where that is wanted."""
    found = traceback.TracebackException.from_exception(error)
    chain, told = found, []
    while chain is not None:
        name = "".join(chain.format_exception_only()).strip() if questions else _type_name(chain)
        told.append({"error": name, "at": [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in chain.stack]})
        chain = chain.__cause__ or chain.__context__  # type: ignore[assignment]
    log_event("unexpected", logging.ERROR, traceback=told, **fields)


def _type_name(error: traceback.TracebackException) -> str:
    return str(getattr(error, "exc_type_str", None) or getattr(error.exc_type, "__name__", "error"))


class JsonLines(logging.Formatter):
    """Formats every record as one JSON object; messages of foreign loggers may hold a question."""

    def __init__(self, *, questions: bool = False) -> None:
        super().__init__()
        self._questions = questions

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
        }
        fields = getattr(record, "fields", None)
        if isinstance(fields, dict):
            line |= {"event": record.msg, **fields}
        else:
            line |= {"event": "log", "logger": record.name, "where": f"{record.module}:{record.lineno}"}
            if self._questions or record.name.split(".", 1)[0] in _PLAIN:
                line["message"] = record.getMessage()
            if record.exc_info and record.exc_info[0] is not None:
                line["error"] = record.exc_info[0].__name__
        return json.dumps(line, ensure_ascii=True, default=str)


def write_logs(stream: IO[str] | None = None, *, questions: bool = False) -> None:
    """Send all logs of this process to a stream as JSON lines; for a process that only serves.

    It is called again once all libraries are imported, of which some bring handlers of their own.
    """
    logging.raiseExceptions = False  # where nobody reads the log any more, nobody reads tracebacks about it either
    handler = logging.StreamHandler(sys.stdout if stream is None else stream)
    handler.setFormatter(JsonLines(questions=questions))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for other in logging.Logger.manager.loggerDict.values():
        if isinstance(other, logging.Logger):  # some libraries write to standard error by handlers of their own
            other.handlers.clear()
            other.propagate = True
    for name in (LOGGER, "uvicorn"):
        logging.getLogger(name).setLevel(logging.INFO)
    logging.getLogger("uvicorn.access").setLevel(logging.WARNING)  # each request has a line of ours
