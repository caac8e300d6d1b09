"""What the commands and the public names give on the packaged sample, held against what is written beside this file.

A file of ``expected/`` holds one scenario: scores, numbers of questions, comparisons and their sentences, passages that
were found, calls that the LM received and the digest of its prompts, and what an artifact holds. Nothing in it depends
on a path, a clock, a version, a format or a cache key. The embedder is the embedded one; the LM is ``script.py`` behind
an OpenAI-compatible server.

After a change of a figure that is meant: ``python tests/golden/regenerate.py [SCENARIO ...]``, and read the difference.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import runpy
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dspy
import pytest
import yaml

import querywright
from querywright.cli import main as command_line

HERE = Path(__file__).parent
EXPECTED = HERE / "expected"
SCRIPT = runpy.run_path(str(HERE / "script.py"))
SERVER = runpy.run_path(str(HERE.parent / "scripted_server.py"))["ScriptedServer"]
KEY = "GOLDEN_KEY"
SAMPLE = ("--data", "sample", "--collection", "sample")
SHOWN = 4
"""Questions whose passages are written down."""

Figures = dict[str, Any]


class House:
    """A working folder of a scenario's own, in which the sample is indexed, and the scripted LM."""

    def __init__(self, folder: Path, like: House | None = None) -> None:
        self.folder = folder
        if like is not None:
            shutil.copytree(like.folder, folder)
        folder.mkdir(exist_ok=True)
        self.server = SERVER([lambda body: {"answer": SCRIPT["reply"](body)}])

    @property
    def lm(self) -> list[str]:
        """Options that name the LM."""
        return ["--lm", "openai/scripted", "--api-base", self.server.url, "--api-key-env", KEY]

    def run(self, *arguments: object, lm: bool = True) -> Any:
        """What a command prints as JSON: the one place that knows how a command is called."""
        given = [*map(str, arguments), *(self.lm if lm else ()), "--json"]
        with self.at_work(), contextlib.redirect_stdout(io.StringIO()) as printed:
            errors = io.StringIO()
            with contextlib.redirect_stderr(errors):
                status = command_line.run(given)
        assert status == 0, f"{given} ended with {status}: {errors.getvalue()}"
        return json.loads(printed.getvalue())

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Work in the folder."""
        before = Path.cwd()
        with pytest.MonkeyPatch.context() as patch, contextlib.chdir(self.folder):
            patch.setenv("QUERYWRIGHT_HOME", str(self.folder / "home"))
            patch.setenv(KEY, "sk-never-to-be-printed-1234567890")
            yield
        assert Path.cwd() == before

    def asked(self) -> Figures:
        """The calls that the LM received, and a digest of the prompts."""
        texts = {
            json.dumps([[one["role"], SCRIPT["text_of"](one)] for one in body["messages"]], ensure_ascii=False)
            for body in self.server.bodies
        }
        sha = hashlib.sha256("\n".join(sorted(texts)).encode()).hexdigest()
        return {"calls": self.server.count, "prompts": len(texts), "digest": sha}


def arms(found: list[Any]) -> Figures:
    """Scores, numbers and failures by arm."""
    return {
        one["arm"]: {
            "n": one["n"],
            "metrics": {
                name: [rounded(mean[key]) for key in ("value", "low", "high", "n", "unscored")]
                for name, mean in one["metrics"].items()
            },
            "labels": rounded(one["labels"]),
            "failures": one["failures"],
        }
        for one in found
    }


def paired_tests(found: list[Any]) -> list[Any]:
    """The paired tests."""
    keys = ("metric", "arm", "other", "wins", "losses", "ties", "difference", "low", "high", "p_holm", "sentence")
    return [[rounded(one[key]) for key in keys] for one in found]


def rounded(value: Any) -> Any:
    """The value with six digits behind the point."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list) else value


def artifact(folder: Path) -> Figures:
    """What a saved program holds: technique, knobs, prompts, demonstrations and golden answers."""
    program = json.loads((folder / "program.json").read_text(encoding="utf-8"))
    golden = [json.loads(line) for line in (folder / "golden.jsonl").read_text(encoding="utf-8").splitlines()]
    return {
        "technique": program["technique"],
        "reader": program["reader"],
        "knobs": program["knobs"],
        "predictors": {
            name: {"instructions": one["instructions"], "demos": one["demos"]}
            for name, one in program["predictors"].items()
        },
        "golden": [{key: row[key] for key in ("question", "answer", "passages")} for row in golden],
    }


