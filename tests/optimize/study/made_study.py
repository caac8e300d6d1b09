"""A made-up study of three techniques: twenty trials of which one was pruned, one failed and one is running."""

from __future__ import annotations

import random
from typing import Any

from querywright.data.types import Label
from querywright.models.usage import Cost
from querywright.optimize.evaluate import Evaluation, Row
from querywright.optimize.search.trials import ArmConfig, TrialRecord
from querywright.optimize.significance import family
from querywright.optimize.study.results import Snapshot, Spent
from querywright.optimize.study.spec import StudySpec

EVIL = '</script><script>alert(1)</script><!-- <img src=x onerror="alert(2)"> \'&amp; <b>bold</b> {{x}} %{y} $z$'
BEGAN = 1_800_000_000.0
RATES = {"plain": 0.45, "hyde": 0.55, "multi_query": 0.7}
CALLS = {"plain": 0, "hyde": 2, "multi_query": 3}
PRUNED, FAILED, RUNNING, COPY = 8, 11, 19, 13
REFERENCES = ("oracle evidence", "closed book")
NOTHING = Evaluation("", (), 0.0)
ARMS = ("baseline", "hyde untuned", "trial 17")


def made_spec(**more: Any) -> StudySpec:
    given: dict[str, Any] = {
        "name": "made", "questions": "sample", "collection": "cards", "techniques": {"hyde": {}, "multi_query": {}},
        "trials": 24, "seed": 3, "budget": {"calls": 1000}, **more,
    }  # fmt: skip
    return StudySpec.model_validate(given)


def made_dev(name: str, technique: str, n: int = 24, seed: int = 0) -> Evaluation:
    chance, rows = random.Random(f"{name} {seed}"), []
    for place in range(n):
        useful = float(chance.random() < RATES[technique])
        scores = {"decision_useful": useful, "accuracy": float(chance.random() < 0.5)}
        label = Label.ENTAILED if useful else Label.NOT_USEFUL
        cost = Cost(calls=CALLS[technique], saved=1, input_tokens=90, output_tokens=10)
        found: dict[str, Any] = {"answer": "yes", "passages": (f"p{place}",), "queries": (("original", f"{place}"),)}
        rows.append(Row(f"q{place}", scores, label, **found, cost=cost, seconds=0.5))
    return Evaluation(name, tuple(rows), 4.0)


def made_trial(number: int, technique: str, *, prompt: str = "untuned", **more: Any) -> TrialRecord:
    """A complete trial of a technique, each a minute long and after the one before."""
    knobs: dict[str, Any] = {}
    if technique == "hyde":
        knobs = {"n_documents": 1 + number % 5, "temperature": round(0.1 * (number % 7), 1)}
    elif technique == "multi_query":
        knobs = {"n_queries": 2 + number % 4}
    engine = "hybrid" if technique == "multi_query" and number % 2 else "dense"
    params = {"technique": technique, f"{technique}.engine": engine}
    params |= {f"{technique}.{name}": value for name, value in knobs.items()}
    dev = made_dev(f"trial {number}", technique)
    values = {name: dev.average(name) for name in ("decision_useful", "accuracy")}
    given: dict[str, Any] = {
        "arm": ArmConfig(technique, engine, {"max_passages": 5, **knobs}, prompt),
        "dev": dev, "values": {**values, "lm_calls": float(CALLS[technique]) + 1}, "params": params, "worker": "1",
        "spent": Cost(calls=24 * CALLS[technique], saved=24, input_tokens=2160, output_tokens=240),
        "prompt_spent": Cost(calls=5, input_tokens=400) if prompt != "untuned" else Cost(),
        "began": BEGAN + 60 * number, "ended": BEGAN + 60 * number + 60,
    }  # fmt: skip
    return TrialRecord(number, more.pop("state", "complete"), **{**given, **more})


def made_trials(n: int = 20) -> tuple[TrialRecord, ...]:
    names = ["plain", "hyde", "multi_query"]
    none: dict[str, Any] = {"dev": NOTHING, "values": {}}
    pruned = made_dev(f"trial {PRUNED}", "hyde", n=8)
    special: dict[int, dict[str, Any]] = {
        PRUNED: {"state": "pruned", "dev": pruned, "values": {}, "message": "worse than trial 2 after 8 questions"},
        FAILED: {**none, "state": "failed", "message": f"3 questions failed {EVIL}"},
        RUNNING: {**none, "state": "running", "ended": None, "worker": ""},
        COPY: {"same_as": 9, "spent": Cost(), "prompt_spent": Cost()},
    }
    return tuple(
        made_trial(number, names[number] if number < 3 else names[1 + number % 2],
                   prompt="boot.2" if number >= 16 else "untuned", **special.get(number, {}))
        for number in range(n)
    )  # fmt: skip


def made_outcome() -> dict[str, Any]:
    test = [made_dev(name, technique, seed=1) for name, technique in zip(ARMS, RATES, strict=True)]
    references = [made_dev(name, technique, seed=2) for name, technique in zip(REFERENCES, RATES, strict=False)]
    known = {one.name: one for one in (*test, *references)}
    comparisons = family("technique", [("decision_useful", name, ARMS[0]) for name in ARMS[1:]], known)
    comparisons += family("reader check", [("accuracy", *REFERENCES)], known, prefix="reader check: ")
    arm = made_trial(17, "multi_query", prompt="boot.2").arm
    return {
        "recommended": ARMS[2],
        "verdict": "gain",
        "sentence": "On test, the program chosen on dev is better than the baseline (decision_useful: 9 won, "
        "1 lost of 24)",
        "best": {"number": 17, "arm": arm.to_json()},
        "corrected": {"dev": 0.75, "corrected": 0.625, "arms": 18, "n": 24},
        "test": [one.to_json(rows=True) for one in (*test, *references)],
        "comparisons": [one.to_json() for one in comparisons],
        "costs": {
            "search": Cost(calls=300, saved=150).to_json(),
            "prompts": Cost().to_json(),
            "test": Cost(calls=120, saved=30).to_json(),
        },
        "hints": ["warning: a label"],
        "notes": [],
        "remarks": ["LM made"],
        "command": "querywright study run study.yaml --out made --workers 2",
        "seeds": {"study": 3, "split": 3},
        "questions": [{"id": f"q{n}", "question": EVIL if n == 1 else f"Question {n}?"} for n in range(24)],
    }


def made_snapshot(*, finished: bool = False, **more: Any) -> Snapshot:
    """A study under way; ``finished=True`` with its outcome."""
    spent = Spent(calls=420, saved=180, tokens=98_000, dollars=0.0125)
    given: dict[str, Any] = {"spec": made_spec(), "trials": made_trials(), "spent": spent}
    return Snapshot(**{**given, "outcome": made_outcome() if finished else None, **more})
