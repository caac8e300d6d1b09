"""What may change between two runs of a study, and what makes it another study."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from querywright.optimize.study.building import late_trials_of
from querywright.optimize.study.spec import StudySpec

_FREE = frozenset({"budget", "threads", "storage", "max_failures", "api_key_env", "trials", "late_trials"})
"""What changes nothing in what a trial finds; trials and late trials are looked at by themselves."""


def spec_differences(old: StudySpec, new: StudySpec) -> list[str]:
    """Why a study cannot be resumed with another specification.

    More trials, another budget, another storage, other threads or another share of failures are no reason.

    Args:
        old: What the study was begun with.
        new: What it is to go on with.

    Returns:
        A line for each difference, such as ``techniques.hcqr.knobs.top_k: [3, 5] became [3, 5, 10]``.
    """
    before, after = ({k: v for k, v in one.to_json().items() if k not in _FREE} for one in (old, new))
    found = list(_between(before, after, ""))
    if new.trials < old.trials:
        found.append(f"trials: {old.trials} became {new.trials}; they can only grow")
    if new.trials == old.trials:
        late = (late_trials_of(old), late_trials_of(new))
        found += [f"late_trials: {late[0]} became {late[1]}"] if late[0] != late[1] else []
    elif old.late_trials != new.late_trials:
        found.append(f"late_trials: {_shown(old.late_trials)} became {_shown(new.late_trials)}")
    return found


def _between(old: Any, new: Any, path: str) -> Iterator[str]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys([*old, *new]):
            where = f"{path}.{key}" if path else key
            if key not in old:
                yield f"{where}: was not there, and became {_shown(new[key])}"
            elif key not in new:
                yield f"{where}: {_shown(old[key])} is no longer there"
            else:
                yield from _between(old[key], new[key], where)
        if path in {"techniques", "prompts"} and set(old) == set(new) and list(old) != list(new):
            yield f"{path}: the order {', '.join(old)} became {', '.join(new)}"
    elif old != new or type(old) is not type(new):
        yield f"{path}: {_shown(old)} became {_shown(new)}"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 120 else f"{text[:120]}..."
