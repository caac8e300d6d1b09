from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from querywright.data.types import Label, Passage, Question
from querywright.models.usage import Cost
from querywright.optimize.comparison import Compared
from querywright.optimize.diagnosis import MEANING, Stage, decision_rows, decisions, diagnose
from querywright.optimize.evaluate import Evaluation, Row
from querywright.optimize.report import comparison_page
from querywright.optimize.significance import against
from querywright.optimize.tables import clean

EVIL = '</script><script>alert(1)</script><!-- <img src=x onerror="alert(2)"> \'&amp; <b>bold</b> ]]>'
UNFIT = "a\x00b\x1b[31m\u2028c\u2029d\ud800e"
NAN = math.nan

QUESTIONS = [
    Question("q0", "Which drug?", ("metformin", "insulin"), "metformin", evidence={"p0": Label.ENTAILED}),
    Question("q1", EVIL, (EVIL, "other"), EVIL, evidence={"p1": Label.USEFUL, "gone": Label.ENTAILED}),
    Question("q2", UNFIT, answer="x", aliases=("y",), evidence={"p2": Label.NOT_USEFUL, "p3": Label.USEFUL}),
    Question("q3", "Is it known?"),
]
PASSAGES = {
    "p0": Passage("p0", "word " * 1000, "A long card"),
    "p1": Passage("p1", EVIL, EVIL),
    "p2": Passage("p2", UNFIT),
    "p3": Passage("p3", "never found"),
}


def row(n, accuracy, useful, **more):
    return Row(f"q{n}", {"accuracy": accuracy, "decision_useful": useful, "token_f1": NAN}, **more)


PLAIN = Evaluation(
    "plain",
    (
        row(
            0, 0.0, 0.0, answer="insulin", passages=("p2",), found=("p2", "p0"), queries=(("original", "Which drug?"),)
        ),
        row(1, 1.0, 1.0, answer=EVIL, passages=("p1", "p0"), queries=((EVIL, EVIL),), cost=Cost(calls=2, saved=2)),
        row(2, 0.0, 0.0, answer=UNFIT, passages=("p2",), fallbacks=("hypothesis",)),
        row(3, NAN, NAN, answer="perhaps"),
    ),
    1.5,
)
BETTER = Evaluation(
    f"<b>better</b> {EVIL}",
    (
        row(0, 1.0, 1.0, answer="metformin", passages=("p0",), cost=Cost(calls=4, input_tokens=30, saved_tokens=10)),
        row(1, 1.0, 0.0, answer=EVIL, passages=("p1", "lost")),
        row(2, 0.0, 0.0, answer="", passages=("p2",), invalid=True),
        row(3, NAN, NAN, failure="parse", message=EVIL),
    ),
    1.5,
)
WORSE = Evaluation("worse %{x} $y$", tuple(row(n, 0.0, NAN, answer="z", passages=("p2",)) for n in range(4)), 1.5)
ARMS = (PLAIN, BETTER, WORSE)
CLOSED = Evaluation("closed book", (row(0, 0.0, NAN, answer="insulin"), *WORSE.rows[1:]), 0.1)
ORACLE = Evaluation("oracle", tuple(row(n, 1.0, NAN, answer="x", passages=("p0",)) for n in range(4)), 0.1)


def compared(*arms, **more):
    held = tuple(against(arms, arms[0].name))
    return Compared(arms, arms[0].name, held, questions=tuple(QUESTIONS), passages=PASSAGES, **more)


@pytest.fixture(scope="module")
def report(read_page):
    """Makes a page and reads it."""
    return lambda *arms, **more: read_page(html(*arms, **more))


def html(arms=ARMS, **more):
    given = {"title": f"Report {EVIL}", "facts": {"LM": "embedded", EVIL: UNFIT}, "notes": ["labelled", EVIL]}
    return comparison_page(replace(compared(*arms), **more), **given)


def diagnosed():
    names = [arm.name for arm in ARMS]
    return diagnose(
        ARMS,
        QUESTIONS,
        dict.fromkeys(names, ("p0", "p1", "p2")),
        closed_book=dict.fromkeys(names, CLOSED),
        oracle=dict.fromkeys(names, ORACLE),
    )


@pytest.fixture(scope="module")
def full(report):
    return report(diagnosis=diagnosed())


