from __future__ import annotations

import copy
import math

import pytest

from querywright.errors import TechniqueError
from querywright.programs import Knob, Knobs

WHOLE = Knob("top_k", 5, "passages", low=1, high=50)
NUMBER = Knob("weight", 0.5, "weight", low=0, high=4)
FLAG = Knob("keep", True, "keep the question")
CHOICE = Knob("fusion", "rrf", "rule", choices=("rrf", "union"))
SIZES = Knob("size", 2, "size", choices=(1, 2, 4))
ALL = (WHOLE, NUMBER, FLAG, CHOICE, SIZES)


@pytest.mark.parametrize(
    ("knob", "value", "expected"),
    [
        (WHOLE, 50, 50),
        (WHOLE, 7.0, 7),
        (NUMBER, 0, 0.0),
        (FLAG, False, False),
        (CHOICE, "union", "union"),
        (SIZES, 4.0, 4),
    ],
)
def test_check_gives_the_value_in_the_knobs_type(knob, value, expected):
    for made in (knob.check(value), knob.parse(f" {str(value).upper() if knob is FLAG else expected} ")):
        assert (made, type(made)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("knob", "values", "texts"),
    [
        (WHOLE, (0, 51, 5.5, True, "5", None, math.inf, 10**400), ("many", "", "2.5")),
        (NUMBER, (-0.1, 4.01, math.nan, True, [1]), ("nan",)),
        (FLAG, (1, 0, "true", None), ("1", "maybe")),
        (CHOICE, ("RRF", 1, ["rrf"]), ("best",)),
        (SIZES, (3, True, "2"), ("3",)),
    ],
)
def test_what_is_not_allowed_is_named_beside_what_is(knob, values, texts):
    for value in values:
        with pytest.raises(TechniqueError) as caught:
            knob.check(value)
        message = str(caught.value)
        assert message.startswith(f"{knob.name} must be ")
        assert knob.range.replace(" | ", ", ") in message
        assert message.endswith(f"but got {value!r}")
    for text in texts:
        with pytest.raises(TechniqueError, match=f"but got '?{text}"):
            knob.parse(text)


def test_declarations():
    assert [knob.range for knob in ALL] == ["1 to 50", "0 to 4", "true | false", "rrf | union", "1 | 2 | 4"]
    for odd in ({"default": 5}, {"default": 9, "low": 1, "high": 5}, {"default": "a"}):
        with pytest.raises(TechniqueError, match=r"k must be|k is a number, so it must have low= and high="):
            Knob("k", help="no such declaration", **odd)


def test_knobs_are_a_mapping_that_is_checked_as_a_whole():
    knobs = Knobs(ALL, {"top_k": 9, "keep": False})
    assert dict(knobs) == {"top_k": 9, "weight": 0.5, "keep": False, "fusion": "rrf", "size": 2}
    assert repr(knobs) == "Knobs(top_k=9, weight=0.5, keep=False, fusion='rrf', size=2)"
    with pytest.raises(TechniqueError, match="weight must be a number from 0 to 4, but got 9"):
        knobs.update({"top_k": 7, "weight": 9})
    assert knobs["top_k"] == 9
    with pytest.raises(TechniqueError, match=r"^unknown knob 'topk' \(did you mean top_k\?\); available: top_k"):
        Knobs(ALL, {"topk": 3})
    knobs.load_state({"top_k": 9})  # saved before the others existed
    assert dict(knobs) == {"top_k": 9, "weight": 0.5, "keep": True, "fusion": "rrf", "size": 2}
    other = copy.deepcopy(knobs)
    other.update({"top_k": 1})
    assert (knobs["top_k"], knobs == other) == (9, False)
