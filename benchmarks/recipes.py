"""The three recipes of reinforcement beside each other, from one warmed-up rewriter, on a few questions of the sample.

Usage: python benchmarks/recipes.py [--rewriter FOLDER] [--train 16] [--dev 12] [--steps 10] [--work FOLDER] [--json]

Each recipe goes on from the weights of the rewriter, with its own reward, baseline, KL, optimizer and learning rate,
and with as many samples a step as the others: what it would take in its paper, thousands of steps, is not measured.
`seed` and `paper` reward the answers of the multiple-choice reader over the embedded LM, `ours` what is found. Printed
are, for each, the reward of its first and its last steps, what it reached on dev, greedy, in its own measure, the KL to
the start, tokens a rewrite, the share of distinct word pairs among what was drawn (diversity), and seconds a step;
--json has each step. With --work the curves are kept, and the same command goes on.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

ARTIFACT = Path(__file__).resolve().parents[1] / "artifacts" / "embedded-rewriter"
TECHNIQUE = "rrr"
RECIPES = ("ours", "seed", "paper")


def started(folder: Path, device: str, dtype: str = "auto", kind: Any = None) -> Any:
    """The policy with the weights of a rewriter; LoRA goes on being trained.

    Args:
        folder: The rewriter's, of the embedded model.
        device: As torch names it, or ``auto``.
        dtype: What is computed in, as ``HFPolicy`` takes it.
        kind: A class of policy; ``HFPolicy`` where none is given.

    Raises:
        SystemExit: Its LoRA is of another form.
    """
    from safetensors.torch import load_file

    from querywright.models.hf import load_base
    from querywright.optimize.rewriter.policy import HFPolicy

    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    policy = (kind or HFPolicy)(load_base("embedded"), rank=config["r"], device=device, dtype=dtype)
    known = load_file(folder / "adapter.safetensors")
    mine = {name: known.get(_filed(name)) for name in policy.parameters()}
    missing = [name for name, one in mine.items() if one is None]
    if missing:
        raise SystemExit(f"the rewriter {folder} has no {missing[0]}: take one of the embedded model with LoRA")
    policy.set_parameters(mine)
    return policy


def _filed(name: str) -> str:
    """What peft calls one of the policy's tensors in a file."""
    return "base_model.model." + name.replace(".default.", ".")


