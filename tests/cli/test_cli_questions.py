"""``querywright questions``: a build that goes on where it was killed, and what is said of it."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace

import pytest

from querywright.errors import BudgetError, InputError
from querywright.optimize.pool import bounded_map
from querywright.optimize.question_ray import LMName, RayBuild
from querywright.retrieval.collection import collection_folder, published_passages
from querywright.retrieval.generated_questions import (
    RECORDS,
    questions_folder,
    questions_name,
    read_records,
)

WORDS = ("juice", "feet", "cuff", "salt", "walk", "lenses")


def asked(body):
    return "\n".join(
        part if isinstance(part, str) else "".join(piece["text"] for piece in part)
        for part in (message["content"] for message in body["messages"])
    )


def answers(body):
    """Five questions a call, of which a passage's second answers in part and its third not at all."""
    text = asked(body)
    topic = re.search(r"passage: (?:\[1\] )?(\w+):", text)[1]
    if "already_asked" in text or "- questions" in text:
        count = text.partition("already_asked:")[2].count("\n- ")
        return json.dumps({"questions": [f"What does {topic} help with, case {count + n}?" for n in range(1, 6)]})
    number = int(re.search(r"case (\d+)", text)[1])
    label = {2: "partial", 3: "none"}.get(number, "complete")
    return json.dumps({"reason": f"It speaks of {topic}.", "label": label})


@pytest.fixture
def build(cli, collection, server):
    """Runs ``questions build`` on the tiny collection, ten questions a passage."""
    server.reply = answers

    def call(*arguments, **options):
        return cli("questions", "build", collection, "--num-questions", "10", *arguments, *server.lm, **options)

    return call


def records(home):
    return questions_folder("tiny", home) / RECORDS


def test_questions_are_written_judged_and_published(build, server, home):
    done = build("--json", "--threads", "3")
    assert done.status == 0, done.err
    assert (done.data["passages"], done.data["written"], done.data["current"]) == (6, 6, 0)
    assert done.data["made"]["lm"] == done.data["made"]["judge_lm"] == "openai/scripted"
    assert done.data["made"]["cost"]["calls"] == len(server.requests) == 6 * (2 + 10)
    assert done.data["index"]["count"] == 6 * 9
    found = read_records(questions_folder("tiny", home))
    assert Counter(question.label for record in found.values() for question in record.questions) == {
        "complete": 6 * 8, "partial": 6, "none": 6,
    }  # fmt: skip
    assert found["p-feet"].questions[1].reason == "It speaks of feet."
    _, kept = published_passages(questions_folder("tiny", home))
    assert {passage.metadata["passage"] for passage in kept.values()} == {f"p-{word}" for word in WORDS}
    assert all("case 3?" not in passage.text for passage in kept.values())
    assert questions_name("tiny") == "tiny-questions"


def test_a_passage_that_changed_is_written_anew_and_one_that_went_stays_until_pruned(build, cli, server, passages):
    assert build().status == 0
    calls = len(server.requests)
    lines = [json.loads(line) for line in passages.read_text().splitlines()]
    lines[0]["text"] += " Then eat."
    passages.write_text("".join(json.dumps(line) + "\n" for line in lines[:-1]))
    assert cli("index", "tiny", passages, "--prune").status == 0
    done = build("--json")
    assert (done.data["written"], done.data["current"], done.data["removed"]) == (1, 4, 1)
    assert len(server.requests) == calls + 2 + 10
    assert "1 passages that are in the collection no more stay; --prune removes them" in build().err
    done = build("--json", "--prune")
    assert (done.data["written"], done.data["index"]["count"]) == (0, 5 * 9)
    assert len(server.requests) == calls + 2 + 10


def test_a_spent_budget_stops_and_nothing_is_paid_for_twice(build, server, home):
    done = build("--max-calls", "30", "--threads", "3")
    assert done.status == 3
    assert "the limit of 30 LM calls is reached" in done.err
    assert len(server.requests) == 30
    assert build("--threads", "3").status == 0
    assert len(server.requests) == 6 * 12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a" * 54,), "has 54 characters; one with questions has at most 53"),
        (("nothing",), "there is no collection 'nothing' (known: tiny)"),
        (("tiny", "--num-questions", "101"), "num_questions must be from 1 to 100, but got 101"),
        (("tiny", "--judge-api-base", "http://127.0.0.1:1"), "name it with --judge-lm"),
    ],
)
def test_a_mistake_is_said_before_anything_is_asked(cli, collection, server, arguments, message):
    done = cli("questions", "build", *arguments, *server.lm)
    assert done.status == 2
    assert message in done.err
    assert server.requests == []


def test_stats_tell_what_there_is_and_what_it_cost(build, cli):
    assert build().status == 0
    done = cli("questions", "stats", "tiny", "--json")
    assert done.status == 0, done.err
    assert done.data["labels"] == {"complete": 48, "partial": 6, "none": 6, "unreadable": 0}
    assert done.data["kept_share"] == 0.8
    assert done.data["per_passage"] == [8.0, 8, 8]
    assert done.data["coverage"] == 1.0
    assert done.data["made"]["cost"]["calls"] == 6 * 12
    near = done.data["similarities"]
    assert near["same_passage"] > near["other_passage"]
    assert near["own_passage"] > near["not_own_passage"]
    shown = cli("questions", "stats", "tiny", width=200).out
    for text in ("kept_share: 0.8", "per_passage: 8, 8, 8", "calls: 72", "judge_lm: openai/scripted"):
        assert text in shown


