from __future__ import annotations

import copy
import json
import math

import dspy
import pytest

from querywright.errors import TechniqueError
from querywright.programs import HCQR, Knob, Knobs, make_program

WHOLE = Knob("top_k", 5, "passages", low=1, high=50)
NUMBER = Knob("weight", 0.5, "weight", low=0, high=4)
FLAG = Knob("keep", True, "keep the question")
CHOICE = Knob("fusion", "rrf", "rule", choices=("rrf", "union"))
SIZES = Knob("size", 2, "size", choices=(1, 2, 4))
ALL = (WHOLE, NUMBER, FLAG, CHOICE, SIZES)


@pytest.mark.parametrize(
    ("knob", "value", "expected"),
    [
        (WHOLE, 1, 1),
        (WHOLE, 50, 50),
        (WHOLE, 7.0, 7),
        (NUMBER, 0, 0.0),
        (NUMBER, 4, 4.0),
        (NUMBER, 0.25, 0.25),
        (FLAG, False, False),
        (CHOICE, "union", "union"),
        (SIZES, 4, 4),
        (SIZES, 4.0, 4),
    ],
)
def test_check_gives_the_value_in_the_knobs_type(knob, value, expected):
    checked = knob.check(value)

    assert checked == expected
    assert type(checked) is type(expected)


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        (WHOLE, 0),
        (WHOLE, 51),
        (WHOLE, 5.5),
        (WHOLE, True),
        (WHOLE, "5"),
        (WHOLE, None),
        (WHOLE, math.nan),
        (WHOLE, math.inf),
        (WHOLE, 10**400),
        (NUMBER, -0.1),
        (NUMBER, 4.01),
        (NUMBER, math.nan),
        (NUMBER, math.inf),
        (NUMBER, -math.inf),
        (NUMBER, True),
        (NUMBER, [1]),
        (FLAG, 1),
        (FLAG, 0),
        (FLAG, "true"),
        (FLAG, None),
        (CHOICE, "RRF"),
        (CHOICE, 1),
        (CHOICE, ["rrf"]),
        (SIZES, 3),
        (SIZES, True),
        (SIZES, "2"),
    ],
)
def test_check_names_the_value_and_what_is_allowed(knob, value):
    with pytest.raises(TechniqueError) as caught:
        knob.check(value)

    message = str(caught.value)
    assert message.startswith(f"{knob.name} must be ")
    assert knob.range in message
    assert message.endswith(f"but got {value!r}")


def test_ranges_in_words():
    assert [knob.range for knob in ALL] == ["1 to 50", "0 to 4", "true | false", "rrf | union", "1 | 2 | 4"]
    with pytest.raises(TechniqueError, match=r"^top_k must be a whole number from 1 to 50, but got 5\.5$"):
        WHOLE.check(5.5)


@pytest.mark.parametrize(
    ("knob", "text", "expected"),
    [
        (WHOLE, " 7 ", 7),
        (NUMBER, "0.25", 0.25),
        (NUMBER, "2", 2.0),
        (FLAG, "TRUE", True),
        (FLAG, "no", False),
        (FLAG, "0", False),
        (CHOICE, "union", "union"),
        (SIZES, "4", 4),
    ],
)
def test_parse_reads_a_text(knob, text, expected):
    parsed = knob.parse(text)

    assert parsed == expected
    assert type(parsed) is type(expected)


@pytest.mark.parametrize(
    ("knob", "text", "shown"),
    [
        (WHOLE, "many", "'many'"),
        (WHOLE, "", "''"),
        (WHOLE, "500", "500"),
        (WHOLE, "2.5", "2.5"),
        (WHOLE, "true", "'true'"),
        (NUMBER, "nan", "nan"),
        (NUMBER, "inf", "inf"),
        (FLAG, "2", "'2'"),
        (CHOICE, "best", "'best'"),
        (SIZES, "3", "'3'"),
    ],
)
def test_parse_names_what_it_cannot_read(knob, text, shown):
    with pytest.raises(TechniqueError) as caught:
        knob.parse(text)

    assert str(caught.value).endswith(f"but got {shown}")


@pytest.mark.parametrize(
    "declare",
    [
        lambda: Knob("k", 5, "no range"),
        lambda: Knob("k", 9, "out of range", low=1, high=5),
        lambda: Knob("k", "a", "no such choice", choices=("b",)),
        lambda: Knob("k", "a", "a text without choices"),
    ],
)
def test_a_default_that_is_not_allowed_is_no_declaration(declare):
    with pytest.raises(TechniqueError, match=r"k must be|k is a number and needs low= and high="):
        declare()


