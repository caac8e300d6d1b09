"""The API, fuzzed on its own OpenAPI document."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from querywright.serving import ServeSettings, make_app

pytestmark = pytest.mark.slow

EXAMPLES = 15
PATHS = ["/ask", "/retrieve", "/reload", "/health", "/metrics"]


@pytest.fixture
def server(run: Any, make: Any, scripted: Any) -> Any:
    return run(make(scripted), deadline=5, load=lambda name, before: make(scripted))


def fuzz(server: Any, path: str, mode: Any, allowed: set[int]) -> set[int]:
    """The statuses of made-up requests to an address."""
    schema = schemathesis.openapi.from_dict(server.client.get("/openapi.json").json())
    operation = next(one.ok() for one in schema.get_all_operations() if one.ok().path == path)
    seen: set[int] = set()

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, derandomize=True,
        phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    def ask(case: Any) -> None:
        answer = case.call(base_url=server.url, timeout=10)
        seen.add(answer.status_code)
        case.validate_response(answer)
        assert answer.status_code in allowed, answer.text

    ask()
    return seen


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.filterwarnings("ignore")
def test_what_its_document_allows_is_answered(server: Any, path: str) -> None:
    assert fuzz(server, path, GenerationMode.POSITIVE, {200}) == {200}


@pytest.mark.parametrize("path", ["/ask", "/retrieve"])
@pytest.mark.filterwarnings("ignore")
def test_what_its_document_forbids_is_refused_as_documented(server: Any, path: str) -> None:
    assert fuzz(server, path, GenerationMode.NEGATIVE, {400, 404, 413, 415, 422})


@given(body=st.binary(max_size=300), kind=st.sampled_from(["application/json", "text/plain", "", "\xff"]))
@settings(max_examples=40, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_no_bytes_break_it(server: Any, body: bytes, kind: str) -> None:
    answer = server.client.post("/ask", content=body, headers={"Content-Type": kind.encode("latin-1")})
    assert answer.status_code in {400, 415, 422}
    assert set(answer.json()["error"]) == {"kind", "message"}


ODD = st.one_of(
    st.sampled_from([
        b"", b"http://[", b"//", b"null", b"9" * 5000, b"-1", b"1e3", b"Bearer", b"Bearer ", b"\xff", b",", b"[::1]",
        b"unknown, ::ffff:1.2.3.4", b"127.0.0.1:99999", b"%00", b"\t", b"a" * 3000,
    ]),
    st.binary(max_size=40).map(lambda value: bytes(one for one in value if one > 31 and one != 127)),
)  # fmt: skip
HEADERS = st.dictionaries(
    st.sampled_from([b"origin", b"content-length", b"authorization", b"x-request-id", b"x-forwarded-for", b"host"]),
    ODD, min_size=1, max_size=3,
)  # fmt: skip


@given(headers=HEADERS)
@settings(max_examples=80, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_no_headers_break_it(make: Any, scripted: Any, headers: dict[bytes, bytes]) -> None:
    """Given to the application as any ASGI server might."""
    app = make_app({"sample": make(scripted)}, ServeSettings(rate=0))
    told, status = ask_with(app, "/health", {b"host": b"127.0.0.1"} | headers)
    assert status in {200, 400, 403, 413}
    assert status == 200 or set(told["error"]) == {"kind", "message"}


@given(authorization=ODD)
@settings(max_examples=30, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_no_authorization_breaks_it(make: Any, scripted: Any, token: str, authorization: bytes) -> None:
    app = make_app({"sample": make(scripted)}, ServeSettings(rate=0, token=token))
    assert ask_with(app, "/metrics", {b"authorization": authorization})[1] == 401


def ask_with(app: Any, path: str, headers: dict[bytes, bytes]) -> tuple[Any, int]:
    """What the application answers to a request with these headers."""
    sent: list[Any] = []
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
        "path": path, "raw_path": path.encode(), "root_path": "", "query_string": b"", "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80), "headers": list(headers.items()),
    }  # fmt: skip

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    return json.loads(b"".join(one.get("body", b"") for one in sent)), sent[0]["status"]
