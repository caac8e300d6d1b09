"""Asking, evaluating and compiling against an OpenAI-compatible server: outages, budgets and Ctrl-C included."""

from __future__ import annotations

import errno
import json
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from querywright.optimize.artifacts import files

KEY = "sk-never-to-be-printed-1234567890"
FEET = "What is said about Look at both feet every evening?"
OPTIONS = ("--option", "salt", "--option", "feet")


def test_ask_a_technique(ok, cli, collection, server):
    command = ("ask", FEET, "--technique", "hcqr", "--collection", collection, *OPTIONS, *server.lm)
    asked = ok(*command, "--knob", "max_passages=2", "--trace")
    lines = asked.out.splitlines()
    assert lines[0] == "answer: feet"
    assert [line for line in lines if line[:1].isdigit()] == [
        "1. lm: form_hypothesis (openai/scripted)", "2. lm: write_queries (openai/scripted)", "3. search: passages",
    ]  # fmt: skip
    for name in ("best_guess", "support", "distinguish", "verify"):
        assert any(line.startswith(f"   {name}: ") for line in lines)
    assert "-> p-" in " ".join(asked.out.split())
    assert sum(line.startswith("[") for line in lines) == 2
    assert len(server.requests) == 3  # hypothesis, queries, answer
    assert all(sent["Authorization"] == f"Bearer {KEY}" for sent in server.headers)
    assert KEY not in asked.out + asked.err
    data = cli(*command, "--json").data
    assert set(data) == {"answer", "support", "passages", "queries", "fallbacks", "findings", "steps"}


def test_ask_shows_each_prompt_with_its_answer(ok, cli, collection, server):
    command = ("ask", FEET, "--technique", "hcqr", "--collection", collection, *OPTIONS, *server.lm, "--prompts",
               "--history", "Where does it hurt?", "--history", "At the toes.")  # fmt: skip
    asked = cli(*command, "--json")
    assert [one["predictor"] for one in asked.data["prompts"]] == [
        "technique.form_hypothesis", "technique.write_queries", "reader.predict",
    ]  # fmt: skip
    sent = [[(one["role"], one["content"]) for one in request["messages"]] for request in server.requests]
    assert [[(m["role"], m["content"]) for m in one["messages"]] for one in asked.data["prompts"]] == sent
    assert all("At the toes." in json.dumps(one["messages"]) for one in asked.data["prompts"])
    assert all(json.loads(one["answer"]) for one in asked.data["prompts"])
    shown = ok(*command)
    assert [line for line in shown.out.splitlines() if line[:1].isdigit()] == [
        "1. technique.form_hypothesis", "2. technique.write_queries", "3. reader.predict",
    ]  # fmt: skip
    assert KEY not in asked.out + shown.out


def test_what_is_printed_of_a_passage_cannot_steer_the_terminal(cli, write, server):
    text = "A [red]red[/red] word, [/] and \x1b[31mESC\x9b[0m and " + "x" * 300
    assert cli("index", "odd", write("odd.jsonl", [{"id": "odd", "title": "[bold]title[/]", "text": text}])).status == 0
    asked = cli(
        "ask", "Is [/nothing] [blue]lost[/blue]?", "--technique", "plain", "--collection", "odd",
        "--option", "[red]no", "--option", "[/]", "--trace", *server.lm,
    )  # fmt: skip
    assert asked.out.startswith("answer: [/]\n"), asked.err  # the passage names it
    for part in ("   Is [/nothing] [blue]lost[/blue]? -> odd", "[1] odd  [bold]title[/]\n"):
        assert part in asked.out
    flat = " ".join(asked.out.split())
    assert "A [red]red[/red] word, [/] and [31mESC[0m and" in flat
    assert "x" * 300 in flat.replace(" ", "")
    assert all(
        line == line.rstrip() and (len(line) <= 80 or " " not in line.strip()) for line in asked.out.splitlines()
    )
    assert not any(sign in asked.out for sign in "\x1b\x07\x9b")


def write_grounded(body):
    """A sentence on what the first passage is about."""
    title = re.search(r"\[1\] (\w+):", json.dumps(body["messages"]))
    answer = f"It is about {title.group(1)}." if title else "What then?"
    return json.dumps({"answer": answer, "passage_numbers": [1, 9], "passages_hold_the_answer": "yes"})


