"""The figures of a collection's questions, against an example worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from querywright.data.types import Passage
from querywright.errors import CollectionError
from querywright.optimize.question_build import MADE as NAME
from querywright.optimize.question_build import QuestionsOrigin
from querywright.optimize.question_stats import question_stats
from querywright.retrieval.generated_questions import (
    IMPORTED,
    PassageRecord,
    WrittenQuestion,
    questions_folder,
    read_records,
    write_records,
)
from querywright.retrieval.index import build_collection

DEGREES = {"a?": 0, "b?": 60, "c?": 90, "a.": 0, "b.": 90, "c.": 180, "d.": 270, "e.": 45}


class Circle:
    """Texts as points of a circle."""

    id = "circle"
    dimension = 2

    def encode(self, texts, /):
        angles = np.radians([DEGREES[text] for text in texts])
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


MADE = QuestionsOrigin(settings="s", lm="writes", judge_lm="judges", num_questions=3, batch_size=3)
PASSAGES = [Passage(f"p{letter}", f"{letter}.") for letter in "abcde"]


def record(passage, *questions, digest="", settings="s", repeated=0, unfit=None):
    written = tuple(WrittenQuestion(*pair) for pair in questions)
    return PassageRecord(passage.id, digest or passage.text_digest(), settings, written, repeated, unfit or {})


@pytest.fixture
def home(tmp_path):
    """Of five passages two have complete questions, one none, one changed and one was never written for."""
    a, b, c, d, _ = PASSAGES
    build_collection("letters", PASSAGES, embedder=Circle(), home=tmp_path)
    folder = questions_folder("letters", tmp_path)
    found = [
        record(a, ("a?", "complete"), ("b?", "complete"), ("x?", "partial"), repeated=2, unfit={"no_words": 1}),
        record(b, ("c?", "complete"), ("y?", "none"), ("z?", ""), repeated=1),
        record(c, ("u?", "none"), settings="other"),
        record(d, ("v?", "complete"), digest="of another text"),
        record(Passage("gone", "gone"), ("w?", "complete")),
    ]
    write_records(folder, found)
    return tmp_path


def test_counts_shares_and_similarities(home):
    found = question_stats("letters", embedder=Circle(), home=home)
    assert (found["passages"], found["recorded"], found["stale"], found["unwritten"], found["removed"]) == (
        5,
        3,
        1,
        1,
        1,
    )
    assert found["written"] == 7
    assert found["labels"] == {"complete": 3, "partial": 1, "none": 2, "unreadable": 1}
    assert found["kept_share"] == 3 / 6
    assert found["per_passage"] == (1.0, 0, 2)
    assert found["bare"] == ["pc"]
    assert found["coverage"] == 2 / 5
    assert found["dropped"] == {"no_words": 1, "repeated": 3}
    assert (found["made"], found["other_settings"]) == (None, 0)
    near, half, root = found["similarities"], math.cos(math.radians(60)), math.cos(math.radians(30))
    assert near["questions"] == 3
    assert near["same_passage"] == pytest.approx(half)  # a? and b?
    assert near["other_passage"] == pytest.approx((0 + root) / 2)  # a? and b? with c?
    assert near["own_passage"] == pytest.approx((1 + half + 1) / 3)
    assert near["not_own_passage"] == pytest.approx((0 + root + 0) / 3)


def test_without_a_complete_question_nothing_is_near_and_without_any_the_command_is_named(tmp_path):
    build_collection("letters", PASSAGES, embedder=Circle(), home=tmp_path)
    with pytest.raises(CollectionError, match="write them: querywright questions build letters"):
        question_stats("letters", embedder=Circle(), home=tmp_path)
    write_records(questions_folder("letters", tmp_path), [record(PASSAGES[0], ("a?", ""))])
    found = question_stats("letters", embedder=Circle(), home=tmp_path)
    assert math.isnan(found["kept_share"])
    assert math.isnan(found["similarities"]["own_passage"])
    assert (found["coverage"], found["bare"]) == (0.0, ["pa"])


def test_imported_questions_are_no_other_settings(home):
    folder = questions_folder("letters", home)
    edited = [
        record(PASSAGES[0], ("a?", "complete"), settings=IMPORTED),
        record(PASSAGES[4], ("e?", "none"), settings=IMPORTED),
    ]
    write_records(folder, {**read_records(folder), **{one.passage: one for one in edited}}.values())
    found = question_stats("letters", embedder=Circle(), home=home)
    assert (found["imported"], found["other_settings"]) == (2, 0)
    MADE.write(questions_folder("letters", home) / NAME)
    found = question_stats("letters", embedder=Circle(), home=home)
    assert (found["imported"], found["other_settings"], found["recorded"]) == (2, 1, 4)
