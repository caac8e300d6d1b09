"""Every command that writes, killed at random moments and run again: it finds what an undisturbed run finds."""

from __future__ import annotations

import gzip
import json
import random
import re
import runpy
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import yaml

from querywright.retrieval.collection import collection_folder, list_collections, published_passages, read_manifest
from querywright.retrieval.generated_questions import questions_folder, read_pairs, read_records

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
CLI = runpy.run_path(str(HERE.parent / "cli" / "conftest.py"))
STUDIES = SimpleNamespace(**runpy.run_path(str(HERE.parent / "cli" / "study_processes.py")))
Forks = runpy.run_path(str(HERE / "forked.py"))["Forks"]

SAME = "a command that is killed and run again produces the same results as an uninterrupted one"
CLEAN = "a kill leaves no half-written file once the command has run again"
PAID = "a kill loses at most the calls that were in progress"
HALF = re.compile(r"^\..*\.(tmp|old)$|^\..*\.new-|^\.building")
NOT_THE_SAME = {
    "card.json",
    "created",
    "seconds",
    "cost",
    "spent",
    "sha256",
    "versions",
    "updated",
    "paid",
    "asked",
    "latency",
}
THREADS = 2

COMMANDS: dict[str, str] = {
    "index": "index fresh many.jsonl",
    "compile": "compile hcqr --data questions.jsonl --collection tiny --out new --sizes 3,4,4 --trials 2 {lm}",
    "compare": "compare plain rag_fusion --data questions.jsonl --collection tiny --out results --limit 8 {lm}",
    "study": "study run study.yaml --out study",
    "study with two workers": "study run study.yaml --out study --workers 2",
    "questions build": "questions build tiny --num-questions 6 {lm}",
    "recording write": "recording write new.jsonl.gz --label a",
    "judge label": "judge label plain plain@bm25 --data bare.jsonl --collection tiny --out labels.jsonl --depth 3 {lm}",
    "testset rephrase": "testset rephrase asked --out set.jsonl --number 6 {lm}",
    "testset make": "testset make tiny --out made.jsonl --number 4 --two-passage 0 {lm}",
    "testset out-of-distribution": "testset out-of-distribution asked --out new.jsonl --number 4 {lm}",
    "questions fill": "questions fill asked --no-complete --most 6 {lm}",
    "judge calibrate": "judge calibrate usefulness --data cases.jsonl --out judge.json {lm}",
    "judge compile": "judge compile usefulness --data cases.jsonl --out judge.json {lm}",
    "evaluate": "evaluate plain --data questions.jsonl --collection tiny --rows rows.jsonl --reader none",
    "study export": "study export studied --out trials.parquet",
    "rewriter collect": "rewriter collect rrr --data vague.jsonl --collection tiny --out pairs.jsonl --metric recall@1"
    " --knob max_passages=1 --sizes 10,3,3",
}
SLOW = {"study with two workers": 1, "compile": 3, "study": 3}
"""Kills at scale 1, where they take long; 6 of the others."""


def answers(body: dict[str, Any]) -> str:
    """What the LM says: questions and other words for them where they are asked for, else what the form asks for."""
    text = "\n".join(CLI["prompt"](body, role) for role in ("system", "user"))
    topic = (re.search(r"passage: (?:\[1\] )?(\w+)", text) or [0, "it"])[1]
    if vague := re.search(r"Which one is number (\d+)", text):
        return json.dumps({"thought": "t", "queries": [[*CLI["TOPICS"]][int(vague[1]) % len(CLI["TOPICS"])]]})
    if "new_question" in text:
        return json.dumps({"new_question": f"Why does one read about {topic}?"})
    if "already_asked" in text or "- questions" in text:
        count = text.partition("already_asked:")[2].count("\n- ")
        return json.dumps({"questions": [f"What does {topic} help with, case {count + n}?" for n in range(1, 4)]})
    if asked := re.search(r"What does the card of (\w+) begin with", text):
        begins = " ".join(CLI["TOPICS"][asked[1]].split()[:3])
        return json.dumps({"answer": begins if begins in text else "nothing that I know"})
    if "copied from the passage" in text:
        topic = re.findall(r"passage: (?:\[1\] )?(\w+)", text)[-1]  # after the examples
        begins = " ".join(CLI["TOPICS"][topic].split()[:3])
        return json.dumps({"question": f"What does the card of {topic} begin with?", "answer": begins})
    if "rephrased_question" in text:
        return json.dumps({"rephrased_question": f"In other words, {text[-20:]}"})
    return CLI["fill_in"](body)


@pytest.fixture(scope="module")
def server():
    server = CLI["ScriptedServer"]()
    server.reply, server.delay = answers, 0.01
    yield server
    server.close()


