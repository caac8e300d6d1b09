"""A report in Chromium: sorting, filters, the choice of a metric, a question opened; no network, at 390 pixels."""

from __future__ import annotations

import json
import re
from html import unescape

import pytest

from querywright.data.types import Label, Passage, Question
from querywright.models.transcript import Exchange
from querywright.models.usage import Cost
from querywright.optimize.comparison import Comparison
from querywright.optimize.evaluate import Evaluation, Row
from querywright.optimize.significance import against

EVIL = '<img src=x onerror="document.title=1">'

DRIVE = """<script>
(async () => {
const until = async (true_of) => { while (!true_of()) await new Promise((go) => setTimeout(go, 20)); };
await until(() => document.querySelector("#rows tr"));
const $ = (which) => document.querySelector(which), all = (which) => [...document.querySelectorAll(which)];
const choose = (which, value) => { $(which).value = value; $(which).dispatchEvent(new Event("input", {bubbles: true}));
  $(which).dispatchEvent(new Event("change", {bubbles: true})); };
const rows = () => all("#rows tr").map((row) => row.cells[0].textContent);
const shown = () => all("figure").filter((one) => !one.hidden).map((one) => one.dataset.metric);
const told = { wide: document.documentElement.scrollWidth, first: rows(), figures: shown() };
all("#part-1 .sort")[1].click(); all("#part-1 .sort").find((one) => one.textContent === "accuracy").click();
told.sorted = all("#part-1 tbody tr").map((row) => row.cells[0].textContent);
choose("#metric", "recall"); told.recall = shown(); told.verdicts = all("#part-0 tbody tr:not([hidden])").length;
choose("#show", "better"); told.better = rows(); choose("#show", "all");
choose("#search", "number 11"); told.found = rows(); choose("#search", "");
all("#questions .sort")[0].click(); told.up = rows()[0];
told.more = [$("#more").hidden, $("#count").textContent];
all("#rows button")[0].click();
told.dialog = $("dialog").open && $("dialog").textContent;
told.folded = $("dialog").textContent.includes("Instructions");
all(".calls > summary").forEach((one) => one.click()); await until(() => all(".calls pre").length === 3);
told.calls = all(".calls").map((box) => [...box.querySelectorAll("summary, h5, pre")].map((one) => one.textContent));
$("dialog").dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight"})); told.next = $("dialog h2").textContent;
told.hash = location.hash; told.images = all("img").length;
const pre = Object.assign(document.createElement("pre"), {id: "told", textContent: JSON.stringify(told)});
document.body.replaceChildren(pre);
})();
</script>"""


def arm(name, *, finds):
    asked = (
        Exchange("reader.predict", (("system", f"Instructions {EVIL}"), ("user", f"{name} {EVIL}")), EVIL),
    ) * finds
    rows = [
        Row(f"q{n}", {"accuracy": float(n % 2), "recall": float(finds and n < 3)}, answer=EVIL,
            passages=(f"p{n}" if finds and n < 3 else "other",), queries=(("original", EVIL),),
            cost=Cost(calls=len(asked)), exchanges=asked)
        for n in range(12)
    ]  # fmt: skip
    return Evaluation(name, tuple(rows), 0.0)


@pytest.mark.slow
def test_a_person_sorts_filters_chooses_a_metric_and_opens_a_question(chromium, tmp_path):
    arms = (arm("plain", finds=False), arm(f"other {EVIL}", finds=True))
    questions = tuple(
        Question(f"q{n}", f"What of number {n}? {EVIL}", evidence={f"p{n}": Label.USEFUL}) for n in range(12)
    )
    passages = {f"p{n}": Passage(f"p{n}", EVIL, f"title {n} {EVIL}") for n in range(12)}
    found = Comparison(arms, "plain", tuple(against(arms, "plain")), questions=questions, passages=passages)
    page = tmp_path / "report.html"
    page.write_text(found.report(page, title=EVIL).read_text("utf-8").replace("</body>", f"{DRIVE}</body>"), "utf-8")
    dom = chromium(page.as_uri(), "--window-size=500,900", "--virtual-time-budget=60000")
    told = json.loads(unescape(re.search(r'<pre id="told">(.*?)</pre>', dom, re.DOTALL)[1]))
    assert told["wide"] <= 500
    assert told["figures"] == ["accuracy"] * 3
    assert told["recall"] == ["recall"] * 3
    assert told["verdicts"] == 1
    assert len(told["first"]) == 12
    assert [one[:1] for one in told["sorted"]] == ["1", "2"]
    assert [re.search(r"\d+", one)[0] for one in told["better"]] == ["0", "1", "2"]
    assert [re.search(r"\d+", one)[0] for one in told["found"]] == ["11"]
    assert "number 0?" in told["up"]
    assert told["more"] == [True, "12 of 12 questions"]
    assert "not shown by plain" in told["dialog"]
    assert "Shown only by plain" in told["dialog"]
    assert "Missed evidence" in told["dialog"]
    assert EVIL in told["dialog"]
    assert not told["folded"]
    summary, call = "Prompts and answers of the LM (1)", "1 reader.predict"
    asked = ["system", f"Instructions {EVIL}", "user", f"other {EVIL} {EVIL}", "answer", EVIL]
    assert told["calls"] == [[summary, call, *asked]]
    assert "number 10?" in told["next"]
    assert told["hash"] == "#q=q10"
    assert told["images"] == 0