def test_a_grounded_reader_is_held_against_labelled_evidence(ok, cli, collection, questions, server):
    server.reply = write_grounded
    command = (
        "evaluate", "closed_book", "plain", "--data", questions, "--collection", collection, "--knob",
        "max_passages=2", "--metric", "accuracy", "--metric", "joint_passage_f1", "--limit", "6", "--rows",
        "rows.jsonl", "--json", *server.lm,
    )  # fmt: skip
    done = ok(*command, "--reader", "grounded")
    found = [{key: one["value"] for key, one in arm["metrics"].items()} for arm in done.data["arms"]]
    assert found == [{"accuracy": value, "joint_passage_f1": value} for value in (0.0, 1.0)]
    assert done.data["arms"][0]["cost"]["calls"] == 0
    assert "the reader 'grounded' declines to answer without passages" in "\n".join(done.data["notes"])
    written = [json.loads(line) for line in Path("rows.jsonl").read_text().splitlines()]
    assert (written[0]["answer"], written[0]["support"]) == ("The passages do not say.", [])
    assert (written[6]["answer"], written[6]["support"]) == ("It is about juice.", ["p-juice"])
    done = cli(*command, "--reader", "short_answer")
    assert all(list(arm["metrics"]) == ["accuracy"] for arm in done.data["arms"])
    assert "joint_passage_f1 was not scored, because the metric needs a reader that cites passages" in "\n".join(
        done.data["notes"]
    )
    asked = cli("ask", "What about salt and fresh food?", "--technique", "plain", "--collection", collection,
                "--reader", "grounded", *server.lm)  # fmt: skip
    assert asked.out.startswith("answer: It is about salt.\nbased on: p-salt\n")


def test_the_table_is_whole_and_a_second_run_asks_nothing(ok, cli, collection, questions, server):
    command = ("evaluate", "--data", questions, "--collection", collection, "--limit", "3", *server.lm)
    done = ok(*command, width=80)
    assert all(len(line) <= 80 or " " not in line.strip() for line in done.out.splitlines())
    assert "…" not in done.out
    rows = [line for line in done.out.splitlines() if line.startswith("closed_book ") and " : " not in line]
    assert len(rows) == 1
    assert "0.0 [0, 56]" in "  ".join(rows)
    for column in ("accuracy", "decision_useful", "recall", "won : lost", "needed"):
        assert column in done.out
    asked = len(server.requests)
    again = cli(*command, "--json").data["arms"]
    assert len(server.requests) == asked == 3 + 3 + 9
    assert [arm["cost"]["calls"] for arm in again] == [0, 0, 0]


def test_a_judge_is_named_and_said_to_be_uncalibrated(ok, collection, rows, server, write):
    for row in rows:
        del row["evidence"]
    del rows[0]["options"]
    source = write("unlabelled.jsonl", rows[:2])
    done = ok(
        "evaluate", "--data", source, "--collection", collection, "--reader", "short_answer", "--json", "--judge-lm",
        "openai/judge", "--judge-api-base", server.address, "--judge-api-key-env", "SCRIPTED_KEY", *server.lm,
    )  # fmt: skip
    assert [arm["arm"] for arm in done.data["arms"]] == ["closed_book", "plain", "hcqr"]
    assert set(done.data["arms"][1]["metrics"]) == {"accuracy", "judged_useful"}
    assert done.data["arms"][1]["metrics"]["judged_useful"]["value"] == 1.0  # the script says ENTAILED
    for said in ("openai/judge): not calibrated", "no labeled evidence"):
        assert any(said in line for line in done.data["notes"]), said
    assert {sent["model"] for sent in server.requests} == {"scripted", "judge"}


def test_a_limit_of_calls_ends_with_3_and_the_next_run_goes_on(ok, outside, questions, server):
    command = ("evaluate", "closed_book", "--data", questions, "--limit", "6", "--threads", "3", "--json")
    server.delay = 0.5  # the third question meets the limit while two are under way: what these answer is kept
    stopped = outside(*command, "--max-calls", "2", *server.lm)
    assert (stopped.status, stopped.out, "Traceback" in stopped.err) == (3, "", False)
    assert "--max-calls" in stopped.err
    assert len(server.requests) == 2
    server.delay = 0.0
    done = ok(*command, "--max-calls", "4", *server.lm)
    assert done.data["arms"][0]["cost"]["saved"] == 2
    assert len(server.requests) == 6


def test_a_refused_key_ends_with_3_at_once_and_is_not_printed(cli, collection, questions, server):
    server.status = 401  # its message repeats the key
    for command in (
        ["ask", FEET, "--technique", "plain"],
        ["compile", "hcqr", "--data", questions, "--out", "art", "--sizes", "2,2,2"],
    ):
        server.requests.clear()
        done = cli(*command, "--collection", collection, *server.lm)
        assert (done.status, done.out) == (3, "")
        said = done.err.splitlines()[-1]
        assert said.startswith("failed: ")
        for part in ("refused Bearer ***", "answers received so far are "):
            assert part in said
        assert "never-to-be" not in done.err
        assert len(server.requests) <= 2
    assert not Path("art").exists()


