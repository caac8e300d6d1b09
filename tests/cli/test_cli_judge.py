"""``querywright judge`` and the judges of ``querywright evaluate``, against an OpenAI-compatible server."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from querywright.metrics.judges import JUDGES

LABELS = ("NOT_USEFUL", "USEFUL", "ENTAILED")
KEY = "sk-never-to-be-printed-1234567890"
BARE = ("usefulness_without_answer",)


def says(label):
    return json.dumps({"reason": "So it says.", "label": label})


@pytest.fixture
def perfect(sent):
    return lambda body: says(LABELS[int(sent(body).rpartition("Code ")[2][0])])


def cases(n=12, m=4):
    grades = random.Random(1)
    return [
        {"question": f"What of {q}?", "passage": f"Code {grade}, passage {p} of {q}.", "label": LABELS[grade]}
        for q in range(n)
        for p, grade in enumerate(grades.choices(range(3), k=m))
    ]


@pytest.fixture
def data(write):
    return write("cases.jsonl", cases())


@pytest.fixture
def folder(write, tmp_path):
    """Graded as LiveQA is: 4 and 3 help, 2 and 1 do not."""
    (tmp_path / "graded").mkdir()
    write(
        "graded/corpus.jsonl", [{"id": f"p{n}", "text": f"Code {(0, 0, 1, 2)[n % 4]}, passage {n}."} for n in range(24)]
    )
    judged = [{f"p{4 * q + n}": n + 1 for n in range(4)} for q in range(6)]
    write(
        "graded/questions.jsonl", [{"id": f"q{q}", "question": f"{q}?", "judged": one} for q, one in enumerate(judged)]
    )
    return tmp_path / "graded"  # fmt: skip


def test_list(cli):
    assert [row["judge"] for row in cli("judge", "list", "--json").data] == list(JUDGES)
    shown = cli("judge", "list")
    assert [line for line in shown.out.splitlines() if not line.startswith(" ")] == list(JUDGES)
    assert all(len(line) <= 80 or " " not in line.strip() for line in shown.out.splitlines())


def test_calibrate_shows_table_figures_and_sentence(ok, data, server, sent, perfect):
    server.reply = lambda body: "hm" if "passage 3 of 1." in sent(body) else perfect(body)
    done = ok("judge", "calibrate", "--data", data, *BARE, *server.lm)
    for place, label in enumerate(LABELS):
        row = re.search(rf"^ *{label} +(\d+) +(\d+) +(\d+)", done.out, re.MULTILINE)
        numbers = [int(number) for number in row.groups()]
        assert numbers[place] == sum(numbers) > 0
    flat = " ".join(done.out.split())
    for said in (
        "47 judgments on 12 questions, 1 unreadable, 0 failed", "1.00 [1.00, 1.00]",
        "judge usefulness_without_answer (openai/scripted) compared with people on 12 questions: "
        "kappa 1.00 [1.00, 1.00], agreement 100%",
        "(n = 47; 1 unreadable)",
    ):  # fmt: skip
        assert said in flat
    assert "usefulness_without_answer: 48 of 48" in done.err
    assert KEY not in done.out + done.err
    assert all(len(line) <= 80 or " " not in line.strip() for line in done.out.splitlines())


def test_calibrate_on_a_graded_folder_judges_without_gold_and_asks_nothing_twice(ok, cli, folder, server, perfect):
    server.reply = perfect
    first = ok("judge", "calibrate", "--data", folder, "--json", *server.lm)
    assert "so the judge is 'usefulness_without_answer'" in first.err
    assert first.data["table"] == [[12, 0, 0], [0, 6, 0], [0, 0, 6]]
    assert cli("judge", "calibrate", "--data", folder, "--json", *server.lm).data == first.data
    few = cli("judge", "calibrate", "--data", folder, "--limit", "3", "--per-question", "2", "--json", *server.lm)
    assert (few.data["n"], few.data["questions"]) == (6, 3)
    assert len(server.requests) == 24


def test_a_calibrated_judge_is_believed_for_its_own_lm_alone(ok, cli, folder, server, collection, rows, write, perfect):
    server.reply = perfect
    saved = ok("judge", "calibrate", "--data", folder, "--out", "judges/plain", *server.lm)
    assert saved.out.splitlines()[-1] == "judge: judges/plain/judge.json"
    server.reply = lambda body: says("USEFUL")
    for row in rows:
        del row["evidence"]
    command = ("evaluate", "plain", "--data", write("bare.jsonl", rows), "--collection", collection, "--reader", "none",
               "--limit", "2", "--knob", "max_passages=2", "--judge", "judges/plain", "--json",
               *server.lm)  # fmt: skip
    done = ok(*command)
    assert done.data["arms"][0]["metrics"]["judged_useful_without_answer"]["value"] == 1
    (said,) = [line for line in done.data["notes"] if line.startswith("judged_useful_without_answer")]
    assert "people on 6 questions: kappa 1.00 [1.00, 1.00], agreement 100% (n = 24)" in said
    assert said.endswith("4 judgments in this run, 0 unreadable; the judge and the programs use the same LM")
    where = ("--judge-api-base", server.address, "--judge-api-key-env", "SCRIPTED_KEY")
    other = "\n".join(cli(*command, "--judge-lm", "openai/other", *where).data["notes"])
    assert "openai/other): not calibrated against people (the calibration used the LM openai/scripted)" in other


@pytest.mark.slow
def test_compile_keeps_what_helps_and_says_what_it_is_worth(ok, cli, write, server, sent, perfect):
    def at_random(body):
        return says(random.Random(sent(body)).choice(LABELS))

    server.reply = lambda body: perfect(body) if sent(body).count("Code ") > 1 else at_random(body)
    data = write("many.jsonl", cases(32, 5))
    flat = " ".join(ok("judge", "compile", "--data", data, *BARE, "--out", "judges/tuned", *server.lm).out.split())
    assert re.search(r"chosen on dev: [36] demonstrations", flat)
    assert "with the demonstrations, the judge agrees better with people: difference in kappa" in flat
    assert KEY not in Path("judges/tuned/judge.json").read_text()
    again = cli("judge", "calibrate", "judges/tuned", "--data", data, "--json", *server.lm)
    assert again.data["figures"]["kappa"]["value"] == 1


def test_guidelines_are_frozen_for_every_arm_and_run(ok, collection, questions, server, sent):
    def reply(body):
        text = sent(body)
        if "golden_answer:" in text.partition("with these fields")[2].partition("question")[0]:
            return '{"golden_answer": "One. Two."}'
        if "- key_points" in text:
            return '{"key_points": ["Point one.", "Point two."]}'
        if "make the point" in text:
            return json.dumps({"label": "yes" if "Point one." in text and "It is sweet. It helps." in text else "no"})
        return '{"answer": "It is sweet. It helps.", "passage_numbers": [1], "passages_hold_the_answer": "yes"}'

    def judged():
        done = ok(
            "evaluate", "closed_book", "plain", "--data", questions, "--collection", collection, "--reader",
            "long_answer", "--judge", "coverage", "--guidelines", "points.json", "--limit", "2", "--json", *server.lm,
        )  # fmt: skip
        return [arm["metrics"]["judged_guideline"]["value"] for arm in done.data["arms"]]

    server.reply = reply
    assert judged() == [0.0, 0.5]  # closed book declines; the answer's sentences are judged together
    frozen = Path("points.json").read_text()
    assert [one["points"] for one in json.loads(frozen).values()] == [["Point one.", "Point two."]] * 2
    server.reply = lambda body: reply(body).replace("Point", "Other point")
    assert (judged(), Path("points.json").read_text()) == ([0.0, 0.5], frozen)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("calibrate", "nobody", "--data", "cases.jsonl"), ["unknown judge 'nobody'", "usefulness, "]),
        (
            ("calibrate", "--data", "some.jsonl"),
            ["cases without a correct answer: 1 of 2", "usefulness_without_answer"],
        ),
        (("calibrate", "--data", "cases.jsonl", "--out", "cases.jsonl"), ["cases.jsonl"]),
        (("evaluate", "--judge", "usefulness", "--judge", "usefulness"), ["was passed twice"]),
        (("evaluate", "--judge", "coverage"), ["pass --guidelines"]),
        (
            ("evaluate", "--judge", "usefulness", "--guidelines", "x.json"),
            ["used only by the judge 'coverage'", "omit --guidelines"],
        ),
    ],
)
def test_mistakes(wrong, data, write, server, questions, collection, arguments, parts):
    write("some.jsonl", [{**cases()[0], "answer": "x"}, cases()[1]])
    command, *more = arguments
    given = ["judge", command] if command != "evaluate" else ["evaluate", "plain", "--data", questions]
    given += ["--collection", collection] if command == "evaluate" else []
    message = wrong(*given, *more, *server.lm)
    assert all(part in message for part in parts), message
