"""A trained rewriter beside the frozen embedded LM and beside the search itself, and its writing in batches.

Usage: python benchmarks/rewriter.py [--rewriter FOLDER] [--questions 8] [--rounds 3] [--technique rrr] [--json]

Latency: one question at a time over the packaged sample, without a reader, in four ways: the question is embedded and
searched as it stands (plain); the technique asks the frozen embedded LM (frozen); it asks the rewriter in llama.cpp
(llama.cpp); it asks the same rewriter through transformers (transformers). The ways take turns at every question, and
whoever begins changes. No answer and no vector is stored; what was not worked out anew is no measurement and ends the
run. A rewriter whose base is not the embedded model does not run in llama.cpp, and that way is left out.

Batches: the rewriter writes after the prompts of the technique in batches of 1, 8 and 32, as in training: what the
prompts of a batch begin with is read once. Each size writes after the same prompts, the likeliest token each time.

Compare ways that write about as much: tokens are those written a question, and calls above 1 a question are answers
that could not be read and were asked for once more, or a technique that asks more often. Without --rewriter it is
artifacts/embedded-rewriter, or where there is none a LoRA of random values, which is as fast as a trained one that
writes as much. Run it on a machine that has nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

ARTIFACT = Path(__file__).resolve().parents[1] / "artifacts" / "embedded-rewriter"
PLAIN, FROZEN, LLAMA, TRANSFORMERS = "plain", "frozen", "llama.cpp", "transformers"
SIZES = (1, 8, 32)
RANK, SCALE = 16, 1e-3  # of random values: so small that it writes what the frozen model writes
RANDOM = "a LoRA of random values over the embedded model: as fast as a trained one that writes as much"


@dataclass(frozen=True)
class Arm:
    """A way to find passages.

    Args:
        program: The technique, without a reader.
        lm: What it asks; None where it asks none.
    """

    program: Any
    lm: Any


@dataclass(frozen=True)
class Latency:
    """Of one way.

    Args:
        median: Seconds a question.
        p95: The same, of the slowest twentieth.
        calls: LM calls a question.
        tokens: Tokens that the LM wrote a question.
        fallbacks: Steps a question whose answer could not be read the second time either.
        measured: Questions that were measured.
    """

    median: float
    p95: float
    calls: float
    tokens: float
    fallbacks: float
    measured: int


@dataclass(frozen=True)
class Throughput:
    """Of one size of batches.

    Args:
        rewrites: A second, the median of the rounds.
        tokens: Written in a rewrite.
        prompts: That were written after in a round.
    """

    rewrites: float
    tokens: float
    prompts: int


def random_rewriter(path: Path, technique: str) -> Any:
    """Write a rewriter of random values, of the form that a trained one has.

    Args:
        path: Its folder.
        technique: Whose prompts it is said to know.
    """
    from gguf import GGUFReader
    from safetensors.numpy import save_file

    from querywright.models.embedded import EmbeddedSettings
    from querywright.models.gguf_files import packaged_file
    from querywright.models.lora_gguf import LORA_MODULES
    from querywright.models.rewriters import describe_base, write_rewriter

    places = {llama: name for name, llama in LORA_MODULES.items()}
    drawn, tensors = np.random.default_rng(0), {}
    for tensor in GGUFReader(packaged_file()).tensors:
        match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", tensor.name)
        if match and match[2] in places:
            inputs, outputs = map(int, tensor.shape)
            place = f"base_model.model.model.layers.{match[1]}.{places[match[2]]}"
            for side, shape in (("A", (RANK, inputs)), ("B", (outputs, RANK))):
                values = SCALE * drawn.standard_normal(shape, np.float32)
                tensors[f"{place}.lora_{side}.weight"] = values.astype(np.float32)
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": 2 * RANK,
        "target_modules": sorted(name.partition(".")[2] for name in LORA_MODULES),
    }  # fmt: skip
    settings = EmbeddedSettings()
    with tempfile.TemporaryDirectory() as folder:
        save_file(tensors, Path(folder) / "adapter.safetensors")
        (Path(folder) / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
        return write_rewriter(
            path, Path(folder), base=describe_base("embedded"), techniques=[technique], recipe="none",
            created="2026-01-02", card={"random": True}, readme="# Random values\n",
            max_chars=settings.max_chars, max_items=settings.max_items,
        )  # fmt: skip


def arms_of(retriever: Any, rewriter: Any, technique: str, room: int) -> dict[str, Arm]:
    """The ways, none of which keeps an answer.

    Args:
        retriever: Searches the collection.
        rewriter: As ``read_rewriter`` gives it.
        technique: Its name.
        room: Tokens of an answer at most.
    """
    from querywright.models.lm import resolve_lm
    from querywright.programs import make_program

    lms = {FROZEN: resolve_lm("embedded", max_tokens=room)}
    if rewriter.adapter_gguf is not None:
        lms[LLAMA] = resolve_lm(f"rewriter:{rewriter.path}", max_tokens=room)
    lms[TRANSFORMERS] = _through_transformers(rewriter, room)
    knobs = knobs_of(rewriter, technique)
    written = {name: Arm(make_program(technique, retriever, writer_lm=lm, **knobs), lm) for name, lm in lms.items()}
    searched = {"max_passages": knobs["max_passages"]} if "max_passages" in knobs else {}
    return {PLAIN: Arm(make_program("plain", retriever, **searched), None), **written}


def knobs_of(rewriter: Any, technique: str) -> dict[str, Any]:
    """The knobs of the training; none for a technique that was not trained."""
    return dict(rewriter.card.get("knobs") or {}) if rewriter.card.get("technique") == technique else {}


def _through_transformers(rewriter: Any, room: int) -> Any:
    """The rewriter as an LM that transformers runs, whatever its base."""
    import dspy

    from querywright.models.engine import AsyncLMEngine, LMEngine
    from querywright.models.transformers_engine import TransformersEngine

    engine = TransformersEngine(rewriter)
    guarded = LMEngine(engine, identity=engine.answers_identity)
    return dspy.LM(
        engine.identity, engine=guarded, async_engine=AsyncLMEngine(guarded), temperature=0.0, max_tokens=room,
        cache=False, num_retries=0,
    )  # fmt: skip


def compare(arms: Mapping[str, Arm], questions: Sequence[Any], embedder: Any, rounds: int) -> dict[str, Latency]:
    """How long each way takes, in turns.

    Args:
        arms: By name.
        questions: One or more.
        embedder: What all of them embed with.
        rounds: How often each question is asked.

    Raises:
        RuntimeError: An answer or a vector was not worked out anew.
    """
    for name, arm in arms.items():  # models are loaded
        _measured(name, arm, questions[-1], embedder)
    names = list(arms)
    taken: dict[str, list[_Taken]] = {name: [] for name in names}
    for turn in range(rounds * len(questions)):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            taken[name].append(_measured(name, arms[name], questions[turn % len(questions)], embedder))
    return {name: _latency(found) for name, found in taken.items()}


class _Taken(NamedTuple):
    """Seconds of one question, what its LM calls cost, and how many steps fell back."""

    seconds: float
    cost: Any
    fallbacks: int


def _measured(name: str, arm: Arm, question: Any, embedder: Any) -> _Taken:
    from querywright.models.usage import metered
    from querywright.optimize.dspy_context import asking

    embedded, cached = embedder.n_embedded, embedder.n_cached
    with asking(arm.lm), metered() as meter:
        began = time.perf_counter()
        found = arm.program(question=question.question, options=list(question.options))
        seconds = time.perf_counter() - began
    cost = meter.total
    if cost.saved or embedder.n_cached > cached:
        raise RuntimeError(f"{name} took an answer or a vector from a store, so nothing was measured")
    if bool(cost.calls) == (arm.lm is None) or cost.failures:
        raise RuntimeError(f"{name} made {cost.calls} LM calls and {cost.failures} failed, so nothing was measured")
    # A technique may write no query, and then searches nothing.
    if found.queries and (embedder.n_embedded == embedded or not found.passages):
        raise RuntimeError(f"{name} embedded nothing or found no passages, so nothing was measured")
    return _Taken(seconds, cost, len(found.fallbacks))


def _latency(found: Sequence[_Taken]) -> Latency:
    seconds = [one.seconds for one in found]
    return Latency(
        median=statistics.median(seconds),
        p95=float(np.quantile(seconds, 0.95)),
        calls=statistics.mean(one.cost.calls for one in found),
        tokens=statistics.mean(one.cost.output_tokens for one in found),
        fallbacks=statistics.mean(one.fallbacks for one in found),
        measured=len(found),
    )


def prompts_of(program: Any, questions: Sequence[Any]) -> list[Any]:
    """What a technique asks first about each question, no prompt twice.

    Args:
        program: The technique, without a reader.
        questions: Any number.
    """
    from querywright.optimize.rewriter.episodes import run_episodes

    first: dict[int, Any] = {}

    def answer(turns: Sequence[Any]) -> list[str]:
        for turn in turns:
            first.setdefault(turn.place, turn.messages)
        return ["{}" for _ in turns]

    run_episodes(program, questions, answer, threads=1)
    return list(dict.fromkeys(first.values()))


def policy_of(rewriter: Any) -> Any:
    """The rewriter as training has it.

    Args:
        rewriter: As ``read_rewriter`` gives it.
    """
    from querywright.models.transformers_engine import load_rewriter
    from querywright.optimize.rewriter.policy import HFPolicy

    base = load_rewriter(rewriter)
    # LoRA stands in the model itself, whose arguments the one around it does not name.
    inner = base.model.get_base_model() if rewriter.form == "lora" else base.model
    return HFPolicy(base._replace(model=inner), rank=None)


def throughput(
    policy: Any, prompts: Sequence[Any], *, sizes: Sequence[int], rounds: int, room: int
) -> dict[int, Throughput]:
    """Rewrites a second in batches, the sizes in turns.

    Args:
        policy: What writes.
        prompts: As many as the largest batch, or more.
        sizes: Of the batches.
        rounds: How often each size writes after all prompts.
        room: Tokens of a rewrite at most.

    Raises:
        RuntimeError: There are too few prompts, or something was not written.
    """
    if len(prompts) < max(sizes):
        raise RuntimeError(f"there are {len(prompts)} prompts, fewer than the largest batch ({max(sizes)}) takes")
    policy.write(prompts[:1], room=2)
    seconds: dict[int, list[float]] = {size: [] for size in sizes}
    tokens: dict[int, float] = {}
    for turn in range(rounds):
        for size in (*sizes[turn % len(sizes) :], *sizes[: turn % len(sizes)]):
            written: list[Any] = []
            began = time.perf_counter()
            for start in range(0, len(prompts), size):
                written += policy.write(prompts[start : start + size], room=room)
            seconds[size].append(time.perf_counter() - began)
            if len(written) != len(prompts) or not all(one.tokens for one in written):
                raise RuntimeError(f"in batches of {size} something was not written, so nothing was measured")
            tokens[size] = statistics.mean(len(one.tokens) for one in written)
    return {
        size: Throughput(len(prompts) / statistics.median(taken), tokens[size], len(prompts))
        for size, taken in seconds.items()
    }


def measure(options: argparse.Namespace, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """All parts.

    Args:
        options: As ``parser`` gives them.
        folder: An empty working folder.
        say: Told what is done.
    """
    from querywright.data import load_sample
    from querywright.models.embedder import resolve_embedder
    from querywright.models.rewriters import read_rewriter
    from querywright.programs import make_program
    from querywright.retrieval.chroma import ChromaRetriever
    from querywright.retrieval.index import build_collection

    place = options.rewriter or (ARTIFACT if ARTIFACT.is_dir() else None)
    rewriter = random_rewriter(folder / "random", options.technique) if place is None else read_rewriter(place)
    what = RANDOM if place is None else f"{rewriter.identity}, of {rewriter.base.name}"
    if options.technique not in rewriter.techniques:
        what += f"; it did not learn {options.technique}, so it may write more or less than one that did"
    say(f"The rewriter: {what}")
    sample, embedder = load_sample(), resolve_embedder("embedded")
    build_collection("sample", sample.passages, embedder=embedder, home=folder)
    retriever = ChromaRetriever("sample", embedder=embedder, home=folder)
    report: dict[str, Any] = {"rewriter": {"random": place is None, "what": what}}
    if options.questions:
        arms = arms_of(retriever, rewriter, options.technique, options.room)
        found = compare(arms, sample.questions[: options.questions], embedder, options.rounds)
        report["latency"] = _with_ratios(found)
        _close(arms)
    if options.batch_rounds:
        program = make_program(options.technique, retriever, **knobs_of(rewriter, options.technique))
        prompts = prompts_of(program, sample.questions[: options.prompts])
        wrote = throughput(
            policy_of(rewriter), prompts, sizes=SIZES, rounds=options.batch_rounds, room=options.room
        )  # fmt: skip
        report["batches"] = {str(size): asdict(one) for size, one in wrote.items()}
        report["batch_ratio"] = wrote[SIZES[-1]].rewrites / wrote[SIZES[0]].rewrites
    return report


def _with_ratios(found: Mapping[str, Latency]) -> dict[str, Any]:
    """The latencies, each beside that of the search and of the frozen LM."""
    report = {}
    for name, one in found.items():
        report[name] = asdict(one)
        for other in (PLAIN, FROZEN):
            beside = found[other]
            ratios = {"median": one.median / beside.median, "p95": one.p95 / beside.p95}
            report[name] |= {f"over_{other}": ratios}
    return report


def _close(arms: Mapping[str, Arm]) -> None:
    """Free the models, so that the batches have the machine to themselves."""
    for arm in arms.values():
        if arm.lm is not None:
            arm.lm.engine.close()


def lines(report: Mapping[str, Any], options: argparse.Namespace) -> list[str]:
    """The report for people.

    Args:
        report: As ``measure`` gives it.
        options: As ``parser`` gives them.
    """
    said = []
    if "latency" in report:
        measured = report["latency"][PLAIN]["measured"]
        said += [
            f"\n{options.technique}, a question at a time, {measured} measured each",
            "                median s     p95 s   / plain     p95  / frozen     p95   calls  tokens  fallbacks",
        ]
        for name, one in report["latency"].items():
            plain, frozen = one[f"over_{PLAIN}"], one[f"over_{FROZEN}"]
            said.append(
                f"{name:14}{one['median']:10.4f}{one['p95']:10.4f}{plain['median']:10.1f}{plain['p95']:8.1f}"
                f"{frozen['median']:10.2f}{frozen['p95']:8.2f}{one['calls']:8.2f}{one['tokens']:8.1f}"
                f"{one['fallbacks']:11.2f}"
            )
        if LLAMA not in report["latency"]:
            said.append("The base of the rewriter is not the embedded model, so it does not run in llama.cpp.")
    if "batches" in report:
        said.append("\nRewrites a second through transformers, in batches")
        for size, one in report["batches"].items():
            said.append(f"{size:>4}: {one['rewrites']:.3f} ({one['tokens']:.1f} tokens each, {one['prompts']} prompts)")
        said.append(f"{SIZES[-1]} at a time write {report['batch_ratio']:.2f} times as fast as {SIZES[0]}")
    return said


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument(
        "--rewriter", type=Path, help="folder of a trained one (artifacts/embedded-rewriter, else random values)"
    )
    made.add_argument("--questions", type=int, default=8, help="asked one at a time; 0 leaves latency out (8)")
    made.add_argument("--rounds", type=int, default=3, help="how often each is asked (3)")
    made.add_argument("--technique", default="rrr", help="one that asks an LM once a step (rrr)")
    made.add_argument("--room", type=int, default=128, help="tokens of an answer at most (128)")
    made.add_argument("--prompts", type=int, default=32, help=f"of the batches, {SIZES[-1]} or more (32)")
    made.add_argument("--batch-rounds", type=int, default=1, help="of each size; 0 leaves batches out (1)")
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure and print."""
    options = parser().parse_args(arguments)
    if options.batch_rounds and options.prompts < SIZES[-1]:
        raise SystemExit(f"--prompts takes {SIZES[-1]} or more, the largest batch; --batch-rounds 0 does without")
    say = _aside if options.json else _out
    load = os.getloadavg()[0]
    say(f"{os.cpu_count()} processors, load {load:.1f} before the run")
    shown = {key: value for key, value in vars(options).items() if key != "rewriter"}
    report: dict[str, Any] = {"options": shown, "machine": {"processors": os.cpu_count(), "load": load}}
    # Models are re-encoded there, and not in a working folder beside whoever measures.
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, QUERYWRIGHT_HOME=folder):
        report |= measure(options, Path(folder), say)
    report["machine"]["load_after"] = os.getloadavg()[0]
    for line in () if options.json else lines(report, options):
        say(line)
    say(f"load {report['machine']['load_after']:.1f} after the run")
    if options.json:
        print(json.dumps(report, indent=2))
    return report


def _out(text: str) -> None:
    print(text, flush=True)


def _aside(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    logging.getLogger("dspy.clients.lm").setLevel(logging.ERROR)  # answers that were cut off are counted
    main()
