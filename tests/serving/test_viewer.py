"""``querywright view``: what it finds, and what it lets nobody do."""

from __future__ import annotations

import http.client
import json
import threading
from typing import Any

import pytest

from querywright.errors import InputError
from querywright.optimize.comparison import Comparison
from querywright.optimize.evaluate import Evaluation, Row
from querywright.optimize.significance import against
from querywright.serving.viewer import Viewer, runs_under

EVIL = "</script><script>alert(1)</script>"


@pytest.fixture
def folder(tmp_path):
    arms = [Evaluation(name, tuple(Row(f"q{n}", {"accuracy": float(n < most)}) for n in range(9)), 0.0)
            for name, most in (("plain", 1), (EVIL, 8))]  # fmt: skip
    found = Comparison(tuple(arms), "plain", tuple(against(arms, "plain")))
    found.report(tmp_path / "runs" / "one" / "report.html", title=EVIL)
    for name, text in {
        "runs/made/manifest.json": json.dumps(
            {"technique": "hcqr", "made": {"objective": "accuracy", "verdict_sentence": "It is better", "test": [
                {"arm": "baseline", "metrics": {"accuracy": {"value": 0.5, "low": None, "high": None}}}]}}
        ),
        "runs/made/program.json": "{}", "runs/made/README.md": "# made\n",
        "runs/broken/manifest.json": "[]", "runs/broken/program.json": "",
        "runs/broken/report.html": '<script type="application/json" id="report-summary">{"kind": 1}</script>',
        "runs/strange.html": "<p>another page</p>",
        "runs/.hidden/manifest.json": json.dumps({"technique": "hcqr", "made": {}}),
        "secret.txt": "secret",
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "runs" / "linked.html").symlink_to(tmp_path / "runs" / "one" / "report.html")
    return tmp_path / "runs"


@pytest.fixture
def ask(folder):
    """Asks a viewer: status, headers and body."""
    with Viewer(folder) as viewer:
        threading.Thread(target=viewer.serve_forever, daemon=True).start()

        def call(method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any, str]:
            connection = http.client.HTTPConnection(*viewer.server_address, timeout=300)
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, None if body is None else json.dumps(body), names)
            answer = connection.getresponse()
            told = answer.status, answer.headers, answer.read().decode()
            connection.close()
            return told

        call.viewer = viewer
        yield call
        viewer.shutdown()


def test_reports_and_artifacts_are_found(folder):
    found = {one["id"]: one for one in runs_under(folder)}
    assert set(found) == {"one/report.html", "made/README.md"}
    report, made = (found[name] for name in ("one/report.html", "made/README.md"))
    assert (report["kind"], report["place"], report["title"], report["baseline"]) == (
        "comparison",
        "one",
        EVIL,
        "plain",
    )
    assert [one["name"] for one in report["arms"]] == ["plain", EVIL]
    assert report["arms"][1]["metrics"]["accuracy"]["value"] == pytest.approx(8 / 9)
    assert report["verdict"] == f"Better than plain: {EVIL} (accuracy)"
    assert (made["kind"], made["title"], made["verdict"]) == ("artifact", "made: hcqr", "It is better")


def test_the_page_holds_the_runs_and_no_text_of_theirs_is_markup(ask):
    status, headers, page = ask("GET", "/")
    assert (status, EVIL in page, "made: hcqr" in page) == (200, False, True)
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert len(json.loads(ask("GET", "/runs")[2])) == 2


def test_a_report_is_opened_in_a_sandbox_and_nothing_else_is(ask):
    status, headers, page = ask("GET", "/open?id=one%2Freport.html")
    assert (status, "report-summary" in page) == (200, True)
    assert "sandbox allow-scripts;" in headers["Content-Security-Policy"]
    assert ask("GET", "/open?id=made/README.md")[1]["Content-Type"].startswith("text/plain")
    for id in ("../secret.txt", "..%2Fsecret.txt", "/etc/passwd", "strange.html", "linked.html", ""):
        assert ask("GET", f"/open?id={id}")[0] == 404


@pytest.mark.parametrize("headers", [{"host": "evil.example"}, {"origin": "http://evil.example"}, {"host": ""}])
def test_no_other_page_may_ask(ask, headers):
    assert ask("GET", "/", **headers)[0] == 403
    assert ask("GET", "/runs", **headers)[0] == 403


def test_the_page_changes_nothing(ask):
    assert ask("POST", "/control", {"id": "one/report.html", "action": "stop", "arm": "plain"})[0] == 501


def test_a_port_that_is_taken_is_said(ask, folder):
    with pytest.raises(InputError, match="try a different --port"):
        Viewer(folder, ask.viewer.server_address[1])
