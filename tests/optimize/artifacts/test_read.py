from __future__ import annotations

import threading

import dspy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from querywright.models.adapter import PromptAdapter
from querywright.optimize.artifacts.files import Golden, read_artifact
from querywright.optimize.program_state import program_from, shaped, state_of
from querywright.programs import READERS, TECHNIQUES, Ensemble, make_program

GOLDEN = Golden(question="What of number 1?\u2028And\x85now?", options=["a", "b"], answer="a", passages=["p"])


def nothing(query, k):
    return []


def prompts(program):
    """What each predictor would send for fixed inputs."""
    adapter = PromptAdapter()
    return {
        name: adapter.format(p.signature, p.demos, {field: f"<{field}>" for field in p.signature.input_fields})
        for name, p in program.named_predictors()
    }


def values_of(knob):
    if knob.choices or isinstance(knob.default, bool):
        return st.sampled_from(knob.choices or (False, True))
    kind = st.integers if isinstance(knob.default, int) else st.floats
    return kind(knob.low, knob.high)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)


def knobs_of(technique):
    return st.fixed_dictionaries({knob.name: values_of(knob) for knob in TECHNIQUES[technique].KNOBS})


def prompt_of(fields):
    """Instructions, a field with its description, and demonstrations of a predictor."""
    demo = st.dictionaries(st.sampled_from(fields), PLAIN)
    return st.tuples(TEXT.filter(str.strip), st.sampled_from(fields), TEXT, st.lists(demo, max_size=2))


def tune(program, prompts):
    for name, predictor in program.named_predictors():
        instructions, field, description, demos = prompts[name]
        signature = predictor.signature.with_instructions(instructions)
        predictor.signature = signature.with_updated_fields(field, desc=description)
        predictor.demos = [dspy.Example(**demo) for demo in demos]


@pytest.mark.parametrize("technique", TECHNIQUES)
@given(data=st.data())
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_was_tuned_is_what_is_read(technique, data, place, write):
    reader = data.draw(st.sampled_from([None, *READERS]))
    program = make_program(technique, None, reader=reader, **data.draw(knobs_of(technique)))
    fields = {name: list(predictor.signature.fields) for name, predictor in program.named_predictors()}
    tune(program, data.draw(st.fixed_dictionaries({name: prompt_of(own) for name, own in fields.items()})))
    write(place / "a", program, golden=[GOLDEN])
    artifact = read_artifact(place / "a")
    again = program_from(artifact.state)
    assert dict(again.technique.knobs) == dict(program.technique.knobs)
    assert [type(v) for v in again.technique.knobs.values()] == [type(v) for v in program.technique.knobs.values()]
    assert prompts(again) == prompts(program)
    assert state_of(again) == state_of(program)
    assert artifact.golden == [GOLDEN]


def test_reading_writes_nothing(place, write):
    write(place / "a")
    (place / "a").rename(place / ".a.old")
    assert read_artifact(place / "a")
    assert [entry.name for entry in place.iterdir()] == [".a.old"]


def test_readers_beside_a_writer_always_see_a_whole_artifact(place, write):
    target = place / "a"
    write(target, made={"n": 0})
    stop = threading.Event()

    def rewrite():
        n = 0
        while not stop.is_set():
            n += 1
            write(target, made={"n": n})

    writer = threading.Thread(target=rewrite)
    writer.start()
    try:
        seen = []
        while len(seen) < 40 or len(set(seen)) < 3:  # on a busy machine the writer is slow
            seen.append(read_artifact(target).manifest.made["n"])
    finally:
        stop.set()
        writer.join()
    assert seen == sorted(seen)


def test_nearest_demonstrations_and_ensembles_come_back(place, write):
    plain = make_program("hcqr", lambda query, k: [], reader="multiple_choice", n_queries=2)
    for name, shape in (("nearest", {"nearest": 3, "members": 0}), ("ensemble", {"nearest": 2, "members": 3})):
        program = shaped(plain, **shape)
        for number, (_, predictor) in enumerate(program.named_predictors()):
            predictor.demos = [{"question": f"Q{number}"}]
        write(place / name, program)
        loaded = program_from(read_artifact(place / name).state)
        assert state_of(loaded) == state_of(program)
        assert isinstance(loaded, Ensemble) == (name == "ensemble")
        assert loaded.technique.knobs["n_queries"] == 2
        assert [predictor.demos[0]["question"] for predictor in loaded.predictors()] == [
            f"Q{number}" for number in range(9 if name == "ensemble" else 3)
        ]
