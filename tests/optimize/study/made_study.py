"""A made-up study of three techniques: twenty trials of which one was pruned, one failed and one is running."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from querywright.data.types import Label
from querywright.models.usage import Cost
from querywright.optimize.evaluate import Evaluation, Row
from querywright.optimize.significance import family
from querywright.optimize.study.spec import StudySpec
from querywright.optimize.study.types import ArmConfig, TrialRecord

EVIL = '</script><script>alert(1)</script><!-- <img src=x onerror="alert(2)"> \'&amp; <b>bold</b> {{x}} %{y} $z$'
BEGAN = 1_800_000_000.0
RATES = {"plain": 0.45, "hyde": 0.55, "multi_query": 0.7}
PRUNED, FAILED, RUNNING, COPY = 8, 11, 19, 13
REFERENCES = ("oracle evidence", "closed book")
ARMS = ("no rewriting", "hyde as written", "trial 17")


@dataclass(frozen=True)
class Spent:
    calls: int = 420
    saved: int = 180
    tokens: int = 98_000
    dollars: float = 0.0125
    minutes: float = 21.5


@dataclass(frozen=True)
class Made:
    spec: StudySpec
    trials: tuple[TrialRecord, ...] = ()
    spent: Spent = Spent()
    finished: bool = False
    outcome: Mapping[str, Any] | None = None


def made_spec(**more: Any) -> StudySpec:
    given: dict[str, Any] = {
        "name": "made",
        "questions": "sample",
        "collection": "cards",
        "techniques": {"hyde": {}, "multi_query": {}},
        "trials": 24,
        "late_trials": 4,
        "seed": 3,
        "budget": {"calls": 1000},
        **more,
    }
    return StudySpec.model_validate(given)


def made_dev(name: str, technique: str, n: int = 24, seed: int = 0, calls: int = 1) -> Evaluation:
    chance = random.Random(f"{name} {seed}")
    rows = []
    for place in range(n):
        useful = float(chance.random() < RATES[technique])
        cost = Cost(calls=calls, saved=1, input_tokens=90, output_tokens=10)
        rows.append(
            Row(
                f"q{place}",
                {"decision_useful": useful, "accuracy": float(chance.random() < 0.5)},
                Label.ENTAILED if useful else Label.NOT_USEFUL,
                answer="yes",
                passages=(f"p{place}",),
                queries=(("original", f"query {place}"),),
                cost=cost,
                seconds=0.5,
            )
        )
    return Evaluation(name, tuple(rows), 4.0)


def made_trial(number: int, technique: str, *, late: bool = False, **more: Any) -> TrialRecord:
    """A complete trial of a technique, each a minute long and after the one before."""
    values: dict[str, Any] = {}
    engine = "dense"
    if technique == "hyde":
        values = {"n_documents": 1 + number % 5, "temperature": round(0.1 * (number % 7), 1)}
    elif technique == "multi_query":
        values, engine = {"n_queries": 2 + number % 4}, "hybrid" if number % 2 else "dense"
    prompt = "boot.2" if late else "as written"
    calls = {"plain": 0, "hyde": 2, "multi_query": 3}[technique]
    params = {"technique": technique, f"{technique}.engine": engine}
    params |= {f"{technique}.{name}": value for name, value in values.items()}
    given: dict[str, Any] = {
        "number": number,
        "state": "complete",
        "arm": ArmConfig(technique, engine, {"max_passages": 5, **values}, prompt),
        "late": late,
        "dev": made_dev(f"trial {number}", technique, calls=calls),
        "spent": Cost(calls=24 * calls, saved=24, input_tokens=2160, output_tokens=240),
        "prompt_spent": Cost(calls=5, input_tokens=400) if late else Cost(),
        "params": params,
        "began": BEGAN + 60 * number,
        "ended": BEGAN + 60 * number + 60,
        "worker": "1",
        **more,
    }
    record = TrialRecord(**given)
    if record.dev is None or "values" in more:
        return record
    measured = {name: record.dev.mean(name).value for name in ("decision_useful", "accuracy")}
    return TrialRecord(**{**given, "values": {**measured, "lm_calls": float(calls) + 1}})


def made_trials(n: int = 20) -> tuple[TrialRecord, ...]:
    names = ["plain", "hyde", "multi_query"]
    trials = []
    for number in range(n):
        technique = names[number] if number < 3 else names[1 + number % 2]
        more: dict[str, Any] = {}
        if number == PRUNED:
            dev = made_dev(f"trial {number}", technique, n=8)
            more = {"state": "pruned", "dev": dev, "values": {}, "message": "worse than trial 2 after 8 questions"}
        elif number == FAILED:
            more = {"state": "failed", "dev": None, "values": {}, "message": f"3 questions failed {EVIL}"}
        elif number == RUNNING:
            more = {"state": "running", "dev": None, "values": {}, "ended": None, "worker": ""}
        elif number == COPY:
            more = {"same_as": 9, "spent": Cost(), "prompt_spent": Cost()}
        trials.append(made_trial(number, technique, late=number >= 16, **more))
    return tuple(trials)


def made_outcome() -> dict[str, Any]:
    techniques = ("plain", "hyde", "multi_query")
    test = [made_dev(name, technique, seed=1) for name, technique in zip(ARMS, techniques, strict=True)]
    arms = {one.name: one for one in test}
    comparisons = family("decision_useful", [("decision_useful", name, ARMS[0]) for name in ARMS[1:]], arms)
    references = [made_dev(name, technique, seed=2) for name, technique in zip(REFERENCES, techniques, strict=False)]
    known = {one.name: one for one in references}
    comparisons += family("reader check", [("accuracy", *REFERENCES)], known, prefix="reader check: ")
    before, after = "Write a passage.", f"Write a short passage that answers the question. {EVIL}"
    return {
        "recommended": ARMS[2],
        "verdict": "gain",
        "sentence": "Chosen on dev; test shows a gain over no rewriting (decision_useful: 9 won, 1 lost of 24)",
        "best": {"number": 17, "arm": made_trial(17, "multi_query", late=True).arm.to_json()},  # type: ignore[union-attr]
        "front": [0, 17],
        "corrected": {"dev": 0.75, "corrected": 0.625, "arms": 18, "n": 24},
        "test": [one.to_json(rows=True) for one in (*test, *references)],
        "comparisons": [one.to_json() for one in comparisons],
        "dead_knobs": [{"technique": "hyde", "knob": EVIL, "values": [1, 2]}],
        "costs": {"search": Cost(calls=300, saved=150).to_json(), "test": Cost(calls=120, saved=30).to_json()},
        "prompts": {
            "hyde, boot": {"technique.write_document": {"before": before, "after": before}},
            "multi_query, boot.2": {
                "technique.write_document": {
                    "before": before,
                    "after": after,
                    "demos_before": 0,
                    "demos_after": 1,
                    "demos": [{"question": f"Why? {EVIL}", "document": "Because."}],
                }
            },
        },
        "command": "querywright study run study.yaml --out made --workers 2",
        "seeds": {"study": 3, "split": 3},
        "questions": [{"id": f"q{n}", "question": EVIL if n == 1 else f"Question {n}?"} for n in range(24)],
    }


def made_snapshot(**more: Any) -> Made:
    """A study under way; ``finished=True`` with its outcome."""
    given: dict[str, Any] = {"spec": made_spec(), "trials": made_trials(), **more}
    if given.get("finished") and "outcome" not in given:
        given["outcome"] = made_outcome()
    return Made(**given)
