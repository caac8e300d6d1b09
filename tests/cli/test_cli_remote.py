"""The commands against an OpenAI-compatible server."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

KEY = "sk-never-to-be-printed-1234567890"
FEET = "What is said about Look at both feet every evening?"


def test_ask_a_technique(cli, collection, server):
    asked = cli(
        "ask", FEET, "--technique", "hcqr", "--collection", collection, "--option", "salt", "--option", "feet",
        "--knob", "max_passages=2", "--trace", *server.lm,
    )  # fmt: skip
    assert asked.status == 0, asked.err
    lines = asked.out.splitlines()
    assert lines[0] == "answer: feet"
    assert [line for line in lines if line[:1].isdigit()] == [
        "1. lm: form_hypothesis (openai/scripted)",
        "2. lm: write_queries (openai/scripted)",
        "3. search: passages",
    ]
    assert any(line.startswith("   best_guess: ") for line in lines)
    assert [line.split(":")[0].strip() for line in lines if line.startswith(("   sup", "   dis", "   ver"))] == [
        "discriminating_features",
        "support",
        "distinguish",
        "verify",
    ]
    assert "-> p-" in " ".join(asked.out.split())
    assert sum(line.startswith("[") for line in lines) == 2
    assert len(server.requests) == 3  # hypothesis, queries, answer
    assert all(sent["Authorization"] == f"Bearer {KEY}" for sent in server.headers)
    assert KEY not in asked.out + asked.err


def test_ask_as_json_prints_only_json(cli, collection, server):
    asked = cli("ask", FEET, "--technique", "plain", "--collection", collection, "--json", *server.lm)
    assert asked.status == 0
    assert set(asked.data) == {"answer", "support", "passages", "queries", "fallbacks", "findings", "steps"}
    assert asked.data["passages"][0]["id"] == "p-feet"
    assert asked.data["queries"] == [{"role": "original", "text": FEET}]
    (step,) = asked.data["steps"]
    assert (step["kind"], step["stage"], step["given"]) == ("search", 1, {"queries": [FEET]})
    assert step["made"] == {FEET: [passage["id"] for passage in asked.data["passages"]]}


def test_ask_without_a_reader_asks_no_lm(cli, collection, server):
    found = cli("ask", FEET, "--technique", "plain", "--collection", collection, "--reader", "none", *server.lm)
    assert found.status == 0
    assert found.out.startswith("[1] p-feet")
    assert server.requests == []


def test_nothing_in_a_text_reaches_the_terminal_as_markup_or_control(cli, write, server):
    text = "A [red]red[/red] word, [/] and \x1b[31mESC\x1b[0m\x07 and " + "x" * 300
    source = write("odd.jsonl", [{"id": "odd", "title": "[bold]title[/]\x9b", "text": text}])
    assert cli("index", "odd", source).status == 0
    asked = cli(
        "ask", "Is [/nothing] [blue]lost[/blue]?", "--technique", "plain", "--collection", "odd",
        "--option", "[red]no", "--option", "[/]", "--trace", *server.lm,
    )  # fmt: skip
    assert asked.status == 0, asked.err
    assert asked.out.startswith("answer: [/]\n")  # the passage names it
    assert "   Is [/nothing] [blue]lost[/blue]? -> odd" in asked.out
    assert "[1] odd  [bold]title[/]\n" in asked.out
    flat = " ".join(asked.out.split())
    assert "A [red]red[/red] word, [/] and [31mESC[0m and" in flat
    assert "x" * 300 in flat.replace(" ", "")
    assert not any(line != line.rstrip() for line in asked.out.splitlines())
    assert all(len(line) <= 80 for line in asked.out.splitlines())
    assert not any(sign in asked.out for sign in "\x1b\x07\x9b")


def test_evaluate_holds_every_arm_against_plain(cli, collection, questions, server, tmp_path):
    rows = tmp_path / "rows.jsonl"
    done = cli(
        "evaluate", questions, "--collection", collection, "--technique", "closed_book", "--technique", "plain",
        "--technique", "hcqr", "--knob", "max_passages=1", "--limit", "6", "--rows", rows, "--json", *server.lm,
    )  # fmt: skip
    assert done.status == 0, done.err
    assert [arm["arm"] for arm in done.data["arms"]] == ["closed_book", "plain", "hcqr"]
    plain = done.data["arms"][1]["metrics"]
    assert (plain["accuracy"]["value"], plain["decision_useful"]["value"]) == (1.0, 1.0)
    assert done.data["arms"][0]["metrics"]["accuracy"]["value"] == 0.0
    pairs = [(one["metric"], one["arm"], one["other"]) for one in done.data["comparisons"]]
    assert pairs[:2] == [("accuracy", "closed_book", "plain"), ("accuracy", "hcqr", "plain")]
    lost = done.data["comparisons"][0]
    assert (lost["wins"], lost["losses"], lost["difference"]) == (0, 6, -1.0)
    assert lost["p_holm"] == pytest.approx(2 * 0.5**6 * 2)  # two arms in the family

    written = [json.loads(line) for line in rows.read_text().splitlines()]
    assert [row["arm"] for row in written] == ["closed_book"] * 6 + ["plain"] * 6 + ["hcqr"] * 6
    assert written[6]["scores"]["accuracy"] == 1.0
    assert written[6]["passages"] == ["p-juice"]
    assert written[0]["cost"]["calls"] == 1
    assert "of 6" in done.err
    assert str(rows.name) in done.err


def write_grounded(body):
    """A sentence on what the first passage is about."""
    title = re.search(r"\[1\] (\w+):", json.dumps(body["messages"]))
    answer = f"It is about {title.group(1)}." if title else "What then?"
    return json.dumps({"answer": answer, "passage_numbers": [1, 9], "passages_hold_the_answer": "yes"})


def test_a_grounded_reader_is_held_against_labelled_evidence(cli, collection, questions, server, tmp_path):
    server.reply = write_grounded
    rows = tmp_path / "rows.jsonl"
    command = (
        "evaluate", questions, "--collection", collection, "--technique", "closed_book", "--technique", "plain",
        "--knob", "max_passages=2", "--metric", "accuracy", "--metric", "joint_passage_f1",
        "--limit", "6", "--rows", rows, "--json", *server.lm,
    )  # fmt: skip
    done = cli(*command, "--reader", "grounded")
    assert done.status == 0, done.err
    bare, plain = ({key: one["value"] for key, one in arm["metrics"].items()} for arm in done.data["arms"])
    assert plain == {"accuracy": 1.0, "joint_passage_f1": 1.0}
    assert bare == {"accuracy": 0.0, "joint_passage_f1": 0.0}
    assert done.data["arms"][0]["cost"]["calls"] == 0
    notes = "\n".join(done.data["notes"])
    assert "the reader grounded declines where it has no passages" in notes
    written = [json.loads(line) for line in rows.read_text().splitlines()]
    assert (written[0]["answer"], written[0]["support"]) == ("The passages do not say.", [])
    assert (written[6]["answer"], written[6]["support"]) == ("It is about juice.", ["p-juice"])

    done = cli(*command, "--reader", "short_answer")
    assert done.status == 0, done.err
    assert all(list(arm["metrics"]) == ["accuracy"] for arm in done.data["arms"])
    assert all(arm["cost"]["calls"] + arm["cost"]["saved"] > 0 for arm in done.data["arms"])
    assert "joint_passage_f1 is not scored: it needs a reader that names its support" in "\n".join(done.data["notes"])


def test_ask_a_grounded_reader(cli, collection, server):
    server.reply = write_grounded
    command = ("ask", "What about salt and fresh food?", "--technique", "plain", "--collection", collection,
               "--reader", "grounded", *server.lm)  # fmt: skip
    asked = cli(*command)
    assert asked.status == 0, asked.err
    assert asked.out.startswith("answer: It is about salt.\nrests on: p-salt\n")
    assert cli(*command, "--json").data["support"] == ["p-salt"]


def test_the_first_arm_is_the_base_where_plain_is_none(cli, questions, server, artifact):
    done = cli("evaluate", questions, "--technique", "closed_book", "--artifact", artifact, "--limit", "2", "--json",
               *server.lm)  # fmt: skip
    assert done.status == 0, done.err
    assert [arm["arm"] for arm in done.data["arms"]] == ["closed_book", "made"]
    assert {one["other"] for one in done.data["comparisons"]} == {"closed_book"}


def test_artifacts_of_one_name_are_two_arms(cli, questions, server, artifact, tmp_path):
    import shutil

    shutil.copytree(artifact, tmp_path / "other" / "made")
    done = cli("evaluate", questions, "--artifact", artifact, "--artifact", "other/made", "--limit", "2", "--json",
               *server.lm)  # fmt: skip
    assert [arm["arm"] for arm in done.data["arms"]] == ["made", "other/made"]


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_table_is_whole_at_every_width(cli, collection, questions, server, width):
    done = cli("evaluate", questions, "--collection", collection, "--limit", "3", *server.lm, width=width)
    assert done.status == 0, done.err
    assert all(len(line) <= width for line in done.out.splitlines())
    assert "…" not in done.out
    rows = [line for line in done.out.splitlines() if line.startswith("closed_book ")]
    assert len(rows) == {80: 3, 100: 2, 160: 1}[width]
    whole = "  ".join(rows)
    assert "0.0 [0, 56]" in whole
    assert whole.count("0 %") == 2
    assert " 3 " in whole
    for column in ("accuracy", "decision_useful", "recall", "seconds", "fallbacks", "invalid", "failed"):
        assert column in done.out


def test_a_second_run_asks_nothing(cli, collection, questions, server):
    command = ("evaluate", questions, "--collection", collection, "--limit", "3", "--json", *server.lm)
    first = cli(*command)
    asked = len(server.requests)
    second = cli(*command)
    assert asked == 3 + 3 + 9
    assert len(server.requests) == asked
    for one, other in zip(first.data["arms"], second.data["arms"], strict=True):
        assert one["metrics"] == other["metrics"]
        assert (one["cost"]["calls"], other["cost"]["calls"]) == (other["cost"]["saved"], one["cost"]["saved"])


def test_a_judge_is_named_and_said_to_be_uncalibrated(cli, collection, rows, server, write):
    for row in rows:
        del row["evidence"]
    source = write("unlabelled.jsonl", rows)
    done = cli(
        "evaluate", source, "--collection", collection, "--technique", "plain", "--limit", "2", "--json",
        "--judge-lm", "openai/judge", "--judge-api-base", server.address, "--judge-api-key-env", "SCRIPTED_KEY",
        *server.lm,
    )  # fmt: skip
    assert done.status == 0, done.err
    assert set(done.data["arms"][0]["metrics"]) == {"accuracy", "judged_useful"}
    assert done.data["arms"][0]["metrics"]["judged_useful"]["value"] == 1.0  # the script says ENTAILED
    assert any("openai/judge" in line and "not calibrated" in line for line in done.data["notes"])
    assert {sent["model"] for sent in server.requests} == {"scripted", "judge"}
    assert "no labelled evidence" in done.data["notes"]


def test_hcqr_is_left_out_by_default_where_a_question_has_no_options(cli, collection, rows, server, write):
    del rows[0]["options"]
    source = write("mixed.jsonl", rows[:2])
    done = cli("evaluate", source, "--collection", collection, "--json", *server.lm)
    assert done.status == 0, done.err
    assert [arm["arm"] for arm in done.data["arms"]] == ["closed_book", "plain"]
    assert any("left out: hcqr" in line for line in done.data["notes"])


def test_a_limit_of_calls_ends_with_3_and_the_next_run_goes_on(cli, outside, questions, server):
    command = ("evaluate", questions, "--technique", "closed_book", "--limit", "6", "--threads", "3", "--json")
    server.delay = 0.5  # the third question meets the limit while two are under way: what these answer is kept
    stopped = outside(*command, "--max-calls", "2", *server.lm)
    assert stopped.status == 3
    assert stopped.out == ""
    assert "--max-calls" in stopped.err
    assert "Traceback" not in stopped.err
    assert len(server.requests) == 2
    server.delay = 0.0
    done = cli(*command, "--max-calls", "4", *server.lm)
    assert done.status == 0, done.err
    assert done.data["arms"][0]["cost"]["saved"] == 2
    assert len(server.requests) == 6


@pytest.mark.parametrize("command", ["ask", "evaluate", "compile"])
def test_a_refused_key_ends_with_3_at_once_and_is_not_printed(cli, collection, questions, server, command, tmp_path):
    server.status = 401  # its message repeats the key
    arguments = {
        "ask": ["ask", FEET, "--technique", "plain", "--collection", collection],
        "evaluate": ["evaluate", questions, "--collection", collection, "--technique", "plain", "--threads", "1"],
        "compile": ["compile", "hcqr", questions, "--collection", collection, "--out", tmp_path / "art",
                    "--sizes", "2,2,2"],
    }[command]  # fmt: skip
    done = cli(*arguments, *server.lm)
    assert done.status == 3
    assert done.out == ""
    assert done.err.count("\n") == 1 + done.err.count("embedding:")
    assert "Traceback" not in done.err
    assert "refused Bearer ***" in done.err
    assert "answers received so far are kept" in done.err
    assert KEY not in done.err
    assert "never-to-be" not in done.err
    assert len(server.requests) <= 2
    assert not (tmp_path / "art").exists()


def test_an_outage_ends_with_3(outside, home, questions):
    # Nobody listens on the port. In a process of its own: its clients are not closed.
    done = outside(
        "evaluate", questions, "--technique", "closed_book", "--threads", "1", "--max-failures", "0", "--limit", "2",
        "--lm", "openai/scripted", "--api-base", "http://127.0.0.1:9/v1", "--api-key-env", "SCRIPTED_KEY",
    )  # fmt: skip
    assert done.status == 3, done.err
    assert done.out == ""
    assert "Traceback" not in done.err
    assert KEY not in done.err
    assert "failed" in done.err


def test_ctrl_c_ends_soon_with_130_and_the_next_run_goes_on(home, questions, server):
    server.delay = 0.2
    command = [sys.executable, "-m", "querywright", "evaluate", str(questions), "--technique", "closed_book",
               "--limit", "10", "--threads", "1", "--json", *server.lm]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    began = time.monotonic()
    while len(server.requests) < 4 and time.monotonic() - began < 60:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    sent = time.monotonic()
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert time.monotonic() - sent < 5
    assert out == ""
    assert err.splitlines() == ["stopped; what was answered so far is kept: the same command goes on from there"]
    server.delay = 0.0
    before = len(server.requests)
    again = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    arm = json.loads(again.stdout)["arms"][0]
    assert again.returncode == 0
    assert arm["n"] == 10
    assert arm["cost"]["saved"] >= 3
    assert len(server.requests) - before == 10 - arm["cost"]["saved"]


def test_ctrl_c_ends_a_process_whose_main_thread_does_not_notice(tmp_path):
    script = (
        "import sys, time\n"
        "from querywright.cli import main\n"
        "main.GRACE_SECONDS = 0.3\n"
        "main._watch_for_interrupt()\n"
        "while True:\n"
        "    try:\n"
        "        print('ready', flush=True)\n"
        "        time.sleep(60)\n"
        "    except KeyboardInterrupt:\n"
        "        pass\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=5)
    assert process.returncode == 130
    assert err.startswith("stopped; ")


def test_compile_saves_shows_and_is_loaded(cli, artifact, server, questions):
    asked = len(server.requests)
    for extra in ([], ["--verify"]):
        loaded = cli(
            "ask", FEET, "--artifact", artifact, "--option", "salt", "--option", "feet", "--json", *extra, *server.lm
        )
        assert loaded.status == 0, loaded.err
        assert loaded.data["answer"] == "feet"
    assert len(server.requests) <= asked + 3  # golden answers came from the store

    again = cli(
        "compile", "hcqr", questions, "--collection", "tiny", "--out", artifact,
        "--sizes", "3,4,4", "--trials", "2", "--threads", "2", *server.lm,
    )  # fmt: skip
    assert again.status == 0, again.err
    assert "LM calls: 0 made" in again.out
    assert all(len(line) <= 80 for line in again.out.splitlines())
    assert "…" not in again.out
    assert again.out.rstrip().endswith(f"artifact: {artifact}")
    for word in ("dev, 4 questions", "test, 4 questions", "recommended:", "no rewriting", "oracle evidence"):
        assert word in again.out


def test_an_artifact_takes_its_own_lm_at_the_address_given(cli, artifact, server):
    address = ["--api-base", server.address, "--api-key-env", "SCRIPTED_KEY"]
    loaded = cli("ask", FEET, "--artifact", artifact, "--option", "salt", "--option", "feet", *address)
    assert loaded.status == 0, loaded.err
    assert loaded.out.startswith("answer: feet")


def test_what_was_found_is_shown_when_it_cannot_be_saved(cli, collection, questions, server, monkeypatch):
    import errno

    from querywright.optimize.artifacts import files

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "replace_folder", full)
    done = cli(
        "compile", "hcqr", questions, "--collection", collection, "--out", "artifacts/x",
        "--sizes", "2,2,2", "--trials", "1", "--json", *server.lm,
    )  # fmt: skip
    assert done.status == 2
    assert done.data["artifact"] is None
    assert done.data["test"]
    assert "No space left on device" in done.err
    assert "--out" in done.err
    assert not Path("artifacts/x").exists()