def test_values_are_read_by_type():
    knobs = Knobs(ALL, {"top_k": 9, "keep": False})

    assert dict(knobs) == {"top_k": 9, "weight": 0.5, "keep": False, "fusion": "rrf", "size": 2}
    assert knobs["top_k"] == 9
    assert list(knobs) == [knob.name for knob in ALL]
    assert "top_k" in knobs
    assert "topk" not in knobs
    assert repr(knobs) == "Knobs(top_k=9, weight=0.5, keep=False, fusion='rrf', size=2)"


def test_unknown_names_list_the_known_ones():
    message = r"^unknown knob 'topk'; the knobs are: top_k, weight, keep, fusion, size$"
    with pytest.raises(TechniqueError, match=message):
        Knobs(ALL, {"topk": 3})
    with pytest.raises(TechniqueError, match="the knobs are: none"):
        Knobs((), {"topk": 3})


def test_an_update_sets_all_values_or_none():
    knobs = Knobs(ALL)
    with pytest.raises(TechniqueError, match="weight must be 0 to 4, but got 9"):
        knobs.update({"top_k": 9, "weight": 9})

    assert knobs["top_k"] == 5


def test_equality():
    assert Knobs(ALL) == Knobs(ALL, {"top_k": 5})
    assert Knobs(ALL) != Knobs(ALL, {"top_k": 6})
    assert Knobs((FLAG,)) != Knobs((Knob("keep", True, "another thing"),))
    assert Knobs((FLAG,)) != {"keep": True}


def test_dump_load_and_reset():
    knobs = Knobs(ALL, {"top_k": 9, "weight": 1.5, "keep": False, "fusion": "union", "size": 4})
    state = json.loads(json.dumps(knobs.dump_state()))
    other = Knobs(ALL)
    other.load_state(state)
    other.reset()

    assert other == knobs
    knobs.dump_state()["top_k"] = 1
    assert knobs["top_k"] == 9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("top_k"), "lack top_k"),
        (lambda state: state.update(rounds=3), "unknown knob 'rounds'"),
        (lambda state: state.update(top_k=0), "top_k must be a whole number from 1 to 50, but got 0"),
        (lambda state: state.update(keep=1), "keep must be true | false, but got 1"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(change, message):
    knobs = Knobs(ALL, {"weight": 1.5})
    state = {**knobs.dump_state(), "weight": 2.5}
    change(state)

    with pytest.raises(TechniqueError) as caught:
        knobs.load_state(state)
    assert message in str(caught.value)
    assert knobs["weight"] == 1.5


def test_a_copy_is_independent():
    knobs = Knobs(ALL)
    other = copy.deepcopy(knobs)
    other.update({"top_k": 9})

    assert knobs["top_k"] == 5


def test_with_knobs_gives_a_copy(retriever):
    technique = HCQR(retriever, top_k=7)
    other = technique.with_knobs(n_queries=2)

    assert (technique.knobs["n_queries"], other.knobs["n_queries"], other.knobs["top_k"]) == (3, 2, 7)
    assert other.retriever is technique.retriever
    with pytest.raises(TechniqueError, match="n_queries must be a whole number from 1 to 3, but got 4"):
        technique.with_knobs(n_queries=4)


def test_dspy_sees_the_knobs_beside_the_prompts(retriever):
    program = make_program("hcqr", retriever, reader="multiple_choice", top_k=7)

    names = [name for name, _ in program.named_parameters()]
    assert names == [
        "technique.knobs",
        "technique.form_hypothesis",
        "technique.write_queries",
        "reader.predict",
        "showing",
    ]
    assert len(program.predictors()) == 3
    assert program.dump_state()["technique.knobs"]["top_k"] == 7


def test_knobs_survive_a_optimizer(retriever, scripted, asking):
    program = make_program("hcqr", retriever, reader="multiple_choice", top_k=7, fusion="rrf")
    train = [
        dspy.Example(question=f"Which drug in case {n}?", options=["Aspirin", "Insulin"]).with_inputs(
            "question", "options"
        )
        for n in range(3)
    ]
    optimizer = dspy.BootstrapFewShot(
        metric=lambda example, prediction, trace=None: True, max_bootstrapped_demos=2, max_labeled_demos=0
    )
    with asking(scripted()):
        compiled = optimizer.compile(student=program, trainset=train)
        again = compiled(question="Which drug?", options=["Aspirin", "Insulin"])

    assert compiled.technique.knobs == program.technique.knobs
    assert compiled.technique.retriever is retriever
    assert [len(predictor.demos) for predictor in compiled.predictors()] == [2, 2, 2]
    assert again.answer in ("Aspirin", "Insulin")
