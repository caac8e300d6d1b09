"""The page, in a browser: what a person sees and copies, and that nothing of what it shows is taken for markup."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from typing import Any

import pytest
from starlette.responses import Response
from starlette.routing import Route

from querywright.data.types import Label
from querywright.optimize.artifacts.files import Golden

FIRST = Golden(
    question="What of 7, in it's $(touch taken) words?", options=[], answer="answer 7", passages=["p7-1"],
    evidence={"p7-2": Label.ENTAILED, "lost": Label.USEFUL},
)  # fmt: skip

DRIVE = """
(async () => {
  const until = async (find) => { while (!find()) await new Promise((done) => setTimeout(done, 20)); return find(); };
  const token = document.getElementById("token");
  await until(() => document.getElementById("served").textContent.includes(":"));
  token.value = "TOKEN";
  token.dispatchEvent(new Event("change"));
  (await until(() => document.querySelector("#examples button"))).click();
  document.getElementById("form").requestSubmit();
  await until(() => document.getElementById("status").textContent.includes("answer is there"));
})();
"""
"""What a person does: waits, gives the token, chooses a question, asks, waits."""


@pytest.fixture
def page(run: Any, make: Any, scripted: Any, token: str, chromium: Any) -> Any:
    """Asks a golden question on the page of a server, and gives what stands there then."""

    def ask(golden: Any, **given: Any) -> tuple[Any, str]:
        program = make(scripted, **given)
        program.golden = tuple(golden)
        server = run(program, token=token)
        app, drive = server.server.config.app, DRIVE.replace("TOKEN", token)
        text = server.client.get("/").text.replace("</head>", '<script src="/docs.js" defer></script></head>')
        in_place = {"/docs": (text, "text/html"), "/docs.js": (drive, "text/javascript")}  # they need no token
        for path, (body, kind) in in_place.items():
            route = Route(path, lambda request, body=body, kind=kind: Response(body, media_type=kind))
            app.router.routes.insert(0, route)
        return server, chromium(f"{server.url}/docs", "--virtual-time-budget=20000")

    return ask


def text_of(dom: str, pattern: str) -> str:
    """What stands in the first element of that pattern."""
    found = re.search(pattern, dom, re.DOTALL)
    assert found, dom
    return html.unescape(found[1])


@pytest.mark.slow
def test_a_golden_question_shows_scores_labels_and_trace_and_is_copied_as_what_runs(page, token, tmp_path):
    _, dom = page([FIRST], reader="grounded")
    assert ">1. Title 1</h4>" in dom
    assert 'class="support"' in dom
    assert "labelled ENTAILED: it decides the question" in dom
    assert "Labelled as helpful, but not among them: lost" in dom
    assert "score 0.500, place 2 for: What of 7, in it's $(touch taken) words?" in dom
    assert "The same as when it was saved." in dom
    assert "Trace: 1 step, 0 LM calls" in dom
    curl = text_of(dom, r'aria-label="curl">(.*?)</pre>')
    python = text_of(dom, r'aria-label="Python">(.*?)</pre>')
    assert token not in curl + python
    told = {"QW_TOKEN": token, "PATH": os.environ["PATH"]}
    for command in ([sys.executable, "-c", python], ["sh", "-c", curl]):
        done = subprocess.run(command, capture_output=True, text=True, env=told, cwd=tmp_path, check=True)
        assert "answer 7" in done.stdout
    assert not (tmp_path / "taken").exists()
