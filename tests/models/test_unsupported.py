"""Servers that do not support a parameter, with the error messages of many servers, over a real connection."""

from __future__ import annotations

import threading
from unittest.mock import Mock

import dspy
import pytest
from dspy.utils.exceptions import LMError, LMInvalidRequestError

from querywright.errors import InputError, ModelError
from querywright.models.adapter import PromptAdapter
from querywright.models.budget import Budget
from querywright.models.circuit_breaker import Limits
from querywright.models.lm import as_lm, engine_of, resolve_lm
from querywright.models.pieces import heard_by
from querywright.models.store import open_store
from querywright.models.unsupported import unsupported_by

GOOD = '{"answer": "tea"}'


@pytest.fixture(autouse=True)
def nothing_is_known():
    """Forget other servers, because a server of another test may have had the same port."""
    unsupported_by.cache_clear()


def error(message, **fields):
    return {"error": {"message": message, "type": "invalid_request_error", **fields}}


def extra(name, **fields):
    return {"type": "extra_forbidden", "loc": ["body", name], "msg": "Extra inputs are not permitted", **fields}


def refusing(name, body, status=400):
    """Return a server that refuses a parameter, or one value of it."""
    name, _, value = name.partition("=")

    def step(sent):
        if name in sent and value in ("", str(sent[name])):
            return {"status": status, "body": body}
        return {"answer": GOOD}

    return step


def ask(lm, question="What is drunk hot?", **config):
    with dspy.context(lm=lm, adapter=PromptAdapter()):
        return dspy.Predict("question -> answer")(question=question, config=config).answer


LENGTH = "max_completion_tokens"
FORMAT = "response_format"
USE = "Unsupported parameter: '{}' is not supported with this model. Use '{}' instead."
ONLY_DEFAULT = (
    "Unsupported value: 'temperature' does not support 0.0 with this model. Only the default (1) value is supported."
)
NAMED = [
    ("seed", 400, error("Unsupported parameter: 'seed' is not supported.", code="unsupported_parameter")),
    ("seed", 400, error("Invalid request.", param="seed", code="unsupported_parameter")),
    ("seed", 400, error("Unrecognized request argument supplied: seed")),
    ("seed", 400, error("Unknown parameter: 'seed'.", param="seed", code="unknown_parameter")),
    ("seed", 400, error("Additional properties are not allowed ('seed' was unexpected)")),
    ("seed", 400, error('Invalid JSON payload received. Unknown name "seed": Cannot find field.')),
    ("seed", 400, [error('Invalid JSON payload received. Unknown name "seed": Cannot find field.', details=[])]),
    ("seed", 400, {"type": "error", "error": {"type": "invalid_request_error",
                                              "message": "seed: Extra inputs are not permitted"}}),
    ("seed", 400, {"message": "Malformed input request: #: extraneous key [seed] is not permitted, please reformat"}),
    ("seed", 400, {"object": "error", "message": f"[{extra('seed', input=3)}]", "code": 400, "param": None}),
    ("seed", 400, {"error": "unknown field: parameter 'seed' is not a valid field"}),
    ("seed", 400, b"Argument not supported on this model: seed"),
    ("seed", 422, {"detail": [extra("seed", input=3)]}),
    ("seed", 422, {"detail": [{"loc": ["body", "seed"], "msg": "extra fields not permitted",
                               "type": "value_error.extra"}]}),
    ("seed", 422, {"object": "error", "message": {"detail": [extra("seed", input=3)]}, "type": "invalid"}),
    ("seed", 422, {"error": "Input validation error: `seed` must be strictly positive", "error_type": "validation"}),
    ("temperature", 400, error(ONLY_DEFAULT, param="temperature", code="unsupported_value")),
    ("temperature", 400, error("invalid temperature: only 1 is allowed for this model")),
    ("temperature", 400, error("`temperature` is deprecated for this model.")),
    ("temperature", 400, error("`temperature` may only be set to 1 when thinking is enabled.")),
    ("temperature=0.0", 422, {"error": "Input validation error: `temperature` must be strictly positive"}),
    ("temperature=0.0", 422, {"detail": [{"type": "greater_than", "loc": ["body", "temperature"], "input": 0.0,
                                          "msg": "Input should be greater than 0"}]}),
    (FORMAT, 400, error("Invalid: 'response_format' of type 'json_schema' is not supported with this model.")),
    (FORMAT, 400, error("This model does not support response format `json_schema`. See supported models.")),
    (FORMAT, 400, error("This response_format type is unavailable now")),
    (FORMAT, 400, {"error": "'response_format.type' must be 'json_object' or 'text'"}),
    (FORMAT, 422, {"error": "Failed to read response_format: unknown variant `json_schema`, expected `text`"}),
    (LENGTH, 400, error(USE.format(LENGTH, "max_tokens"), param=LENGTH, code="unsupported_parameter")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "status", "body"), NAMED)
