"""``querywright judge`` and the judges of ``querywright evaluate``, against an OpenAI-compatible server."""

from __future__ import annotations

import json
import random
import re

import pytest

LABELS = ("NOT_USEFUL", "USEFUL", "ENTAILED")
KEY = "sk-never-to-be-printed-1234567890"


def sent(body):
    return "\n".join(
        one["content"] if isinstance(one["content"], str) else "".join(part["text"] for part in one["content"])
        for one in body["messages"]
    )


def code(body):
    return LABELS[int(sent(body).rpartition("Code ")[2][0])]


def perfect(body):
    return json.dumps({"label": code(body)})


def at_random(body):
    return json.dumps({"label": random.Random(sent(body)).choice(LABELS)})


def cases(n=12, m=4):
    random_ = random.Random(1)
    rows = []
    for q in range(n):
        for p in range(m):
            grade = random_.randrange(3)
            rows.append(
                {"question": f"What of {q}?", "passage": f"Code {grade}, passage {p} of {q}.", "label": LABELS[grade]}
            )
    return rows


@pytest.fixture
def data(write):
    return write("cases.jsonl", cases())


@pytest.fixture
def folder(write, tmp_path):
    """Graded as LiveQA is: 4 and 3 help, 2 and 1 do not."""
    (tmp_path / "graded").mkdir()
    corpus = [{"id": f"p{n}", "text": f"Code {(0, 0, 1, 2)[n % 4]}, passage {n}."} for n in range(24)]
    asked = [
        {"id": f"q{q}", "question": f"What of {q}?", "judged": {f"p{4 * q + n}": n + 1 for n in range(4)}}
        for q in range(6)
    ]
    write("graded/corpus.jsonl", corpus)
    write("graded/questions.jsonl", asked)
    return tmp_path / "graded"


def test_list(cli):
    from querywright.metrics.judges import JUDGES

    assert [row["judge"] for row in cli("judge", "list", "--json").data] == list(JUDGES)
    shown = cli("judge", "list")
    assert all(f"\n{name}\n" in f"\n{shown.out}" for name in JUDGES)
    assert all(len(line) <= 80 for line in shown.out.splitlines())


def test_calibrate_shows_table_figures_and_sentence(cli, data, server):
    server.reply = lambda body: "hm" if "passage 3 of 1." in sent(body) else perfect(body)
    done = cli("judge", "calibrate", data, "--judge", "usefulness_without_answer", *server.lm)
    assert done.status == 0, done.err
    assert "47 judgements of 12 questions, 1 unreadable, 0 failed" in done.out
    counts = {label: re.search(rf"^ *{label} +(\d+) +(\d+) +(\d+)", done.out, re.MULTILINE) for label in LABELS}
    for place, label in enumerate(LABELS):
        assert counts[label] is not None
        numbers = [int(number) for number in counts[label].groups()]
        assert numbers[place] > 0
        assert sum(numbers) == numbers[place]
    assert "1.00 [1.00, 1.00]" in done.out
    flat = " ".join(done.out.split())
    assert "judge usefulness_without_answer by openai/scripted: kappa 1.00 [1.00, 1.00], agreement 100 %" in flat
    assert "against people on 12 questions (n = 47; 1 unreadable)" in flat
    assert "usefulness_without_answer: 48 of 48" in done.err
    assert KEY not in done.out + done.err
    assert all(len(line) <= 80 for line in done.out.splitlines())


def test_calibrate_on_a_graded_folder_judges_without_gold_and_asks_nothing_twice(cli, folder, server):
    server.reply = perfect
    first = cli("judge", "calibrate", folder, "--json", *server.lm)
    assert first.status == 0, first.err
    assert first.data["judge"] == "usefulness_without_answer"
    assert "judged by usefulness_without_answer" in first.err
    assert first.data["table"] == [[12, 0, 0], [0, 6, 0], [0, 0, 6]]
    assert first.data["figures"]["kappa"]["value"] == 1
    assert len(server.requests) == 24
    assert cli("judge", "calibrate", folder, "--json", *server.lm).data == first.data
    assert len(server.requests) == 24

    few = cli("judge", "calibrate", folder, "--limit", "3", "--per-question", "2", "--json", *server.lm)
    assert (few.data["n"], few.data["questions"]) == (6, 3)
    assert len(server.requests) == 24


def test_calibrate_for_the_evaluation(cli, folder, server, collection, rows, write):
    server.reply = perfect
    saved = cli("judge", "calibrate", folder, "--out", "judges/plain", *server.lm)
    assert saved.status == 0, saved.err
    assert saved.out.splitlines()[-1] == "judge: judges/plain/judge.json"

    server.reply = lambda body: '{"label": "USEFUL"}'
    for row in rows:
        del row["evidence"]
    command = ("evaluate", write("bare.jsonl", rows), "--collection", collection, "--technique", "plain",
               "--reader", "none", "--limit", "2", "--knob", "max_passages=2", "--judge", "judges/plain", "--json",
               *server.lm)  # fmt: skip
    done = cli(*command)
    assert done.status == 0, done.err
    assert done.data["arms"][0]["metrics"]["judged_useful_without_answer"]["value"] == 1
    (said,) = [line for line in done.data["notes"] if line.startswith("judged_useful_without_answer")]
    assert "by openai/scripted: kappa 1.00 [1.00, 1.00], agreement 100 % against people on 6 questions (n = 24)" in said
    assert said.endswith("4 judgements, 0 unreadable; judge and arms have the same LM")

    other = cli(*command, "--judge-lm", "openai/other", "--judge-api-base", server.address,
                "--judge-api-key-env", "SCRIPTED_KEY")  # fmt: skip
    assert any("openai/other: not calibrated against people (its calibration is of the LM openai/scripted)" in line
               for line in other.data["notes"])  # fmt: skip


