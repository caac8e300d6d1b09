"""All runs under a folder as one local page: found by what they hold, read again at every look, never written to.

Only what a person asks of a run under way is written, to ``control.json`` in its folder.
"""

from __future__ import annotations

import functools
import hmac
import json
import os
import re
import secrets
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from querywright.errors import InputError
from querywright.files import write_file
from querywright.optimize.report import POLICY, render
from querywright.serving.settings import is_loopback

LIVE, CONTROL, CARD = "live.json", "control.json", "README.md"
DEEPEST, MOST, HEAD, LARGEST = 6, 5000, 512 * 1024, 4 * 2**20
"""Folders below the first, folders looked at, and bytes read of a page's beginning and of any other file."""

_SUMMARY = re.compile(r'<script type="application/json" id="report-summary">(.*?)</script>', re.DOTALL)
_SAFE = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"}


def runs_under(folder: Path) -> list[dict[str, Any]]:
    """What lies under a folder, the newest first: reports, artifacts and runs under way; links are not followed.

    Each has ``id`` (its place in the folder), ``kind``, ``title``, ``date`` (seconds since 1970), ``metric``,
    ``verdict``, ``baseline`` and ``arms`` (``name`` and ``metrics``), and a run under way ``live``.
    """
    found: list[dict[str, Any]] = []
    for seen, (place, folders, files) in enumerate(os.walk(folder)):
        here = Path(place)
        deep = len(here.relative_to(folder).parts) >= DEEPEST or seen >= MOST
        folders[:] = [] if deep else sorted(name for name in folders if not name.startswith("."))
        pages = [(here / name, _of_report) for name in sorted(files) if name.endswith(".html")]
        cards = [(here / "manifest.json", _of_artifact)] if {"manifest.json", "program.json"} <= set(files) else []
        for file, read in (*pages, *cards):
            if (told := _read(file, read)) is not None:
                opened = file.with_name(CARD) if read is _of_artifact else file
                where = opened.parent if file.name in ("report.html", "manifest.json") else opened
                found.append({**told, "id": str(opened.relative_to(folder)), "place": str(where.relative_to(folder))})
        if LIVE in files and (live := _read(here / LIVE, _of_live)) is not None:
            found.append({**live, "id": str((here / LIVE).relative_to(folder)), "place": str(here.relative_to(folder))})
    return sorted(found, key=lambda one: (-one["date"], one["id"]))


def _read(file: Path, read: Any) -> dict[str, Any] | None:
    """What a file says of a run; None where it cannot be read, or is another one's."""
    try:
        known = file.lstat()
        return _kept(file, known.st_mtime_ns, known.st_size, read)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


@functools.lru_cache(maxsize=4096)
def _kept(file: Path, changed: int, size: int, read: Any) -> dict[str, Any] | None:
    told: dict[str, Any] | None = read(file)
    return (
        None
        if told is None
        else {"metric": "", "verdict": "", "baseline": "", "arms": [], **told, "date": changed / 1e9}
    )


def _text(file: Path, most: int = LARGEST) -> str:
    """A file's text, or its beginning; OSError where it is no file of its own."""
    with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as opened:
        return opened.read(most).decode("utf-8", "replace")


def _of_report(file: Path) -> dict[str, Any] | None:
    said = _SUMMARY.search(_text(file, HEAD))
    return None if said is None else _checked(json.loads(said[1]))


def _of_artifact(file: Path) -> dict[str, Any]:
    manifest = json.loads(_text(file))
    made = manifest["made"]
    met = made.get("test") or made.get("arms") or []
    arms = [
        {"name": one["arm"], "metrics": one["metrics"]} for one in met if isinstance(one, dict) and "metrics" in one
    ]
    verdict = made.get("verdict_sentence") or made.get("sentence") or ""
    told = {"title": f"{file.parent.name}: {manifest['technique']}", "metric": made.get("objective") or ""}
    return _checked({**told, "kind": "artifact", "verdict": verdict, "baseline": "no rewriting", "arms": arms})


def _of_live(file: Path) -> dict[str, Any] | None:
    live = json.loads(_text(file))
    arms = [
        {
            "name": one["name"],
            "metrics": {live["metric"]: {"value": one["mean"], "low": one["low"], "high": one["high"]}},
        }
        for one in live["arms"]
    ]
    if live["state"] == "done":
        return None
    told = {"kind": f"{live['command']}, {live['state']}", "title": file.parent.name, "metric": live["metric"]}
    return {**told, "verdict": f"{live['done']} of {live['total']}", "arms": arms, "live": live}


def _checked(told: dict[str, Any]) -> dict[str, Any]:
    """What is of the form that the page draws; ValueError where it is not."""
    texts = [told[name] for name in ("kind", "title", "metric", "verdict", "baseline")]
    texts += [one["name"] for one in told["arms"]]
    values = [value for one in told["arms"] for each in one["metrics"].values() for value in (each["value"],)]
    if not all(isinstance(one, str) for one in texts) or not all(
        one is None or type(one) in (int, float) for one in values
    ):
        raise ValueError("this is no summary")
    return told


