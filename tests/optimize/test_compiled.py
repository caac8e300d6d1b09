"""What a compilation gives: its verdict, JSON, page and card; and that every technique is saved and loaded."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from types import SimpleNamespace

import numpy as np
import pytest
from dspy.utils.exceptions import LMServerError

from querywright.api import Compilation
from querywright.cli.compile import show_compiled
from querywright.data.splits import data_hash
from querywright.metrics.statistics import paired_exact_test
from querywright.optimize.artifacts.files import read_artifact
from querywright.optimize.artifacts.load import load
from querywright.optimize.artifacts.save import card, save_compiled
from querywright.optimize.results import CompileSettings
from querywright.optimize.search.compile import compile_program
from querywright.optimize.significance import verdict_on
from querywright.programs import TECHNIQUES

SETTINGS = CompileSettings(trials=4, demo_sizes=(1,), threads=2)

OPTIONS = (
    "hcqr compiled used the options to search, but the baseline did not; compare with the second baseline "
    "(querywright compare plain:query_with_options=true ARTIFACT)"
)
"""The note on a comparison in which only the technique sees the options."""


@pytest.fixture(scope="module")
def compile_in(make_lm):
    def compiled(world, technique="hcqr", lm=None, **given):
        given = {"knobs": {"max_passages": 3}, "settings": SETTINGS, **given}
        return compile_program(technique, world.splits, retriever=world, lm=lm or make_lm(), **given)

    return compiled


@pytest.fixture(scope="module")
def compiled(make_world, compile_in):
    return compile_in(make_world())


def test_it_is_a_table_a_page_and_is_drawn_in_a_notebook(compiled, read_page, tmp_path):
    assert [one.name for one in compiled.compared.arms] == ["baseline", "hcqr compiled"]
    assert compiled.to_pandas().groupby("arm")["decision_useful"].mean()["hcqr compiled"] == 1.0
    page = read_page(compiled.report(tmp_path / "compiled.html").read_text("utf-8"))
    page.check()
    assert page.json("report-summary")["metric"] == "decision_useful"
    assert page.parts["Verdict"].startswith(f"{compiled.sentence}.")
    assert all(one.sentence in page.text for one in compiled.comparisons)
    assert "Questions" not in page.parts
    assert compiled.comparisons[0].sentence.split(":")[0] in compiled._repr_html_()


def test_the_card_says_what_was_chosen_and_what_came_of_it(compiled, compile_in, make_world):
    text = card("mine", compiled, "scripted/model", "2026-01-02", {"dev": {"n": 6}, "test": {"n": 6}})
    assert "| max_passages | 3 |" in text
    assert "| hcqr compiled | 6 | 100.0 [61, 100] | 100.0 [61, 100] |" in text
    assert all(f"- {one.sentence}\n" in text for one in compiled.comparisons)
    assert f"**{compiled.sentence}.**\n" in text
    assert 'qw.load("path/to/mine", retriever="mine", lm="openai/...")' in text
    assert "no reader" not in text

    settings = CompileSettings(objective="recall@1", trials=1, demo_sizes=(), reader_demo_sizes=(), threads=2)
    text = card("mine", compile_in(make_world(), settings=settings), "scripted/model", "2026-01-02", {})
    assert "| arm | n | recall@1 | accuracy | decision_useful |\n| --- | --- | --- | --- | --- |\n" in text


def test_the_terminal_says_what_came_of_it(compiled, world, make_lm, capsys):
    workspace = SimpleNamespace(lm=make_lm(), cost_line=lambda: "cost")
    tuned = Compilation(
        **{one.name: getattr(compiled, one.name) for one in fields(compiled)}, splits=world.splits, workspace=workspace
    )
    show_compiled(tuned)
    text = " ".join(capsys.readouterr().out.split())
    assert f"{compiled.sentence}; a stronger LM may do better" in text
    assert "test, 6 questions, evaluated once" in text
    assert "LM scripted/model; mean in percent with 95% interval" in text
    assert all(f"{one.test.wins} : {one.test.losses}" in text for one in compiled.comparisons)
    assert all(one.sentence not in text for one in compiled.comparisons)
    changed = {
        "failed": {"trial 9": "no question could be scored", "trial 8": "no question could be scored"},
        "nothing": {"demos_2": "nothing to show"},
    }
    show_compiled(replace(tuned, verdict="gain", sentence="So it is", **changed), verbose=True)
    text = " ".join(capsys.readouterr().out.split())
    assert "So it is" in text
    assert all(one.sentence in text for one in compiled.comparisons)
    assert "a stronger LM" not in text
    assert "left out (no question could be scored): trial 9, trial 8" in text
    assert "could not create the prompts 'demos_2': nothing to show" in text
    assert f"the best of {len(compiled.arms)} arms scored 100.0 on dev, where it was chosen" in text


def test_the_size_of_the_reader_check_is_shown(compile_in, make_world, make_lm, capsys):
    world = make_world(size=30)
    further, world.splits = world.questions[18:], make_world().splits
    found = compile_in(world, reader_check=further)
    options, note = found.notes
    assert options == OPTIONS
    assert note == "additional questions for closed book and oracle evidence: 12"
    assert note in found.to_json()["notes"]
    assert note in repr(found)
    made = {one.name: getattr(found, one.name) for one in fields(found)}
    workspace = SimpleNamespace(lm=make_lm(), cost_line=lambda: "cost")
    show_compiled(Compilation(**made, splits=world.splits, workspace=workspace))
    assert note in " ".join(capsys.readouterr().out.split())


def test_what_is_saved_says_how_it_was_made_and_what_it_answers(
    compiled, world, make_world, make_lm, make_engine, tmp_path
):
    def before(n, asked):
        if asked.number == 7:
            raise LMServerError("down")

    further = make_world(size=30).questions[18:]
    told = replace(compiled, reader_check=tuple(further))
    lm = make_lm(make_engine(before=before))
    manifest = save_compiled(tmp_path / "x" / ".." / "mine", told, world.splits, lm=lm, threads=1)
    read = read_artifact(tmp_path / "mine")
    assert read.manifest == manifest
    assert (manifest.technique, manifest.reader, manifest.lm) == ("hcqr", "multiple_choice", "scripted/model")
    assert manifest.fingerprint == world.fingerprint
    assert manifest.made["data"] == {
        name: {"n": len(part), "sha256": data_hash(part)}
        for name, part in {**world.splits._asdict(), "reader_check": further}.items()
    }
    assert manifest.made["notes"] == [OPTIONS], "lines below a table are not notes"
    assert [(one.question, one.answer, one.passages[0]) for one in read.golden] == [
        (f"What of number {n}?", f"right {n}", f"decides-{n}")
        for n in (6, 8)  # the others failed
    ]
    assert "Questions: train 6, dev 6, test 6, reader check 12." in (tmp_path / "mine" / "README.md").read_text()


ALONE = {
    "knobs": {"max_passages": 3, "search_question": False},
    "settings": CompileSettings(trials=3, demo_sizes=(), reader_demo_sizes=(), threads=2),
}


@pytest.mark.parametrize(
    ("winner", "size", "verdict", "sentence"),
    [
        (
            "rewriting",
            30,
            "gain",
            "is better than the baseline (decision_useful: 10 won, 0 lost of 10, p = .004)",
        ),
        (  # all 6 questions are won, but over two comparisons that is p = .062
            "rewriting",
            18,
            "no gain shown",
            "shows no significant gain over the baseline (decision_useful: 6 won, 0 lost of 6, p = .062)",
        ),
        (
            "turned",
            30,
            "loss",
            "is worse than the baseline (decision_useful: 0 won, 10 lost of 10, p = .004)",
        ),
        (
            "plain",
            18,
            "baseline",
            "On dev, no program was better than the baseline (decision_useful in percent: best program 0.0, baseline "
            "100.0; 0 won, 6 lost of 6, p = .031), so the baseline is recommended; test was evaluated afterward",
        ),
        ("rewriting", 15, "too few questions", "5 dev and 5 test questions are too few to choose a different program"),
    ],
)
def test_the_verdict_is_said_with_its_figures(winner, size, verdict, sentence, make_world, compile_in):
    world = make_world("rewriting" if winner == "turned" else winner, size=size)
    if winner == "turned":  # on test the question itself finds what decides
        find, turned = world.find, make_world("plain", size=size).find
        world.find = lambda query: (turned if int(query.split()[-1].rstrip("?")) >= 20 else find)(query)
    compiled = compile_in(world, **ALONE)
    assert compiled.verdict == verdict
    assert sentence in compiled.sentence
    chosen = "On test, the program chosen on dev (hcqr, engine dense, "
    assert compiled.sentence.startswith(chosen) == (verdict in ("gain", "no gain shown", "loss"))
    assert f"\n**{compiled.sentence}.**\n" in card("x", compiled, "lm", "2026-01-02", {})
    assert [compiled.to_json()[name] for name in ("verdict", "verdict_sentence")] == [verdict, compiled.sentence]


@pytest.mark.parametrize(
    ("useful", "right", "verdict"),
    [
        (None, (3, 2), "no gain shown"),
        (None, (10, 0), "gain"),
        ((10, 0), (3, 2), "gain"),
        ((3, 2), (0, 10), "loss"),
        ((10, 0), (0, 10), "loss"),
        (None, None, "no gain shown"),
    ],
)
def test_with_two_metrics_a_loss_in_one_is_a_loss(useful, right, verdict):
    def test(wins, losses):
        return paired_exact_test([1.0] * wins + [0.0] * losses, [0.0] * wins + [1.0] * losses)

    tests = {"decision_useful": useful, "accuracy": right}
    word, sentence = verdict_on({name: test(*given) for name, given in tests.items() if given is not None})
    assert word == verdict
    assert all((f"{name}: " in sentence) == (given is not None) for name, given in tests.items())
    assert ("no question could be scored" in sentence) == (right is None)


def test_many_small_wins_and_no_difference_of_the_means_are_neither_gain_nor_loss():
    even = paired_exact_test([0.75] * 16 + [0.0] * 2, [0.625] * 16 + [1.0] * 2)
    assert (even.p_two_sided < 0.05, even.difference) == (True, 0.0)
    assert verdict_on({"token_f1": even})[0] == "no gain shown"


EACH = [
    name for name, technique in TECHNIQUES.items() if name not in {"closed_book", "plain"} and technique.ENGINE is None
]
QUICK = {"hyde", "ircot"}
"""One that writes what is searched for at once, and one that reads what it found; the others are slow together."""


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


@pytest.mark.parametrize("name", [one if one in QUICK else pytest.param(one, marks=pytest.mark.slow) for one in EACH])
def test_each_technique_is_tuned_saved_and_loaded(
    name, dense_world, make_engine, make_lm, scripted, compile_in, tmp_path
):
    def write(asked):  # texts and queries hold the key word and the number of the question
        if asked.step == "reader" and "answer" in asked.properties and asked.options:
            return scripted(asked)
        text = f"key of {asked.number}"

        def value(spec):
            if spec.get("type") == "array":
                return [1 if spec["items"].get("type") == "integer" else text]
            return spec["enum"][0] if "enum" in spec else text

        return json.dumps({name: value(spec) for name, spec in asked.properties.items()})

    lm = make_lm(make_engine(write=write))
    compiled = compile_in(dense_world, name, lm)
    values = {arm.name: arm.dev.mean("decision_useful").value for arm in compiled.arms}
    assert list(values)[:2] == ["baseline", "untuned"]
    assert len(values) >= 3
    assert compiled.failed == {}
    assert not any(arm.dev.failures for arm in compiled.arms)
    assert values[compiled.recommended] == pytest.approx(max(values.values()))
    shown = {one.name for one in compiled.test}
    assert {"closed book", "baseline", f"{name} compiled", "oracle evidence"} <= shown
    assert (f"{name} untuned" in shown) == (compiled.compiled.name != "untuned")  # no arm meets test twice

    save_compiled(tmp_path / name, compiled, dense_world.splits, lm=lm, threads=2)
    loaded = load(tmp_path / name, lm=lm, retriever=dense_world, verify=True)
    question = dense_world.questions[-1]
    assert loaded(question.question, list(question.options)).answer in question.options
    assert loaded.program.dump_state() == compiled.program.dump_state()
