"""Stand-ins for the parts of a study that this tree lacks; where the real ones are, nothing is put in their place."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

PACKAGE = "querywright.optimize.study"


@dataclass(frozen=True)
class _Estimate:
    seconds: float | None = None
    assumptions: tuple[str, ...] = ("nothing is stored yet",)

    def rows(self) -> list[dict[str, str]]:
        row = {"LM calls": "90", "tokens": "1,000", "dollars": "0.00", "minutes": "unknown"}
        return [
            {"stage": "techniques, on dev", **row, "how": "trials x questions"},
            {"stage": "in all, at most", **row, "how": ""},
        ]

    def to_json(self) -> dict[str, Any]:
        return {"stages": [], "calls": 90, "seconds_per_call": self.seconds, "assumptions": list(self.assumptions)}


def install(made: dict[str, Any]) -> None:
    """Put stand-ins where a module is missing.

    Args:
        made: The names of ``made_study.py``.
    """
    from querywright.data import read_questions, split_questions
    from querywright.errors import InputError
    from querywright.optimize.evaluate import asking
    from querywright.optimize.study.spec import StudySpec

    def checked_study(source: Any, home: Any = None) -> Any:
        path = Path(source)
        if not path.is_file():
            raise InputError(f"there is no file {path.name!r}; name a study")
        spec = StudySpec.model_validate(yaml.safe_load(path.read_text("utf-8")))
        splits = split_questions(read_questions(spec.questions), seed=spec.seed, sizes=spec.sizes)
        space = {name: _Namespace(engine="dense") for name in spec.techniques}
        return _Namespace(spec=spec, splits=splits, space=space, passages=(), readers=("multiple_choice",))

    kept: dict[Path, Any] = {}

    def run_study(spec: Any, folder: Path, *, storage: Any = None, progress: Any = None, **_: Any) -> Any:
        if not (folder / "study.yaml").is_file() and folder.exists() and any(folder.iterdir()):
            raise InputError(f"{str(folder)!r} is there and holds no study; give another --out")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "study.yaml").write_text(yaml.safe_dump(spec.to_json()))
        found = made["made_snapshot"](spec=spec, trials=made["made_trials"](spec.trials), finished=True)
        kept[folder.resolve()] = replace(found, outcome={**found.outcome, "command": "querywright study run x"})
        for n in range(spec.trials + 1):
            progress(replace(found, trials=found.trials[:n], finished=False))
        return kept[folder.resolve()]

    def resume_study(folder: Path, *, changes: Any = None, **more: Any) -> Any:
        spec = kept[folder.resolve()].spec
        return run_study(StudySpec.model_validate({**spec.to_json(), **(changes or {})}), folder, **more)

    def estimate(*_: Any, seconds_per_call: float | None = None, **__: Any) -> _Estimate:
        return _Estimate(seconds_per_call)

    def measure(lm: Any, program: Any, question: Any) -> float:
        with asking(lm):
            program(question=question.question, options=list(question.options))
        return 0.5

    _stand_in("data", checked_study=checked_study)
    _stand_in("estimate", estimate=estimate, measure=measure)
    _stand_in(
        "engine",
        run_study=run_study,
        resume_study=resume_study,
        snapshot=lambda folder, storage=None: kept[folder.resolve()],
    )


class _Namespace:
    def __init__(self, **names: Any) -> None:
        self.__dict__.update(names)


def _stand_in(name: str, **names: Any) -> None:
    full = f"{PACKAGE}.{name}"
    if full in sys.modules or importlib.util.find_spec(full) is not None:
        return
    module = ModuleType(full)
    module.__dict__.update(names)
    sys.modules[full] = module
