from __future__ import annotations

import re
import runpy
from html import unescape
from pathlib import Path

import pytest

from querywright.optimize.search.trials import ArmConfig
from querywright.optimize.study.report import study_html, write_report
from querywright.optimize.study.status import on_test

made = runpy.run_path(str(Path(__file__).with_name("made_study.py")))
made_snapshot, made_trial, made_spec = made["made_snapshot"], made["made_trial"], made["made_spec"]
made_outcome, EVIL, ARMS = made["made_outcome"], made["EVIL"], made["ARMS"]
TWO = ["decision_useful", "lm_calls"]
PARTS = [
    "Outcome", "Best on dev", "The front", "Test", "Techniques", "Trials", "What it cost and saved",
    "Wins and losses, question by question", "Prompts, before and after", "To run it again",
]  # fmt: skip


@pytest.fixture(scope="module")
def finished(read_page):
    return read_page(study_html(made_snapshot(finished=True, spec=made_spec(objectives=TWO))))


def test_a_finished_study_has_every_part(finished):
    assert list(finished.parts) == PARTS
    for part, said in (
        ("Outcome", "test shows a gain over the baseline"),
        ("Outcome", "Recommended: trial 17"),
        ("Outcome", "The best of 18 arms on dev is partly the luckiest"),
        ("Outcome", "75.0 % would be expected to be about 62.5 % on new questions"),
        *(("Test", one["sentence"]) for one in made_outcome()["comparisons"]),
        ("Test", "closed book"),
        ("What it cost and saved", "98000 tokens; 0.0125 US dollars"),
        ("Trials", "worse than trial 2 after 8 questions"),
        ("Trials", "the same arm as trial 9"),
        ("Prompts, before and after", "multi_query, boot.2 (recommended)"),
        ("Prompts, before and after", "Demonstrations: 0 before, 1 after."),
        ("To run it again", "querywright study run study.yaml --out made --workers 2"),
    ):
        assert said in finished.parts[part]
    assert re.search(r"optuna \d", finished.parts["To run it again"])


def test_the_figures_are_those_of_the_trials(finished):
    kinds = {name.split("-")[1] for name in finished.figures}
    assert kinds == {"front", "cost", "mean", "difference"}
    spent = next(rows for rows in finished.tables if rows[0][0] == "stage")
    assert [row[:3] for row in spent[1:]] == [["search", "300", "150"], ["test", "120", "30"]]
    front = finished.drawn("figure-front-lm_calls")
    assert next(one for one in front if one.startswith("trial 0, ")).endswith("lm_calls 1")


def test_nothing_from_the_data_is_markup_and_nothing_is_fetched(finished, read_page):
    finished.check()
    for part in (PARTS[5], PARTS[8]):
        assert EVIL in finished.parts[part]
    assert finished.questions()[1]["q"] == EVIL
    arm, params = ArmConfig("hyde", EVIL, {EVIL: EVIL}, EVIL, EVIL), {"technique": "hyde", f"hyde.{EVIL}": EVIL}
    dev = [made["made_dev"](EVIL, "hyde", seed=n) for n in range(10)]
    trials = [made_trial(n, "hyde", arm=arm, params={**params, "x": n}, dev=dev[n]) for n in range(10)]
    page = read_page(study_html(made_snapshot(trials=tuple(trials))))
    assert EVIL in page.parts["Best on dev"]
    page.check()


def test_a_prompt_is_shown_before_and_after(read_page):
    before, after = f"Say {EVIL} now.", f"Say {EVIL} later."
    change = {"before": before, "after": after, "demos_before": 0, "demos_after": 1, "demos": [{EVIL: [EVIL, 1]}, 7]}
    best = {"arm": {"technique": "hyde", "prompt": EVIL}}
    outcome = {**made_outcome(), "prompts": {"one": {}, f"hyde, {EVIL}": {EVIL: change}}, "best": best}
    source = study_html(made_snapshot(outcome=outcome))
    read_page(source).check()
    assert [unescape(one) for one in re.findall(r"<(?:del|ins)>(.*?)</", source)] == [before, after]
    assert source.index("(recommended)") < source.index("<summary>one</summary>")


def test_questions_are_compared_with_the_baseline(finished):
    outcome = made_outcome()
    compared = on_test(outcome)
    place = finished.json("report-data")["metrics"].index("decision_useful")
    for number, arm in enumerate(compared.arms):
        assert [one["rows"][number]["s"][place] for one in finished.questions()] == arm.values("decision_useful")
    assert [one["id"] for one in finished.questions()] == [f"q{n}" for n in range(24)]
    assert compared.baseline == "baseline"
    assert [one.to_json() for one in compared.comparisons] == outcome["comparisons"][:2]
    assert [one.name for one in compared.references] == ["oracle evidence", "closed book"]
    assert on_test(None) is None


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "19 of 24 trials have ended, 1 under way or broken off; nothing was chosen and tested yet."),
        ({"trials": ()}, "0 of 24 trials have ended"),
        (
            {"outcome": {**made_outcome(), "failed_on_test": {"hyde compiled": "2 of 6"}}},
            "many test questions failed: hyde compiled.",
        ),
        (
            {"trials": (made_trial(0, "plain", state="running", dev=made["NOTHING"], values={}, ended=None),)},
            "0 of 24 trials have ended, 1 under way",
        ),
        (
            {"trials": tuple(made_trial(n, "hyde", state="failed", dev=made["NOTHING"], values={}) for n in range(9))},
            "9 of 24 trials have ended",
        ),
    ],
)
def test_a_study_at_any_moment_has_a_page(read_page, tmp_path, more, said):
    write_report(made_snapshot(**more), tmp_path / "report.html")
    page = read_page((tmp_path / "report.html").read_text("utf-8"))
    assert said in page.parts["Outcome"]
    assert [name for name in PARTS if name != "The front"] == list(page.parts)
    assert all(content.strip() for content in page.parts.values())
    assert [one.name for one in tmp_path.iterdir()] == ["report.html"]
