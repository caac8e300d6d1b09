from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from querywright.data import Label, Question, data_hash, split_questions
from querywright.data.splits import asked_of, left_over, repeated
from querywright.errors import DataError, InputError

GOLDEN = [["q4", "q6"], ["q5", "q0", "q2"], ["q7", "q1", "q3"]]
IDS = st.lists(st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=8), unique=True, max_size=30)


def questions(n):
    return [Question(f"q{number}", f"Question {number}?", ("a", "b")) for number in range(n)]


def split_of(splits):
    return {question.id: name for name, part in splits._asdict().items() for question in part}


@settings(max_examples=60)
@given(ids=IDS, seed=st.integers(), data=st.data())
def test_a_question_stays_in_its_split(ids, seed, data):
    everything = [Question(name, f"{number}?") for number, name in enumerate(ids)]
    some = data.draw(st.permutations(everything))[: len(everything) // 2 + 1]
    whole = split_of(split_questions(everything, seed=seed))
    assert set(whole) == set(ids)
    assert split_of(split_questions(some, seed=seed)).items() <= whole.items()


def test_places_are_the_documented_hash():
    splits = split_of(split_questions(questions(50), train=0.2, dev=0.5, seed=3))
    for id, name in splits.items():
        place = int.from_bytes(hashlib.sha256(f"3:{id}".encode()).digest()[:8], "big") / 2**64
        assert name == ("train" if place < 0.2 else "dev" if place < 0.7 else "test")
    assert splits != split_of(split_questions(questions(50), train=0.2, dev=0.5, seed=4))
    assert [[question.id for question in part] for part in split_questions(questions(8))] == GOLDEN


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"train": -0.1}, "train must be a share"),
        ({"dev": 1.5}, "dev must be a share"),
        ({"train": float("nan")}, "train must be a share"),
        ({"train": 0.6, "dev": 0.5}, "at most 1"),
        ({"sizes": (1, -1, 2)}, "0 or more"),
    ],
)
def test_shares_out_of_range(given, part):
    with pytest.raises(InputError, match=part):
        split_questions(questions(10), **given)


def test_the_same_question_is_in_one_split_only_and_the_others_stay():
    some = questions(60)
    twice = [
        Question(f"zz{one.id}", f" {one.question}".upper(), one.options[::-1]) for one in some
    ]  # ids that are larger
    before, splits = split_questions(some), split_questions([*twice, *some])
    where = split_of(splits)
    assert {one.id: where[one.id] for one in some} == {one.id: where[f"zz{one.id}"] for one in some} == split_of(before)
    for part, alone in zip(splits, before, strict=True):
        assert [one for one in part if one in some] == alone
    cut = split_questions([*twice, *some], sizes=(11, 11, 11))
    assert not {asked_of(one) for one in (*cut.train, *cut.dev)} & {asked_of(one) for one in cut.test}
    assert len(split_questions([*twice, *some], train=0.5, dev=0.5).test) == 0


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (Question("b", "  Wie  VIEL Luft, Mu\u0308ller\uff1f ", ("ja", "NEIN")), True),
        (Question("b", "Wie viel Luft, M\u00fcller?", ("Nein", "Ja ")), True),
        (Question("b", "Wie viel Luft, M\u00fcller", ("Nein.", "Ja")), True),
        (Question("b", "Wie viel Luft, Muller?", ("Nein", "Ja")), False),
        (Question("b", "Wie viel Luft, M\u00fcller?", ("Nein", "Ja", "Vielleicht")), False),
        (Question("b", "Wie viel Luft, M\u00fcller?"), False),
        (Question("b", "Wie viel Luft, M\u00fcller?", ("Nein", "Ja"), history=("user: Hallo",)), False),
    ],
)
def test_case_spaces_unicode_form_and_the_order_of_options_make_no_other_question(other, same):
    one = Question("a", "Wie viel Luft, M\u00fcller?", ("Nein", "Ja"))
    assert (repeated([one, other]) == [[one, other]]) is same
    for seed in range(40):
        where = split_of(split_questions([one, other], seed=seed))
        assert where["a"] == split_of(split_questions([one], seed=seed))["a"]
        assert where["b"] == (where["a"] if same else split_of(split_questions([other], seed=seed))["b"])


def test_exact_sizes_are_beginnings():
    some = questions(100)
    whole, small, large = (split_questions(some, sizes=sizes) for sizes in (None, (3, 4, 5), (10, 12, 15)))
    assert [len(part) for part in large] == [10, 12, 15]
    for full, few, many in zip(whole, small, large, strict=True):
        assert full[: len(many)] == many
        assert many[: len(few)] == few
    with pytest.raises(DataError, match=r"must be at most 2,4,4, but got 11,0,11.*questions: 10"):
        split_questions(questions(10), sizes=(11, 0, 11))
    with pytest.raises(DataError, match="'q1' occurs 2 times"):
        split_questions([*questions(3), questions(2)[1]])


def test_data_hash_sees_content_and_not_order():
    first = Question("a", "?", ("x", "y"), "x", (), {"p": Label.ENTAILED, "r": Label.USEFUL})
    second = Question("b", "é?", answer="z", aliases=("zz",))
    known = data_hash([first, second])
    turned = replace(first, evidence=dict(reversed(first.evidence.items())))
    assert data_hash([second, first]) == data_hash([turned, second]) == known
    changes = [
        {"id": "c"}, {"question": "??"}, {"options": ("y", "x")}, {"answer": "y"}, {"aliases": ("w",)},
        {"evidence": {"p": Label.ENTAILED}}, {"evidence": {"p": Label.USEFUL, "r": Label.USEFUL}},
    ]  # fmt: skip
    hashes = {data_hash([replace(first, **change), second]) for change in changes}
    assert len(hashes | {known}) == len(changes) + 1
    assert data_hash([first]) != known != data_hash([first, second, second])
    lines = b'{"answer": "\\u00e9", "id": "b", "question": "!"}\n{"id": "a", "question": "?"}'
    assert data_hash([Question("b", "!", answer="é"), Question("a", "?")]) == hashlib.sha256(lines).hexdigest()


def test_the_hash_of_what_is_asked_stays():
    assert asked_of(Question("q1", "What is  it?", options=("a", "b"))) == "13c4a3b49ed3c55a"


def test_what_is_left_over_is_new_by_text_and_in_the_order_of_the_hashes():
    some = questions(40)
    splits = split_questions(some, sizes=(3, 4, 5))
    left = left_over(some, splits)
    assert left == left_over(some[::-1], splits)
    every = [one for part in split_questions(some) for one in part]
    assert left == [one for one in every if one not in [used for part in splits for used in part]]
    known = [splits.dev[0], *left]
    again = [Question(f"again {n}", f" {one.question}".upper(), ("b", "a")) for n, one in enumerate(known)]
    assert len(left_over([*some, *again], splits)) == len(left)
    other = Question("other", splits.dev[0].question, ("a", "c"))
    assert other in left_over([*some, other], splits)
