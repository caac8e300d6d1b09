"""The API, fuzzed on its own OpenAPI document."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

EXAMPLES = 25
PATHS = ["/ask", "/retrieve", "/reload", "/health", "/metrics"]


@pytest.fixture
def server(run: Any, make: Any, scripted: Any, token: str) -> Any:
    return run(make(scripted), token=token, deadline=5, load=lambda name, before: make(scripted))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.filterwarnings("ignore")
def test_no_500_and_nothing_undocumented(server: Any, token: str, path: str) -> None:
    schema = schemathesis.openapi.from_dict(server.client.get("/openapi.json").json())
    operation = next(one.ok() for one in schema.get_all_operations() if one.ok().path == path)
    modes = schemathesis.GenerationMode
    seen: list[int] = []
    for mode in (modes.POSITIVE, modes.NEGATIVE):

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(
            max_examples=EXAMPLES, deadline=None, database=None, derandomize=True,
            phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        def ask(case: Any, mode: Any = mode) -> None:
            answer = case.call(base_url=server.url, headers={"Authorization": f"Bearer {token}"}, timeout=10)
            seen.append(answer.status_code)
            case.validate_response(answer)
            if mode is modes.POSITIVE:
                assert answer.status_code == 200, answer.text

        ask()
    assert 200 in seen
    assert max(seen) < 500


@given(body=st.binary(max_size=300), kind=st.sampled_from(["application/json", "text/plain", "", "\xff"]))
@settings(max_examples=40, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_no_bytes_break_it(server: Any, body: bytes, kind: str) -> None:
    answer = server.client.post("/ask", content=body, headers={"Content-Type": kind.encode("latin-1")})
    assert answer.status_code in {400, 415, 422}
    assert set(answer.json()["error"]) == {"kind", "message"}
