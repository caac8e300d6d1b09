"""Results as MLflow runs; artifacts as its models, JSON all the way. Needs the extra ``mlflow``.

Importing MLflow switches its usage statistics on; they stay off here unless MLFLOW_DISABLE_TELEMETRY says otherwise or
the application has imported MLflow before.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from querywright import __version__
from querywright.adapters.common import lm_by_name, missing, result
from querywright.errors import InputError
from querywright.files import write_all
from querywright.optimize.artifacts.files import Artifact, read_artifact
from querywright.optimize.artifacts.load import load
from querywright.optimize.artifacts.loaded import LoadedProgram
from querywright.optimize.comparison import Comparison
from querywright.optimize.evaluate import Evaluation
from querywright.optimize.results import CompileResult
from querywright.optimize.search.trials import ended
from querywright.optimize.study.results import Snapshot, export, write_report

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
try:
    import mlflow
    import mlflow.pyfunc
    from mlflow.artifacts import download_artifacts
    from mlflow.models import ModelSignature
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

_FOLDER = "artifact"
"""Where a model's data has the files of the artifact."""

_OF_STUDY = ("name", "questions", "collection", "lm", "embedder", "objectives", "trials", "seed")
_OF_SETTINGS = ("objective", "teleprompter", "trials", "seed")
_LEAD = {"": "difference", ".low": "low", ".high": "high", ".p": "p_holm"}


def log(
    found: Any, *, name: str | None = None, params: Mapping[str, Any] | None = None, kept: Sequence[str | Path] = ()
) -> str:
    """Log results: a run of the whole with files and verdicts, and nested in it one an arm and one a trial.

    It is the layout that MLflow gives searches itself: arms have their metrics under the same names, so that its table
    and charts set them side by side, and fold into the run of the whole. A mean has its interval beside it
    (``accuracy``, ``accuracy.low``, ``accuracy.high``), an arm its lead over the baseline (``accuracy.lead``, with
    ``.lead.low``, ``.lead.high`` and ``.lead.p``); those of a trial, which are of dev, begin with ``dev/``.
    ``recall@5`` becomes ``recall_at_5``. What is recommended has its metrics in the run of the whole as well. Where a
    run is active, all of it is nested in that.

    Args:
        found: What ``querywright.evaluate``, ``compare`` or ``compile`` gave, or a study's ``Snapshot``.
        name: Of the run. Default: MLflow makes one up.
        params: Further params of the run; nothing secret, for they are kept as they are.
        kept: Files and folders to keep with it, such as an artifact's, besides every question's result and the report.

    Returns:
        The id of the run.

    Raises:
        InputError: ``found`` is none of these.
        mlflow.exceptions.MlflowException: The server is out of reach or refuses it.
    """
    given, said, compared, trials = _parts(found)
    arms = [found] if isinstance(found, Evaluation) else [*compared.arms, *compared.references] if compared else []
    leads = [] if compared is None else [one.to_json() for one in compared.comparisons]
    inside = [(one.name, {"arm": one.name}, _metrics(one, leads)) for one in arms]
    with mlflow.start_run(run_name=name, nested=mlflow.active_run() is not None) as run:
        mlflow.log_params({_fit(key): value for key, value in {**given, **(params or {})}.items()})
        notes = [*said, *(one["sentence"] for one in leads)]
        mlflow.set_tags({"mlflow.note.content": "\n".join(f"- {one}" for one in notes)} if notes else {})
        mlflow.log_metrics(next((told for arm, _, told in inside if arm == given.get("recommended")), {}))
        for arm, about, told in [*inside, *trials]:
            with mlflow.start_run(run_name=arm, nested=True):
                mlflow.log_params({_fit(key): value for key, value in about.items() if value is not None})
                mlflow.log_metrics(told)
        with tempfile.TemporaryDirectory() as folder:
            for path in [*_files(found, compared, Path(folder)), *map(Path, kept)]:
                if path.is_dir():
                    mlflow.log_artifacts(str(path), path.name)
                else:
                    mlflow.log_artifact(str(path))
    return str(run.info.run_id)