def test_a_parameter_that_a_server_names_is_left_out_remembered_and_reported_once(remote, caplog, name, status, body):
    lm, server = remote(refusing(name, body, status), store=open_store())
    bare = name.partition("=")[0]

    assert [ask(lm, question, seed=3) for question in "abc"] == ["tea"] * 3
    assert [bare in sent for sent in server.bodies] == [True, False, False, False]
    assert [sent.get("max_tokens") for sent in server.bodies] == [None, *[1000 if name == LENGTH else None] * 3]
    (report,) = [one.getMessage() for one in caplog.records]
    assert f"does not support {bare}" in report
    (note,) = engine_of(lm).notes
    assert note == f"the LM server does not support {report.partition('does not support ')[2]}"
    total = engine_of(lm).ledger.total
    assert (total.calls, total.failures) == (3, 0)

    again, other = remote(GOOD, api_base=server.url, store=open_store())
    assert ask(again, "a", seed=3) == "tea"
    assert ask(again, "d", seed=3) == "tea"
    assert (engine_of(again).ledger.total.saved, engine_of(again).ledger.total.calls, other.count) == (1, 1, 0)
    assert bare not in server.bodies[-1]
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, error("max_tokens is too large: 1000. This model supports at most 500 completion tokens.")),
        (400, error(f"'max_tokens' or '{LENGTH}' is too large: 1000. This model's maximum context length is 500.")),
        (400, error("The model `x` does not support this", param="model", code="unsupported_value")),
        (400, error("Unsupported value: 'messages[0].role' does not support 'system' with this model.")),
        (422, {"detail": [{"type": "missing", "loc": ["body", "tenant"], "msg": "Field required",
                           "input": {"messages": "A seed is not supported", "seed": 3, "temperature": 0}}]}),
        (400, error("Something went wrong")),
        (400, b""),
        (403, error("Unsupported parameter: 'seed' is not supported with this model.")),
    ],
)  # fmt: skip
def test_an_error_that_names_no_such_parameter_stays_an_error(remote, caplog, status, body):
    lm, server = remote({"status": status, "body": body})
    with pytest.raises(LMError):
        ask(lm, seed=3)
    assert (server.count, caplog.records) == (1, [])


def test_a_parameter_without_which_a_request_fails_too_is_no_finding(remote, caplog):
    lm, server = remote({"status": 400, "body": error("Unsupported parameter: 'seed'")})
    for _ in range(2):
        with pytest.raises(LMInvalidRequestError, match="Unsupported parameter: 'seed'"):
            ask(lm, seed=3)
    assert ["seed" in sent for sent in server.bodies] == [True, False] * 2
    assert caplog.records == []


def test_several_parameters_cost_one_call_each(remote, caplog):
    def step(sent):
        name = next((one for one in (LENGTH, "max_tokens", "temperature", "seed") if one in sent), None)
        return {"answer": GOOD} if name is None else {"status": 400, "body": error(f"Unsupported parameter: '{name}'")}

    lm, server = remote(step, budget=Budget(None, "it", calls=6))
    assert [ask(lm, question, seed=3) for question in "ab"] == ["tea"] * 2
    assert [{*sent} - {"model", "messages"} for sent in server.bodies] == [
        {LENGTH, FORMAT, "temperature", "seed"}, {"max_tokens", FORMAT, "temperature", "seed"},
        {FORMAT, "temperature", "seed"}, {FORMAT, "seed"}, {FORMAT}, {FORMAT},
    ]  # fmt: skip
    assert len(caplog.records) == 4
    with pytest.raises(LMError, match="limit of 6 LM calls"):  # refused requests count too
        ask(lm, "c", seed=3)


def test_a_temperature_that_is_refused_as_a_value_leaves_others_as_they_are(remote):
    lm, server = remote(refusing("temperature=0.0", error("`temperature` must be strictly positive")))
    assert [ask(lm, temperature=heat, seed=3) for heat in (0.0, 0.7, 0.0)] == ["tea"] * 3
    assert [sent.get("temperature") for sent in server.bodies] == [0.0, None, 0.7, None]


@pytest.mark.parametrize("name", ["stream", "stream_options"])
def test_a_server_that_refuses_to_stream_is_asked_for_the_whole_answer(remote, caplog, name):
    body = error(f"Unsupported parameter: '{name}'")

    def step(sent):
        return {"status": 400, "body": body} if "stream" in sent else {"answer": GOOD}

    lm, server = remote(step)
    with heard_by(Mock()):
        assert [ask(lm, question) for question in "ab"] == ["tea"] * 2
    assert [sent.get("stream") for sent in server.bodies] == [True, None, None]
    assert len(caplog.records) == 1


