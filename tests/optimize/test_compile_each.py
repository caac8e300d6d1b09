"""Compiling works on every technique: tuned, saved, and loaded as the same program."""

from __future__ import annotations

import json

import numpy as np
import pytest

from querywright.optimize.artifacts.load import load
from querywright.optimize.artifacts.save import save_compiled
from querywright.optimize.results import NO_REWRITING, CompileSettings
from querywright.optimize.study.compile import compile_program
from querywright.programs import TECHNIQUES

SETTINGS = CompileSettings(n_trials=4, demo_sizes=(1,), reader_demo_sizes=(1,))
COMPILED = [
    name for name, technique in TECHNIQUES.items() if name not in {"closed_book", "plain"} and technique.ENGINE is None
]

QUICK = {"hyde", "ircot"}
"""One that writes what is searched for at once, and one that reads what it found; the others are slow."""


@pytest.fixture
def dense_world(make_world):
    """The world, searched by vectors too: a vector says of which question a text is, and if it has the key word."""

    class DenseWorld(make_world):
        kind = "dense"

        def embed(self, texts):
            numbers = [int("".join(c for c in text if c.isdigit())) for text in texts]
            own = np.eye(len(self.questions))[numbers]
            return np.hstack([own, [["key" in text] for text in texts]])

        def search_vectors(self, vectors, k):
            rows = np.asarray(vectors)
            return self.search([f"{'key' * bool(row[-1])} of {row[:-1].argmax()}" for row in rows], k)

    return DenseWorld()


def written(make_answer):
    """An LM for any technique: its texts and queries hold the key word and the number of the question."""

    def write(asked):
        if asked.step == "reader" and "answer" in asked.properties and asked.options:
            return make_answer(asked)
        text = f"key of {asked.number}"
        return json.dumps(
            {
                name: spec["enum"][0] if "enum" in spec else [text] if spec.get("type") == "array" else text
                for name, spec in asked.properties.items()
            }
        )

    return write


@pytest.mark.parametrize(
    "name", [one if one in QUICK else pytest.param(one, marks=pytest.mark.slow) for one in COMPILED]
)
def test_it_is_tuned_saved_and_loaded(name, dense_world, make_engine, make_lm, scripted, tmp_path):
    lm = make_lm(make_engine(write=written(scripted)))
    compiled = compile_program(
        name,
        dense_world.splits,
        retriever=dense_world,
        lm=lm,
        knobs={"max_passages": 3},
        settings=SETTINGS,
    )

    arms = [arm.name for arm in compiled.arms]
    assert arms[:2] == [NO_REWRITING, "as written"]
    assert len(arms) >= 3
    assert compiled.failed == {}
    assert not any(arm.dev.failures for arm in compiled.arms)
    best = max(arm.dev.mean("decision_useful").value for arm in compiled.arms)
    assert next(arm for arm in compiled.arms if arm.name == compiled.recommended).dev.mean(
        "decision_useful"
    ).value == pytest.approx(best)
    shown = {one.name for one in compiled.test}
    assert {"closed book", NO_REWRITING, f"{name} compiled", "oracle evidence"} <= shown
    assert (f"{name} as written" in shown) == (compiled.compiled.name != "as written")  # no arm meets test twice

    save_compiled(tmp_path / name, compiled, dense_world.splits, lm=lm, threads=2)
    loaded = load(tmp_path / name, lm=lm, retriever=dense_world, verify=True)
    question = dense_world.questions[-1]
    answer = loaded(question.question, list(question.options))
    assert answer.answer in question.options
    assert loaded.program.dump_state() == compiled.program.dump_state()


def test_a_grounded_reader_is_tuned_saved_and_loaded(world, make_engine, make_lm, scripted, tmp_path):
    def write(asked):
        if "passage_numbers" not in asked.properties:
            return scripted(asked)
        holds = f"Decides {asked.number}." in asked.prompt.rsplit("passages:", 1)[-1]
        answer = f"It is right {asked.number} here."
        return json.dumps(
            {"answer": answer, "passage_numbers": [1], "passages_hold_the_answer": "yes" if holds else "no"}
        )

    lm = make_lm(make_engine(write=write))
    compiled = compile_program(
        "hcqr",
        world.splits,
        retriever=world,
        lm=lm,
        reader="grounded",
        knobs={"max_passages": 2},
        settings=CompileSettings(n_trials=2, demo_sizes=(), reader_demo_sizes=(1,)),
    )
    save_compiled(tmp_path / "grounded", compiled, world.splits, lm=lm, threads=2)

    accuracy = {one.name: one.mean("accuracy").value for one in compiled.test}
    assert (accuracy["closed book"], accuracy["hcqr compiled"], accuracy["oracle evidence"]) == (0.0, 1.0, 1.0)
    question = world.splits.test[0]
    loaded = load(tmp_path / "grounded", lm=lm, retriever=world, verify=True)
    out = loaded(question.question, question.options)
    assert loaded.manifest.reader == "grounded"
    assert out.support == [out.passages[0].id] == [f"decides-{question.id.removeprefix('q')}"]
