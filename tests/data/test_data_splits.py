from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from querywright.data import Label, Question, Splits, data_hash, split_questions
from querywright.data.splits import asked_of
from querywright.errors import DataError, InputError


def questions(n: int) -> list[Question]:
    return [Question(f"q{number}", f"Question {number}?") for number in range(n)]


def split_of(splits: Splits) -> dict[str, str]:
    return {question.id: name for name, part in splits._asdict().items() for question in part}


IDS = st.lists(st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=8), unique=True, max_size=30)


@settings(max_examples=60, deadline=None)
@given(ids=IDS, seed=st.integers(), data=st.data())
def test_a_question_stays_in_its_split(ids, seed, data):
    everything = [Question(name, "?") for name in ids]
    some = data.draw(st.permutations(everything))[: len(everything) // 2 + 1]
    whole = split_of(split_questions(everything, seed=seed))
    assert set(whole) == set(ids)
    part = split_of(split_questions(some, seed=seed))
    assert part.items() <= whole.items()


def test_places_are_the_documented_hash():
    splits = split_questions(questions(50), train=0.2, dev=0.5, seed=3)
    for question in questions(50):
        place = int.from_bytes(hashlib.sha256(f"3:{question.id}".encode()).digest()[:8], "big") / 2**64
        expected = "train" if place < 0.2 else "dev" if place < 0.7 else "test"
        assert split_of(splits)[question.id] == expected


def test_golden_split():
    assert [[question.id for question in part] for part in split_questions(questions(8))] == GOLDEN


GOLDEN = [["q4", "q6"], ["q5", "q0", "q2"], ["q7", "q1", "q3"]]


def test_shares_are_met_roughly():
    train, dev, test = split_questions(questions(4000), train=0.2, dev=0.3)
    assert len(train) == pytest.approx(800, abs=4 * 26)
    assert len(dev) == pytest.approx(1200, abs=4 * 29)
    assert len(train) + len(dev) + len(test) == 4000


def test_seed_and_order():
    some = questions(200)
    assert split_questions(some) == split_questions(some[::-1])
    assert split_of(split_questions(some)) != split_of(split_questions(some, seed=1))


def test_shares_at_the_edges():
    some = questions(20)
    assert [len(part) for part in split_questions(some, train=0, dev=0)] == [0, 0, 20]
    assert [len(part) for part in split_questions(some, train=1, dev=0)] == [20, 0, 0]
    assert len(split_questions(some, train=0.7, dev=0.3).test) == 0
    assert split_questions([]) == ([], [], [])


@pytest.mark.parametrize(
    ("shares", "part"),
    [
        ({"train": -0.1}, "train is a share"),
        ({"dev": 1.5}, "dev is a share"),
        ({"train": float("nan")}, "train is a share"),
        ({"train": 0.6, "dev": 0.5}, "at most 1"),
        ({"sizes": (1, -1, 2)}, "0 or more"),
    ],
)
def test_shares_out_of_range(shares, part):
    with pytest.raises(InputError, match=part):
        split_questions(questions(10), **shares)


def test_exact_sizes_are_beginnings():
    some = questions(100)
    whole, small, large = (split_questions(some, sizes=sizes) for sizes in (None, (3, 4, 5), (10, 12, 15)))
    assert [len(part) for part in large] == [10, 12, 15]
    for full, few, many in zip(whole, small, large, strict=True):
        assert full[: len(many)] == many
        assert many[: len(few)] == few
    assert [len(part) for part in split_questions(some, sizes=(0, 1, 0))] == [0, 1, 0]


def test_sizes_that_are_not_there():
    with pytest.raises(DataError) as caught:
        split_questions(questions(10), sizes=(11, 0, 11))
    assert len(caught.value.problems) == 2
    assert caught.value.problems[0].startswith("train: 11 questions asked for, but the split has ")


def test_repeated_ids_are_refused():
    with pytest.raises(DataError, match="'q1' occurs 2 times"):
        split_questions([*questions(3), questions(2)[1]])


def test_data_hash_sees_content_and_not_order():
    some = [
        Question("a", "?", ("x", "y"), "x", (), {"p": Label.ENTAILED, "r": Label.USEFUL}),
        Question("b", "é?", answer="z", aliases=("zz",)),
    ]
    first = some[0]
    known = data_hash(some)
    assert len(known) == 64
    assert data_hash(reversed(some)) == known
    assert data_hash([replace(first, evidence=dict(reversed(first.evidence.items()))), some[1]]) == known
    changes = [
        replace(first, id="c"),
        replace(first, question="??"),
        replace(first, options=("y", "x")),
        replace(first, answer="y"),
        replace(first, aliases=("w",)),
        replace(first, evidence={"p": Label.ENTAILED}),
        replace(first, evidence={"p": Label.USEFUL, "r": Label.USEFUL}),
    ]
    hashes = {data_hash([change, some[1]]) for change in changes}
    assert len(hashes) == len(changes)
    assert known not in hashes
    assert data_hash(some[:1]) != known != data_hash([*some, some[1]])


def test_data_hash_is_pinned():
    expected = hashlib.sha256(
        b'{"answer": "\\u00e9", "id": "b", "question": "!"}\n{"id": "a", "question": "?"}'
    ).hexdigest()
    assert data_hash([Question("b", "!", answer="é"), Question("a", "?")]) == expected


def test_the_same_is_asked_by_text_and_options_whatever_the_id():
    one = Question("q1", "What is  it?", options=("a", "b"))
    assert asked_of(one) == asked_of(Question("q2", "what IS it?", options=("b", "a")))
    others = [replace(one, question="What was it?"), replace(one, options=("a", "c")), replace(one, options=())]
    assert len({asked_of(one), *map(asked_of, others)}) == 4
    assert asked_of(one) == "d7fb83ff0472f824"