@pytest.fixture(scope="module")
def forks():
    # One thread: torch spins with more where others work beside it.
    forks = Forks(SCRIPTED_KEY="sk-x", HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
    yield forks
    forks.close()


@pytest.fixture(scope="module")
def template(tmp_path_factory, server, forks):
    """A folder with all that the commands need: questions, collections, an artifact, a finished study."""
    folder = tmp_path_factory.mktemp("template")
    rows = CLI["question_rows"]()
    texts = [{"id": f"p-{topic}", "title": topic, "text": text} for topic, text in CLI["TOPICS"].items()]
    many = [{**one, "id": f"{one['id']}-{n}", "text": f"{one['text']} Case {n}."} for n in range(150) for one in texts]
    vague = [{**row, "question": f"Which one is number {n}?", "options": []}
             for n, row in enumerate(CLI["question_rows"](16))]  # fmt: skip
    for name, data in {
        "passages": texts, "many": many, "questions": rows, "vague": vague,
        "bare": [{key: value for key, value in row.items() if key != "evidence"} for row in rows],
        "cases": [
            {"question": f"What helps with {one['title']}, {n}?", "passage": one["text"], "label": label}
            for n in range(4) for one in texts for label in ("ENTAILED", "USEFUL", "NOT_USEFUL")
        ],
    }.items():  # fmt: skip
        CLI["write_lines"](folder / f"{name}.jsonl", data)
    spec = {
        "name": "small", "questions": "questions.jsonl", "collection": "tiny", "sizes": [3, 6, 4], "trials": 6,
        "lm": "openai/scripted", "api_base": server.address, "api_key_env": "SCRIPTED_KEY", "threads": THREADS,
        "objectives": ["accuracy"], "sampler": {"name": "random"}, "pruner": "none", "fixed": {"max_passages": 2},
        "techniques": {
            "rag_fusion": {"knobs": {"n_queries": {"low": 1, "high": 3}, "top_k": [1, 2, 4]}, "search": "named"},
            "step_back": {"search": "named", "knobs": {"top_k": [1, 2]}},
        },
    }  # fmt: skip
    (folder / "study.yaml").write_text(yaml.safe_dump(spec))
    lm = ["--lm", "openai/scripted", "--api-base", server.address, "--api-key-env", "SCRIPTED_KEY"]
    for command in (
        "index tiny passages.jsonl", "index asked passages.jsonl",
        "questions build asked --num-questions 2 --batch-size 2",
        "compile hcqr --data questions.jsonl --collection tiny --out made --sizes 3,4,4 --trials 2 --seed 1",
        "study run study.yaml --out studied",
    ):  # fmt: skip
        asks = command.startswith(("compile", "questions"))
        status, _, said = forks.run(folder, *command.split(), *(lm if asks else ()))
        assert status == 0, f"{command}: {said}"
    return folder


def scrub(value: Any) -> Any:
    """JSON data without what a clock, the store and what a run cost say."""
    if isinstance(value, dict):
        return {key: scrub(one) for key, one in value.items() if key not in NOT_THE_SAME}
    return [scrub(one) for one in value] if isinstance(value, list) else value


def made(path: Path) -> Any:
    """What a folder or a file holds, by name, so that two can be compared."""
    if path.is_dir():
        told = (".md", ".html", ".log")  # for people
        names = sorted(one for one in path.rglob("*") if one.is_file() and one.suffix not in told)
        return {str(one.relative_to(path)): made(one) for one in names}
    if path.suffix == ".json":
        return scrub(json.loads(path.read_text()))
    if path.suffix == ".jsonl":
        return [scrub(json.loads(line)) for line in path.read_text().splitlines()]
    if path.suffix == ".parquet":
        table = pd.read_parquet(path)
        same = [name for name in table if not re.search(r"seconds|cost|calls|tokens|saved|paid", str(name))]
        return json.loads(table[same].sort_values(same[:3]).reset_index(drop=True).to_json())
    if path.suffix == ".gz":
        return gzip.decompress(path.read_bytes())
    return path.read_bytes()


def collections(home: Path) -> Any:
    """What the collections of a working folder hold; their indexes are looked at by searching."""
    kept = ("count", "content_hash", "embedder", "passages_sha256")
    read = {name: read_manifest(collection_folder(name, home)) for name in list_collections(home)}
    return {name: [getattr(one, field) for field in kept] for name, one in read.items()}


def difference(one: Any, other: Any, path: str = "") -> str:
    """Where two outcomes differ first; nothing where they do not."""
    if type(one) is type(other) and isinstance(one, dict | list | tuple) and len(one) == len(other):
        if not isinstance(one, dict):
            one, other = dict(enumerate(one)), dict(enumerate(other))
        if one.keys() == other.keys():
            return next(filter(None, (difference(one[key], other[key], f"{path}/{key}") for key in one)), "")
    return "" if one == other else f"{path}: {str(one)[:200]} != {str(other)[:200]}"


def outcome(name: str, folder: Path, forks: Any) -> Any:
    """All that matters of what a command left in a folder."""
    if name.startswith("study with") or name == "study":
        return STUDIES.arms(STUDIES.table(folder / "study")), STUDIES.outcome(folder / "study")["arms"]
    if name == "index":
        asked = ("evaluate", "plain", "--data", "questions.jsonl", "--collection", "fresh", "--reader", "none")
        status, _, said = forks.run(folder, *asked, "--json", "--metric", "mrr@10")
        assert status == 0, said
        return collections(folder / "home"), re.findall(r'"value": [^,]+', said)
    if name == "questions build":
        found = questions_folder("tiny", folder / "home")
        return {id: one.questions for id, one in read_records(found).items()}, published_passages(found)[1]
    if name == "questions fill":
        return read_pairs(questions_folder("asked", folder / "home"))
    out = {
        "compile": "new", "compare": "results", "recording write": "new.jsonl.gz", "judge label": "labels.jsonl",
        "testset rephrase": "set.jsonl", "study export": "trials.parquet",
        "testset make": "made.jsonl", "testset out-of-distribution": "new.jsonl",
        "judge calibrate": "judge.json", "judge compile": "judge.json", "evaluate": "rows.jsonl",
        "rewriter collect": "pairs.jsonl",
    }  # fmt: skip
    return made(folder / out[name])


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_is_killed_and_run_again(name, template, server, forks, tmp_path, times, attack):
    lm = f"--lm openai/scripted --api-base {server.address} --api-key-env SCRIPTED_KEY --threads {THREADS}"
    command = COMMANDS[name].format(lm=lm).split()
    chance = random.Random(name)

    def fresh(label: object) -> Path:
        folder = Path(shutil.copytree(template, tmp_path / str(label)))
        if "study" in name:
            STUDIES.forget_answers(folder / "home")
        return folder

    folder = fresh("whole")
    before = len(server.requests)
    status, seconds, said = forks.run(folder, *command)
    assert status == 0, said
    calls, whole = len(server.requests) - before, outcome(name, folder, forks)
    for turn in range(times(SLOW.get(name, 6))):
        folder, before = fresh(turn), len(server.requests)
        # Most of a command is its beginning; what is written comes at the end.
        moment = seconds * (chance.uniform(0.6, 1.02) if turn % 2 else chance.uniform(0.02, 1.0))
        case = turn, round(moment, 3)
        forks.run(folder, *command, kill=moment)
        status, _, said = forks.run(folder, *command)
        differs = said[-500:] if status else difference(outcome(name, folder, forks), whole)
        attack.tried(SAME, status == 0 and not differs, (name, *case, status, differs))
        left = [str(one.relative_to(folder)) for one in folder.rglob(".*") if HALF.search(one.name)]
        attack.tried(CLEAN, not left, (name, *case, left))
        extra = len(server.requests) - before - calls
        attack.tried(PAID, extra <= 2 * THREADS, (name, *case, extra))
        shutil.rmtree(folder)


TWICE = {
    "compare": ["compare plain rag_fusion --data questions.jsonl --collection tiny --out results --limit 6 {lm}"] * 2,
    "index": ["index fresh many.jsonl", "index fresh passages.jsonl"],
    "study": ["study run study.yaml --out study"] * 2,
    "study export": ["study export studied --out trials.parquet"] * 2,
    "judge label": ["judge label --data bare.jsonl --collection tiny --out labels.jsonl --depth 2 {lm}"] * 2,
    "compile": ["compile hcqr --data questions.jsonl --collection tiny --out new --sizes 3,4,4 --trials 2 {lm}"] * 2,
}


@pytest.fixture(scope="module")
def other_forks():
    other = Forks(SCRIPTED_KEY="sk-x")
    yield other
    other.close()


@pytest.mark.parametrize("name", TWICE)
def test_two_at_once_end_well_or_one_is_told_to_wait(
    name, template, server, forks, other_forks, tmp_path, times, attack
):
    """Both end, or one is refused in words; what is left is whole, and the command alone finds the same."""
    two = "if two commands write to the same place, both succeed or one reports why it cannot"
    lm = f"--lm openai/scripted --api-base {server.address} --api-key-env SCRIPTED_KEY"
    commands = [one.format(lm=lm).split() for one in TWICE[name]]
    for turn in range(times(1)):
        folder = Path(shutil.copytree(template, tmp_path / str(turn)))
        ends: list[Any] = [None, None]

        def run(place: int, which: Any, folder: Path = folder, ends: Any = ends) -> None:
            ends[place] = which.run(folder, *commands[place])

        pair = [threading.Thread(target=run, args=(n, one)) for n, one in enumerate((forks, other_forks))]
        for one in pair:
            one.start()
        for one in pair:
            one.join()
        said = [(status, text[-600:]) for status, _, text in ends]
        well = all(status in (0, 2, 3) and "Traceback" not in text for status, text in said)
        attack.tried(two, well and 0 in [status for status, _ in said], (name, said))
        again = forks.run(folder, *commands[0])
        left = [one.name for one in folder.rglob(".*") if HALF.search(one.name)]
        attack.tried(two, again[0] == 0 and not left, (name, again, left))
        shutil.rmtree(folder)
