"""Generated questions: records, the published questions, and further answers."""

from __future__ import annotations

import json

import pytest

from querywright.data.types import Passage
from querywright.errors import CollectionError
from querywright.retrieval.collection import published_passages
from querywright.retrieval.generated_questions import (
    ANSWERS,
    COMPLETE,
    NONE,
    PARTIAL,
    RECORDS,
    AnswerPair,
    PassageRecord,
    WrittenQuestion,
    publish_questions,
    question_id,
    questions_folder,
    read_pairs,
    read_records,
    stored_answers,
    write_pairs,
)

IRON = Passage("iron", "Tea hinders the uptake of iron.")
TEA = Passage("tea", "Tea is drunk in the afternoon.", "Tea")
SALT = Passage("salt", "Bread brings salt.")


def record(passage, *questions):
    return PassageRecord(passage.id, passage.text_digest(), "s", tuple(WrittenQuestion(*one) for one in questions), 2)


OF_IRON, OF_SALT, OF_TEA = BEFORE = [
    record(IRON, ("What hinders iron?", COMPLETE, "it says so"), ("What is iron?", NONE, ""), ("Is it \u6c34?", "")),
    record(SALT),
    record(TEA, ("When is tea drunk?", PARTIAL, 'only "roughly",\nso to say')),
]


# Records.


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"passage": 7}, "field passage: Input should be a valid string"),
        ({"questions": [{"text": "What?", "label": "complete", "mine": ""}]}, r"field questions\.0\.mine: "),
        ({"repeated": -1}, "field repeated: "),
        ({"unfit": {"no_words": 1.5}}, r"field unfit\.no_words: "),
        (None, ""),
    ],
)
def test_a_line_that_is_no_record_is_named(tmp_path, change, told):
    other = "[" * 100_000 if change is None else json.dumps(json.loads(OF_IRON.to_json()) | change)
    (tmp_path / RECORDS).write_text(f"{OF_TEA.to_json()}\n{other}\n")
    with pytest.raises(CollectionError, match=rf"line 2 of records\.jsonl in .* is damaged \({told}"):
        read_records(tmp_path)


@pytest.fixture
def foods(home, build, hashed):
    """The folder of the questions of a collection."""
    build(home, "foods", [IRON, SALT, TEA])
    publish_questions("foods", BEFORE, embedder=hashed(), home=home)
    return questions_folder("foods", home)


def test_the_kept_questions_are_published_with_what_they_were_written_for(foods, home, hashed):
    _, published = published_passages(foods, home)
    assert {(one.id, one.text, tuple(one.metadata.values())) for one in published.values()} == {
        (question_id(passage.id, text), text, (passage.id, passage.text_digest(), label))
        for passage, text, label in ((IRON, "What hinders iron?", COMPLETE), (TEA, "When is tea drunk?", PARTIAL))
    }
    assert read_records(foods) == {one.passage: one for one in BEFORE}
    with pytest.raises(
        CollectionError, match=r"no generated question was kept .* 'foods' \(questions: 1, passages: 1\)"
    ):
        publish_questions("foods", [record(TEA, ("What is tea?", NONE))], embedder=hashed(), home=home)
    assert len(read_records(foods)) == 3


# Further answers.

ONE = AnswerPair("q1", "tea", "digest of tea", 1.0, True)
TWO = AnswerPair("q1", "iron", "digest of iron", 0.0, True)
THREE = AnswerPair("q2", "\N{LATIN SMALL LETTER E WITH ACUTE}\u2028\r", "d", 0.625, False)


def test_pairs_come_back_in_order_and_in_the_same_bytes(tmp_path):
    assert list(read_pairs(tmp_path)) == []
    write_pairs(tmp_path, [THREE, ONE, TWO])
    first = (tmp_path / ANSWERS).read_bytes()
    assert list(read_pairs(tmp_path)) == [TWO, ONE, THREE]
    write_pairs(tmp_path, [ONE, TWO, THREE])
    assert (tmp_path / ANSWERS).read_bytes() == first
    for damaged in (first[:-4], first.replace(b"1.0", b"0.5"), b"[" * 100_000):
        (tmp_path / ANSWERS).write_bytes(damaged)
        with pytest.raises(CollectionError, match=r"answers\.json in .* is damaged .*remove the file and rerun"):
            read_pairs(tmp_path)


def test_answers_are_the_passages_of_high_value_best_first_and_what_is_stale_does_not_count(foods, home, caplog):
    passages = {name: Passage(name, f"About {name}.") for name in "abcde"}
    assert stored_answers("foods", {"q"}, passages, home) is None
    values = {"d": 0.5, "c": 1.0, "b": 0.49, "a": 0.5}
    pairs = [AnswerPair("q", name, passages[name].text_digest(), value, True) for name, value in values.items()]
    gone = AnswerPair("gone", "a", passages["a"].text_digest(), 1.0, True)
    write_pairs(foods, [*pairs, gone, AnswerPair("q", "e", "of other text", 1.0, True), TWO])
    assert stored_answers("foods", {"q"}, passages, home) == {"q": ("c", "a", "d")}
    assert "3 of 7 stored answers" in caplog.text
    assert "querywright questions fill foods" in caplog.text
