from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

import querywright
from querywright.errors import ArtifactError

QUESTION = "Which home blood pressure reading should be written down?"
OPTIONS = ["Only the highest one", "The average of several, seated and rested", "One after a walk"]
pytestmark = [  # MLflow's own
    pytest.mark.filterwarnings(r"ignore:(?s).*Any type hint is inferred as AnyType:UserWarning"),
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("mlflow")


@pytest.fixture(scope="module")
def tools(folder):
    """MLflow with a store in a folder of the module's own, and the adapter."""
    import mlflow

    from querywright.adapters import mlflow as adapter

    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    mlflow.set_experiment(experiment_id=mlflow.create_experiment("cards", artifact_location=f"file://{folder}/store"))
    yield SimpleNamespace(mlflow=mlflow, ours=adapter)
    mlflow.set_tracking_uri(None)


@pytest.fixture(scope="module")
def once(tools, place):
    with tools.mlflow.start_run():
        return tools.ours.log_artifact_folder(place / "artifacts" / "hcqr-sample", tags={"kind": "rag"})


@pytest.fixture
def logged(once, at_place):
    """The logged ``hcqr-sample``; the test works where its collection is."""
    return once


def test_a_logged_artifact_predicts(tools, logged):
    model = tools.mlflow.pyfunc.load_model(logged.model_uri)
    other = {"question": "What comes first when blood sugar is very low?", "options": ["bread", "juice"]}
    table = model.predict(pd.DataFrame([{"question": QUESTION, "options": OPTIONS}, other]))
    assert list(table["answer"]) == [OPTIONS[1], "juice"]
    assert [found[0] for found in table["passages"]] == ["home", "juice"]
    assert [len(queries) for queries in table["queries"]] == [3, 3]
    assert table["error"].isna().all()
    assert list(table.columns) == logged.signature.outputs.input_names()
    assert model.predict({"question": QUESTION, "options": OPTIONS})["answer"][0] == OPTIONS[1]


def test_a_question_that_fails_fails_alone(tools, logged):
    model = tools.mlflow.pyfunc.load_model(logged.model_uri)
    table = model.predict([{"question": QUESTION, "options": OPTIONS}, {"question": QUESTION, "options": ["one"]}])
    assert list(table["answer"].fillna("-")) == [OPTIONS[1], "-"]
    assert table["error"][1].startswith("TechniqueError: options must be two or more")


def test_nothing_is_pickled_and_no_secret_is_kept(tools, logged, folder, place):
    files = [file for file in folder.rglob("*") if file.is_file() and file.suffix != ".db"]
    names = {file.name for file in files}
    assert {"MLmodel", "manifest.json", "program.json", "golden.jsonl"} <= names
    assert not [name for name in names if name.endswith((".pkl", ".pickle", ".joblib", ".cloudpickle", ".pt"))]
    for file in files:
        data = file.read_bytes()
        assert data[:1] != b"\x80", f"{file.name} begins as a pickle does"
        assert b"sk-never-to-be-saved" not in data
        assert str(place).encode() not in data
    flavor = tools.mlflow.models.Model.load(logged.model_uri).flavors["python_function"]
    assert flavor["loader_module"] == "querywright.adapters.mlflow"
    assert "python_model" not in flavor


def test_what_is_no_artifact_is_refused(tools, at_place, tmp_path):
    with pytest.raises(ArtifactError, match="there is no artifact"):
        tools.ours.log_artifact_folder("artifacts/none")
    other = tmp_path / "model.py"
    other.write_text(
        "import mlflow\n\n\nclass Echo(mlflow.pyfunc.PythonModel):\n"
        "    def predict(self, context, model_input: list[str]) -> list[str]:\n        return model_input\n\n\n"
        "mlflow.models.set_model(Echo())\n"
    )
    info = tools.mlflow.pyfunc.log_model(name="other", python_model=str(other), pip_requirements=["mlflow"])
    with pytest.raises(ArtifactError, match="there is no artifact"):
        tools.ours.load_logged(info.model_uri)


def test_a_model_cannot_point_out_of_its_folder(tools, logged, at_place, tmp_path):
    copied = Path(tools.mlflow.artifacts.download_artifacts(logged.model_uri, dst_path=str(tmp_path / "copy")))
    text = (copied / "MLmodel").read_text()
    (copied / "MLmodel").write_text(text.replace("data: data/artifact", f"data: {at_place}/artifacts/plain"))
    assert tools.ours.load_logged(copied.as_uri()).manifest.technique == "hcqr"


def test_the_example(tools, example):
    *table, answer = example("in_mlflow.py")
    assert OPTIONS[1] in table[-1]
    assert answer == OPTIONS[1]


def test_dspys_tracing_sees_modules_and_calls_of_the_lm(tools, at_place, server):
    tools.mlflow.dspy.autolog()
    try:
        program = querywright.load("artifacts/plain")
        program(QUESTION)
        asyncio.run(program.acall(f"{QUESTION} Now?"))
        tools.mlflow.flush_trace_async_logging()
    finally:
        tools.mlflow.dspy.autolog(disable=True)
    for trace in tools.mlflow.search_traces(return_type="list", max_results=2):
        spans = {span.name.partition(".")[0]: span for span in trace.data.spans}
        assert {"RAG", "PlainRetrieval", "ShortAnswerReader", "Predict", "LM"} <= set(spans)
        assert spans["LM"].span_type == "CHAT_MODEL"
        assert {span.trace_id for span in spans.values()} == {trace.info.trace_id}
        assert b"sk-never-to-be-saved" not in trace.to_json().encode()