def shown(prediction: Any) -> Figures:
    """What a program answered in Python."""
    return {"answer": prediction.answer, "passages": [passage.id for passage in prediction.passages]}


def evaluate(house: House) -> Figures:
    every = ["closed_book", "plain", "plain@bm25", "plain@hybrid", "hcqr", "rag_fusion:n_queries=2,max_passages=3"]
    metrics = ["accuracy", "decision_useful", "recall@3", "mrr@5", "ndcg@5"]
    named = [word for metric in metrics for word in ("--metric", metric)]
    found = house.run("evaluate", *every, *SAMPLE, "--limit", 16, *named, "--rows", "rows.jsonl")
    rows = [json.loads(line) for line in (house.folder / "rows.jsonl").read_text(encoding="utf-8").splitlines()]
    questions = list(dict.fromkeys(row["id"] for row in rows))[:SHOWN]
    passages = {f"{row['arm']} {row['id']}": row["passages"] for row in rows if row["id"] in questions}
    return {"arms": arms(found["arms"]), "tests": paired_tests(found["comparisons"]), "passages": passages}


def techniques(house: House) -> Figures:
    """Every technique that asks no cross-encoder, on the same few questions."""
    from querywright.programs import TECHNIQUES

    found: Figures = {}
    question = SCRIPT["SAMPLE"].questions[7]
    options = [word for option in question.options for word in ("--option", option)]
    for name, technique in TECHNIQUES.items():
        if technique.USES_RERANKER or technique.ENGINE:
            continue
        before = house.server.count
        answered = house.run("ask", question.question, *options, "--technique", name, "--collection", "sample")
        found[name] = {
            "answer": answered["answer"],
            "passages": [passage["id"] for passage in answered["passages"]],
            "queries": answered["queries"],
            "calls": house.server.count - before,
        }
    return found


def compare(house: House) -> Figures:
    given = ("compare", "plain@bm25", "multi_query:n_queries=2", *SAMPLE)
    found = house.run(*given, "--limit", 12, "--out", "results")
    calls = house.server.count
    again = house.run(*given, "--limit", 12, "--out", "results")
    assert (house.server.count, again["comparisons"]) == (calls, found["comparisons"])
    report = (house.folder / "results" / "report.html").read_text(encoding="utf-8")
    assert all(one["sentence"] in report for one in found["comparisons"])
    return {
        "baseline": found["baseline"],
        "arms": arms(found["arms"]),
        "references": arms(found["references"]),
        "tests": paired_tests(found["comparisons"]),
        "lost": found["diagnosis"]["arms"],
    }


def compile_and_ask(house: House) -> Figures:
    given = ("--collection", "sample", "--out", "artifacts/made", "--sizes", "10,16,40", "--trials", 6)
    found = house.run("compile", "hcqr", "--data", "sample", *given, "--knob", "max_passages=1")
    question = SCRIPT["SAMPLE"].questions[100]
    options = [word for option in question.options for word in ("--option", option)]
    asked = house.run("ask", question.question, *options, "--artifact", "artifacts/made")
    with house.at_work():
        lm = querywright.resolve_lm("openai/scripted", api_base=house.server.url, api_key=os.environ[KEY])
        loaded = querywright.load("artifacts/made", lm=lm, verify=True)
        in_python = shown(loaded(question.question, options=list(question.options)))
    assert in_python == {"answer": asked["answer"], "passages": [one["id"] for one in asked["passages"]]}
    return {
        "recommended": found["recommended"],
        "verdict": found["verdict"],
        "sentence": found["verdict_sentence"],
        "objective": found["objective"],
        "dev": {one["arm"]: [one["knobs"], one["prompt"], rounded(one["objective"])] for one in found["arms"]},
        "test": arms(found["test"]),
        "tests": paired_tests(found["comparisons"]),
        "artifact": artifact(house.folder / "artifacts" / "made"),
        "asked": in_python,
    }


def study(house: House) -> Figures:
    spec = {
        "name": "golden", "questions": "sample", "collection": "sample", "sizes": [8, 14, 30], "trials": 8,
        "threads": 2,
        "lm": "openai/scripted", "api_base": house.server.url, "api_key_env": KEY, "fixed": {"max_passages": 1},
        "techniques": {
            "rag_fusion": {"search": "named", "knobs": {"n_queries": {"low": 1, "high": 3}, "top_k": [5, 10]}},
            "step_back": {"search": "named", "knobs": {"top_k": [5, 10]}},
        },
    }  # fmt: skip
    (house.folder / "golden.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")
    found = house.run("study", "run", "golden.yaml", "--out", "study", lm=False)
    return {
        "recommended": found["recommended"],
        "verdict": found["verdict"],
        "sentence": found["sentence"],
        "test": arms(found["test"]),
        "tests": paired_tests(found["comparisons"]),
        "artifacts": {
            one["technique"]: one["knobs"] for one in map(artifact, (house.folder / "study/artifacts").iterdir())
        },
    }


