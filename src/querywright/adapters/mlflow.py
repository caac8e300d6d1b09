"""Artifacts as MLflow models, JSON all the way: logged, versioned and loaded there. Needs the extra ``mlflow``.

Importing MLflow switches its usage statistics on; they stay off here unless MLFLOW_DISABLE_TELEMETRY says otherwise or
the application has imported MLflow before.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from querywright import __version__
from querywright.adapters.common import lm_by_name, missing, result
from querywright.errors import InputError
from querywright.files import write_all
from querywright.optimize.artifacts.files import Artifact, read_artifact
from querywright.optimize.artifacts.load import load
from querywright.optimize.artifacts.loaded import LoadedProgram

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
try:
    import mlflow.pyfunc
    from mlflow.artifacts import download_artifacts
    from mlflow.models import Model, ModelSignature
    from mlflow.models.model import ModelInfo
    from mlflow.types.schema import Array, ColSpec, DataType, Schema
except ImportError as error:
    raise missing("mlflow", error) from error

if TYPE_CHECKING:
    import pandas as pd

_TEXT, _TEXTS = DataType.string, Array(DataType.string)
SIGNATURE = ModelSignature(
    inputs=Schema([ColSpec(_TEXT, "question"), ColSpec(_TEXTS, "options", required=False)]),
    outputs=Schema([
        ColSpec(_TEXT, "answer", required=False),
        ColSpec(_TEXTS, "support", required=False),
        *(ColSpec(_TEXTS, name) for name in ("passages", "queries", "fallbacks")),
        ColSpec(_TEXT, "error", required=False),
    ]),
)  # fmt: skip
"""What a model takes and gives: one row a question.

``passages`` and ``support`` are ids; ``error`` says what went wrong with a question; its other columns are then empty.
"""

_SETTINGS: Mapping[str, Any] = {"lm": None, "home": None, "verify": False, "digest": None, "threads": 8}
"""What ``mlflow.pyfunc.load_model(uri, model_config={...})`` may set."""


def log_artifact_folder(program_path: str | Path, *, name: str = "program", **options: Any) -> ModelInfo:
    """Log an artifact as a model of the active run, which ``mlflow.pyfunc.load_model`` and ``load_logged`` load.

    The model is the artifact's own files and the name of this module: no pickle is written or read. The collection that
    is searched is not in it; who loads the model names its working folder.

    Args:
        program_path: The artifact's folder.
        name: The model's name. Default ``program``.
        options: Further ones of ``mlflow.pyfunc.log_model``, such as ``registered_model_name`` and ``tags``; the
            ``input_example`` is by default the artifact's first golden question.

    Raises:
        ArtifactError: The artifact is missing, damaged or edited.
    """
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(folder) / "artifact"
        artifact = read_artifact(program_path)
        write_all(copied, artifact.data)
        manifest = artifact.manifest
        logged: ModelInfo = mlflow.pyfunc.log_model(
            name=name,
            loader_module=__name__,
            data_path=str(copied),
            signature=SIGNATURE,
            pip_requirements=[f"querywright[mlflow]=={__version__}"],
            metadata={"technique": manifest.technique, "lm": manifest.lm, "digest": manifest.digest},
            model_config=dict(_SETTINGS),
            **{"input_example": _example(artifact), **options},
        )
    return logged


def load_logged(uri: str, **options: Any) -> LoadedProgram:
    """The program of a logged artifact, as ``querywright.load`` gives it.

    Args:
        uri: Where MLflow has it, such as ``models:/name/1`` or ``runs:/id/program``.
        options: As ``querywright.load`` takes them.

    Raises:
        InputError: What is there was not logged by ``log_artifact_folder``, or the artifact cannot be loaded.
    """
    with tempfile.TemporaryDirectory() as folder:
        local = Path(download_artifacts(artifact_uri=uri, dst_path=folder)).resolve()
        flavor = Model.load(str(local)).flavors.get(mlflow.pyfunc.FLAVOR_NAME, {})
        data = (local / str(flavor.get(mlflow.pyfunc.DATA, ""))).resolve()
        if flavor.get(mlflow.pyfunc.MAIN) != __name__ or not data.is_relative_to(local):
            raise InputError(f"{uri} is no artifact of querywright; log it with log_artifact_folder")
        return load(data, **options)


def _load_pyfunc(path: str, model_config: Mapping[str, Any] | None = None) -> _Model:
    """What MLflow calls to load a model; its name and arguments are MLflow's."""
    given = {key: (model_config or {}).get(key, default) for key, default in _SETTINGS.items()}
    threads, lm = int(given.pop("threads")), lm_by_name(given.pop("lm"))
    return _Model(load(path, lm=lm, **given), threads)


class _Model:
    """A program in the form of an MLflow model."""

    def __init__(self, program: LoadedProgram, threads: int) -> None:
        self._program = program
        self._threads = threads

    def predict(self, data: Any) -> pd.DataFrame:
        """Answer the questions of a table, one row each; a question that fails has its error and nothing else."""
        import pandas as pd

        rows = pd.DataFrame(data).to_dict("records")
        asked = [(str(row["question"]), _options(row.get("options"))) for row in rows]
        answered = self._program.batch(asked, threads=self._threads)
        made = [_row(one.prediction, one.error) for one in answered]
        return pd.DataFrame(made, columns=SIGNATURE.outputs.input_names())


def _options(given: Any) -> list[str] | None:
    """The options of a row: a list or an array; nothing, or not a number, where the question has none."""
    options = list(given) if hasattr(given, "__len__") and not isinstance(given, str) else []
    return options or None


def _row(prediction: Any, error: Exception | None) -> dict[str, Any]:
    if prediction is None:
        empty: dict[str, Any] = {"answer": None, "support": None, "passages": [], "queries": [], "fallbacks": []}
        return {**empty, "error": f"{type(error).__name__}: {error}"}
    told = result(prediction, lambda passage, *_: passage.id)
    queries = [query["text"] for query in told["queries"]]
    return {**told, "passages": told["documents"], "queries": queries, "error": None}


def _example(artifact: Artifact) -> dict[str, Any]:
    """The first golden question, else one made up."""
    if not artifact.golden:
        return {"question": "What is it that you want to know?"}
    first = artifact.golden[0]
    return {"question": first.question} | ({"options": first.options} if first.options else {})
