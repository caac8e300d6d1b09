"""All runs under a folder as one local page: found by what they hold, read again at every look, never written to.

Only what a person asks of a run under way is written, to ``control.json`` in its folder.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import json
import os
import re
import secrets
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from querywright.errors import InputError
from querywright.files import write_file
from querywright.optimize.comparison import CLOSED_BOOK, ORACLE
from querywright.optimize.report import POLICY, PROMPTS, render, with_prompts
from querywright.progress import CONTROL, LIVE
from querywright.serving.settings import is_loopback

DEEPEST, MOST, HEAD, LARGEST = 6, 5000, 2**19, 2**26
"""Folders below the first, folders looked at, and bytes read of a page's beginning and of any other file."""

_SUMMARY = re.compile(r'<script type="application/json" id="report-summary">(.*?)</script>', re.DOTALL)
_PLAIN: dict[str, Any] = {"metric": "", "verdict": "", "baseline": "", "arms": []}
_SAFE = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"}


def runs_under(folder: Path) -> list[dict[str, Any]]:
    """What lies under a folder, the newest first: reports, artifacts and runs under way; links are not followed.

    Each has ``id`` (its place in the folder), ``kind``, ``title``, ``date`` (seconds since 1970), ``metric``,
    ``verdict``, ``baseline`` and ``arms`` (``name`` and ``metrics``), and a run under way ``live``.
    """
    found: list[dict[str, Any]] = []
    readers = {"manifest.json": _of_artifact, LIVE: _of_live}
    for seen, (place, folders, files) in enumerate(os.walk(folder)):
        here = Path(place)
        deep = len(here.relative_to(folder).parts) >= DEEPEST or seen >= MOST
        folders[:] = [] if deep else sorted(name for name in folders if not name.startswith("."))
        for file in (here / name for name in files):
            read = _of_report if file.suffix == ".html" else readers.get(file.name)
            with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError):  # another one's
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
        raise ValueError("this is no summary")
    return told and {name: value if isinstance(value, list | dict) else str(value) for name, value in told.items()}


def _text(file: Path, most: int = LARGEST) -> str:
    """A file's text, or its beginning; OSError where it is a link."""
    return _bytes(file, most).decode("utf-8", "replace")


def _bytes(file: Path, most: int = LARGEST) -> bytes:
    with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as opened:
        return opened.read(most)


def _opened(file: Path) -> str:
    """What is shown of a file: a report with all prompts, where it has room for some alone."""
    page = _text(file)
    with contextlib.suppress(OSError):
        return with_prompts(page, _bytes(file.with_suffix(PROMPTS)))
    return page


def _of_report(file: Path) -> Any:
    said = _SUMMARY.search(_text(file, HEAD))
    return said and json.loads(said[1])


def _of_artifact(file: Path) -> Any:
    manifest = json.loads(_text(file))
    made, title = manifest["made"], f"{file.parent.name}: {manifest['technique']}"
    arms = [{"name": one["arm"], "metrics": one["metrics"]} for one in made.get("test", ())]
    verdict = made.get("verdict_sentence") or made.get("sentence") or ""
    return {"kind": "artifact", "title": title, "metric": made.get("objective", ""), "verdict": verdict, "arms": arms}


def _of_live(file: Path) -> Any:
    live = json.loads(_text(file))
    arms = [{"name": one["name"], "metrics": {live["metric"]: {**one, "value": one["mean"]}}} for one in live["arms"]]
    told = {
        "kind": f"{live['command']}, {live['state']}",
        "title": file.parent.name,
        "metric": live["metric"],
    }
    return live["state"] != "done" and {
        **told,
        "verdict": f"{live['done']} of {live['total']}",
        "arms": arms,
        "live": live,
    }


def asked_of(control: Any, action: str, arm: str) -> dict[str, list[str]]:
    """What ``control.json`` says after ``stop``, ``resume`` or ``add`` of an arm; an added arm is as it is typed.

    Raises:
        InputError: There is no such action, or the name is none.
    """
    if action not in ("stop", "resume", "add") or not 0 < len(arm) <= 500 or not arm.isprintable():
        raise InputError(f"stop, resume or add an arm such as hyde:n_documents=2, but not {action!r} {arm[:80]!r}")
    control = control if isinstance(control, dict) else {}
    lists = {name: control[name] if isinstance(control.get(name), list) else [] for name in ("stop", "add")}
    if action == "resume":
        lists["stop"] = [one for one in lists["stop"] if one != arm]
    elif arm not in lists[action]:
        lists[action] = [*lists[action], arm]
    return lists


class Viewer(ThreadingHTTPServer):
    """Serves the page of a folder on a port of 127.0.0.1, 0 for any that is free; InputError where it is taken."""

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
        kind = next((one["kind"].partition(",")[0] for one in runs_under(self.folder) if one["id"] == id), None)
        if kind not in ("compare", "study"):
            raise InputError(f"{id!r} is no comparison or study under way")
        if (kind, action) == ("study", "resume"):
            action, arm = "add", f"{arm}:"  # the trial ended, and is tried once more as it is
        file, before = (self.folder / id).with_name(CONTROL), None
        with self.lock:
            with contextlib.suppress(OSError, ValueError):
                before = json.loads(_text(file))
            asked = asked_of(before, action, arm)
            write_file(file, json.dumps(asked, ensure_ascii=False) + "\n")
        return asked


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
            given = {"token": self.server.token, "runs": runs, "references": (CLOSED_BOOK, ORACLE)}
            page = render("view.html", policy=policy, title=folder.name, given=given)
            return self._send(200, page, "text/html", policy)
        if at.path == "/runs":
            return self._send(200, json.dumps(runs), "application/json")
        if at.path == "/open" and any(one["id"] == id and "live" not in one for one in runs):
            # In a sandbox, as another one may have made it: it cannot ask this server.
            kind = "text/html" if id.endswith(".html") else "text/plain"
            with contextlib.suppress(FileNotFoundError):
                return self._send(200, _opened(folder / id), kind, f"{POLICY}; sandbox allow-scripts")
        return self._send(404, "there is nothing here; load the list again")

    def do_POST(self) -> None:
        sent, size = self.headers.get("x-token", ""), self.headers.get("content-length", "")
        if not self._let_in():
            return
        if not hmac.compare_digest(sent.encode(), self.server.token.encode()):
            self._send(403, "the page's token is missing or of another start; load it again")
        elif self.path != "/control" or not size.isdecimal() or int(size) > 4096:
            self._send(400, "what is asked of a run is sent to /control, in at most 4096 bytes")
        else:
            try:
                asked = json.loads(self.rfile.read(int(size)))
                done = self.server.control(*(str(asked[name]) for name in ("id", "action", "arm")))
                self._send(200, json.dumps(done), "application/json")
            except (InputError, ValueError, LookupError, TypeError) as error:
                self._send(400, str(error))

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged."""

    def _let_in(self) -> bool:
        """Whether a page of this address asks, by this machine's own name for it; else it is refused."""
        host, origin = self.headers.get("host", ""), self.headers.get("origin")
        known = is_loopback(urlsplit(f"//{host}").hostname or "") and origin in (None, f"http://{host}")
        if not known:
            self._send(403, "this is asked from its own page only, as localhost or 127.0.0.1")
        return known

    def _send(self, status: int, body: str, kind: str = "text/plain", policy: str = "default-src 'none'") -> None:
        data = body.encode("utf-8", "replace")
        self.send_response(status)
        given = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(data)), **_SAFE}
        for name, value in (given | {"Content-Security-Policy": f"{policy}; frame-ancestors 'none'"}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
