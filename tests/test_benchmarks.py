from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from querywright.data import load_sample
from querywright.retrieval.collection import published_passages
from querywright.retrieval.generated_questions import questions_folder

pytestmark = pytest.mark.slow

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
NAMES = (
    "by_hand", "contest", "hostile", "load", "loopback", "measured", "peers", "questions", "study",
    "techniques", "trials",
)  # fmt: skip


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import hostile
    import load
    import loopback
    import measured
    import questions
    import study
    import techniques
    import trials

    yield SimpleNamespace(
        hostile=hostile, load=load, loopback=loopback, measured=measured, questions=questions, study=study,
        techniques=techniques, trials=trials,
    )  # fmt: skip
    for name in NAMES:
        sys.modules.pop(name, None)


class Hashed:
    """An embedder whose vectors depend on the text and mean nothing."""

    id, dimension = "hashed", 8

    def encode(self, texts: Sequence[str], /) -> NDArray[np.float32]:
        rows = [np.frombuffer(hashlib.sha256(text.encode()).digest()[:8], np.uint8) for text in texts]
        vectors = np.array(rows, dtype=np.float32) - 127.5
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float32)


class HashedModel:
    """The same in the place of the embedded model."""

    def encode(self, texts: Sequence[str], **_: object) -> NDArray[np.float32]:
        return np.tile(Hashed().encode(texts), 48)


