"""Results as MLflow runs; artifacts as its models, JSON all the way. Needs the extra ``mlflow``.

Importing MLflow switches its usage statistics on; they stay off here unless MLFLOW_DISABLE_TELEMETRY says otherwise or
the application has imported MLflow before.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from querywright import __version__
from querywright.adapters.common import lm_by_name, missing, result
from querywright.errors import InputError
from querywright.files import write_all
from querywright.optimize.artifacts.files import Artifact, read_artifact
from querywright.optimize.artifacts.load import load
from querywright.optimize.artifacts.loaded import LoadedProgram
from querywright.optimize.comparison import Compared
from querywright.optimize.evaluate import Evaluation
from querywright.optimize.results import Compiled
from querywright.optimize.study.export import export
from querywright.optimize.study.report import write_report
from querywright.optimize.study.status import ended, evaluations
from querywright.optimize.study.types import Snapshot
from querywright.optimize.tables import question_rows, write_table

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
try:
    import mlflow
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


_STUDY = ("questions", "collection", "lm", "embedder", "objectives", "trials", "seed")
_SETTINGS_SHOWN = ("objective", "teleprompter", "n_trials", "seed")


def log(
    found: Any,
    *,
    uri: str | None = None,
    name: str | None = None,
    params: Mapping[str, Any] | None = None,
    kept: Sequence[str | Path] = (),
) -> str:
    """Log results: a run of the whole with files and verdicts, and nested in it one an arm and one a trial.

    It is the layout that MLflow gives searches itself: arms have their metrics under the same names, so that its table
    and charts set them side by side, and fold into the run of the command. A mean has its interval beside it
    (``accuracy``, ``accuracy.low``, ``accuracy.high``), an arm its lead over the baseline (``accuracy.lead``, with
    ``.lead.low``, ``.lead.high`` and ``.lead.p``); of a compilation and a study they begin with ``test/`` or ``dev/``.
    ``recall@5`` becomes ``recall_at_5``. What is recommended has its metrics in the run of the whole as well. Where a
    run is active, all of it is nested in that.

    Args:
        found: What ``querywright.evaluate``, ``compare`` or ``compile`` gave, or a study's ``Snapshot``.
        uri: The tracking server. Default: what MLflow was told, such as by ``MLFLOW_TRACKING_URI``.
        name: Of the run. Default: MLflow makes one up.
        params: Further params of the run; nothing secret, for they are kept as they are.
        kept: Files and folders to keep with it, such as an artifact's, besides every question's result and the report.

    Returns:
        The id of the run.

    Raises:
        InputError: ``found`` is none of these.
        mlflow.exceptions.MlflowException: The server is out of reach or refuses it.
    """
    told = _told(getattr(found, "compiled", found))
    with _at(uri), mlflow.start_run(run_name=name, nested=mlflow.active_run() is not None) as run:
        mlflow.log_params({_fit(key): value for key, value in {**told.params, **(params or {})}.items()})
        mlflow.set_tags({"mlflow.note.content": "\n".join(f"- {one}" for one in told.said)} if told.said else {})
        chosen = next((arm.metrics for arm in told.arms if arm.name == told.params.get("recommended")), {})
        mlflow.log_metrics(_finite(chosen))
        for arm in told.arms:
            with mlflow.start_run(run_name=arm.name, nested=True):
                mlflow.log_params({_fit(key): value for key, value in {"arm": arm.name, **arm.params}.items()})
                mlflow.log_metrics(_finite(arm.metrics))
        with tempfile.TemporaryDirectory() as folder:
            for path in [*_files(told.found, Path(folder)), *map(Path, kept)]:
                if path.is_dir():
                    mlflow.log_artifacts(str(path), path.name)
                else:
                    mlflow.log_artifact(str(path))
    return str(run.info.run_id)


@dataclass(slots=True)
class _Arm:
    name: str
    metrics: dict[str, float]
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class _Told:
    """What is logged of a result."""

    found: Any
    params: Mapping[str, Any]
    said: Sequence[str]
    arms: list[_Arm]


def _told(found: Any) -> _Told:
    if isinstance(found, Evaluation):
        return _Told(found, {"questions": len(found.rows)}, (), [_Arm(found.name, _metrics(found))])
    if isinstance(found, Compared):
        params = {"baseline": found.baseline, "questions": len(found.questions)}
        arms = [_Arm(one.name, _metrics(one)) for one in (*found.arms, *found.references)]
        return _Told(found, params, _leads(arms, [one.to_json() for one in found.comparisons]), arms)
    if isinstance(found, Compiled):
        params = {name: getattr(found.settings, name) for name in _SETTINGS_SHOWN}
        params |= {"technique": found.technique, "recommended": found.recommended, "verdict": found.verdict}
        arms = [_Arm(one.name, _metrics(one, "test/")) for one in found.test]
        said = [found.sentence, *_leads(arms, [one.to_json() for one in found.comparisons], "test/")]
        tried = [_Arm(one.name, _metrics(one.dev, "dev/"), {"prompt": one.prompt, **one.knobs}) for one in found.arms]
        return _Told(found, params, said, arms + tried)
    if isinstance(found, Snapshot):
        outcome: Mapping[str, Any] = found.outcome or {}
        params = {"study": found.spec.name, **{name: getattr(found.spec, name) for name in _STUDY}}
        params |= {name: outcome[name] for name in ("recommended", "verdict") if name in outcome}
        known = outcome.get("arms", {})
        arms = [_Arm(one.name, _metrics(one, "test/"), _flat(known.get(one.name, {}))) for one in evaluations(outcome)]
        said = [outcome.get("sentence", "It is not finished."), *_leads(arms, outcome.get("comparisons", ()), "test/")]
        for one in ended(found.trials):
            values = {f"objective/{name}": value for name, value in one.values.items()}
            params_of = {"state": one.state, **_flat(one.arm.to_json())}
            arms.append(_Arm(one.name, {**_metrics(one.dev, "dev/"), **values}, params_of))
        return _Told(found, params, said, arms)
    raise InputError(f"what evaluate, compare or compile gave can be logged, or a study's Snapshot, not {found!r:.80}")


def _files(found: Any, folder: Path) -> list[Path]:
    """Every question's result, a study's every trial, and a report, written into a folder."""
    rows, report = folder / "results.parquet", folder / "report.html"
    if isinstance(found, Snapshot):
        export(found, folder / "trials.parquet")
        write_report(found, report)
        return [folder / "trials.parquet", report]
    if isinstance(found, Evaluation):
        write_table(rows, question_rows([found]))
        return [rows]
    compared = found.compared if isinstance(found, Compiled) else found
    write_table(rows, question_rows([*compared.arms, *compared.references], compared.questions))
    return [rows, found.report(report)]


def _metrics(one: Evaluation, prefix: str = "") -> dict[str, float]:
    """The metrics of an arm, with what it cost."""
    made: dict[str, float] = {"n": len(one.rows), "failed": one.failures.total()}
    for metric in one.metrics:
        mean = one.mean(metric)
        made |= {metric: mean.value, f"{metric}.low": mean.low, f"{metric}.high": mean.high}
    tokens = one.cost.tokens + one.cost.saved_tokens
    made |= {"lm_calls_per_question": one.calls_a_question, "tokens_per_question": tokens / max(1, len(one.rows))}
    made |= {"dollars": one.cost.dollars, "seconds_p50": one.latency(0.5), "seconds_p95": one.latency(0.95)}
    return {f"{prefix}{name}": value for name, value in made.items()}


def _leads(arms: Sequence[_Arm], comparisons: Sequence[Mapping[str, Any]], prefix: str = "") -> list[str]:
    """Give arms what the comparisons say of them, as metrics; and say it in sentences."""
    named = {one.name: one for one in arms}
    for one in comparisons:
        lead = f"{prefix}{one['metric']}.lead"
        told = {"": "difference", ".low": "low", ".high": "high", ".p": "p_holm"}
        values = {f"{lead}{end}": one[key] for end, key in told.items() if one[key] is not None}
        if one["arm"] in named:
            named[one["arm"]].metrics |= values
    return [one["sentence"] for one in comparisons]


def _flat(arm: Mapping[str, Any]) -> dict[str, Any]:
    """What a study's arm is, with its knobs beside the rest."""
    return {
        key: value for key, value in {**arm, **arm.get("knobs", {})}.items() if key != "knobs" and value is not None
    }


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    return {_fit(name): value for name, value in metrics.items() if math.isfinite(value)}


def _fit(name: str) -> str:
    """A name that MLflow takes."""
    return re.sub(r"[^\w\-. :/]", "_", name.replace("@", "_at_"))


@contextmanager
def _at(uri: str | None) -> Iterator[None]:
    """Inside, runs go to this server."""
    before = mlflow.get_tracking_uri() if mlflow.is_tracking_uri_set() else None
    if uri is not None:
        mlflow.set_tracking_uri(uri)
    try:
        yield
    finally:
        if uri is not None:
            mlflow.set_tracking_uri(before)


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