def measure(options: argparse.Namespace, work: Path, say: Any) -> dict[str, Any]:
    """The curves of each recipe.

    Args:
        options: As ``parser`` gives them.
        work: Where they are kept.
        say: Told what is done.
    """
    from querywright import resolve_lm
    from querywright.data import load_sample
    from querywright.data.splits import split_questions
    from querywright.models.embedder import resolve_embedder
    from querywright.optimize.rewriter.checkpoints import read_lines
    from querywright.optimize.rewriter.episodes import run_episodes
    from querywright.optimize.rewriter.recipes import RECIPES as KNOWN
    from querywright.optimize.rewriter.reinforce import LOG, reinforce
    from querywright.optimize.rewriter.rewards import Reward
    from querywright.optimize.rewriter.settings import TrainSettings
    from querywright.programs import make_program
    from querywright.retrieval.chroma import ChromaRetriever
    from querywright.retrieval.index import build_collection

    check_same(work, {name: getattr(options, name) for name in ("train", "dev", "samples", "room")}, options.rewriter)
    sample, embedder = load_sample(), resolve_embedder("embedded")
    build_collection("sample", sample.passages, embedder=embedder, home=work)
    retriever = ChromaRetriever("sample", embedder=embedder, home=work)
    splits = split_questions(sample.questions, sizes=(options.train, options.dev, 1))
    found = {}
    for name in options.recipes:
        recipe = replace(KNOWN[name], steps=options.steps, room=options.room, length_penalty=0.0)
        group = options.samples // 2 if recipe.group > 1 else 1  # two questions a step, where they are compared
        recipe = replace(recipe, batch=options.samples // group, group=group)
        lm: Any = resolve_lm("embedded") if recipe.needs_reader else None
        program = make_program(
            TECHNIQUE, retriever, reader="multiple_choice" if recipe.needs_reader else None, max_passages=10, top_k=10
        )
        folder = work / name
        settings = TrainSettings(TECHNIQUE, recipe=recipe, look_each=max(1, options.steps // 2), patience=99)
        reinforce(
            started(options.rewriter, options.device), splits.train, splits.dev, folder, settings,
            run=partial(run_episodes, program, lm=lm), reward=Reward(recipe, program, lm=lm),
            progress=lambda what, done, total, name=name: say(f"{name}: step {done} of {total}"),
        )  # fmt: skip
        log = read_lines(folder / LOG)
        found[name] = {"recipe": asdict(recipe), "log": log, **summary(log)}
        if lm is not None:
            lm.engine.close()
    return found


def check_same(work: Path, sizes: dict[str, int], rewriter: Path) -> None:
    """Note in the working folder what its curves are of.

    Args:
        work: The folder; made when it is missing.
        sizes: What a curve depends on besides its length.
        rewriter: Where it begins.

    Raises:
        SystemExit: Its curves are of something else.
    """
    from querywright.optimize.rewriter.checkpoints import write_json

    manifest, file = rewriter / "rewriter.json", work / "recipes.json"
    if not manifest.is_file():
        raise SystemExit(f"there is no rewriter at {rewriter.name}: give the folder of one")
    facts = {**sizes, "rewriter": json.loads(manifest.read_text(encoding="utf-8"))["sha256"]}
    begun = any((work / name).exists() for name in RECIPES)
    known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {} if begun else facts
    apart = [f"{name} was {known.get(name, 'another')}" for name, value in facts.items() if known.get(name) != value]
    if apart:
        raise SystemExit(f"{work.name} holds other curves ({', '.join(apart)}): give another --work, or delete it")
    work.mkdir(parents=True, exist_ok=True)
    write_json(file, facts)


def summary(log: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What a curve comes to.

    Args:
        log: Of ``reinforce``.
    """
    steps, looks = ([line for line in log if line["kind"] == kind] for kind in ("step", "dev"))
    third = max(1, len(steps) // 3)

    def ends(value: Callable[[dict[str, Any]], float | None]) -> list[float]:
        """The means of the first and the last steps; of steps without a value nothing is known."""
        known = [[one for line in part if (one := value(line)) is not None] for part in (steps[:third], steps[-third:])]
        return [statistics.mean(part) if part else math.nan for part in known]

    return {
        "reward": ends(lambda line: line["reward"]),
        "dev": [line["value"] for line in looks],
        "plain": looks[0]["plain"],
        "kl": steps[-1]["kl"],
        "tokens": ends(lambda line: line["tokens"]),
        "distinct_2": ends(lambda line: line["guards"]["distinct_2"]),
        "unreadable": ends(lambda line: line["guards"]["unreadable"]),
        "seconds": statistics.median(line["seconds"] for line in steps),
    }


def lines(report: dict[str, Any]) -> list[str]:
    """The report for people.

    Args:
        report: As ``measure`` gives it.
    """
    said = [
        "recipe   reward first > last    dev by look (plain)               KL  tokens first > last  distinct_2     "
        "unreadable     s a step"
    ]
    for name, one in report.items():
        dev = " ".join(f"{value:.3f}" for value in one["dev"]) + f" ({one['plain']:.3f})"
        pairs = (" > ".join(f"{value:.2f}" for value in one[key]) for key in ("distinct_2", "unreadable"))
        said.append(
            f"{name:9}{one['reward'][0]:8.3f} > {one['reward'][1]:.3f}      {dev:30}{one['kl']:8.4f}"
            f"{one['tokens'][0]:8.1f} > {one['tokens'][1]:<10.1f}{'  '.join(pairs)}{one['seconds']:10.1f}"
        )
    return said


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--rewriter", type=Path, default=ARTIFACT, help="where it begins (artifacts/embedded-rewriter)")
    made.add_argument("--recipes", nargs="+", default=RECIPES, choices=RECIPES)
    made.add_argument("--train", type=int, default=16, help="questions to learn from (16)")
    made.add_argument("--dev", type=int, default=12, help="questions that are looked at (12)")
    made.add_argument("--steps", type=int, default=10, help="of each recipe (10)")
    made.add_argument("--samples", type=int, default=8, help="rewrites a step, even, 4 or more (8)")
    made.add_argument("--room", type=int, default=128, help="tokens of a rewrite at most (128)")
    made.add_argument("--device", default="auto", help="as torch names it (auto)")
    made.add_argument("--work", type=Path, help="where the curves are kept; a temporary folder otherwise")
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure and print."""
    options = parser().parse_args(arguments)
    if min(options.train, options.dev, options.steps) < 1 or options.samples < 4 or options.samples % 2:
        raise SystemExit("--train, --dev and --steps take 1 or more, and --samples 4 or more, an even number")
    out = sys.stderr if options.json else sys.stdout
    say = partial(print, file=out, flush=True)
    say(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} before the run")
    # Models are re-encoded there, and not in a working folder beside whoever measures.
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, QUERYWRIGHT_HOME=folder):
        found = measure(options, options.work or Path(folder), say)
    for line in () if options.json else lines(found):
        say(line)
    if options.json:
        from querywright.optimize.rewriter.checkpoints import as_plain

        print(json.dumps(as_plain(found), indent=2))
    return found


if __name__ == "__main__":
    logging.getLogger("dspy.clients.lm").setLevel(logging.ERROR)  # answers that were cut off are counted
    main()
