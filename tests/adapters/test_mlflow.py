from __future__ import annotations

import asyncio

import pytest

import querywright
from querywright.adapters.mlflow import log
from querywright.errors import InputError

QUESTION = "Which home blood pressure reading should be written down?"
pytestmark = [  # MLflow's own
    pytest.mark.filterwarnings(r"ignore:(?s).*Any type hint is inferred as AnyType:UserWarning"),
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning"),
]


@pytest.fixture
def mlflow(tmp_path):
    """MLflow with a store in a folder of the test."""
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    mlflow.set_experiment(experiment_id=mlflow.create_experiment("cards", artifact_location=f"file://{tmp_path}/store"))
    yield mlflow
    mlflow.set_tracking_uri(None)


def test_another_value_is_refused(mlflow):
    with pytest.raises(InputError, match="the return value of evaluate, compare, or compile"):
        log({"accuracy": 1.0})


def test_the_example(mlflow, example):
    *_, answer = example("in_mlflow.py")
    assert answer == "The average of several, seated and rested"


def test_dspys_tracing_sees_modules_and_calls_of_the_lm(mlflow, at_place, server):
    mlflow.dspy.autolog()
    try:
        program = querywright.load("artifacts/plain")
        program(QUESTION)
        asyncio.run(program.acall(f"{QUESTION} Now?"))
        mlflow.flush_trace_async_logging()
    finally:
        mlflow.dspy.autolog(disable=True)
    for trace in mlflow.search_traces(return_type="list", max_results=2):
        spans = {span.name.partition(".")[0]: span for span in trace.data.spans}
        assert {"RAG", "PlainRetrieval", "ShortAnswerReader", "Predict", "LM"} <= set(spans)
        assert spans["LM"].span_type == "CHAT_MODEL"
        assert {span.trace_id for span in spans.values()} == {trace.info.trace_id}
        assert b"sk-never-to-be-saved" not in trace.to_json().encode()
