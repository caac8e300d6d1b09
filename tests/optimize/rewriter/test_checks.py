"""What a training is refused for, what is noticed of its rewrites, and how the trained model stands."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from querywright.data.splits import Splits, asked_of
from querywright.data.types import Label, Question
from querywright.errors import InputError
from querywright.optimize.evaluate import Evaluation, Row
from querywright.optimize.results import NO_REWRITING
from querywright.optimize.rewriter.episodes import Episode
from querywright.optimize.rewriter.evaluation import GUARDS, TRAINED, compared, guards_of, standing, warnings
from querywright.optimize.rewriter.pairs import Pair, check_pairs_file, read_pairs, write_pairs
from querywright.optimize.rewriter.settings import STAGES, Given, TrainSettings, check_training
from querywright.optimize.rewriter.train import split_pairs
from querywright.retrieval.types import Query

QUESTIONS = [
    Question(f"q{n}", f"What of number {n}?", answer=f"right {n}", evidence={f"decides-{n}": Label.ENTAILED})
    for n in range(24)
]
SPLITS = Splits(QUESTIONS[:16], QUESTIONS[16:20], QUESTIONS[20:])
SETTINGS = TrainSettings(technique="rrr", stages=("warmup",), metric="recall@5")
TEACHER: Any = SimpleNamespace(model="m")


def pair(question: str, technique: str = "rrr", **values: Any) -> Pair:
    return Pair(question, technique, 0, (("user", "What?"),), "{}", 1.0, "me", **values)


LEARNT = [pair(f"q{n}") for n in range(16)] + [pair("q0", data="others")]


def check(settings: TrainSettings, **given: Any) -> None:
    check_training(settings, Given(**{"splits": SPLITS, "retriever": None, "collection": "small", **given}))


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
    with pytest.raises(InputError, match=r"1 of the 18 pairs .* give the --seed") if leaks else nullcontext():
        check(SETTINGS, pairs=pairs)
    if leaks and id == "o1":  # what is asked in train as well is learnt from anyway
        check(SETTINGS, pairs=pairs, splits=SPLITS._replace(train=[*SPLITS.train, Question("again", text)]))


def without(field: str, *parts: str) -> Splits:
    empty: Any = {"evidence": {}, "answer": None}[field]
    changed = {name: [replace(one, **{field: empty}) for one in getattr(SPLITS, name)] for name in parts}
    return SPLITS._replace(**changed)


ASKED: dict[str, Any] = {"teacher": TEACHER}


@pytest.mark.parametrize(
    ("changes", "given", "said"),
    [
        ({}, {"pairs": LEARNT[:4]}, "needs 17 pairs or more, but --pairs has 4: 13 more needed"),
        ({}, {"splits": SPLITS._replace(dev=[])}, "there is no dev question: 1 more is needed"),
        ({"device": "abacus"}, {}, "no device 'abacus'"),
        ({"metric": "accuracy"}, {}, "accuracy needs a reader"),
        ({"technique": "step_back", "stages": STAGES}, {"teacher": "evidence"}, "but not step_back"),
        ({"stages": STAGES}, ASKED | {"splits": without("evidence", "train")}, "none of the 16 train questions"),
        ({"stages": STAGES}, ASKED | {"splits": without("evidence", "dev")}, "none of the 4 dev"),
        ({"stages": STAGES, "metric": "hit"}, ASKED | {"splits": without("answer", "train")}, "hit needs right answ"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_what_is_missing(
    changes: dict[str, Any], given: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        check(replace(SETTINGS, **changes), **given)


def test_what_can_be_trained_is_not_refused() -> None:
    check(SETTINGS, pairs=LEARNT)
    check(SETTINGS, pairs=LEARNT, splits=without("answer", "train", "dev", "test"))
    check(SETTINGS, pairs=LEARNT, splits=without("evidence", "train"))
    check(replace(SETTINGS, kl=0.0, top_k=0, seed=0, stages=STAGES), **ASKED)


def test_a_number_out_of_range_is_refused() -> None:
    for name in ("candidates", "epochs", "look_each", "patience", "rank", "temperature", "warmup_lr", "steps", "lr"):
        with pytest.raises(InputError, match=f"{name} of a training must be more than 0, but got 0"):
            replace(SETTINGS, **{name: 0})
    changes: list[dict[str, Any]] = [{"kl": -1.0}, {"lr": math.inf}, {"group": 1}]
    for change, said in zip(changes, ("0 or more", "more than 0", "2 or more"), strict=True):
        with pytest.raises(InputError, match=f"{next(iter(change))} of a training must be {said}"):
            replace(SETTINGS, **change)


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
    with pytest.raises(InputError, match=rf"p.jsonl, line 2: no pair \({said}"):
        read_pairs(file)
    with pytest.raises(InputError, match=r"'p.jsonl' exists and is no file of pairs"):
        check_pairs_file(file)
    file.write_bytes(b"\xff\n")
    with pytest.raises(InputError, match="not UTF-8"):
        read_pairs(file)


def episode(id: str, *queries: str, read: Sequence[str | None] = ("{}",), **question: Any) -> Episode:
    asked = Question(id, f"Who found {id} radium?", **{"answer": "Marie Curie", **question})
    prediction = SimpleNamespace(queries=[Query(query) for query in queries])
    return Episode(asked, (), tuple("x" for _ in read), prediction, None, tuple(read))


def test_each_way_to_cheat_is_counted() -> None:
    failed = Episode(Question("i", "?"), (), ("x",), None, "bug", (None,))
    found = guards_of(
        [
            episode("a", "discovery of radium"),
            episode("b"),
            episode("c", "who found C radium"),
            episode("e", "marie curie radium"),
            episode("f", "x", read=("{}", None)),
            episode("g", "radium history chemist"),
            episode("h", "Radium history, chemist!"),
            failed,
        ]
    )
    assert (found["equal"], found["unreadable"]) == (2 / 7, 2 / 9)
    assert [found[name] for name in ("empty", "copied", "leaking")] == [1 / 7] * 3
    assert guards_of([episode("a", "red fox")] * 2)["equal"] == 0  # samples of one question may be equal
    assert guards_of([]) == dict.fromkeys(GUARDS, 0.0)
    for question, leaks in (
        ({}, 1),
        ({"options": ("Marie Curie", "Bohr")}, 0),
        ({"answer": "radium"}, 0),
        ({"answer": "curi"}, 0),  # whole words
        ({"answer": "A"}, 0),
    ):
        assert guards_of([episode("a", "curie born Marie Curie a", **question)])["leaking"] == leaks  # type: ignore[arg-type]


def test_what_got_worse_is_said_and_nothing_else() -> None:
    before = guards_of([episode("a", "radium chemist prize"), episode("b", "uranium ore mine")])
    assert warnings(before, before) == []
    said = warnings(before, guards_of([episode(id, "radium radium radium radium") for id in "ab"]))
    assert said == ["100% of the rewrites were the same as for another question (0% before)"]


NO_GAIN = "no gain over the question as it is written"


@pytest.mark.parametrize(
    ("values", "verdict", "warning"),
    [
        ([1.0] * 8 + [0.0] * 2, "gain", None),
        ([1.0] * 2 + [0.0] * 8, "no gain shown", f"{NO_GAIN} was shown"),
        ([-1.0] * 2 + [0.0] * 8, "no gain shown", f"{NO_GAIN} was shown; its mean is below"),
        ([-1.0] * 8 + [0.0] * 2, "loss", "WORSE than the question as it is written: do not use this rewriter"),
        ([math.nan] * 10, "not measured", f"{NO_GAIN} was shown"),
    ],
)
def test_how_a_rewriter_stands(values: list[float], verdict: str, warning: str | None) -> None:
    arms = [
        Evaluation(name, tuple(Row(f"q{n}", {"ndcg@10": value}) for n, value in enumerate(of)), 0.0)
        for name, of in ((NO_REWRITING, [0.0] * 10), (TRAINED, values))
    ]
    made = standing(compared(arms, QUESTIONS[:10]), "ndcg@10")
    assert made["verdict"] == verdict
    assert made["warning"] == warning
