"""A local web page that shows all runs in a folder. Runs are recognized by their contents and never changed."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from querywright.errors import InputError
from querywright.optimize.comparison import CLOSED_BOOK, ORACLE
from querywright.optimize.report import POLICY, render
from querywright.serving.settings import is_loopback

DEEPEST, MOST, HEAD, LARGEST = 6, 5000, 2**19, 2**26
"""Maximum subfolder depth, maximum number of folders, and maximum bytes to read from a page and from any other file."""

_SUMMARY = re.compile(r'<script type="application/json" id="report-summary">(.*?)</script>', re.DOTALL)
_PLAIN: dict[str, Any] = {"metric": "", "verdict": "", "baseline": "", "arms": []}
_SAFE = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"}


def runs_under(folder: Path) -> list[dict[str, Any]]:
    """Return the reports and artifacts in a folder and its subfolders, newest first. Links are not followed.

    Each entry has ``id`` (its path in the folder), ``kind``, ``title``, ``date`` (seconds since 1970), ``metric``,
    ``verdict``, ``baseline``, and ``arms`` (each with ``name`` and ``metrics``).
    """
    found: list[dict[str, Any]] = []
    readers = {"manifest.json": _of_artifact}
    for seen, (place, folders, files) in enumerate(os.walk(folder)):
        here = Path(place)
        deep = len(here.relative_to(folder).parts) >= DEEPEST or seen >= MOST
        folders[:] = [] if deep else sorted(name for name in folders if not name.startswith("."))
        for file in (here / name for name in files):
            read = _of_report if file.suffix == ".html" else readers.get(file.name)
            with contextlib.suppress(
                OSError, ValueError, LookupError, TypeError, AttributeError
            ):  # a different tool's file
                known = file.lstat()
                if read and (told := _kept(read, file, known.st_mtime_ns, known.st_size)):
                    opened = here / "README.md" if read is _of_artifact else file
                    where = here if file.name in (*readers, "report.html") else file
                    named = folder.name if where == folder else str(where.relative_to(folder))
                    ids = {"id": str(opened.relative_to(folder)), "place": named}
                    found.append({**_PLAIN, **told, **ids, "date": known.st_mtime})
    return sorted(found, key=lambda one: (-one["date"], one["id"]))


@functools.lru_cache(maxsize=4096)
def _kept(read: Any, file: Path, changed: int, size: int) -> Any:
    told = read(file)
    means = [mean for arm in (told or _PLAIN)["arms"] for mean in arm["metrics"].values()]
    if not all(mean["value"] is None or type(mean["value"]) in (int, float) for mean in means):
        raise ValueError("not a report summary")
    return told and {name: value if isinstance(value, list | dict) else str(value) for name, value in told.items()}


def _text(file: Path, most: int = LARGEST) -> str:
    """Return a file's text, or only its beginning. Raises ``OSError`` for a link."""
    with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as opened:
        return opened.read(most).decode("utf-8", "replace")


def _of_report(file: Path) -> Any:
    said = _SUMMARY.search(_text(file, HEAD))
    return said and json.loads(said[1])


def _of_artifact(file: Path) -> Any:
    manifest = json.loads(_text(file))
    made, title = manifest["made"], f"{file.parent.name}: {manifest['technique']}"
    arms = [{"name": one["arm"], "metrics": one["metrics"]} for one in made.get("test", ())]
    verdict = made.get("verdict_sentence") or made.get("sentence") or ""
    return {"kind": "artifact", "title": title, "metric": made.get("objective", ""), "verdict": verdict, "arms": arms}


class Viewer(ThreadingHTTPServer):
    """Serves a folder's page on a 127.0.0.1 port (0: any free port). Raises ``InputError`` if the port is in use."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.folder = folder.resolve()
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:
            raise InputError(f"cannot listen on 127.0.0.1:{port}: {error.strerror}; try a different --port") from None

    @property
    def url(self) -> str:
        """The page's URL."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Viewer
    timeout = 30

    def do_GET(self) -> None:
        if not self._let_in():
            return None
        at, folder = urlsplit(self.path), self.server.folder
        runs, id = runs_under(folder), parse_qs(at.query).get("id", [""])[0]
        if at.path == "/":
            policy = f"{POLICY}; connect-src 'self'"
            given = {"runs": runs, "references": (CLOSED_BOOK, ORACLE)}
            page = render("view.html", policy=policy, title=folder.name, given=given)
            return self._send(200, page, "text/html", policy)
        if at.path == "/runs":
            return self._send(200, json.dumps(runs), "application/json")
        if at.path == "/open" and any(one["id"] == id for one in runs):
            # Anyone may have created the file, so it is shown in a sandbox, where it cannot call this server.
            kind = "text/html" if id.endswith(".html") else "text/plain"
            with contextlib.suppress(FileNotFoundError):
                return self._send(200, _text(folder / id), kind, f"{POLICY}; sandbox allow-scripts")
        return self._send(404, "page not found; reload the list")

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    def _let_in(self) -> bool:
        """Return whether the request comes from this server's own page and uses a local name; reject all others."""
        host, origin = self.headers.get("host", ""), self.headers.get("origin")
        known = is_loopback(urlsplit(f"//{host}").hostname or "") and origin in (None, f"http://{host}")
        if not known:
            self._send(403, "only this server's own page may send requests, at localhost or 127.0.0.1")
        return known

    def _send(self, status: int, body: str, kind: str = "text/plain", policy: str = "default-src 'none'") -> None:
        data = body.encode("utf-8", "replace")
        self.send_response(status)
        given = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(data)), **_SAFE}
        for name, value in (given | {"Content-Security-Policy": f"{policy}; frame-ancestors 'none'"}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