def asked_of(control: Mapping[str, Any], action: str, arm: str) -> dict[str, list[str]]:
    """What ``control.json`` says after ``stop``, ``resume`` or ``add`` of an arm; an added arm is as it is typed.

    Raises:
        InputError: There is no such action, or the name is none.
    """
    if not 0 < len(arm) <= 500 or not arm.isprintable():
        raise InputError("an arm is named in one line of at most 500 characters, such as hyde:n_documents=2")
    stop, add = (
        [str(one) for one in given] if isinstance(given := control.get(name), list) else [] for name in ("stop", "add")
    )
    if action == "stop":
        stop = [*dict.fromkeys([*stop, arm])]
    elif action == "resume":
        stop = [one for one in stop if one != arm]
    elif action == "add":
        add = [*dict.fromkeys([*add, arm])]
    else:
        raise InputError(f"{action!r} is none of stop, resume and add")
    return {"stop": stop, "add": add}


class Viewer(ThreadingHTTPServer):
    """Serves the page on 127.0.0.1 until it is shut down.

    Args:
        folder: What is under it is shown.
        port: 0 for any that is free.

    Raises:
        InputError: The port is taken.
    """

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.folder, self.token, self.lock = folder.resolve(), secrets.token_urlsafe(24), threading.Lock()
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:
            raise InputError(f"cannot listen on 127.0.0.1:{port}: {error.strerror}; give another --port") from None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def control(self, id: str, action: str, arm: str) -> dict[str, list[str]]:
        """Write what is asked of a run under way; gives the whole of it."""
        if not any(one["id"] == id and "live" in one for one in runs_under(self.folder)):
            raise InputError(f"{id!r} is no run under way")
        file = (self.folder / id).with_name(CONTROL)
        with self.lock:
            try:
                before = json.loads(_text(file))
            except (OSError, ValueError):
                before = {}
            asked = asked_of(before if isinstance(before, dict) else {}, action, arm)
            write_file(file, json.dumps(asked, ensure_ascii=False) + "\n")
        return asked


class _Handler(BaseHTTPRequestHandler):
    server: Viewer
    timeout = 30

    def do_GET(self) -> None:
        at = urlsplit(self.path)
        if not self._let_in():
            return
        if at.path == "/":
            runs = runs_under(self.server.folder)
            nonce = POLICY.replace("default-src 'none'", "default-src 'none'; connect-src 'self'")
            page = render("view.html", policy=nonce, title=self.server.folder.name, token=self.server.token, runs=runs)
            self._send(200, page, "text/html", nonce)
        elif at.path == "/runs":
            self._send(200, json.dumps(runs_under(self.server.folder)), "application/json")
        elif at.path == "/open":
            self._open(parse_qs(at.query).get("id", [""])[0])
        else:
            self._send(404, "there is nothing here", "text/plain")

    def do_POST(self) -> None:
        if not self._let_in():
            return
        sent, size = self.headers.get("x-token", ""), self.headers.get("content-length", "")
        if not hmac.compare_digest(sent.encode(), self.server.token.encode()):
            self._send(403, "the page's token is missing or of another start; load it again", "text/plain")
        elif urlsplit(self.path).path != "/control" or not size.isdecimal() or int(size) > 4096:
            self._send(400, "what is asked of a run is sent to /control, in at most 4096 bytes", "text/plain")
        else:
            try:
                asked = json.loads(self.rfile.read(int(size)))
                self._send(
                    200,
                    json.dumps(self.server.control(*(str(asked[n]) for n in ("id", "action", "arm")))),
                    "application/json",
                )
            except (InputError, ValueError, KeyError, TypeError) as error:
                self._send(400, str(error), "text/plain")

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged."""

    def _let_in(self) -> bool:
        """Whether a page of this address asks, by this machine's own name for it; else it is refused."""
        host, origin = self.headers.get("host", ""), self.headers.get("origin")
        known = is_loopback(urlsplit(f"//{host}").hostname or "") and origin in (None, f"http://{host}")
        if not known:
            self._send(403, "this is asked from its own page only, as localhost or 127.0.0.1", "text/plain")
        return known

    def _open(self, id: str) -> None:
        """A report or a card: in a sandbox, as another one may have made it, so that it cannot ask this server."""
        file = self.server.folder / id
        if (
            not any(one["id"] == id and "live" not in one for one in runs_under(self.server.folder))
            or not file.is_file()
        ):
            self._send(404, "there is no such run; load the list again", "text/plain")
            return
        kind = "text/html" if file.suffix == ".html" else "text/plain"
        self._send(200, _text(file, 64 * 2**20), kind, f"{POLICY}; sandbox allow-scripts")

    def _send(self, status: int, body: str, kind: str, policy: str = "default-src 'none'") -> None:
        data = body.encode("utf-8", "replace")
        self.send_response(status)
        given = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(data)), **_SAFE}
        for name, value in (given | {"Content-Security-Policy": f"{policy}; frame-ancestors 'none'"}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