def test_scores_and_verdicts_are_those_of_the_evaluations(full):
    head, *rows = full.tables[0]
    table = [dict(zip(head, one, strict=True)) for one in rows]
    # Wilson's interval of 1 of 3 is 6.1 to 79.2, of 2 of 3 20.8 to 93.9, of 0 of 4 0 to 49.0 per cent
    assert [one["accuracy"] for one in table] == [
        "33.3 [6, 79] (1 unscored)",
        "66.7 [21, 94] (1 unscored)",
        "0.0 [0, 49]",
    ]
    assert [one["decision_useful"] for one in table] == ["33.3 [6, 79] (1 unscored)", "33.3 [6, 79] (1 unscored)", "-"]
    assert [one["arm"] for one in table] == ["1 plain (baseline)", f"2 {BETTER.name}", "3 worse %{x} $y$"]
    assert [one["n"] for one in table] == ["4", "4", "4"]
    assert [one["LM calls / question"] for one in table] == ["1.0", "1.0", "0.0"]
    assert [one["tokens / question"] for one in table] == ["0", "10", "0"]
    assert [one["failed"] for one in table] == ["0", "parse 1", "0"]
    assert [one["fallbacks"] for one in table] == ["25 %", "0 %", "0 %"]
    assert not {"token_f1", "seconds"} & set(head)
    sentences = [one.sentence for one in compared(*ARMS).comparisons]
    assert len(sentences) == 3
    assert all(sentence in full.text for sentence in sentences)


def test_the_figures_are_those_of_the_evaluations(full):
    figures = full.json("report-figures")
    ids = [attrs["id"] for tag, attrs in full.tags if tag == "div" and attrs.get("class") == "figure"]
    assert list(figures) == ids
    (dots,) = figures["figure-mean-0"]["data"]
    assert dots["x"] == pytest.approx([100 / 3, 200 / 3, 0])
    assert dots["y"] == [0, 1, 2]
    assert dots["error_x"]["array"] == pytest.approx([45.9, 27.2, 49.0], abs=0.06)
    assert dots["error_x"]["arrayminus"] == pytest.approx([27.2, 45.9, 0], abs=0.06)
    assert dots["marker"]["symbol"] == ["diamond", "circle", "circle"]
    (dots,) = figures["figure-mean-1"]["data"]
    assert dots["y"] == [0, 1]  # the third arm has no such score
    losses, wins = figures["figure-difference-0"]["data"]
    assert (losses["x"], wins["x"]) == ([0, -1], [1, 0])
    labels = figures["figure-difference-0"]["layout"]["yaxis"]["ticktext"]
    assert "p = 1.0, one-sided p = .500, ties 2" in labels[0]
    assert "p = 1.0, ties 2" in labels[1]
    (dots,) = figures["figure-cost-0"]["data"]
    points = zip(dots["x"], dots["y"], dots["text"], strict=True)
    assert [(x, round(y, 1), number) for x, y, number in points] == [(0, 0, "3"), (1, 33.3, "1"), (1, 66.7, "2")]


def test_the_diagnosis_is_drawn_explained_and_counted(full):
    # plain: q0 was found but cut, q1 is right, q2's evidence is not indexed, q3 has no labels
    expected = {
        Stage.RIGHT: [1, 2, 0],
        Stage.NOT_INDEXED: [1, 1, 1],
        Stage.NOT_FOUND: [0, 0, 2],
        Stage.CUT: [1, 0, 0],
        Stage.NOT_USED: [0, 0, 0],
        Stage.MISREAD: [0, 0, 0],
        Stage.UNKNOWN: [1, 1, 1],
    }
    head, *rows = full.tables[1]
    assert head == ["stage", "1", "2", "3", "what it means"]
    assert rows == [[str(s), *map(str, counts), MEANING[s]] for s, counts in expected.items()]
    figure = full.json("report-figures")["figure-stages"]
    assert [bar["x"] for bar in figure["data"]] == [counts for counts in expected.values() if any(counts)]
    assert [note["text"] for note in figure["layout"]["annotations"]] == ["closed book 0", "oracle 4"]
    assert "closed book 0 of 4; oracle 4 of 4" in full.text
    telling = full.parts["The most telling questions"]
    assert diagnosed().telling[:2] == ("q0", "q1")  # the arms differ on these two
    assert telling.index("Right answer: metformin q0") < telling.index("Right answer: </script>")


