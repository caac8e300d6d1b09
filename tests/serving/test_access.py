from __future__ import annotations

from typing import Any

import httpx
import pytest

from querywright.errors import InputError
from querywright.serving import ServeSettings, make_app

OPEN = ["/", "/page.js", "/page.css", "/docs", "/docs.js", "/health"]
CLOSED = ["/metrics", "/openapi.json", "/nowhere"]


def test_the_token_is_needed_for_all_but_health_and_the_pages(run: Any, make: Any, scripted: Any, token: str) -> None:
    server = run(make(scripted), token=token)
    assert server.ask().status_code == 200
    with httpx.Client(base_url=server.url) as stranger:
        assert [stranger.get(path).status_code for path in OPEN] == [200] * len(OPEN)
        refused = [stranger.get(path) for path in CLOSED]
        refused += [stranger.post(path, json={"question": "q"}) for path in ("/ask", "/retrieve", "/reload")]
        for given in ("", "Bearer", "Bearer x", f"Basic {token}", f"Bearer {token}x", "Bearer \xff", token):
            refused.append(stranger.get("/metrics", headers={"Authorization": given.encode("latin-1")}))
        assert {answer.status_code for answer in refused} == {401}
        assert {answer.headers["www-authenticate"] for answer in refused} == {"Bearer"}
        assert stranger.get("/metrics", headers={"Authorization": f"bearer {token}"}).status_code == 200
        assert stranger.get("/health").json()["token"]
    assert token not in server.logs.getvalue()
    assert token not in repr(ServeSettings(token=token))


def test_pages_of_other_sites_cannot_ask(run: Any, make: Any, scripted: Any) -> None:
    server = run(make(scripted))
    body = {"question": "What of 7?"}
    assert server.client.post("/ask", json=body, headers={"Origin": "https://evil.example"}).status_code == 403
    for odd in ("null", "http://[", "http://]", "//\uff0f", "", "http://127.0.0.1:x"):
        assert server.client.post("/reload", headers={"Origin": odd.encode()}).status_code == 403
    assert server.client.post("/ask", json=body, headers={"Host": "evil.example"}).status_code == 400
    assert server.client.post("/ask", json=body, headers={"Origin": server.url}).status_code == 200
    assert not any("access-control" in name for name in server.ask().headers)


def test_an_id_is_taken_when_it_is_a_plain_word(run: Any, make: Any, scripted: Any) -> None:
    server = run(make(scripted))
    for given, taken in {"a-1.b_2": True, "x" * 65: False, "a b": False, '"': False, "": False}.items():
        found = server.client.get("/health", headers={"X-Request-Id": given}).headers["x-request-id"]
        assert (found == given) == taken
        assert found


def test_no_page_may_load_anything_from_elsewhere(run: Any, make: Any, scripted: Any) -> None:
    server = run(make(scripted))
    for path in ("/", "/docs"):
        answer = server.client.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "http://" not in answer.text
        assert "https://" not in answer.text
        assert "<script>" not in answer.text
        assert "style=" not in answer.text
    for path in ("/page.js", "/docs.js"):
        text = server.client.get(path).text
        assert not any(word in text for word in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval("))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"host": "0.0.0.0"}, "--token-env"),
        ({"host": "::"}, "--token-env"),
        ({"host": "qa.example"}, "--token-env"),
        ({"token": "short"}, "16"),
        ({"token": "with a \n line end in it"}, "printable"),
        ({"concurrency": 0}, "concurrency"),
        ({"waiting": -1}, "waiting"),
        ({"connections": 0}, "connections"),
        ({"max_options": 1}, "max_options"),
        ({"rate": -1.0}, "rate"),
        ({"rate": float("nan")}, "rate"),
        ({"burst": 0}, "burst"),
        ({"deadline": 0.0}, "deadline"),
        ({"grace": float("inf")}, "grace"),
        ({"port": 70_000}, "port"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        ServeSettings(**changes)


def test_nothing_cannot_be_served() -> None:
    with pytest.raises(InputError, match="at least one"):
        make_app({})
