"""Log results as MLflow runs. Requires the ``mlflow`` extra.

Importing MLflow turns on its usage statistics. This module turns them off, unless the environment variable
MLFLOW_DISABLE_TELEMETRY is set or the application has already imported MLflow.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from querywright.adapters.common import missing
from querywright.errors import InputError
from querywright.optimize.comparison import Comparison
from querywright.optimize.evaluate import Evaluation
from querywright.optimize.results import CompileResult
from querywright.optimize.search.trials import ended
from querywright.optimize.study.results import Snapshot, export, write_report

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
try:
    import mlflow
except ImportError as error:
    raise missing("mlflow", error) from error

_OF_STUDY = ("name", "questions", "collection", "lm", "embedder", "objectives", "trials", "seed")
_OF_SETTINGS = ("objective", "teleprompter", "trials", "seed")
_LEAD = {"": "difference", ".low": "low", ".high": "high", ".p": "p_holm"}


def log(
    result: Any, *, name: str | None = None, params: Mapping[str, Any] | None = None, kept: Sequence[str | Path] = ()
) -> str:
    """Log a result as one run, with a nested run for each arm and each trial.

    MLflow uses the same layout for parameter searches, so its tables and charts can compare the arms. Each metric
    is logged with its interval (``accuracy``, ``accuracy.low``, ``accuracy.high``), and each arm also logs its lead
    over the baseline (``accuracy.lead``, ``.lead.low``, ``.lead.high``, ``.lead.p``). A trial's metrics on dev start
    with ``dev/``. ``recall@5`` is logged as ``recall_at_5``. The outer run repeats the recommended arm's metrics. If a
    run is already active, the outer run is nested in it.

    Args:
        result: Return value of ``querywright.evaluate``, ``compare``, or ``compile``, or a study's ``Snapshot``.
        name: Name for the run. Default: MLflow chooses a name.
        params: Additional parameters to log. They are logged unchanged, so they must not contain secrets.
        kept: Files and folders to log, such as an artifact, in addition to the report and the results per question.

    Returns:
        The run's id.

    Raises:
        InputError: ``result`` has the wrong type.
        mlflow.exceptions.MlflowException: The server does not respond, or rejects the run.
    """
    given, notes, compared, trials = _parts(result)
    arms = [result] if isinstance(result, Evaluation) else [*compared.arms, *compared.references] if compared else []
    leads: list[dict[str, Any]] = []
    if compared is not None:
        leads = [one.to_json() for one in compared.comparisons if one.other == compared.baseline]
    inside = [(one.name, {"arm": one.name}, _metrics(one, leads)) for one in arms]
    with mlflow.start_run(run_name=name, nested=mlflow.active_run() is not None) as run:
        mlflow.log_params({_fit(key): value for key, value in {**given, **(params or {})}.items()})
        sentences = [*notes, *(lead["sentence"] for lead in leads)]
        mlflow.set_tag("mlflow.note.content", "\n".join(f"- {one}" for one in sentences))
        mlflow.log_metrics(next((metrics for arm, _, metrics in inside if arm == given.get("recommended")), {}))
        for arm, about, metrics in [*inside, *trials]:
            with mlflow.start_run(run_name=arm, nested=True):
                mlflow.log_params({_fit(key): value for key, value in about.items() if value is not None})
                mlflow.log_metrics(metrics)
        with tempfile.TemporaryDirectory() as folder:
            _write_files(result, compared, Path(folder))
            mlflow.log_artifacts(folder)
        for path in map(Path, kept):
            if path.is_dir():
                mlflow.log_artifacts(str(path), path.name)
            else:
                mlflow.log_artifact(str(path))
    return str(run.info.run_id)


_Trials = Sequence[tuple[str, Mapping[str, Any], dict[str, float]]]


def _parts(result: Any) -> tuple[dict[str, Any], list[str], Comparison | None, _Trials]:
    """Return a result's parameters, conclusions, comparison, and trials."""
    if isinstance(result, Evaluation):
        return {"questions": len(result.rows)}, [], None, []
    if isinstance(result, Comparison):
        return {"baseline": result.baseline, "questions": len(result.questions)}, [], result, []
    if isinstance(result, CompileResult):
        given = {name: getattr(result.settings, name) for name in _OF_SETTINGS}
        given |= {name: getattr(result, name) for name in ("technique", "recommended", "verdict")}
        tried = [(one.name, {"prompt": one.prompt, **one.knobs}, _metrics(one.dev, of="dev/")) for one in result.arms]
        return given, [result.sentence], result.compared, tried
    if isinstance(result, Snapshot):
        outcome = result.outcome or {"sentence": "The study is not finished."}
        given = {name: getattr(result.spec, name) for name in _OF_STUDY}
        given |= {name: outcome[name] for name in ("recommended", "verdict") if name in outcome}
        tried = []
        for one in ended(result.trials):
            arm = one.arm.to_json()
            about = {"state": one.state, **arm, **arm.pop("knobs")}
            values = {f"objective/{_fit(name)}": value for name, value in one.values.items()}
            tried.append((one.name, about, {**_metrics(one.dev, of="dev/"), **values}))
        return given, [outcome["sentence"]], result.compared, tried
    raise InputError(
        "the result to log must be the return value of evaluate, compare, or compile, or a study's Snapshot, but got "
        f"{result!r:.80}"
    )


def _write_files(result: Any, compared: Comparison | None, folder: Path) -> None:
    """Write the results per question or trial, and a report with the prompts."""
    if isinstance(result, Snapshot):
        export(result, folder / "trials.parquet")
        write_report(result, folder / "report.html")
    else:
        result.to_pandas().to_parquet(folder / "results.parquet")
        if compared is not None:
            result.report(folder / "report.html")


def _metrics(one: Evaluation, leads: Sequence[Mapping[str, Any]] = (), of: str = "") -> dict[str, float]:
    """Return an arm's metrics, its leads over the baseline, and its cost."""
    made: dict[str, Any] = {"n": len(one.rows), "failed": one.failures.total(), "dollars": one.cost.dollars}
    made |= {"lm_calls_per_question": one.calls_per_question, "seconds_p50": one.latency(0.5)}
    made |= {"tokens_per_question": one.tokens_per_question, "seconds_p95": one.latency(0.95)}
    for metric in one.metrics:
        mean = one.mean(metric)
        made |= {metric: mean.value, f"{metric}.low": mean.low, f"{metric}.high": mean.high}
    for lead in leads:
        if lead["arm"] == one.name:
            made |= {f"{lead['metric']}.lead{end}": lead[key] for end, key in _LEAD.items()}
    return {f"{of}{_fit(key)}": value for key, value in made.items() if value is not None and math.isfinite(value)}


def _fit(name: str) -> str:
    """Return the name with only characters that MLflow allows."""
    return re.sub(r"[^\w\-. :/]", "_", name.replace("@", "_at_"))
