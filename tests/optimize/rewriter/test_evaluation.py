from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from querywright.data.types import Question
from querywright.optimize.evaluate import Evaluation, Row
from querywright.optimize.results import NO_REWRITING
from querywright.optimize.rewriter.evaluation import (
    TRAINED,
    UNTRAINED,
    Measured,
    compared,
    evaluation_of,
    kept,
    standing,
)
from querywright.optimize.rewriter.report import rewriter_card, rewriter_html
from querywright.optimize.rewriter.types import Episode


def arm(name: str, values: Sequence[float], query: str = "a query") -> Evaluation:
    rows = [Row(f"q{n}", {"ndcg@10": value}, queries=(("rewrite", f"{query} {n}"),)) for n, value in enumerate(values)]
    return Evaluation(name, tuple(rows), 0.0)


@pytest.mark.parametrize(
    ("values", "verdict", "warning"),
    [
        ([1.0] * 8 + [0.0] * 2, "better", None),
        ([0.0] * 10, "no difference shown", "no gain"),
        ([-1.0] * 2 + [0.0] * 8, "no difference shown", "its mean is below"),
        ([-1.0] * 8 + [0.0] * 2, "worse", "WORSE than the question as it is written"),
        ([math.nan] * 10, "not measured", "no gain"),
    ],
)
def test_how_a_rewriter_stands(values: list[float], verdict: str, warning: str | None) -> None:
    found = compared([arm(NO_REWRITING, [0.0] * 10), arm(TRAINED, values)])
    made = standing(found, "ndcg@10")
    assert made.verdict == verdict
    assert (made.warning or "").startswith(warning or "")
    assert (made.warning is None) == (warning is None)


def test_a_failed_episode_is_unscored() -> None:
    question = Question("q", "What?")
    made = evaluation_of("arm", [Episode(question, (), (), None, "bug")], {"hit": lambda *_: 1.0})
    assert math.isnan(made.values("hit")[0])
    assert made.rows[0].failure == "bug"


def test_an_arm_is_measured_once(tmp_path: Path) -> None:
    asked: list[int] = []

    def make() -> Measured:
        asked.append(1)
        return Measured(arm("trained", [0.5, math.nan]), {"copied": 0.25, "cut": math.nan})

    first, again = (kept(tmp_path / "arm.json", "trained", make) for _ in range(2))
    assert asked == [1]
    assert again.evaluation.rows[0] == first.evaluation.rows[0]
    assert math.isnan(again.evaluation.values("ndcg@10")[1])
    assert again.guards["copied"] == 0.25


def card(found: Any) -> dict[str, Any]:
    made = standing(found, "ndcg@10")
    return {
        "technique": "rrr", "techniques": ["rrr"], "base": "tiny", "created": "2026-01-02",
        "stages": {"warmup": {"steps": 2}},
        "recipe": {"name": "ours", "lr": 0.1}, "metric": "ndcg@10", "collection": "<b>mine</b>",
        "settings": {"seed": 3}, "data": {"dev": {"n": 10, "sha256": "x"}},
        "standing": {"dev": {"verdict": made.verdict, "sentence": made.sentence, "warning": made.warning}},
        "guards": {"before": {"copied": 0.0}, "after": {"copied": 0.5}, "warnings": ["50% only copied <i>"]},
    }  # fmt: skip


def test_the_page_and_the_card_say_what_was_found() -> None:
    found = compared(
        [
            arm(NO_REWRITING, [0.5] * 10),
            arm(UNTRAINED, [0.5] * 10, "before"),
            arm(TRAINED, [-1.0] * 8 + [0.5] * 2, "<script>after"),
        ]
    )
    questions = [Question(f"q{n}", f"What is {n}?") for n in range(10)]
    log = [
        {"kind": "dev", "step": 0, "value": 0.5, "plain": 0.4, "guards": {"copied": 0.1}},
        {"kind": "step", "step": 1, "reward": 0.1, "kl": 0.0, "tokens": 9.0, "guards": {"copied": 0.1}},
        {"kind": "step", "step": 2, "reward": None, "kl": 0.2, "tokens": 8.0, "guards": {"copied": 0.2}},
    ]
    html = rewriter_html("mine", card(found), found, None, questions, reinforcement=log)
    assert "WORSE than the question as it is written" in html
    assert "<script>after" not in html
    assert "<b>mine</b>" not in html
    assert "&lt;script&gt;after 0" in html
    assert "before 0" in html
    figures = json.loads(html.split('id="report-figures">')[1].split("</script>")[0])
    assert figures["figure-dev"]["data"][0]["x"] == [0.0]
    assert figures["figure-reward"]["data"][0]["y"] == [0.1]
    assert [one["name"] for one in figures["figure-guards"]["data"]] == ["copied"]
    readme = rewriter_card("mine", card(found), found, None)
    assert "**WORSE than the question as it is written: do not use this rewriter** (dev)." in readme
    assert "| trained | 10 | -70.0" in readme
    assert "- 50% only copied <i>" in readme
    assert "--rewriter path/to/mine" in readme
