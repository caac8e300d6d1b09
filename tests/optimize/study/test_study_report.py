from __future__ import annotations

import re
import runpy
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from querywright.models.usage import Cost
from querywright.optimize.study.report import study_html, write_report
from querywright.optimize.study.status import on_test
from querywright.optimize.study.types import ArmConfig

made = runpy.run_path(str(Path(__file__).with_name("made_study.py")))
made_snapshot, made_trial, made_spec = made["made_snapshot"], made["made_trial"], made["made_spec"]
made_outcome, EVIL, ARMS = made["made_outcome"], made["EVIL"], made["ARMS"]
TWO = ["decision_useful", "lm_calls"]
PARTS = [
    "Outcome",
    "Best on dev",
    "The front",
    "Test",
    "What mattered",
    "Techniques",
    "The course of the search",
    "What it cost and saved",
    "Wins and losses, question by question",
    "Prompts, before and after",
    "Dead knobs",
    "To run it again",
]


@pytest.fixture(scope="module")
def finished(read_page):
    return read_page(study_html(made_snapshot(finished=True, spec=made_spec(objectives=TWO))))


def test_a_finished_study_has_every_part(finished):
    assert list(finished.parts) == PARTS
    assert "test shows a gain over no rewriting" in finished.parts["Outcome"]
    assert "Recommended: trial 17" in finished.parts["Outcome"]
    assert "The best of 18 arms on dev is partly the luckiest" in finished.parts["Outcome"]
    assert "75.0 % would be expected to be about 62.5 % on new questions" in finished.parts["Outcome"]
    for one in made_outcome()["comparisons"]:
        assert one["sentence"] in finished.parts["Test"]
    assert "closed book" in finished.parts["Test"]
    assert "98000 tokens; 0.0125 US dollars" in finished.parts["What it cost and saved"]
    assert "worse than trial 2 after 8 questions" in finished.parts["The course of the search"]
    assert "the same arm as trial 9" in finished.parts["The course of the search"]
    assert "multi_query, boot.2 (recommended)" in finished.parts["Prompts, before and after"]
    assert "Demonstrations: 0 before, 1 after." in finished.parts["Prompts, before and after"]
    assert "querywright study run study.yaml --out made --workers 2" in finished.parts["To run it again"]
    assert re.search(r"optuna \d", finished.parts["To run it again"])


def test_the_figures_are_those_of_the_trials(finished):
    drawn = finished.json("report-figures")
    kinds = {name.split("-")[1] for name in drawn}
    assert kinds == {"front", "mean", "difference", "mattered", "spread", "course", "spending"}
    course = drawn["figure-course-decision_useful"]
    points = {x for trace in course["data"] if trace["mode"] == "markers" for x in trace["x"]}
    assert points == set(range(20)) - {made["FAILED"], made["RUNNING"]}
    symbols = [symbol for trace in course["data"] if trace["mode"] == "markers" for symbol in trace["marker"]["symbol"]]
    assert symbols.count("x-thin-open") == 1
    line = next(trace for trace in course["data"] if trace["mode"] == "lines")
    assert line["y"] == sorted(line["y"])
    assert course["layout"]["shapes"][0]["x0"] == 15.5  # late trials begin
    spent = drawn["figure-spending-stages"]["data"]
    assert [trace["x"] for trace in spent] == [[300, 120], [150, 30]]
    front = drawn["figure-front-lm_calls"]["data"][1]
    assert front["text"][0] == "0"
    assert front["x"] == sorted(front["x"])


def test_nothing_from_the_data_is_markup_and_nothing_is_fetched(finished):
    finished.check()
    for part in (PARTS[6], PARTS[8], PARTS[9], PARTS[10]):
        assert EVIL in finished.parts[part]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Write a passage.", "Write a short passage."),
        ("", "Write."),
        ("Write.", ""),
        ("Write one line.\nThen stop.", "Write one line.\n\nThen go on, and on."),
        (f"Say {EVIL} now.", f"Say {EVIL} later."),
        ("Answer as it is asked.", EVIL),
    ],
)
def test_both_texts_of_a_prompt_can_be_read_from_their_difference(read_page, before, after):
    change = {"before": before, "after": after, "demos_before": 0, "demos_after": 1, "demos": [{EVIL: [EVIL, 1]}, 7]}
    outcome = {"prompts": {"one": {}, EVIL: {EVIL: change}}, "best": {"arm": {"technique": "hyde", "prompt": EVIL}}}
    source = study_html(made_snapshot(outcome=outcome))
    read_page(source).check()
    found = re.search(r'<p class="diff">(.*?)</p>', source, re.DOTALL)[1]
    sides = [re.sub(f"<{gone}>.*?</{gone}>", "", found, flags=re.DOTALL) for gone in ("ins", "del")]
    assert [unescape(re.sub(r"</?(?:ins|del)>", "", one)).strip() for one in sides] == [before, after]
    assert set(re.findall(r"<[^>]*>", found)) <= {"<ins>", "</ins>", "<del>", "</del>"}
    assert source.index("(recommended)") < source.index("<summary>one</summary>")


