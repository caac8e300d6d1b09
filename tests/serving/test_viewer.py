"""``querywright view``: what it finds, and what it lets nobody do."""

from __future__ import annotations

import base64
import gzip
import http.client
import json
import re
import threading
from html import unescape
from typing import Any

import pytest

from querywright.errors import InputError
from querywright.optimize.comparison import Compared
from querywright.optimize.evaluate import Evaluation, Row
from querywright.optimize.significance import against
from querywright.serving import viewer as module
from querywright.serving.viewer import Viewer, asked_of, runs_under

EVIL = "</script><script>alert(1)</script>"
LIVE = {
    "command": "compare", "state": "running", "started": 1.0, "updated": 2.0, "metric": "accuracy", "done": 3,
    "total": 8, "calls": 4, "usd": None,
    "arms": [{"name": "plain", "state": "running", "done": 3, "total": 4, "mean": 0.5, "low": 0.1, "high": 0.9}],
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    arms = [Evaluation(name, tuple(Row(f"q{n}", {"accuracy": float(n < most)}) for n in range(9)), 0.0)
            for name, most in (("plain", 1), (EVIL, 8))]  # fmt: skip
    found = Compared(tuple(arms), "plain", tuple(against(arms, "plain")))
    found.report(tmp_path / "runs" / "one" / "report.html", title=EVIL)
    for name, text in {
        "runs/live/live.json": json.dumps(LIVE),
        "runs/ended/live.json": json.dumps({**LIVE, "state": "done"}),
        "runs/made/manifest.json": json.dumps(
            {"technique": "hcqr", "made": {"objective": "accuracy", "verdict_sentence": "It is better", "test": [
                {"arm": "no rewriting", "metrics": {"accuracy": {"value": 0.5, "low": None, "high": None}}}]}}
        ),
        "runs/made/program.json": "{}", "runs/made/README.md": "# made\n",
        "runs/broken/live.json": "{", "runs/broken/manifest.json": "[]", "runs/broken/program.json": "",
        "runs/broken/report.html": '<script type="application/json" id="report-summary">{"kind": 1}</script>',
        "runs/strange.html": "<p>another page</p>", "runs/.hidden/live.json": json.dumps(LIVE),
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


def test_reports_artifacts_and_runs_under_way_are_found(folder):
    found = {one["id"]: one for one in runs_under(folder)}
    assert set(found) == {"one/report.html", "made/README.md", "live/live.json"}
    report, made, live = (found[name] for name in ("one/report.html", "made/README.md", "live/live.json"))
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
    assert (live["kind"], live["live"]["calls"], live["verdict"]) == ("compare, running", 4, "3 of 8")


def test_the_page_holds_the_runs_and_no_text_of_theirs_is_markup(ask):
    status, headers, page = ask("GET", "/")
    assert (status, EVIL in page, "made: hcqr" in page) == (200, False, True)
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert len(json.loads(ask("GET", "/runs")[2])) == 3


def test_a_report_is_opened_in_a_sandbox_and_nothing_else_is(ask):
    status, headers, page = ask("GET", "/open?id=one%2Freport.html")
    assert (status, "report-summary" in page) == (200, True)
    assert "sandbox allow-scripts;" in headers["Content-Security-Policy"]
    assert ask("GET", "/open?id=made/README.md")[1]["Content-Type"].startswith("text/plain")
    for id in ("../secret.txt", "..%2Fsecret.txt", "/etc/passwd", "strange.html", "live/live.json", "linked.html", ""):
        assert ask("GET", f"/open?id={id}")[0] == 404


def test_a_report_is_opened_with_all_the_prompts_that_lie_beside_it(ask, folder):
    prompts = gzip.compress(b'{"place":0}\n')
    (folder / "one" / "report.prompts.jsonl.gz").write_bytes(prompts)
    page = ask("GET", "/open?id=one%2Freport.html")[2]
    assert f'data-left="0">{base64.b64encode(prompts).decode()}</script>' in page


def test_what_is_asked_of_a_run_stands_in_its_folder(ask, folder):
    token = ask.viewer.token
    for action, arm in (
        ("stop", "plain"),
        ("add", "hyde:n_documents=2"),
        ("stop", "hyde:n_documents=2"),
        ("resume", "plain"),
    ):
        told = ask("POST", "/control", {"id": "live/live.json", "action": action, "arm": arm}, x_token=token)
        assert told[0] == 200, told
    control = {"stop": ["hyde:n_documents=2"], "add": ["hyde:n_documents=2"]}
    assert json.loads((folder / "live" / "control.json").read_text()) == control
    for wrong in (
        {"id": "one/report.html", "action": "stop", "arm": "plain"}, {"id": "live/live.json", "action": "stop"},
        {"id": "live/live.json", "action": "kill", "arm": "plain"},
        {"id": "live/live.json", "action": "add", "arm": "a\nb"},
        [], "x", {"id": "live/live.json", "action": "add", "arm": "x" * 5000},
    ):  # fmt: skip
        assert ask("POST", "/control", wrong, x_token=token)[0] == 400
    assert json.loads((folder / "live" / "control.json").read_text()) == control
    assert asked_of({"stop": 7, "add": None}, "stop", "a") == {"stop": ["a"], "add": []}


STUDY = {**LIVE, "command": "study", "notes": [f"n is 1 to 3 in this study {EVIL}"], "arms": [
    {**LIVE["arms"][0], "name": f"trial {n}, hyde@dense", "state": state, "clone": f"trial {n}:n=1,top_k=5"}
    for n, state in enumerate(("done", "running", "stopped", "pruned", "waiting"))
]}  # fmt: skip

DRIVE = """<script>
const rows = () => [...document.querySelectorAll("#under-way tbody tr")];
const buttons = (row) => [...row.querySelectorAll("button")];
const told = { buttons: rows().map((row) => buttons(row).map((one) => one.textContent).join(" ")) };
const wait = () => new Promise((done) => setTimeout(done, 1500));
(async () => {
  told.names = rows().map((row) => row.cells[0].textContent);
  told.notes = document.querySelector("#under-way p.worse").textContent;
  buttons(rows()[1])[0].click(); await wait();
  buttons(rows()[2])[0].click(); await wait();
  buttons(rows()[3])[0].click();
  const field = document.querySelector("#under-way form input");
  [told.given, field.value] = [field.value, "trial 3:n=2"];
  document.querySelector("#under-way form button").click(); await wait();
  told.asked = rows().map((row) => row.cells[5].querySelector("small").textContent);
  const pre = Object.assign(document.createElement("pre"), { id: "told", textContent: JSON.stringify(told) });
  document.body.replaceChildren(pre);
})();
</script>"""


@pytest.mark.slow
def test_trials_of_a_study_are_stopped_resumed_and_cloned_on_the_page(chromium, ask, folder, monkeypatch):
    (folder / "live" / "live.json").write_text(json.dumps(STUDY))
    render = module.render
    monkeypatch.setattr(module, "render", lambda *a, **given: render(*a, **given).replace("</body>", f"{DRIVE}</body>"))
    dom = chromium(ask.viewer.url, "--virtual-time-budget=20000")
    told = json.loads(unescape(re.search(r'<pre id="told">(.*?)</pre>', dom, re.DOTALL)[1]))
    assert told["names"][0] == "trial 0, hyde@densen=1,top_k=5"
    assert told["buttons"] == ["Clone", "Stop Clone", "Resume Clone", "Clone", "Stop Clone"]
    assert told["notes"] == STUDY["notes"][0]
    assert told["given"] == "trial 3:n=1,top_k=5"
    assert told["asked"] == ["", "asked: stop trial 1", "asked: resume trial 2", "asked: add trial 3:n=2", ""]
    control = {"stop": ["trial 1"], "add": ["trial 2:", "trial 3:n=2"]}
    assert json.loads((folder / "live" / "control.json").read_text()) == control


def test_what_is_asked_of_a_study_stands_in_its_folder_and_of_a_compilation_nothing(ask, folder):
    live = folder / "live" / "live.json"
    for command, status in (("study", 200), ("compile", 400)):
        live.write_text(json.dumps({**STUDY, "command": command}))
        asked = {"id": "live/live.json", "action": "resume", "arm": "trial 2"}
        assert ask("POST", "/control", asked, x_token=ask.viewer.token)[0] == status
    assert json.loads((folder / "live" / "control.json").read_text()) == {"stop": [], "add": ["trial 2:"]}
    (run,) = (one for one in json.loads(ask("GET", "/runs")[2]) if one["id"] == "live/live.json")
    assert run["live"]["notes"] == STUDY["notes"]


@pytest.mark.parametrize(
    "headers", [{"x_token": "guessed"}, {}, {"host": "evil.example"}, {"origin": "http://evil.example"}, {"host": ""}]
)
def test_no_other_page_may_ask(ask, folder, headers):
    given = headers if "x_token" in headers or not headers else {"x_token": ask.viewer.token, **headers}
    body = {"id": "live/live.json", "action": "stop", "arm": "plain"}
    assert ask("POST", "/control", body, **given)[0] == 403
    if "x_token" in given and given["x_token"] != "guessed":
        assert ask("GET", "/", **headers)[0] == 403
    assert not (folder / "live" / "control.json").exists()


def test_a_port_that_is_taken_is_said(ask, folder):
    with pytest.raises(InputError, match="give another --port"):
        Viewer(folder, ask.viewer.server_address[1])
