"""What tuning did to prompts: before and after as a difference that can be read, and the demonstrations added."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from querywright.optimize.artifacts.text_diff import word_changes
from querywright.optimize.html_text import cut, text

FIELD = 1500
"""Characters shown of a field of a demonstration."""


def prompts_html(prompts: Mapping[str, Any], chosen: str | None) -> str:
    """Every prompt variant, that of the recommended program first and open.

    Args:
        prompts: By variant and predictor: ``before``, ``after``, ``demos_before``, ``demos_after`` and ``demos``.
        chosen: The variant of the recommended program, where it is known.
    """
    names = sorted(prompts, key=lambda name: name != chosen)
    return "<p>Struck out was taken away, underlined was added.</p>" + "".join(
        _variant(name, prompts[name], is_chosen=name == chosen) for name in names
    )


def difference(before: str, after: str) -> str:
    """Two texts as one, in HTML: what was taken away in ``<del>``, what was added in ``<ins>``."""
    changes = word_changes(before, after)
    anew = "\n" if [kind for kind, _ in changes] == ["del", "ins"] else ""
    return anew.join(text(one) if kind == "equal" else f"<{kind}>{text(one)}</{kind}>" for kind, one in changes)


def _variant(name: str, predictors: Mapping[str, Any], *, is_chosen: bool) -> str:
    inside = "".join(_predictor(predictor, change) for predictor, change in predictors.items())
    said = " (recommended)" if is_chosen else ""
    opened = " open" if is_chosen else ""
    return f'<details class="telling"{opened}><summary>{text(name)}{said}</summary>{inside}</details>'


def _predictor(name: str, change: Mapping[str, Any]) -> str:
    before, after = str(change.get("before") or ""), str(change.get("after") or "")
    shown = "" if before != after else " <span>The instructions are unchanged.</span>"
    demos = list(change.get("demos") or ())
    counts = f"Demonstrations: {change.get('demos_before', 0)} before, {change.get('demos_after', len(demos))} after."
    listed = "".join(_demonstration(number, demo) for number, demo in enumerate(demos, 1))
    return (
        f'<h4>{text(name)}</h4><p class="diff">{difference(before, after)}</p>'
        f'<p class="why">{text(counts)}{shown}</p>{listed}'
    )


def _demonstration(number: int, demo: Any) -> str:
    fields = demo.items() if isinstance(demo, Mapping) else [("demonstration", demo)]
    inside = "".join(
        f"<dt>{text(str(name))}</dt><dd>{text(cut(_written(value), FIELD))}</dd>" for name, value in fields
    )
    return f'<details class="arm"><summary>Demonstration {number}</summary><dl class="demo">{inside}</dl></details>'


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
