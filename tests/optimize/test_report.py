from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest

from querywright.data.types import Label, Passage, Question
from querywright.models.transcript import Exchange
from querywright.models.usage import Cost
from querywright.optimize.comparison import Comparison
from querywright.optimize.diagnosis import MEANING, Stage, decision_rows, decisions, diagnose
from querywright.optimize.evaluate import Evaluation, Row
from querywright.optimize.report import browser, comparison_page, filled
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
    return Comparison(arms, arms[0].name, held, questions=tuple(QUESTIONS), passages=PASSAGES, **more)


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
    head, *rows = full.tables[1]
    table = [dict(zip(head, one, strict=True)) for one in rows]
    # Wilson's interval of 1 of 3 is 6.1 to 79.2, of 2 of 3 20.8 to 93.9, of 0 of 4 0 to 49.0 per cent
    assert [one["accuracy"] for one in table] == [
        "33.3 [6, 79] (1 of 4 unscored)",
        "66.7 [21, 94] (1 of 4 unscored)",
        "0.0 [0, 49]",
    ]
    assert [one["decision_useful"] for one in table] == [
        "33.3 [6, 79] (1 of 4 unscored)",
        "33.3 [6, 79] (1 of 4 unscored)",
        "-",
    ]
    assert [one["arm"] for one in table] == ["1 plain (baseline)", f"2 {BETTER.name}", "3 worse %{x} $y$"]
    assert [one["calls per question"] for one in table] == ["1.0", "1.0", "0.0"]
    assert [one["tokens per question"] for one in table] == ["0", "10", "0"]
    assert [one["failed"] for one in table] == ["0", "parse 1", "0"]
    assert [one["fallbacks"] for one in table] == ["25%", "0%", "0%"]
    assert not {"token_f1", "n"} & set(head)
    assert "No difference shown in 2 of 2 comparisons with plain" in full.parts["Verdict"]
    sentences = [one.sentence for one in compared(*ARMS).comparisons]
    assert len(sentences) == 3
    assert all(sentence in full.text for sentence in sentences)


def test_the_figures_are_those_of_the_evaluations(full):
    assert full.figures == [
        *("figure-cost-0", "figure-cost-1", "figure-mean-0", "figure-mean-1"),
        *("figure-difference-0", "figure-difference-1", "figure-stages"),
    ]
    drawn = full.drawn("figure-mean-0")
    assert [one for one in drawn if one in ("33.3", "66.7", "0.0")] == ["33.3", "66.7", "0.0"]
    assert "plain: 33.3 [6, 79] (1 of 4 unscored)" in drawn
    assert not any("worse" in one for one in full.drawn("figure-mean-1") if ":" in one)  # it has no such score
    drawn = full.drawn("figure-difference-0")
    assert [one for one in drawn if one.isdigit()] == ["0", "1", "1", "0"]  # lost, won, of either arm
    assert drawn.count("p = 1.0") == 2
    assert "front: 3, 1, 2" not in full.text
    assert "accuracy by LM calls; front: 3, 2" in full.text
    shown = [attrs.get("data-metric") for tag, attrs in full.tags if tag == "figure"]
    assert shown == ["accuracy", "decision_useful"] * 3 + [None]


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
    head, *rows = full.tables[2]
    assert head == ["stage", "1", "2", "3", "meaning"]
    assert rows == [[str(s), *map(str, counts), MEANING[s]] for s, counts in expected.items()]
    drawn = full.drawn("figure-stages")
    assert [one for one in drawn if one.startswith("plain: ")] == [
        f"plain: {stage}, {counts[0]}" for stage, counts in expected.items() if counts[0]
    ]
    assert [one for one in drawn if one in ("closed book 0", "oracle 4")] == ["closed book 0", "oracle 4"]
    assert "closed book 0 of 4; oracle 4 of 4" in full.text


def test_what_stands_behind_a_question(full):
    first, second, third, last = full.questions()
    assert (first["q"], first["answers"], first["evidence"]) == ("Which drug?", ["metformin"], {"p0": "ENTAILED"})
    plain, better, worse = first["rows"]
    stages = full.json("report-data")["stages"]
    assert (plain["a"], plain["s"], stages[plain["g"]]) == ("insulin", [0.0, 0.0], "found but cut")
    assert (plain["p"], plain["l"], plain["n"], plain["c"]) == (["p2"], ["NOT_USEFUL"], 2, ["p0"])
    assert plain["q"] == [("original", "Which drug?")]
    assert (better["p"], better["l"], better["c"], better["k"]) == (["p0"], ["ENTAILED"], [], 4)
    assert (worse["p"], worse["c"], worse["s"]) == (["p2"], [], [0.0, None])
    assert second["answers"] == [EVIL]
    assert second["rows"][0]["k"] == 4
    assert third["answers"] == ["x", "y"]
    assert (third["rows"][0]["b"], third["rows"][1]["a"], third["rows"][1]["i"]) != (None, None, None)
    assert (last["answers"], last["rows"][1]["f"], last["rows"][1]["m"]) == ([], "parse", EVIL)
    data = full.json("report-data")
    passages = {data["texts"][one["id"]]: one for one in data["passages"]}
    assert "x" not in passages["gone"]  # its text is not at hand
    assert 100 < data["texts"][passages["p0"]["x"]].count("word") < 150  # of 1000
    assert len(data["texts"]) == len(set(data["texts"]))


