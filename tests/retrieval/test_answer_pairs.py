"""Stored pairs: they come back, damage is named, stale ones are not used."""

from __future__ import annotations

from pathlib import Path

import pytest

from querywright.errors import CollectionError, InputError
from querywright.retrieval.answer_pairs import ANSWERS, Pair, answers, current_pairs, read_pairs, write_pairs

ONE = Pair("q1", "tea", "digest of tea", 1.0, True)
TWO = Pair("q1", "iron", "digest of iron", 0.0, True)
THREE = Pair("q2", "\N{LATIN SMALL LETTER E WITH ACUTE}\u2028\r", "d", 0.625, False)


def test_pairs_come_back_in_order_and_in_the_same_bytes(tmp_path: Path) -> None:
    write_pairs(tmp_path, [THREE, ONE, TWO])
    first = (tmp_path / ANSWERS).read_bytes()
    assert read_pairs(tmp_path) == [TWO, ONE, THREE]
    write_pairs(tmp_path, [ONE, TWO, THREE])
    assert (tmp_path / ANSWERS).read_bytes() == first
    assert [path.name for path in tmp_path.iterdir()] == [ANSWERS]


def test_no_file_is_no_pairs_and_writing_none_leaves_none(tmp_path: Path) -> None:
    assert read_pairs(tmp_path) == []
    write_pairs(tmp_path, [ONE])
    write_pairs(tmp_path, [])
    assert read_pairs(tmp_path) == []


def test_a_file_that_is_not_as_it_was_written_is_refused(tmp_path: Path) -> None:
    path = tmp_path / ANSWERS
    write_pairs(tmp_path, [ONE, TWO])
    whole = path.read_bytes()
    damaged = [
        whole[:-1],
        whole[: whole.rindex(b"{")],
        whole.replace(b"1.0", b"0.5"),
        whole.replace(b'"schema": 1', b'"schema": 2'),
        whole.partition(b"\n")[2],
        b"\n",
        b"[" * 100_000,
    ]
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(CollectionError, match=r"answers\.jsonl in .* is damaged .*remove it and fill it again"):
            read_pairs(tmp_path)


def test_a_pair_twice_and_a_value_out_of_range_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'q1' and the passage 'tea' are a pair twice"):
        write_pairs(tmp_path, [ONE, TWO, ONE])
    for value in (-0.1, 1.1, float("nan")):
        with pytest.raises(InputError, match="from 0 to 1"):
            Pair("q", "p", "d", value, True)


def test_pairs_of_questions_that_are_gone_and_passages_that_changed_are_stale() -> None:
    passages = {"tea": "digest of tea", "iron": "another digest"}
    held, stale = current_pairs(
        [ONE, TWO, THREE, Pair("q9", "tea", "digest of tea", 1.0, True)], {"q1", "q2"}, passages
    )
    assert (held, stale) == ([ONE], 3)


def test_answers_are_the_passages_of_high_value_best_first() -> None:
    pairs = [Pair("q", name, "d", value, True) for name, value in {"d": 0.5, "c": 1.0, "b": 0.49, "a": 0.5}.items()]
    assert answers([*pairs, TWO]) == {"q": ("c", "a", "d")}
    assert answers(pairs, at_least=1.0) == {"q": ("c",)}
    for wrong in (0.0, 1.1):
        with pytest.raises(InputError, match="at_least"):
            answers(pairs, at_least=wrong)