@pytest.mark.slow
def test_compile_keeps_what_helps_and_says_what_it_is_worth(cli, write, server):
    server.reply = lambda body: perfect(body) if sent(body).count("Code ") > 1 else at_random(body)
    data = write("many.jsonl", cases(32, 5))
    judge = ("--judge", "usefulness_without_answer")
    done = cli("judge", "compile", data, *judge, "--out", "judges/tuned", *server.lm)
    assert done.status == 0, done.err
    flat = " ".join(done.out.split())
    assert re.search(r"chosen on dev: [36] demonstrations", flat)
    assert "the demonstrations bring the judge nearer to people: difference in kappa" in flat
    assert all(word in flat for word in ("before", "after", "difference"))
    assert done.out.splitlines()[-1] == "judge: judges/tuned/judge.json"
    made = json.loads((data.parent / "judges" / "tuned" / "judge.json").read_text())
    assert made["calibration"]["figures"]["kappa"]["value"] == 1
    assert len(made["predictors"]["label"]["demos"]) in (3, 6)
    assert KEY not in json.dumps(made)

    again = cli("judge", "calibrate", data, "--judge", "judges/tuned", "--json", *server.lm)
    assert again.data["figures"]["kappa"]["value"] == 1
    assert again.data["prompt"] == made["calibration"]["prompt"]
    as_json = cli("judge", "compile", data, *judge, "--out", "judges/tuned", "--json", *server.lm)
    assert set(as_json.data) == {"chosen", "dev", "before", "after", "differences", "n"}
    assert as_json.data["differences"]["kappa"]["low"] > 0


def test_guidelines_are_frozen_for_every_arm_and_run(cli, collection, questions, server, tmp_path):
    def reply(body):
        text = sent(body)
        if "golden_answer:" in text.partition("with these fields")[2].partition("question")[0]:
            return '{"golden_answer": "One. Two."}'
        if "- key_points" in text:
            return '{"key_points": ["Point one.", "Point two."]}'
        if "make the point" in text:
            return json.dumps({"label": "yes" if "Point one." in text else "no"})
        return '{"answer": "juice", "golden_answer": "One. Two."}'

    server.reply = reply
    command = ("evaluate", questions, "--collection", collection, "--technique", "closed_book", "--technique", "plain",
               "--reader", "short_answer", "--judge", "coverage", "--guidelines", "points.json", "--limit", "2",
               "--json", *server.lm)  # fmt: skip
    done = cli(*command)
    assert done.status == 0, done.err
    assert [arm["metrics"]["judged_guideline"]["value"] for arm in done.data["arms"]] == [0.5, 0.5]
    frozen = (tmp_path / "points.json").read_bytes()
    assert [one["points"] for one in json.loads(frozen).values()] == [["Point one.", "Point two."]] * 2
    server.reply = lambda body: reply(body).replace("Point", "Other point")
    assert cli(*command).status == 0
    assert (tmp_path / "points.json").read_bytes() == frozen


def wrong(done, *parts):
    assert done.status == 2, done.out + done.err
    assert done.out == ""
    for part in parts:
        assert part in done.err
    assert "Traceback" not in done.err


def test_mistakes(cli, data, write, server, questions, collection, tmp_path):
    calibrate = ("judge", "calibrate")
    wrong(cli(*calibrate, data, "--judge", "nobody", *server.lm), "unknown judge 'nobody'", "usefulness, ")
    wrong(cli(*calibrate, "none.jsonl", *server.lm), "no such file")
    wrong(cli(*calibrate, write("empty.jsonl", []), *server.lm), "found no rows")
    beyond = write("beyond.jsonl", [{**one, "label": 5} for one in cases(2)])
    wrong(cli(*calibrate, beyond, *server.lm), "line 1", "found 5; expected a label: NOT_USEFUL")
    some = write("some.jsonl", [{**cases()[0], "answer": "x"}, cases()[1]])
    wrong(cli(*calibrate, some, *server.lm), "1 of 2 cases have no right answer", "usefulness_without_answer")
    wrong(cli(*calibrate, data, "--judge", "faithfulness", *server.lm), "response")
    wrong(cli(*calibrate, data, "--out", data, *server.lm), "cases.jsonl")
    wrong(cli("judge", "compile", write("two.jsonl", cases(2)), "--out", "x", *server.lm), "--seed")
    evaluate = ("evaluate", questions, "--collection", collection, "--technique", "plain", *server.lm)
    wrong(cli(*evaluate, "--judge", "nobody"), "unknown judge 'nobody'")
    wrong(cli(*evaluate, "--judge", "usefulness", "--judge", "usefulness"), "given twice")
    wrong(cli(*evaluate, "--judge", "coverage"), "--guidelines FILE")
    wrong(cli(*evaluate, "--judge", "usefulness", "--guidelines", "x.json"), "--judge coverage")
    (tmp_path / "bad.json").write_text("{")
    wrong(cli(*evaluate, "--judge", "bad.json"), "bad.json")
    wrong(cli(*evaluate, "--judge", "coverage", "--guidelines", "bad.json"), "is no file of guidelines")
    assert server.requests == []


def test_an_outage_stops_it_and_saves_nothing(cli, data, server, tmp_path):
    server.status = 401
    done = cli("judge", "calibrate", data, "--out", "judges/x", *server.lm)
    assert done.status == 3
    assert KEY not in done.out + done.err
    assert not (tmp_path / "judges").exists()