def test_an_lm_that_answers_prose_ends_a_command_with_3_and_nothing_is_written(cli, collection, questions, server):
    server.reply = lambda body: "As an AI, I cannot."
    asked = cli("ask", FEET, "--technique", "hyde", "--collection", collection, *OPTIONS, *server.lm)
    assert (asked.status, asked.out) == (3, "")
    assert "LM answers in 'ask' could not be read" in " ".join(asked.err.split())
    server.requests.clear()
    command = ("compare", "plain", "hcqr", "--data", questions, "--out", "made", "--collection", collection)
    done = cli(*command, *server.lm)
    assert (done.status, done.out) == (3, ""), done.err
    assert not Path("made").exists()
    said = " ".join(done.err.split())
    for part in ("could not be read", "'As an AI, I cannot.'", 'for a JSON object with "', "--max-unreadable"):
        assert part in said
    assert len(server.requests) < 60
    wrong = cli(*command, "--max-unreadable", "1", *server.lm)
    assert (wrong.status, "max_unreadable must be at least 0 and less than 1" in wrong.err) == (2, True)


def test_an_artifact_s_own_lm_elsewhere_is_asked_where_it_is_named_or_at_a_named_address(cli, artifact, server):
    asked = len(server.requests)
    for extra in ((), ("--api-key-env", "SCRIPTED_KEY"), ("--timeout", "5"), ("--max-calls", "9")):
        done = cli("ask", FEET, "--artifact", artifact, *OPTIONS, *extra)
        assert (done.status, "--lm openai/scripted" in " ".join(done.err.split())) == (2, True), done.err
    assert len(server.requests) == asked
    at = ("--api-base", server.address, "--api-key-env", "SCRIPTED_KEY")
    assert cli("ask", FEET, "--artifact", artifact, *OPTIONS, *at).status == 0


def test_ctrl_c_ends_with_130_and_the_next_run_goes_on(ok, questions, server):
    go, reply = threading.Event(), server.reply
    server.reply = lambda body: reply(body) if len(server.requests) < 4 or go.wait(60) else ""
    command = [sys.executable, "-m", "querywright", "evaluate", "closed_book", "--data", str(questions), "--limit",
               "10", "--threads", "1", "--json", *server.lm]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while len(server.requests) < 4 and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    go.set()
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "stopped; finished answers are cached. To resume, run the same command again"
    before = len(server.requests)
    (arm,) = ok(*command[3:]).data["arms"]
    assert arm["n"] == 10
    assert arm["cost"]["saved"] >= 3
    assert len(server.requests) - before == 10 - arm["cost"]["saved"]


def test_ctrl_c_ends_a_process_whose_main_thread_does_not_notice():
    script = (
        "import time\nfrom querywright.cli import main\nmain.GRACE_SECONDS = 0.3\nmain._watch_for_interrupt()\n"
        "while True:\n    try:\n        print('ready', flush=True)\n        time.sleep(60)\n"
        "    except KeyboardInterrupt:\n        pass\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert err.startswith("stopped; ")


def test_compile_saves_shows_and_is_loaded(ok, artifact, server, questions):
    asked = len(server.requests)
    address = ("--api-base", server.address, "--api-key-env", "SCRIPTED_KEY")  # of the artifact's own LM
    for extra in (server.lm, ("--verify", *server.lm), address):
        loaded = ok("ask", FEET, "--artifact", artifact, *OPTIONS, "--json", *extra)
        assert loaded.data["answer"] == "feet"
    assert len(server.requests) <= asked + 3  # golden answers came from the store
    again = ok(
        "compile", "hcqr", "--data", questions, "--collection", "tiny", "--out", artifact, "--sizes", "3,4,4",
        "--trials", "2", "--threads", "2", *server.lm,
    )  # fmt: skip
    assert "LM calls: 0 made (" in again.out
    assert all(len(line) <= 80 or " " not in line.strip() for line in again.out.splitlines())
    assert again.out.rstrip().endswith(f"artifact: {artifact}")
    for word in ("dev, 4 questions", "test, 4 questions", "recommended:", "baseline", "oracle evidence"):
        assert word in again.out


def test_what_was_found_is_shown_when_it_cannot_be_saved(cli, collection, questions, server, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "replace_folder", full)
    done = cli(
        "compile", "hcqr", "--data", questions, "--collection", collection, "--out", "artifacts/x", "--sizes",
        "2,2,2", "--trials", "1", "--json", *server.lm,
    )  # fmt: skip
    assert (done.status, done.data["artifact"]) == (2, None)
    assert done.data["test"]
    assert "No space left on device" in done.err
    assert not Path("artifacts/x").exists()


def test_answers_that_are_stored_need_no_key(ok, cli, collection, questions, server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-ours")
    asked = ("--data", questions, "--collection", collection, "--lm", "openai/scripted", "--api-base", server.address)
    first = ok("evaluate", "plain", *asked)
    monkeypatch.delenv("OPENAI_API_KEY")
    assert "LM answers were cached" in ok("evaluate", "plain", *asked).out
    more = cli("evaluate", "plain", "hyde", *asked)
    assert (more.status, "OPENAI_API_KEY" in more.err) == (3, True)
    searched = " ".join(ok("evaluate", "plain", *asked, "--metric", "recall").out.split())
    assert "no arm calls an LM for these metrics" in searched
    assert "LM openai/scripted" in first.out
