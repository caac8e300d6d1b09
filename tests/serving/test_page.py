"""The page, in a browser."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.responses import Response
from starlette.routing import Route

from querywright.optimize.artifacts.files import Golden

FIRST = Golden(question="What of 7, in it's words?", options=[], answer="answer 7", passages=["p7-1"])

DRIVE = """
(async () => {
  const until = async (find) => { while (!find()) await new Promise((done) => setTimeout(done, 20)); return find(); };
  const token = document.getElementById("token");
  await until(() => document.getElementById("served").textContent.includes(":"));
  token.value = "TOKEN";
  token.dispatchEvent(new Event("change"));
  (await until(() => document.querySelector("#examples button"))).click();
  document.getElementById("form").requestSubmit();
  await until(() => document.getElementById("status").textContent.startsWith("Answered"));
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
        text = server.client.get("/").text.replace("</head>", '<script src="/page.css" defer></script></head>')
        in_place = {"/": (text, "text/html"), "/page.css": (drive, "text/javascript")}  # they need no token
        for path, (body, kind) in in_place.items():
            route = Route(path, lambda request, body=body, kind=kind: Response(body, media_type=kind))
            app.router.routes.insert(0, route)
        return server, chromium(f"{server.url}/", "--virtual-time-budget=20000")

    return ask


@pytest.mark.slow
def test_an_example_is_asked_and_shows_its_answer_passages_and_queries(page):
    _, dom = page([FIRST], reader="grounded")
    assert ">answer 7</div>" in dom
    assert '<li class="support"><h3>Title 1</h3>' in dom
    assert "<li>original: What of 7, in it's words?</li>" in dom
