from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from dspy.utils.exceptions import LMServerError

from querywright.cli.compile import show_compiled
from querywright.data.splits import data_hash
from querywright.optimize.artifacts.files import read_artifact
from querywright.optimize.artifacts.save import card, save_compiled
from querywright.optimize.results import CompileSettings
from querywright.optimize.study.compile import compile_program


@pytest.fixture(scope="module")
def compiled(make_world, make_lm):
    world = make_world()
    settings = CompileSettings(n_trials=4, demo_sizes=(1,), threads=2)
    return compile_program(
        "hcqr", world.splits, retriever=world, lm=make_lm(), knobs={"max_passages": 3}, settings=settings
    )


def test_everything_found_is_json(compiled):
    data = json.loads(json.dumps(compiled.to_json(), allow_nan=False))
    assert data["technique"] == "hcqr"
    assert data["recommended"] == compiled.recommended == "as written"
    assert [arm["arm"] for arm in data["arms"]][:2] == ["no rewriting", "as written"]
    assert data["arms"][0]["objective"] == 0.0
    assert data["arms"][1]["dev"]["metrics"]["decision_useful"]["value"] == 1.0
    assert [one["arm"] for one in data["test"]] == [one.name for one in compiled.test]
    assert data["verdict"] == "no gain shown"
    assert data["verdict_sentence"].startswith("Chosen on dev; test does not show a gain over no rewriting (")
    assert data["reader_check"] == 0
    assert data["corrected"]["corrected"] <= data["corrected"]["dev"] == 1.0
    assert set(data["dead_knobs"]) == set(compiled.dead_knobs)
    first = data["comparisons"][0]
    assert (first["wins"], first["losses"], first["ties"]) == (6, 0, 0)
    assert first["p_holm"] == compiled.comparisons[0].test.p_two_sided
    assert set(data["cost"]) == {"prompts", "search", "reader", "reader check", "test"}
    assert "rows" not in data["test"][0]


def test_it_is_a_table_a_page_and_is_drawn_in_a_notebook(compiled, read_page, tmp_path):
    assert [one.name for one in compiled.compared.arms] == ["no rewriting", "hcqr compiled"]
    frame = compiled.to_pandas()
    assert frame.groupby("arm")["decision_useful"].mean()["hcqr compiled"] == 1.0
    page = read_page(compiled.report(tmp_path / "compiled.html").read_text("utf-8"))
    page.check()
    assert page.parts["Outcome"] == f"{compiled.sentence}."
    assert all(one.sentence in page.text for one in compiled.comparisons)
    assert "All questions" not in page.parts
    assert compiled.comparisons[0].sentence.split(":")[0] in compiled._repr_html_()


def test_the_card_says_what_was_chosen_and_what_came_of_it(compiled):
    text = card("mine", compiled, "scripted/model", "2026-01-02", {"dev": {"n": 6}, "test": {"n": 6}})
    assert text.startswith("# mine\n")
    assert "for the LM `scripted/model`" in text
    assert "**as written**" in text
    assert "Questions: dev 6, test 6" in text
    assert "| max_passages | 3 |" in text
    assert "| no rewriting | 6 | 0.0 [0, 39] | 0.0 [0, 39] |" in text
    assert "| hcqr compiled | 6 | 100.0 [61, 100] | 100.0 [61, 100] |" in text
    assert all(f"- {one.sentence}\n" in text for one in compiled.comparisons)
    assert f"**{compiled.sentence}.**\n" in text
    assert 'querywright.load("path/to/mine")`: the path of this folder' in text


def test_the_card_shows_the_metric_that_was_compiled_for_first(world, make_lm):
    settings = CompileSettings(objective="recall@1", n_trials=1, demo_sizes=(), reader_demo_sizes=(), threads=2)
    compiled = compile_program("hcqr", world.splits, retriever=world, lm=make_lm(), settings=settings)
    text = card("mine", compiled, "scripted/model", "2026-01-02", {})
    assert "| arm | n | recall@1 | accuracy | decision_useful |\n| --- | --- | --- | --- | --- |\n" in text
    assert "| no rewriting | 6 | 0.0 [0, 39] | 0.0 [0, 39] | 0.0 [0, 39] |" in text


def test_the_terminal_says_what_came_of_it(compiled, world, make_lm, capsys):
    workspace = SimpleNamespace(lm=make_lm(), cost_line=lambda: "cost")
    further = tuple(world.questions[:5])
    show_compiled(replace(compiled, reader_check=further), world.splits, workspace)
    text = " ".join(capsys.readouterr().out.split())
    assert f"{compiled.sentence}; a stronger LM may change that" in text
    assert "closed book and oracle evidence met 5 further questions" in text
    assert all(one.sentence in text for one in compiled.comparisons)
    changed = {"dead_knobs": ("rrf_k",), "failed": {"trial 9": "no"}, "nothing": {"demos_2": "nothing to show"}}
    gained = replace(compiled, verdict="gain", sentence="So it is", **changed)
    show_compiled(gained, world.splits, workspace)
    text = " ".join(capsys.readouterr().out.split())
    assert "So it is" in text
    assert "a stronger LM" not in text
    assert "further questions" not in text
    assert "no difference on any dev question: rrf_k" in text
    assert "out, for too many questions failed: trial 9" in text
    assert "no prompts of demos_2: nothing to show" in text
    assert f"the best of {len(compiled.arms)} arms has 100.0 where it was chosen" in text


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
    assert (manifest.collection, manifest.embedder) == (None, None)
    assert manifest.fingerprint == world.fingerprint
    made = manifest.made
    assert made["data"] == {
        name: {"n": 6, "sha256": data_hash(part)}
        for name, part in zip(("train", "dev", "test"), world.splits, strict=True)
    } | {"reader_check": {"n": 12, "sha256": data_hash(further)}}
    assert made["recommended"] == "as written"
    assert [(one.question, one.answer, one.passages[0]) for one in read.golden] == [
        (f"What of number {n}?", f"right {n}", f"decides-{n}")
        for n in (6, 8)  # the others failed
    ]
    text = (tmp_path / "mine" / "README.md").read_text()
    assert text.startswith("# mine\n")
    assert "Questions: train 6, dev 6, test 6, reader check 12." in text