_Trials = Sequence[tuple[str, Mapping[str, Any], dict[str, float]]]


def _parts(found: Any) -> tuple[dict[str, Any], list[str], Comparison | None, _Trials]:
    """Params of a result, what came of it in words, its arms, and its trials with their params and metrics."""
    if isinstance(found, Evaluation):
        return {"questions": len(found.rows)}, [], None, []
    if isinstance(found, Comparison):
        return {"baseline": found.baseline, "questions": len(found.questions)}, [], found, []
    if isinstance(found, CompileResult):
        given = {name: getattr(found.settings, name) for name in _OF_SETTINGS}
        given |= {name: getattr(found, name) for name in ("technique", "recommended", "verdict")}
        tried = [(one.name, {"prompt": one.prompt, **one.knobs}, _metrics(one.dev, of="dev/")) for one in found.arms]
        return given, [found.sentence], found.compared, tried
    if isinstance(found, Snapshot):
        outcome = found.outcome or {"sentence": "It is not finished."}
        given = {name: getattr(found.spec, name) for name in _OF_STUDY}
        given |= {name: outcome[name] for name in ("recommended", "verdict") if name in outcome}
        tried = []
        for one in ended(found.trials):
            arm = one.arm.to_json()
            about = {"state": one.state, **arm, **arm.pop("knobs")}
            values = {f"objective/{_fit(name)}": value for name, value in one.values.items()}
            tried.append((one.name, about, {**_metrics(one.dev, of="dev/"), **values}))
        return given, [outcome["sentence"]], found.compared, tried
    raise InputError(f"what evaluate, compare or compile gave can be logged, or a study's Snapshot, not {found!r:.80}")


def _files(found: Any, compared: Comparison | None, folder: Path) -> list[Path]:
    """Every question's result, or a study's every trial, and a report with its prompts, written into a folder."""
    rows, report = folder / "results.parquet", folder / "report.html"
    if isinstance(found, Snapshot):
        rows = folder / "trials.parquet"
        export(found, rows)
        write_report(found, report)
    else:
        found.to_pandas().to_parquet(rows)
        if compared is not None:
            found.report(report)
    return sorted(folder.iterdir())


def _metrics(one: Evaluation, leads: Sequence[Mapping[str, Any]] = (), of: str = "") -> dict[str, float]:
    """The metrics of an arm with what the comparisons say of it, and what it cost."""
    made: dict[str, Any] = {"n": len(one.rows), "failed": one.failures.total(), "dollars": one.cost.dollars}
    made |= {"lm_calls_per_question": one.calls_a_question, "seconds_p50": one.latency(0.5)}
    made |= {"tokens_per_question": one.tokens_a_question, "seconds_p95": one.latency(0.95)}
    for metric in one.metrics:
        mean = one.mean(metric)
        made |= {metric: mean.value, f"{metric}.low": mean.low, f"{metric}.high": mean.high}
    for lead in leads:
        if lead["arm"] == one.name:
            made |= {f"{lead['metric']}.lead{end}": lead[key] for end, key in _LEAD.items()}
    return {f"{of}{_fit(key)}": value for key, value in made.items() if value is not None and math.isfinite(value)}


def _fit(name: str) -> str:
    """A name that MLflow takes."""
    return re.sub(r"[^\w\-. :/]", "_", name.replace("@", "_at_"))


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
        copied = Path(folder) / _FOLDER
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
    """Return the program of a logged artifact, as ``querywright.load`` does.

    Args:
        uri: Of the model, such as ``models:/name/1`` or ``runs:/id/program``.
        options: Options of ``querywright.load``.

    Raises:
        InputError: The artifact cannot be loaded, or ``log_artifact_folder`` did not log the model.
    """
    with tempfile.TemporaryDirectory() as folder:
        return load(Path(download_artifacts(artifact_uri=uri, dst_path=folder)) / "data" / _FOLDER, **options)


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