def test_alternatives_stand_beside_the_evidence_of_their_question():
    either = replace(QUESTIONS[1], alternatives=(("p1", "gone"),))
    data = browser(replace(compared(*ARMS), questions=(QUESTIONS[0], either, *QUESTIONS[2:])), "accuracy")
    first, second, *_ = data["questions"]
    assert "either" not in first
    assert second["either"] == [[key for key, _ in second["evidence"]]]


def test_a_page_of_many_questions_and_arms_stays_small_and_has_as_many_prompts_as_there_is_room_for(
    read_page, tmp_path
):
    random = Random(0)

    def asked(arm, n):
        words = " ".join(f"{random.getrandbits(20):x}" for _ in range(60))
        return (Exchange("reader.predict", (("system", "Read. " * 50), ("user", f"{words} {n}")), f"answer of {arm}"),)

    def one(arm, n):
        shown, found = (tuple(f"p{(n + arm + i) % 1000}" for i in range(many)) for many in (5, 30))
        queries = (("document", f"{arm} {n} " + "long " * 80),)
        failed = {"failure": "parse"} if (arm, n) == (3, 998) else {}
        score = float(n % 2 or (arm, n) == (4, 500))
        return row(n, score, 1.0, answer=f"answer {n % 7}", passages=shown, found=found, queries=queries,
                   exchanges=asked(arm, n), **failed)  # fmt: skip

    questions = tuple(
        Question(f"q{n}", f"Question {n}? " * 8, answer="yes", evidence={f"p{n}": Label.USEFUL}) for n in range(1000)
    )
    arms = tuple(Evaluation(f"arm {arm}", tuple(one(arm, n) for n in range(1000)), 1.0) for arm in range(10))
    passages = {f"p{n}": Passage(f"p{n}", f"{n} text " * 200, f"title {n}") for n in range(1000)}
    whole = Comparison(arms, "arm 0", (), questions=questions, passages=passages)
    path = whole.report(tmp_path / "report.html")
    assert path.stat().st_size < 1_500_000, path.stat().st_size
    page = read_page(path.read_text("utf-8"))
    kept = page.prompts()
    assert [one["question"] for one in kept[:4]] == ["q998", "q500", "q0", "q1"]  # failed, then differing ones
    assert 100 < len(kept) < 1000


def test_no_text_of_the_data_becomes_markup_and_nothing_is_fetched(full):
    full.check()
    assert full.text.count(EVIL) >= 6
    assert "a\ufffdb\ufffd[31m\u2028c\u2029d\ufffde" in full.text
    assert EVIL in full.json("report-data")["texts"]
    assert any(one.startswith("<b>better</b>") for one in full.drawn("figure-mean-0"))
    labels = {attrs["id"]: attrs["aria-label"] for _, attrs in full.tags if attrs.get("class") == "figure"}
    assert labels["figure-mean-0"].startswith("accuracy, 95% interval. plain: 33.3 [6, 79] (1 of 4 unscored); ")


def test_decisions_are_told_where_there_are_any(report):
    names = [arm.name for arm in ARMS]
    decided = decisions(ARMS, QUESTIONS, baseline=PLAIN, closed_book=dict.fromkeys(names, CLOSED))
    page = report(decisions=decided)
    assert "How passages changed the answers" in page.parts
    told = filled(decision_rows(decided))
    (table,) = [one for one in page.tables if one[0] == list(told[0])]
    assert table[1:] == [[clean(value) for value in one.values()] for one in told]
    assert told[1]["flipped, plain"] == "0 / 1"


def test_a_page_says_no_more_than_there_is(report):
    page = report((PLAIN,))
    assert "There is no program to compare with plain." in page.text
    assert page.figures == ["figure-cost-0", "figure-cost-1", "figure-mean-0", "figure-mean-1"]
    assert "Where answers are lost" not in page.parts
    assert "How passages changed the answers" not in page.parts
    assert page.json("report-data")["stages"] == []
    failed = Evaluation("plain", tuple(Row(f"q{n}", {"accuracy": NAN}, failure="lm") for n in range(4)), 0.0)
    page = report((failed,))
    assert page.figures == []
    assert [one["rows"][0]["f"] for one in page.questions()] == ["lm"] * 4
    assert html() == html()