def test_a_question_is_marked_in_signs_and_words(full):
    head, *rows = full.tables[2]
    assert head == ["question", "1", "2", "3"]
    assert [one[1:] for one in rows] == [
        ["✗wrong", "✓▲right, better than the baseline", "✗wrong"],
        ["✓right", "✓right", "✗▼wrong, worse than the baseline"],
        ["✗wrong", "✗wrong", "✗wrong"],
        ["-not scored", "!failed", "✗wrong"],
    ]
    assert [attrs.get("class") for tag, attrs in full.tags if tag == "tr"][-4:] == [None, None, "same", None]


def test_what_stands_behind_a_question(full):
    first, second, third, last = (" ".join(row[0].split()) for row in full.tables[2][1:])
    told = "Which drug? metformin insulin Right answer: metformin q0 plain ✗wrong found but cut insulin"
    assert first.startswith(told)
    plain, better, worse = first.partition("✗wrong")[2].split("LM calls")[1:]
    assert "Queries original: Which drug? Passages, 1 of 2 found p2 NOT USEFUL" in plain
    assert "Evidence missed p0 ENTAILED found, then cut" in plain
    assert "Passages, 1 of 1 found p0 ENTAILED" in better
    assert "Evidence missed" not in better
    assert "Evidence missed p0 ENTAILED not found" in worse
    assert "accuracy 0 · decision_useful 0 · token_f1 not scored · LM calls 0" in first
    assert 100 < full.text.count("word") < 150  # of 1000, and once
    assert f"Right answer: {EVIL} q1" in second
    assert "LM calls 4" in second
    assert "gone The text of this passage is not at hand." in " ".join(full.text.split())
    assert "Right answer: x; also accepted: y" in third
    assert "fallbacks: hypothesis" in third
    assert "(empty)" in third
    assert "the answer names no option" in third
    assert f"Failed (parse): {EVIL}" in last
    assert "Right answer: not known" in last


def test_no_text_of_the_data_becomes_markup_and_nothing_is_fetched(full):
    full.check()
    assert full.text.count(EVIL) >= 6
    assert "a\ufffdb\ufffd[31m\u2028c\u2029d\ufffde" in full.text
    assert "&lt;b&gt;better" in json.dumps(full.json("report-figures"))
    labels = [attrs["aria-label"] for _, attrs in full.tags if attrs.get("class") == "figure"]
    assert labels[0].startswith("accuracy. plain: 33.3 [6, 79] (1 unscored); ")


def test_decisions_are_told_where_there_are_any(report):
    names = [arm.name for arm in ARMS]
    decided = decisions(ARMS, QUESTIONS, baseline=PLAIN, closed_book=dict.fromkeys(names, CLOSED))
    page = report(decisions=decided)
    assert "What the passages did to the decisions" in page.parts
    told = decision_rows(decided)
    (table,) = [one for one in page.tables if one[0] == list(told[0])]
    assert table[1:] == [[clean(value) for value in one.values()] for one in told]
    assert told[1]["right to wrong / wrong to right, plain"] == "0 / 1"


def test_without_a_reader_questions_are_marked_by_what_was_found(report):
    def arm(name, *values):
        return Evaluation(name, tuple(Row(f"q{n}", {"decision_useful": v}) for n, v in enumerate(values)), 0.0)

    page = report((arm("plain", 0.0, 1.0, 0.25, NAN), arm("hyde", 1.0, 1.0, 0.5, NAN)))
    assert [one[1:] for one in page.tables[-1][1:]] == [
        ["✗no", "✓▲yes, better than the baseline"],
        ["✓yes", "✓yes"],
        ["0.250.25", "0.50▲0.50, better than the baseline"],
        ["-not scored", "-not scored"],
    ]
    assert "q" not in {tag for tag, _ in page.tags}  # no answer is quoted


def test_a_page_says_no_more_than_there_is(report):
    page = report((PLAIN,))
    assert "There is nothing to hold against plain." in page.text
    assert list(page.json("report-figures")) == ["figure-mean-0", "figure-mean-1", "figure-cost-0", "figure-cost-1"]
    assert "Where answers are lost" not in page.parts
    assert "What the passages did to the decisions" not in page.parts
    assert not any(attrs.get("class") == "stage" for _, attrs in page.tags)
    failed = Evaluation("plain", tuple(Row(f"q{n}", {"accuracy": NAN}, failure="lm") for n in range(4)), 0.0)
    page = report((failed,))
    assert page.json("report-figures") == {}
    assert [one[1] for one in page.tables[-1][1:]] == ["!failed"] * 4
    assert html() == html()
