"""What is kept of generated questions: records, what is published of them, and pairs of question and passage."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from querywright.data.types import Passage
from querywright.errors import CollectionError, InputError
from querywright.models.embedder import TextEmbedder, Vectors
from querywright.retrieval.chroma import ChromaRetriever
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
    questions_name,
    read_pairs,
    read_records,
    stored_answers,
    write_pairs,
)
from querywright.retrieval.index import build_collection


class Letters:
    """Texts as bags of letters."""

    id, dimension = "letters", 27

    def encode(self, texts: Sequence[str], /) -> Vectors:
        rows = np.array([[1.0, *(text.lower().count(chr(97 + n)) for n in range(26))] for text in texts])
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float32)


@pytest.fixture
def embedded() -> TextEmbedder:
    return Letters()


def record(passage: str, *questions: tuple[str, str]) -> PassageRecord:
    return PassageRecord(passage, f"digest of {passage}", "s", tuple(WrittenQuestion(*pair) for pair in questions), 1)


IRON = record("iron", ("What hinders the uptake of iron?", COMPLETE), ("What is tea?", NONE))
TEA = record("tea", ("When is tea drunk?", PARTIAL))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"passage": 7}, "field passage: Input should be a valid string"),
        ({"digest": None}, "field digest: Input should be a valid string"),
        ({"questions": [{"text": 1, "label": "complete"}]}, r"field questions\.0\.text: "),
        ({"questions": [{"text": "What?", "label": "complete", "mine": ""}]}, r"field questions\.0\.mine: "),
        ({"questions": "What?"}, "field questions: "),
        ({"repeated": "1"}, "field repeated: "),
        ({"repeated": True}, "field repeated: "),
        ({"repeated": -1}, "field repeated: "),
        ({"unfit": {"no_words": 1.5}}, r"field unfit\.no_words: "),
    ],
)
def test_a_line_with_a_value_of_another_kind_is_named(tmp_path: Path, change: dict[str, object], told: str) -> None:
    other = json.dumps(json.loads(IRON.to_json()) | change)
    (tmp_path / RECORDS).write_text(f"{TEA.to_json()}\n{other}\n")
    with pytest.raises(CollectionError, match=rf"line 2 of records\.jsonl in .* is damaged \({told}"):
        read_records(tmp_path)


@pytest.mark.parametrize(
    "line", ["3", "[]", "null", '"iron"', "[" * 100_000, '{"passage": "iron"}', IRON.to_json()[:-9]]
)
def test_a_line_that_is_no_record_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / RECORDS).write_text(line + "\n")
    with pytest.raises(CollectionError, match=r"line 1 of records\.jsonl"):
        read_records(tmp_path)


def test_the_kept_questions_are_published_with_what_they_were_written_for(
    tmp_path: Path, embedded: TextEmbedder
) -> None:
    report = publish_questions("foods", [TEA, IRON], embedder=embedded, home=tmp_path)
    assert report.count == 2
    index = ChromaRetriever(questions_name("foods"), embedder=embedded, home=tmp_path)
    (hits,) = index.search(["What hinders the uptake of iron?"], 2)
    assert hits[0].passage.id == question_id("iron", "What hinders the uptake of iron?")
    assert dict(hits[0].passage.metadata) == {"passage": "iron", "digest": "digest of iron", "label": COMPLETE}
    assert read_records(questions_folder("foods", tmp_path)) == {"iron": IRON, "tea": TEA}


def test_publishing_nothing_leaves_what_was_published(tmp_path: Path, embedded: TextEmbedder) -> None:
    publish_questions("foods", [IRON], embedder=embedded, home=tmp_path)
    with pytest.raises(CollectionError, match="of 1 questions written for 1 passages of 'foods' none is kept"):
        publish_questions("foods", [record("tea", ("What is tea?", NONE))], embedder=embedded, home=tmp_path)
    assert list(read_records(questions_folder("foods", tmp_path))) == ["iron"]


def test_a_name_too_long_for_its_questions_is_refused(tmp_path: Path) -> None:
    assert questions_folder("a" * 53, tmp_path).name == "a" * 53 + "-questions"
    with pytest.raises(InputError, match=r"collection 'a{54}' has 54 characters; one with questions has at most 53"):
        questions_folder("a" * 54, tmp_path)
    with pytest.raises(InputError, match="1 to 63"):
        questions_folder("a" * 64, tmp_path)


def test_no_collection_of_ones_own_has_the_name_of_questions(tmp_path: Path, embedded: TextEmbedder) -> None:
    with pytest.raises(InputError, match="'foods-questions'; give the collection another name"):
        build_collection("foods-questions", [Passage("own", "What is mine?")], embedder=embedded, home=tmp_path)


ONE = AnswerPair("q1", "tea", "digest of tea", 1.0, True)
TWO = AnswerPair("q1", "iron", "digest of iron", 0.0, True)
THREE = AnswerPair("q2", "\N{LATIN SMALL LETTER E WITH ACUTE}\u2028\r", "d", 0.625, False)


def test_pairs_come_back_in_order_and_in_the_same_bytes(tmp_path: Path) -> None:
    assert list(read_pairs(tmp_path)) == []
    write_pairs(tmp_path, [THREE, ONE, TWO])
    first = (tmp_path / ANSWERS).read_bytes()
    assert list(read_pairs(tmp_path)) == [TWO, ONE, THREE]
    write_pairs(tmp_path, [ONE, TWO, THREE])
    assert (tmp_path / ANSWERS).read_bytes() == first
    write_pairs(tmp_path, [])
    assert list(read_pairs(tmp_path)) == []
    assert [path.name for path in tmp_path.iterdir()] == [ANSWERS]


@pytest.mark.parametrize(
    "damage",
    [lambda whole: whole[:-4], lambda whole: whole.replace(b"1.0", b"0.5"), lambda whole: b"[" * 100_000],
)
def test_pairs_that_are_not_as_they_were_written_are_refused(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / ANSWERS
    write_pairs(tmp_path, [ONE, TWO])
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CollectionError, match=r"answers\.json in .* is damaged .*remove it and fill it again"):
        read_pairs(tmp_path)


def test_answers_are_the_passages_of_high_value_best_first_and_what_is_stale_does_not_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    passages = {name: Passage(name, f"About {name}.") for name in "abcde"}
    assert stored_answers("foods", {"q"}, passages, tmp_path) is None
    values = {"d": 0.5, "c": 1.0, "b": 0.49, "a": 0.5}
    pairs = [AnswerPair("q", name, passages[name].text_digest(), value, True) for name, value in values.items()]
    folder = questions_folder("foods", tmp_path)
    folder.mkdir(parents=True)
    write_pairs(folder, pairs)
    assert stored_answers("foods", {"q"}, passages, tmp_path) == {"q": ("c", "a", "d")}
    assert not caplog.records
    gone = AnswerPair("gone", "a", passages["a"].text_digest(), 1.0, True)
    write_pairs(folder, [*pairs, gone, AnswerPair("q", "e", "of other text", 1.0, True), TWO])
    assert stored_answers("foods", {"q"}, passages, tmp_path) == {"q": ("c", "a", "d")}
    assert "3 of 7 stored answers" in caplog.text
    assert "querywright questions fill foods" in caplog.text