@pytest.fixture
def studies(benchmarks: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """Runs parts of the benchmark of studies at a tiny size, with an embedder that has no model."""
    monkeypatch.setattr("querywright.models.embedder._loader", lambda *_: HashedModel)
    monkeypatch.setenv(benchmarks.trials.KEY, "x")
    small = {
        "latency": 0.01, "threads": 2, "questions": 6, "trials": 6, "passages": 40, "data": tmp_path,
        "big-questions": 12, "big-trials": 3, "worker-trials": 5, "worker-questions": 3, "lm": "openai/bench",
        "objective": "accuracy", "dev": 6, "test": 6, "calls": 45, "most-trials": 8,
    }  # fmt: skip

    def run(*parts: str) -> Any:
        named = [text for part in parts for text in ("--part", part)]
        given = [text for name, value in small.items() for text in (f"--{name}", str(value))]
        return benchmarks.study.main([*named, *given])

    return run


def body(prompt: str, schema: object = None, system: str = "Be brief.") -> dict[str, object]:
    asked: dict[str, object] = {
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": prompt}]
    }  # fmt: skip
    if schema is not None:
        asked["response_format"] = {"type": "json_schema", "json_schema": {"schema": schema}}
    return asked


SCHEMA = {
    "$defs": {"Grade": {"enum": ["good", "bad"], "type": "string"}},
    "type": "object",
    "properties": {
        "grade": {"$ref": "#/$defs/Grade"},
        "verdict": {"const": "keep"},
        "queries": {"type": "array", "items": {"type": "string", "maxLength": 20}, "minItems": 4, "maxItems": 4},
        "maybe": {"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 3, "maximum": 3}]},
        "sure": {"type": "boolean"},
        "inner": {"type": "object", "properties": {"text": {"type": "string"}}},
    },
}


def test_the_loopback_fills_in_what_is_asked_for_and_answers_depend_on_prompt_and_draw(benchmarks) -> None:
    write = benchmarks.loopback.write
    one, other = body("question: Who built it?", SCHEMA), body("question: Who burnt it?", SCHEMA)
    made = json.loads(write(one))
    assert list(made) == list(SCHEMA["properties"])
    assert (made["grade"] in {"good", "bad"}, made["verdict"], made["maybe"]) == (True, "keep", 3)
    assert len(set(made["queries"])) == 4
    assert all(0 < len(query) <= 20 for query in made["queries"])
    assert not set(made["queries"]) & set(json.loads(write(other))["queries"])
    sampled = {**one, "temperature": 0.7}
    assert write(one) == write(one, 1)
    assert write(sampled) == write(sampled) != write(sampled, 1)
    assert write({**sampled, "seed": 1}) != write({**sampled, "seed": 2})
    system = (
        "Judge.\n\nAnswer with one JSON object with these fields:\n"
        '- verdict: of the passage, one of "keep" | "drop it"\n- queries: 1 to 5 queries, list of texts\n- thought'
    )
    made = json.loads(write(body("question: Who built it?", system=system)))
    assert (made["verdict"] in {"keep", "drop it"}, len(made["queries"]), type(made["thought"])) == (True, 5, str)
    marked = write(body("Respond with `[[ ## answer ## ]]`, and then ending with `[[ ## completed ## ]]`."))
    assert (marked[:19], marked[-21:]) == ("[[ ## answer ## ]]\n", "[[ ## completed ## ]]")
    with benchmarks.loopback.Loopback(0.01) as server:
        asked = json.dumps({**one, "model": "bench"}).encode()
        with urllib.request.urlopen(
            urllib.request.Request(f"{server.url}/chat/completions", asked), timeout=30
        ) as answer:
            usage = json.load(answer)["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        server.overhead(4, rounds=2)
        assert (server.counts().calls, 1 <= server.counts().most <= 4) == (9, True)
        server.forget()
        assert server.counts().calls == 0


@pytest.mark.parametrize(
    ("name", "reader", "stages", "calls", "texts"),
    [
        ("multi_query", "short_answer", 2, 2, 4),
        ("hcqr", None, 2, 2, 3),
        ("hyde", None, 1, 8, 9),
        ("plain", None, 0, 0, 1),
    ],
)
def test_a_technique_runs_through_the_benchmark(
    benchmarks: SimpleNamespace, name: str, reader: str | None, stages: int, calls: int, texts: int
) -> None:
    with benchmarks.techniques.bench(
        latency=0.01, questions=4, concurrency=3, passages=12, data=None, embedder=Hashed()
    ) as ready:
        result = benchmarks.techniques.run_technique(ready, name, reader=reader)
    assert result.stages == stages
    assert result.path == pytest.approx(stages * 4 / 3 * 0.01)
    assert result.floor == pytest.approx(1.5 if stages else 1)  # two rounds of three questions at a time
    for run in (result.cold, result.cached):
        assert run.failures == 0
        assert run.calls == calls
        assert run.embedded == texts
        assert run.searched == (1 if name == "hyde" else texts)
    assert set(result.to_json()) == {"name", "stages", "path", "floor", "cold", "cached"}
    assert (result.ratio(result.cold) is None) == (stages == 0)
    assert result.name in benchmarks.techniques.line(result, 4)


def test_made_up_material_is_the_same_each_time_and_has_its_evidence(benchmarks: SimpleNamespace) -> None:
    made = benchmarks.measured.material(None, 2000, 101)
    assert made == benchmarks.measured.material(None, 2000, 101)
    assert len({passage.text for passage in made.passages}) == 2000
    assert len({question.question for question in made.questions}) == 101
    ids = {passage.id for passage in made.passages}
    for question in made.questions:
        assert set(question.evidence) <= ids
        assert question.answer in question.options
        assert 2 <= len(set(question.options)) == len(question.options) <= 4


def test_attacks_are_counted_against_the_same_question_without_them(benchmarks: SimpleNamespace) -> None:
    hostile = benchmarks.hostile
    passage = load_sample().passages[0]
    for attack in hostile.ATTACKS:
        text = hostile.attacked(passage, attack, "ENTAILED").text
        assert text.startswith(passage.text)
        assert "ENTAILED" in text.removeprefix(passage.text)
    counted = hostile.result("judge", "order", [(False, True), (False, False), (True, True), (True, False)])
    assert (counted.n, counted.before, counted.after, counted.moved) == (4, 2, 2, 1)
    assert counted.low < 0.5 < counted.high


def test_stored_questions_lead_to_the_passage_of_a_question(benchmarks: SimpleNamespace, tmp_path: Path) -> None:
    bench = benchmarks.questions.build(tmp_path, 42, 4)
    assert (bench.plain.count, bench.index.count) == (42, 11)  # ten passages of four questions, one of two
    for retriever in (bench.plain, bench.index):
        assert retriever.search(["7.asked"], 1)[0][0].passage.id == "0000007"
    assert len({hit.passage.id for hit in bench.index.search(["7.asked"], 5)[0]}) == 5
    ratios = benchmarks.questions.compare(bench, 3)
    assert set(ratios) == {"median", "p95", "plain ms", "matched ms"}
    assert all(value > 0 for value in ratios.values())


def test_trials_over_numbers_ask_once_and_loops_by_hand_as_often_as_their_cache_lets_them(
    studies: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    report = studies("replay", "big")
    found = report["replay"]
    calls = [one["calls"] for one in found["by hand"]]
    assert found["ours"]["calls"] == 6
    assert found["floor"] == pytest.approx(0.03)
    assert calls[0] == 36
    assert 6 < calls[1] <= 24
    assert calls[2] == 6
    assert found["ours"]["seconds"] > 0
    assert report["big"]["questions"] == 12
    assert 1 <= len(report["big"]["seconds"]) <= 3
    assert "always four queries" in capsys.readouterr().out


def test_the_time_of_trials_is_set_beside_that_of_their_calls(studies: Callable[..., Any]) -> None:
    found = studies("overhead")["overhead"]
    assert set(found) == {"plain", "rag_fusion"}
    assert found["plain"]["calls"] == 3 * found["plain"]["trials"]
    for one in found.values():
        assert one["without client"] <= one["share"] <= 1


def test_searches_are_compared_at_equal_calls(studies: Callable[..., Any]) -> None:
    found = studies("equal-calls")["equal-calls"]
    assert [one["name"].split()[0] for one in found["searches"]] == ["study", "random", "one", "MIPROv2"]
    assert all(one["calls"] <= 45 for one in found["searches"])
    ours, *others = found["searches"]
    assert ours["paired"] == {"accuracy": None}
    for one in others:
        paired = one["paired"]["accuracy"]
        assert paired["n"] == 6
        assert paired["difference"] == pytest.approx(ours["test"]["accuracy"] - one["test"]["accuracy"])


CONTEST = """
import hashlib, sys
import numpy as np
import querywright.models.embedder as embedder

class Hashed:
    def encode(self, texts, **_):
        rows = [np.frombuffer(hashlib.sha256(text.encode()).digest()[:8], np.uint8) for text in texts]
        vectors = np.array(rows, dtype=np.float32) - 127.5
        return np.tile((vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), 48)

embedder._loader = lambda *_: Hashed
sys.path.insert(0, sys.argv.pop(1))
import study
study.main(sys.argv[1:])
"""


def test_a_contest_that_was_killed_comes_to_what_an_undisturbed_one_does_and_pays_no_answer_twice(
    benchmarks: SimpleNamespace, tmp_path: Path
) -> None:
    given = {
        "part": "equal-calls", "lm": "openai/bench", "objective": "accuracy", "dev": 3, "test": 2, "calls": 20,
        "most-trials": 6, "threads": 2,
    }  # fmt: skip

    def begin(home: Path, **changes: object) -> subprocess.Popen[str]:
        named = {**given, "home": home, "api-base": server.url, **changes}
        options = [text for name, value in named.items() for text in (f"--{name}", str(value))]
        return subprocess.Popen(
            [sys.executable, "-c", CONTEST, str(BENCHMARKS), "--json", *options], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env={**os.environ, benchmarks.trials.KEY: "x"},
        )  # fmt: skip

    def searches(home: Path) -> Any:
        out, said = begin(home).communicate(timeout=120)
        return json.loads(out)["equal-calls"] if out else pytest.fail(said)

    with benchmarks.loopback.Loopback(0.02) as server:
        undisturbed = searches(tmp_path / "undisturbed")
        calls = server.counts().calls
        server.forget()
        killed = begin(tmp_path / "killed")
        while killed.poll() is None and server.counts().calls < calls // 2:
            time.sleep(0.01)
        killed.kill()
        killed.communicate()
        before = server.counts().calls
        assert calls // 2 <= before < calls
        assert searches(tmp_path / "killed") == undisturbed
        assert calls <= server.counts().calls <= calls + 2  # those under way when it was killed
        paid = server.counts().calls
        assert searches(tmp_path / "killed") == undisturbed
        assert server.counts().calls == paid
        other = begin(tmp_path / "killed", dev=4)
        assert "another dev" in other.communicate(timeout=120)[1]


def test_the_folder_of_a_contest_is_for_nothing_else(benchmarks: SimpleNamespace, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        benchmarks.study.main(["--home", str(tmp_path / "home")])
    assert not (tmp_path / "home").exists()


def test_a_server_that_is_begun_again_listens_where_it_did(benchmarks: SimpleNamespace) -> None:
    with benchmarks.loopback.Loopback(0.01) as first:
        url = first.url
    with benchmarks.loopback.Loopback(0.01, port=first.port) as second:
        assert second.url == url


def test_trials_a_minute_are_counted_while_all_workers_are_at_work(benchmarks: SimpleNamespace) -> None:
    from querywright.optimize.study.types import TrialRecord

    def trial(number: int, worker: str, began: float, ended: float, same_as: int | None = None) -> TrialRecord:
        return TrialRecord(number, "complete", None, began=began, ended=ended, worker=worker, same_as=same_as)

    alone = [trial(number, "1", 2 * number, 2 * number + 2) for number in range(10)]
    assert benchmarks.trials.rate(alone) == pytest.approx(30)
    late = [trial(number, "2", 2 * number + 5, 2 * number + 7) for number in range(10)]
    copies = [trial(30 + number, "2", 9, 9, same_as=0) for number in range(5)]
    assert benchmarks.trials.rate([*alone, *late, *copies]) == pytest.approx(60)


@pytest.mark.shared_data
def test_memory_is_measured_of_the_same_records_in_processes_of_their_own(
    benchmarks: SimpleNamespace, tmp_path: Path
) -> None:
    assert [len(record.questions) for record in benchmarks.questions.made(10, 4)] == [4, 4, 2]
    for part in benchmarks.questions.Part:
        (tmp_path / part).mkdir()
        assert benchmarks.questions.do(part, 10, 4, tmp_path / part) > 2**20
    assert published_passages(questions_folder("asked", tmp_path / "publish"))[0].count == 10
    most = benchmarks.questions.memory(10, 4)
    assert most["bare"] > 10
    assert most["publish"] > most["chroma"] - 20


def test_public_questions_bring_their_passages(benchmarks: SimpleNamespace) -> None:
    folder = benchmarks.techniques.HOTPOTQA
    if not folder.is_dir():
        pytest.skip("the public question sets are not beside the checkout")
    made = benchmarks.measured.material(folder, 300, 101)
    assert "HotpotQA" in made.source
    ids = {passage.id for passage in made.passages}
    assert len(ids) == 300
    assert all(set(question.evidence) <= ids for question in made.questions)


def test_loading_is_set_beside_what_its_models_alone_need(
    benchmarks: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    result = benchmarks.load.main(["--runs", "1", "--lm", "loopback", "--engine", "bm25"])
    assert min(result.dspy, result.floor, result.load) > 0
    assert result.ratio == pytest.approx(result.load / result.floor)
    assert result.work > 0
    assert f"load to first answer: {result.ratio:.2f} times" in capsys.readouterr().out


def test_a_process_that_answers_nothing_is_no_measurement(benchmarks: SimpleNamespace, tmp_path: Path) -> None:
    bench = benchmarks.load.Bench(tmp_path, tmp_path / "a", {"load": "raise SystemExit(3)"})
    with pytest.raises(RuntimeError, match="the process load ended with 3"):
        benchmarks.load.seconds(bench, "load")