@pytest.mark.slow
def test_a_build_that_is_killed_goes_on_to_the_same_records(cli, collection, server, home):
    """Killed with -9 again and again at moments of its own, in processes of its own."""
    kills = int(os.environ.get("QUERYWRIGHT_TEST_KILLS", "2"))
    server.reply, server.delay = answers, 0.015 * kills  # so that the last one finds something to interrupt
    command = ["questions", "build", collection, "--num-questions", "10", "--threads", "2", *server.lm]
    moments, folder = random.Random(7), questions_folder("tiny", home)
    for _ in range(kills):
        process = subprocess.Popen([sys.executable, "-m", "querywright", *command], stderr=subprocess.DEVNULL)
        before = len(server.requests)
        while process.poll() is None and len(server.requests) == before:
            time.sleep(0.005)
        time.sleep(moments.uniform(0, 0.3))
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.returncode == -signal.SIGKILL
        assert all(len(record.questions) == 10 for record in read_records(folder).values())
    server.delay = 0.0
    assert cli(*command).status == 0
    asked_for = Counter(json.dumps(request, sort_keys=True) for request in server.requests)
    assert len(asked_for) == 6 * 12
    assert sum(asked_for.values()) - len(asked_for) <= 2 * kills  # calls under way when their process was killed
    killed = records(home).read_bytes()

    shutil.rmtree(folder)
    calls = len(server.requests)
    assert cli(*command).status == 0
    assert len(server.requests) == calls  # all answers are known
    assert records(home).read_bytes() == killed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--engine", "spark"), "unknown engine 'spark'; questions are written on threads or ray"),
        (("--workers", "2"), "--workers is of --engine ray"),
        (("--engine", "ray"), "pip install 'querywright[ray]'"),
    ],
)
def test_a_mistake_about_the_engine_is_said_before_anything_is_asked(build, server, monkeypatch, arguments, message):
    monkeypatch.setitem(sys.modules, "ray", None)
    done = build(*arguments)
    assert done.status == 2
    assert message in " ".join(done.err.split())
    assert server.requests == []


@pytest.fixture
def names(server, home):
    server.reply = answers
    lm = LMName("openai/scripted", server.address, "SCRIPTED_KEY")
    return RayBuild(str(home), lm, None, num_questions=10, batch_size=5, threads=2)


def test_a_process_makes_the_records_that_threads_make(build, names, home):
    assert build().status == 0
    expected = read_records(questions_folder("tiny", home))
    _, found = published_passages(collection_folder("tiny", home))
    record_of = replace(names, settings=expected["p-feet"].settings).record_maker()
    assert record_of(found["p-feet"]) == expected["p-feet"]


def test_a_process_that_would_make_other_records_or_has_no_key_makes_none(names, server, monkeypatch):
    with pytest.raises(InputError, match=r"would write questions under the settings .* but of others are asked for"):
        replace(names, settings="of others").record_maker()
    monkeypatch.delenv("SCRIPTED_KEY")
    with pytest.raises(InputError, match="'SCRIPTED_KEY' is not set or empty"):
        names.record_maker()
    assert server.requests == []


def test_the_limit_of_calls_is_that_of_all_processes_together(build, names, server, home, tmp_path):
    assert build("--limit", "1").status == 0
    (settings,) = {record.settings for record in read_records(questions_folder("tiny", home)).values()}
    _, found = published_passages(collection_folder("tiny", home))
    server.requests.clear()
    given = replace(names, settings=settings, max_calls=30, budget="test")
    makers = [given.record_maker() for _ in range(3)]  # what three processes have
    made = bounded_map(lambda n: makers[n % 3](list(found.values())[n]), range(1, 6), threads=3)
    assert len(server.requests) == 30
    stopped = [one for one in made if isinstance(one, BudgetError)]
    assert stopped
    assert str(stopped[0]).startswith("the limit of 30 LM calls is reached")


@pytest.fixture
def by_threads(cli, passages, server, home, tmp_path, monkeypatch):
    """The records that threads make, in a working folder of their own."""
    pytest.importorskip("ray")
    server.reply = answers
    other = tmp_path / "other"
    assert cli("index", "tiny", passages, "--home", other).status == 0
    done = cli("questions", "build", "tiny", "--num-questions", "10", "--home", other, *server.lm)
    assert done.status == 0, done.err
    monkeypatch.setenv("QUERYWRIGHT_HOME", str(home))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    server.requests.clear()
    return records(other).read_bytes()


@pytest.mark.filterwarnings("ignore::Warning")  # Ray warns of its own ways
def test_processes_make_the_records_of_threads_to_the_byte(build, by_threads, server, home):
    assert build("--limit", "2").status == 0
    done = build("--json", "--engine", "ray", "--max-calls", "200")
    assert done.status == 0, done.err
    assert (done.data["written"], done.data["current"]) == (4, 2)
    assert len(server.requests) == 6 * 12
    assert done.data["cost"]["calls"] == 4 * 12
    assert done.data["made"]["cost"]["calls"] == 6 * 12
    assert records(home).read_bytes() == by_threads
    assert build("--json").data["written"] == 0
    assert len(server.requests) == 6 * 12
