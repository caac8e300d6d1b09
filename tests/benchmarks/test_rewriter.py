"""The benchmark of rewriters measures what is worked out, and nothing that was kept."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import dspy
import pytest
from dspy import lm15

from querywright.data import load_sample
from querywright.models.embedder import resolve_embedder
from querywright.models.engine import LMEngine
from querywright.models.hf import load_base
from querywright.models.response_parsing import text_response
from querywright.models.rewriters import describe_base, save_weights, write_rewriter
from querywright.models.store import Store, open_store
from querywright.models.transformers_engine import TransformersEngine
from querywright.optimize.rewriter.policy import HFPolicy
from querywright.programs import make_program
from querywright.retrieval.chroma import ChromaRetriever
from querywright.retrieval.index import build_collection

ROOT = Path(__file__).resolve().parents[2]
GGUF = runpy.run_path(str(ROOT / "tests" / "models" / "tiny_gguf.py"))
TINY = runpy.run_path(str(ROOT / "tests" / "optimize" / "rewriter" / "tiny.py"))


@pytest.fixture
def benchmark(package: Path, tiny_models: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    import rewriter

    monkeypatch.setattr(rewriter, "ARTIFACT", package / "none")
    yield rewriter
    sys.modules.pop("rewriter", None)


class Scripted:
    """Writes what is to be written, and remembers what it was asked."""

    deterministic = supports_response_schema = True
    decides_by_likelihood = True  # as of the embedded LM, whose prompts are another's
    supported_params = frozenset({"temperature", "max_tokens", "response_format"})

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def complete(self, request: Any) -> Any:
        self.asked.append(request)
        return text_response('{"thought": "look it up", "queries": ["a query"]}', "stop", request.model, 5, 7)

    def lm(self, store: Store | None = None) -> dspy.LM:
        guarded = LMEngine(self, identity="scripted", store=store)
        return dspy.LM("scripted/lm", engine=guarded, temperature=0.0, cache=False, num_retries=0)


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
    assert list(made["batches"]) == ["1", "8", "32"]
    assert all(one["prompts"] == 32 and 1 < one["tokens"] <= 16 for one in made["batches"].values())
    assert made["batch_ratio"] == made["batches"]["32"]["rewrites"] / made["batches"]["1"]["rewrites"]
    table = "\n".join(benchmark.lines(made, benchmark.parser().parse_args([])))
    assert f"{ways['llama.cpp']['over_frozen']['median']:10.2f}" in table
    assert f"32 at a time write {made['batch_ratio']:.2f} times as fast as 1" in table


def test_a_rewriter_of_another_base_runs_through_transformers_alone(benchmark, tmp_path, capsys):
    folder = str(TINY["save_tiny"](tmp_path / "tiny"))
    base = load_base(folder)
    save_weights(base._replace(model=GGUF["random_adapter"](base.model, 0.5)), tmp_path / "weights")
    made = write_rewriter(
        tmp_path / "mine", tmp_path / "weights", base=describe_base(folder), techniques=["hcqr"], recipe="ours",
        created="2026-01-02", card={"technique": "rrr", "knobs": {"max_passages": 3}}, readme="",
    )  # fmt: skip
    given = ["--rewriter", str(tmp_path / "mine"), "--questions", "1", "--rounds", "1", "--room", "8"]
    ways = benchmark.main([*given, "--batch-rounds", "0"])["latency"]
    assert list(ways) == ["plain", "frozen", "transformers"]
    said = capsys.readouterr().out
    assert f"{made.identity}, of tiny; it did not learn rrr" in said
    assert "does not run in llama.cpp" in said
    assert (benchmark.knobs_of(made, "rrr"), benchmark.knobs_of(made, "hcqr")) == ({"max_passages": 3}, {})
    prompts = [(("user", "What is the question?"),), (("user", "find the treatment"),)]
    written = [one.text for one in benchmark.policy_of(made).write(prompts, room=8)]
    engine, room = TransformersEngine(made), lm15.Config(max_tokens=8)
    asked = [lm15.Request(model="m", messages=(lm15.Message.user(one[0][1]),), config=room) for one in prompts]
    assert written == [engine.complete(request).text for request in asked]
    assert written != [one.text for one in HFPolicy(load_base(folder), rank=None).write(prompts, room=8)]


def test_stored_answers_and_vectors_are_no_measurement(benchmark, tmp_path):
    sample, one = load_sample(), Scripted()
    build_collection("sample", sample.passages[:20], embedder=resolve_embedder("embedded"), home=tmp_path)

    def measured(lm: Any, store: Store | None = None, rounds: int = 1) -> Any:
        embedder = resolve_embedder("embedded", store=store)
        retriever = ChromaRetriever("sample", embedder=embedder, home=tmp_path)
        arms = {"plain": benchmark.Arm(make_program("plain", retriever), None)}
        if lm is not None:
            arms["rrr"] = benchmark.Arm(make_program("rrr", retriever, writer_lm=lm), lm)
        return benchmark.compare(arms, sample.questions[:1], embedder, rounds)

    found = measured(one.lm(), rounds=3)
    assert len(one.asked) == 4  # one so that all is loaded
    assert (found["rrr"].calls, found["rrr"].tokens, found["rrr"].measured) == (1, 7, 3)
    store = open_store(tmp_path)
    for lm, of, name in ((Scripted().lm(store), None, "rrr"), (None, store, "plain")):
        with pytest.raises(RuntimeError, match=f"{name} took an answer or a vector from a store"):
            measured(lm, of)