def test_questions_are_held_against_no_rewriting(finished):
    (table,) = [rows for rows in finished.tables if rows[0][0] == "question"]
    compared = on_test(made_outcome())
    base, chosen = compared.arms[0].values("decision_useful"), compared.arms[2].values("decision_useful")
    worse = [a > b for a, b in zip(base, chosen, strict=True)]
    assert ["worse" in row[3] for row in table[1:]] == worse
    assert [f"q{n}" in row[0] for n, row in enumerate(table[1:])] == [True] * 24
    assert any(worse)
    assert any(attrs.get("id") == "differ" for _, attrs in finished.tags)


def test_comparisons_are_those_of_the_outcome():
    outcome = made_outcome()
    compared = on_test(outcome)
    assert compared.baseline == "no rewriting"
    assert [one.to_json() for one in compared.comparisons] == outcome["comparisons"][:2]
    assert [one.name for one in compared.references] == ["oracle evidence", "closed book"]
    fewer = {**outcome, "test": [outcome["test"][0], {**outcome["test"][1], "rows": outcome["test"][1]["rows"][:5]}]}
    compared = on_test(fewer)
    assert [one.name for one in compared.arms] == ["no rewriting"]
    assert [one.name for one in compared.references] == ["hyde as written"]
    assert compared.comparisons == ()
    assert on_test({"test": [{"arm": "x"}]}) is None


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "19 of 24 trials have ended, 1 under way or broken off; nothing was chosen and tested yet."),
        ({"trials": ()}, "0 of 24 trials have ended"),
        ({"trials": tuple(made_trial(n, "hyde") for n in range(24))}, "All 24 trials have ended; nothing was chosen"),
        ({"finished": True, "outcome": {"sentence": "Too few questions"}}, "Too few questions."),
        (
            {"outcome": {"failed_on_test": {"hyde compiled": "2 of 6"}}},
            "questions of test failed: hyde compiled.",
        ),
        ({"outcome": {"prompts": {}, "dead_knobs": [], "questions": [], "test": []}}, "19 of 24 trials"),
        (
            {"trials": (made_trial(0, "plain", state="running", arm=None, dev=None, values={}, ended=None),)},
            "0 of 24 trials have ended, 1 under way",
        ),
        (
            {"trials": tuple(made_trial(n, "hyde", state="failed", dev=None, values={}) for n in range(9))},
            "9 of 24 trials have ended",
        ),
    ],
)
def test_a_study_at_any_moment_has_a_page(read_page, more, said):
    page = read_page(study_html(made_snapshot(**more)))
    assert said in page.parts["Outcome"]
    assert [name for name in PARTS if name != "The front"] == list(page.parts)
    assert all(content.strip() for content in page.parts.values())


def test_no_password_is_on_the_page(tmp_path):
    secret = "s3cret/with@signs"
    address = f"postgresql://me:{secret}@db/studies"
    outcome = {**made_outcome(), "command": f"querywright study run s.yaml --storage {address} --out x"}
    failed = made_trial(0, "plain", state="failed", message=f"no answer from {address}?password=open1 now")
    write_report(
        made_snapshot(
            finished=True,
            spec=made_spec(storage=address, api_base=f"https://key:{secret}@host/v1"),
            trials=(failed,),
            outcome=outcome,
        ),
        tmp_path / "report.html",
    )
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "s3cret" not in page
    assert "with@signs" not in page
    assert "open1" not in page
    assert "postgresql://...@db/studies" in page
    assert [one.name for one in tmp_path.iterdir()] == ["report.html"]


def test_names_of_arms_and_techniques_from_the_data_are_escaped(read_page):
    arm = ArmConfig(f"hyde{EVIL}", EVIL, {EVIL: EVIL}, EVIL, EVIL)
    params = {"technique": f"hyde{EVIL}", f"hyde{EVIL}.{EVIL}": EVIL}
    trials = tuple(
        made_trial(n, "hyde", arm=arm, params={**params, "x": n}, dev=made["made_dev"](EVIL, "hyde", seed=n))
        for n in range(10)
    )
    page = read_page(study_html(made_snapshot(trials=trials)))
    assert EVIL in page.parts["Best on dev"]
    page.check()


def test_what_a_point_costs(read_page):
    plain = made_trial(0, "plain", values={"decision_useful": 0.5}, spent=Cost())
    better = made_trial(1, "hyde", values={"decision_useful": 0.6}, spent=Cost(calls=50, saved=7))
    worse = made_trial(2, "multi_query", values={"decision_useful": 0.4}, spent=Cost(calls=80))
    arm = ArmConfig("plain", "dense", {"max_passages": 5})
    snapshot = made_snapshot(trials=(replace(plain, arm=arm), better, worse))
    (table,) = [one for one in read_page(study_html(snapshot)).tables if one[0][-1] == "calls made a point"]
    assert table[2:] == [
        ["hyde", "50", "7", "0", "60.0 %", "+10.0 points", "5"],
        ["multi_query", "80", "0", "0", "40.0 %", "-10.0 points", "-"],
    ]
