"""The page, in a browser."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.responses import Response
from starlette.routing import Route

DRIVE = """
(async () => {
  const until = async (find) => { while (!find()) await new Promise((done) => setTimeout(done, 20)); return find(); };
  const token = document.getElementById("token");
  await until(() => document.getElementById("served").textContent.includes(":"));
  token.value = "TOKEN";
  document.getElementById("question").value = QUESTION;
  document.getElementById("form").requestSubmit();
  await until(() => document.getElementById("status").textContent.startsWith("Answered"));
})();
"""
"""Wait for the page, type the token and the question, ask, and wait for the answer."""


@pytest.fixture
def page(run: Any, make: Any, scripted: Any, token: str, chromium: Any) -> Any:
    """Ask a question on the page of a server, and return the page's HTML."""

    def ask(question: str, **given: Any) -> str:
        server = run(make(scripted, **given), token=token)
        app, drive = server.server.config.app, DRIVE.replace("TOKEN", token).replace("QUESTION", json.dumps(question))
        text = server.client.get("/").text.replace("</head>", '<script src="/page.css" defer></script></head>')
        in_place = {"/": (text, "text/html"), "/page.css": (drive, "text/javascript")}  # they need no token
        for path, (body, kind) in in_place.items():
            route = Route(path, lambda request, body=body, kind=kind: Response(body, media_type=kind))
            app.router.routes.insert(0, route)
        return chromium(f"{server.url}/", "--virtual-time-budget=400000")

    return ask


@pytest.mark.slow
def test_a_question_shows_its_answer_passages_and_queries(page):
    dom = page("What of 7, in it's words?", reader="grounded")
    assert ">answer 7</div>" in dom
    assert '<li class="support"><h3>Title 1</h3>' in dom
    assert "<li>original: What of 7, in it's words?</li>" in dom