def test_draws_stay_apart_without_a_seed(remote):
    count = iter(range(9))

    def step(sent):
        if "seed" in sent:
            return {"status": 400, "body": error("Unsupported parameter: 'seed'")}
        return {"answer": f'{{"answer": "{next(count)}"}}'}

    lm, server = remote(step, store=open_store())
    drawn = [ask(lm, temperature=0.7, seed=seed) for seed in (1, 2, 3)]
    assert drawn == ["0", "1", "2"]
    again, _ = remote(GOOD, api_base=server.url, store=open_store())
    assert [ask(again, temperature=0.7, seed=seed) for seed in (1, 2, 3)] == drawn


def test_calls_side_by_side_are_all_answered_and_the_report_is_one(remote, caplog):
    together = threading.Barrier(8)

    def step(sent):
        if "seed" not in sent:
            return {"answer": GOOD}
        together.wait(10)
        return {"status": 400, "body": error("Unsupported parameter: 'seed'")}

    lm, server = remote(step, limits={"at_once": 8})
    heard = []
    threads = [threading.Thread(target=lambda q=q: heard.append(ask(lm, q, seed=3))) for q in "abcdefgh"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (heard, server.count, len(caplog.records)) == (["tea"] * 8, 16, 1)


@pytest.mark.filterwarnings("ignore::UserWarning:pydantic")  # of litellm's types
@pytest.mark.parametrize(
    ("engine", "status", "body"),
    [
        ("auto", 422, {"detail": [extra("seed", input=3)]}),
        ("litellm", 400, error("Unsupported parameter: 'seed' is not supported with this model.")),
    ],
)
def test_an_lm_of_the_users_own_is_asked_without_it_too(chat_server, engine, status, body):
    server = chat_server(refusing("seed", body, status))
    lm = as_lm(dspy.LM("openai/x", api_base=server.url, api_key="none-needed", engine=engine, cache=False))
    assert [ask(lm, question, seed=3) for question in "ab"] == ["tea"] * 2
    assert ["seed" in sent for sent in server.bodies] == [True, False, False]
    engine_of(lm).close()


SCHEMA = {"answer": {"title": "Answer", "type": "string"}}


@pytest.mark.parametrize(
    ("model", "structured", "is_sent"),
    [
        ("openai/x", "auto", True), ("openai/x", "off", False), ("openai/x", "on", True),
        ("openai/gpt-4", "auto", False), ("openai/gpt-4", "on", True),
        ("openai/gpt-4o-mini", "auto", True), ("openai/gpt-4o-mini", "off", False),
    ],
)  # fmt: skip
def test_a_schema_is_sent_to_models_that_support_one_and_to_unlisted_models(chat_server, model, structured, is_sent):
    server = chat_server(GOOD)
    lm = resolve_lm(model, api_base=server.url, api_key="none-needed", limits=Limits(structured=structured))
    assert ask(lm) == "tea"
    schema = server.bodies[0].get(FORMAT, {}).get("json_schema", {}).get("schema", {}).get("properties")
    assert schema == (SCHEMA if is_sent else None)
    engine_of(lm).close()


def test_a_schema_that_may_be_refused_is_not_part_of_a_stored_answers_key(remote):
    lm, server = remote(GOOD, store=open_store(), limits={"structured": "off"})
    assert ask(lm) == "tea"
    again, other = remote(GOOD, api_base=server.url, store=open_store())
    assert ask(again) == "tea"
    assert other.count == 0


@pytest.mark.parametrize("model", ["openai/x", "openai/gpt-4o-mini"])
def test_an_answer_with_a_choice_is_stored(chat_server, model):
    server = chat_server('{"answer": "tea"}')
    options = {"api_base": server.url, "api_key": "none-needed", "store": open_store()}
    for _ in range(2):
        lm = resolve_lm(model, **options)
        with dspy.context(lm=lm, adapter=PromptAdapter()):
            predict = dspy.Predict("question -> answer: Literal['tea', 'ice']")
            assert predict(question="What is drunk hot?").answer == "tea"
        engine_of(lm).close()
    assert server.count == 1


def test_with_structured_on_a_refused_schema_is_an_error(remote):
    steps = refusing(FORMAT, error("'response_format' is not supported"))
    lm, server = remote(steps)
    assert ask(lm) == "tea"
    strict, _ = remote(GOOD, api_base=server.url, limits={"structured": "on"})
    with pytest.raises(LMInvalidRequestError, match=r"is not supported\. With structured='on', .* use auto or off"):
        ask(strict)


@pytest.mark.parametrize("structured", ["on", "auto"])
def test_a_model_of_an_unknown_provider_stays_unknown(structured):
    with pytest.raises(ModelError, match="unknown LM 'nobody/x'"):
        resolve_lm("nobody/x", api_key="x", limits=Limits(structured=structured))


def test_a_value_of_structured_that_does_not_exist_is_refused():
    with pytest.raises(InputError, match="structured must be on, off, or auto, but got 'yes'"):
        Limits(structured="yes")
