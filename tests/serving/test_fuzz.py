"""The API, fuzzed on its own OpenAPI document."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode

pytestmark = pytest.mark.slow

EXAMPLES = 15
PATHS = ["/ask", "/health", "/metrics"]


@pytest.fixture
def server(run: Any, make: Any, scripted: Any) -> Any:
    return run(make(scripted), deadline=5)


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
        answer = case.call(base_url=server.url, timeout=300)
        seen.add(answer.status_code)
        case.validate_response(answer)
        assert answer.status_code in allowed, answer.text

    ask()
    return seen


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.filterwarnings("ignore")
def test_what_its_document_allows_is_answered(server: Any, path: str) -> None:
    assert fuzz(server, path, GenerationMode.POSITIVE, {200}) == {200}


@pytest.mark.filterwarnings("ignore")
def test_what_its_document_forbids_is_refused_as_documented(server: Any) -> None:
    assert fuzz(server, "/ask", GenerationMode.NEGATIVE, {400, 404, 413, 415, 422})
