from __future__ import annotations

import json
import re
import runpy
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from plotly.offline import get_plotlyjs

from querywright.models.usage import Cost
from querywright.optimize.html_page import POLICY
from querywright.optimize.study import html
from querywright.optimize.study.report import study_html, write_report
from querywright.optimize.study.status import aims
from querywright.optimize.study.tested import on_test
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


class Page(HTMLParser):
    """What a browser would make of the page, plotly's own source left out."""

    def __init__(self, source):
        super().__init__()
        plotly = f"<script>{get_plotlyjs()}</script>"
        assert source.count(plotly) == 1
        self.source = source.replace(plotly, "")
        self.tags, self.stack, self.scripts, self.parts, self.ids = [], [], [], {}, []
        self.heading = ""
        self.feed(self.source)
        self.close()
        assert not self.stack

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "input", "br"):
            self.stack.append(tag)
        if tag == "script":
            self.scripts.append([dict(attrs).get("id"), ""])
        if tag == "h2":
            self.heading = ""
        if dict(attrs).get("id"):
            self.ids.append(dict(attrs)["id"])

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag
        if tag == "h2":
            self.parts[self.heading] = ""

    def handle_data(self, data):
        if "script" in self.stack:
            self.scripts[-1][1] += data
        elif "h2" in self.stack:
            self.heading += data
        elif "section" in self.stack and "style" not in self.stack:
            self.parts[self.heading] = self.parts.get(self.heading, "") + data

    def json(self, name):
        return json.loads(dict(self.scripts)[name])


@pytest.fixture(scope="module")
def finished():
    return Page(study_html(made_snapshot(finished=True, spec=made_spec(objectives=TWO))))


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


def test_every_figure_has_its_element_and_words(finished):
    drawn = finished.json("report-figures")
    places = {attrs["id"]: attrs for tag, attrs in finished.tags if attrs.get("class") == "figure"}
    assert set(drawn) == set(places)
    assert len(finished.ids) == len(set(finished.ids))
    kinds = {name.split("-")[1] for name in drawn}
    assert kinds == {"front", "mean", "difference", "mattered", "spread", "course", "spending"}
    assert all(attrs["role"] == "img" and len(attrs["aria-label"]) > 20 for attrs in places.values())
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
    names = {tag for tag, _ in finished.tags}
    assert not names & {"img", "iframe", "link", "object", "embed", "form", "base"}
    assert [name for name, _ in finished.scripts] == ["report-data", "report-figures", None]
    assert not any(key.startswith("on") for _, attrs in finished.tags for key in attrs)
    assert not any(key in ("src", "srcset") for _, attrs in finished.tags for key in attrs)
    links = [attrs["href"] for tag, attrs in finished.tags if tag == "a"]
    assert links
    assert all(link.startswith("#part-") for link in links)
    assert "http://" not in finished.source
    assert "https://" not in finished.source
    assert "<script>alert" not in finished.source
    assert "{url(" not in finished.source.replace(" ", "")
    assert POLICY.startswith("default-src 'none'")
    assert EVIL in finished.parts["Prompts, before and after"]
    assert EVIL in finished.parts["Dead knobs"]
    assert EVIL in finished.parts["The course of the search"]
    assert EVIL in finished.parts["Wins and losses, question by question"]


def test_questions_are_held_against_no_rewriting(finished):
    data = finished.json("report-data")
    assert data["arms"] == list(ARMS)
    assert [one["id"] for one in data["questions"]] == [f"q{n}" for n in range(24)]
    compared = on_test(made_outcome())
    base, chosen = compared.arms[0].values("decision_useful"), compared.arms[2].values("decision_useful")
    worse = [a > b for a, b in zip(base, chosen, strict=True)]
    assert ["worse" in one["arms"][2]["said"] for one in data["questions"]] == worse
    assert any(worse)
    assert "differ" in finished.ids


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
        ({"trials": (), "outcome": {}}, "0 of 24 trials have ended"),
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
def test_a_study_at_any_moment_has_a_page(more, said):
    page = Page(study_html(made_snapshot(**more)))
    assert said in page.parts["Outcome"]
    assert [name for name in PARTS if name != "The front"] == list(page.parts)
    assert all(content.strip() for content in page.parts.values())


def test_the_same_study_gives_the_same_page():
    snapshot = made_snapshot(finished=True)
    assert study_html(snapshot) == study_html(snapshot)


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


def test_names_of_arms_and_techniques_from_the_data_are_escaped():
    arm = ArmConfig(f"hyde{EVIL}", EVIL, {EVIL: EVIL}, EVIL, EVIL)
    params = {"technique": f"hyde{EVIL}", f"hyde{EVIL}.{EVIL}": EVIL}
    trials = tuple(
        made_trial(n, "hyde", arm=arm, params={**params, "x": n}, dev=made["made_dev"](EVIL, "hyde", seed=n))
        for n in range(10)
    )
    page = Page(study_html(made_snapshot(trials=trials)))
    assert EVIL in page.parts["Best on dev"]
    assert not {"img", "b"} & {tag for tag, attrs in page.tags if attrs}
    figures = json.dumps(page.json("report-figures"))
    assert "<img" not in figures
    assert "<script" not in figures


def test_what_a_point_costs():
    plain = made_trial(0, "plain", values={"decision_useful": 0.5}, spent=Cost())
    better = made_trial(1, "hyde", values={"decision_useful": 0.6}, spent=Cost(calls=50, saved=7))
    worse = made_trial(2, "multi_query", values={"decision_useful": 0.4}, spent=Cost(calls=80))
    arm = ArmConfig("plain", "dense", {"max_passages": 5})
    snapshot = made_snapshot(trials=(replace(plain, arm=arm), better, worse))
    (aim,) = aims(snapshot.spec)
    cells = re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", html.cost_part(snapshot, aim, ["hyde", "multi_query"], []))
    rows = [cells[n : n + 7] for n in range(7, len(cells), 7)]
    assert rows[0] == ["hyde", "50", "7", "0", "60.0 %", "+10.0 points", "5"]
    assert rows[1] == ["multi_query", "80", "0", "0", "40.0 %", "-10.0 points", "-"]