def questions(house: House) -> Figures:
    built = house.run("questions", "build", "sample", "--num-questions", 4, "--limit", 60)
    stats = house.run("questions", "stats", "sample", lm=False)
    given = ("plain", "qb_rag", *SAMPLE, "--limit", 12, "--reader", "none")
    found = house.run("evaluate", *given, "--metric", "recall@5", "--rows", "rows.jsonl")
    rows = [json.loads(line) for line in (house.folder / "rows.jsonl").read_text(encoding="utf-8").splitlines()]
    return {
        "built": {key: built[key] for key in ("passages", "written", "current", "failed")},
        "stats": {key: rounded(stats[key]) for key in ("passages", "written", "labels", "coverage")},
        "arms": arms(found["arms"]),
        "tests": paired_tests(found["comparisons"]),
        "passages": [row["passages"] for row in rows if row["arm"] == "qb_rag"][:SHOWN],
    }


def judge(house: House) -> Figures:
    sample = SCRIPT["SAMPLE"]
    texts = {passage.id: passage.text for passage in sample.passages}
    titles = SCRIPT["TITLES"]
    other = list(texts)
    rows = [
        {
            "id": question.id, "question": question.question, "answer": question.answer, "label": label,
            "options": list(question.options), "passage": f"{titles[id]}. {texts[id]}",
        }
        for place, question in enumerate(sample.questions[:14])
        for id, label in {other[7 * place]: "NOT_USEFUL", **question.evidence}.items()
    ]  # fmt: skip
    (house.folder / "judged.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    found = house.run("judge", "calibrate", "--data", "judged.jsonl", "--out", "judges/mine")
    judged = house.run("evaluate", "plain", *SAMPLE, "--limit", 6, "--judge", "judges/mine")
    kept = ("judge", "lm", "labels", "table", "n", "questions", "unreadable", "failed", "figures")
    return {"calibration": {key: rounded(found[key]) for key in kept}, "arms": arms(judged["arms"])}


def in_python(house: House) -> Figures:
    """Public names alone, asked and evaluated with our prompts, and once as DSPy asks without them."""
    question = SCRIPT["SAMPLE"].questions[3]
    with house.at_work():
        lm = querywright.resolve_lm("openai/scripted", api_base=house.server.url, api_key=os.environ[KEY])
        retriever = querywright.ChromaRetriever("sample", embedder=querywright.resolve_embedder("embedded"))
        program = querywright.make_program("hcqr", retriever, max_passages=4)
        found = querywright.evaluate(
            program, SCRIPT["SAMPLE"].questions[:8], lm=lm, name="hcqr", metrics=["decision_useful"]
        )
        with dspy.context(lm=lm):
            one = shown(program(question=question.question, options=list(question.options)))
    return {"arms": arms([found.to_json()]), "one": one}


SCENARIOS: dict[str, Callable[[House], Figures]] = {
    one.__name__: one for one in (evaluate, techniques, compare, compile_and_ask, study, questions, judge, in_python)
}


def indexed(folder: Path) -> House:
    """A working folder with the sample in it."""
    house = House(folder)
    with house.at_work(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert command_line.run(["index", "sample", "sample"]) == 0
    house.server.close()
    return house


def figures(name: str, folder: Path, like: House) -> Figures:
    """A scenario, run in a copy of that working folder."""
    house = House(folder, like)
    try:
        return json.loads(json.dumps({**SCENARIOS[name](house), "lm": house.asked()}))
    finally:
        house.server.close()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> House:
    return indexed(tmp_path_factory.mktemp("golden") / "base")


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_it_gives_is_as_it_was(name: str, base: House, tmp_path: Path) -> None:
    expected = json.loads((EXPECTED / f"{name}.json").read_text(encoding="utf-8"))
    found = figures(name, tmp_path / "copy", base)
    for part, value in expected.items():
        assert found.pop(part) == value, f"{name}: {part} is another; see the head of {Path(__file__).name}"
    assert not found
