"""The checks before a training, the pairs it learns from, and how a rewriter compares with the baseline."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from querywright.data.splits import Splits, asked_of
from querywright.data.types import Label, Question
from querywright.errors import InputError
from querywright.optimize.comparison import Comparison
from querywright.optimize.evaluate import Evaluation, Row
from querywright.optimize.results import BASELINE
from querywright.optimize.rewriter.pairs import Pair, check_pairs_file, read_pairs, write_pairs
from querywright.optimize.rewriter.settings import TrainingInputs, TrainSettings, check_collection, check_training
from querywright.optimize.rewriter.train import TRAINED, split_pairs, standing
from querywright.optimize.significance import against

QUESTIONS = [
    Question(f"q{n}", f"What of number {n}?", answer=f"right {n}", evidence={f"decides-{n}": Label.ENTAILED})
    for n in range(24)
]
SPLITS = Splits(QUESTIONS[:16], QUESTIONS[16:20], QUESTIONS[20:])
SETTINGS = TrainSettings(technique="rrr", steps=0, metric="recall@5")


def pair(question: str, technique: str = "rrr", **values: Any) -> Pair:
    return Pair(question, technique, 0, (("user", "What?"),), "{}", 1.0, "me", **values)


LEARNT = [pair(f"q{n}") for n in range(16)] + [pair("q0", data="others")]


def check(settings: TrainSettings, check: Any = check_training, **given: Any) -> None:
    check(
        settings,
        TrainingInputs(**{"splits": SPLITS, "retriever": None, "collection": "small", "pairs": LEARNT, **given}),
    )


@pytest.mark.parametrize(
    ("data", "id", "text", "leaks"),
    [
        ("small", "q0", "What of number 0?", False),
        ("small", "q17", "What else?", True),
        ("", "q17", "", True),
        ("others", "q17", "What else?", False),
        ("others", "o1", "What of  NUMBER 21?", True),
        ("", "o1", "What of number 21?", True),
        ("others", "q17", "What of number 0?", False),
    ],
)
def test_pairs_of_dev_and_test_questions_are_refused_by_id_in_a_collection_and_by_text_across_them(
    data: str, id: str, text: str, leaks: bool
) -> None:
    asked = asked_of(Question(id, text)) if text else ""
    pairs = [*LEARNT, pair(id, data=data, asked=asked)]
    with pytest.raises(InputError, match=r"1 of 18 pairs .* use the --seed") if leaks else nullcontext():
        check(SETTINGS, pairs=pairs)
    if leaks and id == "o1":  # what is asked in train as well is learnt from anyway
        check(SETTINGS, pairs=pairs, splits=SPLITS._replace(train=[*SPLITS.train, Question("again", text)]))


def without(field: str, *parts: str) -> Splits:
    empty: Any = {"evidence": {}, "answer": None}[field]
    changed = {name: [replace(one, **{field: empty}) for one in getattr(SPLITS, name)] for name in parts}
    return SPLITS._replace(**changed)


@pytest.mark.parametrize(
    ("changes", "given", "said"),
    [
        ({}, {"pairs": LEARNT[:4]}, r"at least 17 pairs, but --pairs has 4 \(13 too few\)"),
        ({}, {"splits": SPLITS._replace(dev=[])}, "the dev split must have at least 1 question"),
        ({"metric": "accuracy"}, {}, "accuracy requires a reader"),
        ({"technique": "plain"}, {}, "plain does not rewrite with an LM"),
        ({"technique": "hcqr", "steps": 1}, {}, "hcqr calls its LM in several stages.* --steps 0"),
        (
            {"steps": 1},
            {"splits": without("evidence", "train")},
            "none of the 16 .* recall@5 requires labeled evidence",
        ),
        ({"steps": 1}, {"splits": without("evidence", "dev")}, "none of the 4 examples can be scored"),
        (
            {"steps": 1, "metric": "hit"},
            {"splits": without("answer", "train")},
            "none of the 16 .* hit requires",
        ),
        ({"technique": "step_back"}, {"check": check_collection}, "cannot collect pairs for step_back from evidence"),
        (
            {},
            {"check": check_collection, "splits": without("evidence", "train")},
            "none of the 16 .* recall@5 requires labeled evidence",
        ),
    ],
)
def test_a_training_that_cannot_succeed_is_refused_with_what_is_missing(
    changes: dict[str, Any], given: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        check(replace(SETTINGS, **changes), **given)


def test_a_training_needs_no_other_labels_than_those_of_its_metric_and_parts() -> None:
    check(SETTINGS, splits=without("answer", "train", "dev", "test"))
    check(SETTINGS, splits=without("evidence", "train"))
    check(replace(SETTINGS, steps=1, technique="step_back"))


def test_a_number_out_of_range_is_refused() -> None:
    for name, value, said in (
        ("epochs", 0, "more than 0"), ("lr", math.inf, "more than 0"), ("steps", -1, "0 or more"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=f"{name} must be {said}"):
            replace(SETTINGS, **{name: value})


def test_pairs_to_choose_by_are_of_other_questions_in_any_data() -> None:
    both = [(technique, data) for technique in ("rrr", "hcqr") for data in ("small", "others")]
    pairs = [pair(f"q{n % 10}", technique, data=data) for n in range(20) for technique, data in both]
    learnt, chosen = split_pairs(pairs, 0)
    assert len(learnt) + len(chosen) == len(pairs)
    assert len({one.key for one in chosen}) == 2  # a tenth of 20 questions
    assert not {one.key for one in chosen} & {one.key for one in learnt}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data.pop("text"), "field text: Field required"),
        (lambda data: data.update(messages=[["tool", "x"]]), "field messages.0.0"),
    ],
)
def test_a_line_that_is_no_pair_is_named(tmp_path: Path, change: Callable[[Any], Any], said: str) -> None:
    file, whole = tmp_path / "p.jsonl", pair("q", data="mine", asked="0123")
    write_pairs(file, [pair("q"), whole])
    assert read_pairs(file) == [pair("q"), whole]
    check_pairs_file(file)
    first, second = map(json.loads, file.read_text().splitlines())
    assert set(second) - set(first) == {"data", "asked"}  # what is not known of a pair is not written
    change(second)
    file.write_text(json.dumps(first) + "\n" + json.dumps(second) + "\n")
    with pytest.raises(InputError, match=rf"p.jsonl, line 2: not a valid pair \({said}"):
        read_pairs(file)
    with pytest.raises(InputError, match=r"'p.jsonl' exists but is not a file of pairs"):
        check_pairs_file(file)
    file.write_bytes(b"\xff\n")
    with pytest.raises(InputError, match="not UTF-8"):
        read_pairs(file)


NO_GAIN = "no gain over the unchanged question"


@pytest.mark.parametrize(
    ("values", "verdict", "warning"),
    [
        ([1.0] * 8 + [0.0] * 2, "gain", None),
        ([1.0] * 2 + [0.0] * 8, "no gain shown", f"{NO_GAIN} was shown"),
        ([-1.0] * 2 + [0.0] * 8, "no gain shown", f"{NO_GAIN} was shown, and its mean is lower"),
        ([-1.0] * 8 + [0.0] * 2, "loss", "WORSE than the unchanged question: do not use this rewriter"),
        ([math.nan] * 10, "not measured", f"{NO_GAIN} was shown"),
    ],
)
def test_how_a_rewriter_compares_with_the_baseline(values: list[float], verdict: str, warning: str | None) -> None:
    arms = tuple(
        Evaluation(name, tuple(Row(f"q{n}", {"ndcg@10": value}) for n, value in enumerate(of)), 0.0)
        for name, of in ((BASELINE, [0.0] * 10), (TRAINED, values))
    )
    made = standing(Comparison(arms, BASELINE, tuple(against(arms, BASELINE))), "ndcg@10")
    assert made["verdict"] == verdict
    assert made["warning"] == warning
