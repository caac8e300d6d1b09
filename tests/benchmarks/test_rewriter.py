"""The benchmark of rewriters measures what is worked out, and nothing that was kept."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import dspy
import pytest
from dspy import lm15

from querywright.data import load_sample
from querywright.data.types import Question
from querywright.models.embedder import Embedder, resolve_embedder
from querywright.models.engine import LMEngine
from querywright.models.hf import load_base
from querywright.models.response_parsing import text_response
from querywright.models.rewriter_bases import describe_base, save_weights
from querywright.models.rewriters import write_rewriter
from querywright.models.store import Store, open_store
from querywright.models.transformers_engine import TransformersEngine
from querywright.optimize.rewriter.policy import HFPolicy
from querywright.programs import make_program
from querywright.retrieval.chroma import ChromaRetriever
from querywright.retrieval.index import build_collection

ROOT = Path(__file__).resolve().parents[2]
GGUF = runpy.run_path(str(ROOT / "tests" / "models" / "tiny_gguf.py"))
TINY = runpy.run_path(str(ROOT / "tests" / "optimize" / "rewriter" / "tiny.py"))
ROOM = lm15.Config(max_tokens=8)


@pytest.fixture
def benchmark(package: Path, tiny_models: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    import rewriter

    monkeypatch.setattr(rewriter, "ARTIFACT", package / "none")
    yield rewriter
    sys.modules.pop("rewriter", None)


class Scripted:
    """Writes what is to be written, and remembers what it was asked."""

    deterministic = True
    decides_by_likelihood = True  # as of the embedded LM, whose prompts are another's
    supports_response_schema = True
    supported_params = frozenset({"temperature", "max_tokens", "response_format"})

    def __init__(self, text: str = '{"thought": "look it up", "queries": ["a query"]}') -> None:
        self.text = text
        self.asked: list[Any] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> Scripted:
        return self

    def complete(self, request: Any) -> Any:
        self.asked.append(request)
        return text_response(self.text, "stop", request.model, 5, 7)

    def lm(self, store: Store | None = None) -> dspy.LM:
        guarded = LMEngine(self, identity="scripted", store=store)
        return dspy.LM("scripted/lm", engine=guarded, temperature=0.0, cache=False, num_retries=0)


class Site(NamedTuple):
    """A collection, and what is asked about it."""

    retriever: ChromaRetriever
    embedder: Embedder
    questions: Sequence[Question]


def site(home: Path, store: Store | None = None) -> Site:
    sample, embedder = load_sample(), resolve_embedder("embedded", store=store)
    if not (home / "collections").exists():
        build_collection("sample", sample.passages[:20], embedder=embedder, home=home)
    return Site(ChromaRetriever("sample", embedder=embedder, home=home), embedder, sample.questions)


@pytest.mark.slow
def test_every_way_is_measured_beside_the_search_and_the_frozen_lm(benchmark, capsys):
    made = benchmark.main(["--questions", "2", "--rounds", "2", "--room", "16", "--json"])
    out, err = capsys.readouterr()
    assert json.loads(out) == json.loads(json.dumps(made))
    assert "a LoRA of random values" in err
    assert f"load {made['machine']['load']:.1f} before the run" in err
    ways = made["latency"]
    assert list(ways) == ["plain", "frozen", "llama.cpp", "transformers"]
    assert {one["measured"] for one in ways.values()} == {4}
    assert ways["plain"]["calls"] == ways["plain"]["tokens"] == 0
    for name in ("frozen", "llama.cpp", "transformers"):
        assert ways[name]["calls"] >= 1
        assert ways[name]["tokens"] > 0
        assert ways["plain"]["median"] < ways[name]["median"] <= ways[name]["p95"]
    for what in ("median", "p95"):
        assert ways["llama.cpp"]["over_frozen"][what] == ways["llama.cpp"][what] / ways["frozen"][what]
        assert ways["transformers"]["over_plain"][what] == ways["transformers"][what] / ways["plain"][what]
    assert list(made["batches"]) == ["1", "8", "32"]
    assert all(one["prompts"] == 32 and 1 < one["tokens"] <= 16 for one in made["batches"].values())
    assert made["batch_ratio"] == made["batches"]["32"]["rewrites"] / made["batches"]["1"]["rewrites"]
    table = "\n".join(benchmark.lines(made, benchmark.parser().parse_args([])))
    assert f"{ways['llama.cpp']['over_frozen']['median']:10.2f}" in table
    assert f"32 at a time write {made['batch_ratio']:.2f} times as fast as 1" in table


def test_a_rewriter_of_another_base_runs_through_transformers_alone(benchmark, tmp_path, capsys):
    base = load_base(str(TINY["save_tiny"](tmp_path / "tiny")))
    trained = base._replace(model=GGUF["random_adapter"](base.model, 0.5))
    save_weights(trained, tmp_path / "weights")
    knobs = {"technique": "rrr", "knobs": {"max_passages": 3}}
    made = write_rewriter(
        tmp_path / "mine", tmp_path / "weights", base=describe_base(str(tmp_path / "tiny")), techniques=["hcqr"],
        recipe="ours", created="2026-01-02", card=knobs, readme="",
    )  # fmt: skip
    given = ["--rewriter", str(tmp_path / "mine"), "--questions", "1", "--rounds", "1", "--room", "8"]
    ways = benchmark.main([*given, "--batch-rounds", "0"])["latency"]
    assert list(ways) == ["plain", "frozen", "transformers"]
    said = capsys.readouterr().out
    assert f"{made.identity}, of tiny; it did not learn rrr" in said
    assert "does not run in llama.cpp" in said
    assert benchmark.knobs_of(made, "rrr") == {"max_passages": 3}
    assert benchmark.knobs_of(made, "hcqr") == {}

    prompts = [(("user", "What is the question?"),), (("user", "find the treatment"),)]
    written = [one.text for one in benchmark.policy_of(made).write(prompts, room=8)]
    engine = TransformersEngine(made)
    asked = [lm15.Request(model="m", messages=(lm15.Message.user(one[0][1]),), config=ROOM) for one in prompts]
    assert written == [engine.complete(request).text for request in asked]
    untaught = load_base(str(tmp_path / "tiny"))
    assert written != [one.text for one in HFPolicy(untaught, rank=None).write(prompts, room=8)]


def test_stored_answers_and_vectors_are_no_measurement(benchmark, tmp_path):
    store = open_store(tmp_path)
    fresh, one = site(tmp_path), Scripted()
    question = fresh.questions[:1]
    measured = {
        "plain": benchmark.Arm(make_program("plain", fresh.retriever), None),
        "rrr": benchmark.Arm(make_program("rrr", fresh.retriever, rewriter=(lm := one.lm())), lm),
    }
    found = benchmark.compare(measured, question, fresh.embedder, 3)
    assert len(one.asked) == 4  # one so that all is loaded
    assert (found["rrr"].calls, found["rrr"].tokens, found["rrr"].measured) == (1, 7, 3)
    lm = Scripted().lm(store)
    stored = {"rrr": benchmark.Arm(make_program("rrr", fresh.retriever, rewriter=lm), lm)}
    with pytest.raises(RuntimeError, match="rrr took an answer or a vector from a store"):
        benchmark.compare(stored, question, fresh.embedder, 1)
    kept = site(tmp_path, store)
    plain = {"plain": benchmark.Arm(make_program("plain", kept.retriever), None)}
    with pytest.raises(RuntimeError, match="plain took an answer or a vector from a store"):
        benchmark.compare(plain, question, kept.embedder, 1)
