"""Generated questions: records, what is published of them, further answers, and the file that people edit."""

from __future__ import annotations

import json
from dataclasses import replace

import pandas as pd
import pytest

from querywright.data.types import Passage
from querywright.errors import CollectionError, DataError, InputError
from querywright.retrieval.collection import building, published_passages
from querywright.retrieval.generated_questions import (
    ANSWERS,
    COMPLETE,
    IMPORTED,
    LOCK,
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
from querywright.retrieval.question_files import export_questions, import_questions

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
    with pytest.raises(CollectionError, match="of 1 questions written for 1 passages of 'foods' none is kept"):
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
        with pytest.raises(CollectionError, match=r"answers\.json in .* is damaged .*remove it and fill it again"):
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


# Out to a Parquet file and back in.


@pytest.fixture
def edit(foods, home, tmp_path, hashed):
    """Exports, edits the table, and imports it."""

    def run(change, **options):
        file = tmp_path / "q.parquet"
        export_questions("foods", file, home)
        change(pd.read_parquet(file)).to_parquet(file)
        return import_questions("foods", file, embedder=hashed(), home=home, **options)

    return run


def row(passage, question, **others):
    return pd.DataFrame([{"passage": passage, "question": question, **others}])


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.iloc[::-1],
        lambda table: table.assign(question=table["question"] + " \n"),
        lambda table: table[table["passage"] == "tea"],
    ],
)
def test_what_was_not_edited_comes_back_to_the_byte(edit, foods, home, change):
    before, published = (foods / RECORDS).read_bytes(), published_passages(foods, home)
    report = edit(change)
    assert (foods / RECORDS).read_bytes() == before
    assert published_passages(foods, home) == published
    assert (report.edited, report.kept) == (0, 2)


def test_questions_are_added_changed_and_removed(edit, foods, home):
    def change(table):
        table.loc[1, "label"] = "partial"
        return pd.concat([table.drop(index=2), row("salt", "What brings  salt?"), row("iron", "Does tea matter?")])

    report = edit(lambda table: change(table).assign(mine=1))
    assert (report.questions, report.edited, report.kept, report.ignored) == (5, 2, 5, ("mine",))
    texts = [("What hinders iron?", COMPLETE, "it says so"), ("What is iron?", PARTIAL), ("Does tea matter?", COMPLETE)]
    assert read_records(foods) == {
        "iron": replace(OF_IRON, settings=IMPORTED, questions=tuple(WrittenQuestion(*one) for one in texts)),
        "salt": replace(OF_SALT, settings=IMPORTED, questions=(WrittenQuestion("What brings salt?", COMPLETE),)),
        "tea": OF_TEA,
    }
    assert len(published_passages(foods, home)[1]) == 5


def test_a_cleared_label_is_vouched_for_and_one_that_was_never_read_is_not(edit, foods):
    edit(lambda table: table.assign(label=["", None, "", "partial"]))
    assert [one.label for one in read_records(foods)["iron"].questions] == [COMPLETE, COMPLETE, ""]


def test_everything_that_is_wrong_is_told_at_once_and_nothing_is_changed(edit, foods):
    before = (foods / RECORDS).read_bytes()
    wrong = [
        row("milk", "What is milk?"),
        row("tea", " "),
        row("tea", "Who drinks tea?", label="maybe"),
        row("tea", "when is  tea drunk?"),
        row("", "Whose?"),
    ]
    with pytest.raises(DataError) as told:
        edit(lambda table: pd.concat([table, *wrong]))
    assert [problem.partition(": ")[2] for problem in told.value.problems] == [
        "found ' '; expected non-empty text",
        "found 'maybe'; expected one of complete, partial, none, or nothing",
        "found ''; expected non-empty text",
        "there is no passage 'milk' in the collection",
        "the question 'when is tea drunk?' is asked in q.parquet row 4 already",
    ]
    assert told.value.problems[0].startswith('q.parquet row 6, column "question": ')
    for change, problem in (
        (lambda table: table.drop(columns="question"), "no column for 'question' .* the columns are"),
        (lambda table: table.assign(label=1), 'column "label": found 1; expected a text'),
    ):
        with pytest.raises(DataError, match=problem):
            edit(change)
    assert (foods / RECORDS).read_bytes() == before


def test_questions_of_a_passage_that_changed_cannot_be_edited(edit, foods, home, build):
    build(home, "foods", [IRON, replace(TEA, text="Tea is drunk at five.")], prune=True)
    before = (foods / RECORDS).read_bytes()
    edit(lambda table: table)
    with pytest.raises(
        DataError,
        match=r"'tea' was changed after .* run querywright questions build foods first",
    ):
        edit(lambda table: table.assign(label="complete"))
    assert (foods / RECORDS).read_bytes() == before


def test_mistakes(foods, home, tmp_path, hashed):
    file, before = tmp_path / "q.parquet", (foods / RECORDS).read_bytes()

    def read_in(collection="foods", embedder=None):
        import_questions(collection, file, embedder=embedder or hashed(), home=home)

    with pytest.raises(InputError, match=r"ends in \.parquet, not 'q\.csv'"):
        export_questions("foods", tmp_path / "q.csv", home)
    with pytest.raises(InputError, match="there is no file"):
        read_in()
    with pytest.raises(CollectionError, match="no questions were written for the collection 'drinks'"):
        export_questions("drinks", file, home)
    export_questions("foods", file, home)
    with pytest.raises(CollectionError, match="'foods' was built with the embedder 'hashed'"):
        read_in(embedder=hashed(id="other"))
    with pytest.raises(CollectionError, match="there is no collection 'drinks'"):
        read_in("drinks")
    with building(foods, "foods", LOCK), pytest.raises(CollectionError, match="is being built by another process"):
        read_in()
    pd.read_parquet(file).assign(label="none").to_parquet(file)
    with pytest.raises(CollectionError, match="none is kept; nothing was published"):
        read_in()
    assert (foods / RECORDS).read_bytes() == before
