"""The shipped rewriter taught further by a large LM: what its rewrites find, a warm-up on them, reinforcement.

Usage: python benchmarks/taught_rewriter.py --out FOLDER [--data ../shared/data] [--lm recording:FILE] [--steps 5]

The sample and DATA's hotpotqa, squad2 and medquad (corpus.jsonl and questions.jsonl) are indexed, and the large LM
writes for their train questions, those of `querywright rewriter train` with seed 0. Printed is what each form of a
rewrite finds: the question (q), what the evidence teaches (E), what the LM wrote (T), and one behind the other. The
warm-up goes on from --rewriter with one epoch over the form of each set that FORMS names, without the rewrites that
find less than the question; the reinforcement is that of `ours` on HotpotQA with batches of 16 rewrites. --out gets two
rewriters, `warmed` and `reinforced`, to be held against others by `querywright compare` on dev questions.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from large_lm import RECORDING
from recipes import ARTIFACT, started

from querywright.data import read_passages, read_questions, split_questions
from querywright.data.splits import Splits, asked_of
from querywright.data.types import Question
from querywright.models.embedder import resolve_embedder
from querywright.models.lm import resolve_lm
from querywright.models.rewriters import describe_base, write_rewriter
from querywright.models.store import open_store
from querywright.optimize.dspy_context import asking
from querywright.optimize.results import today
from querywright.optimize.rewriter.episodes import REWRITER_LIMITS, Episode, run_episodes
from querywright.optimize.rewriter.evidence import taught_by_evidence
from querywright.optimize.rewriter.pairs import Pair
from querywright.optimize.rewriter.recipes import OURS
from querywright.optimize.rewriter.reinforce import reinforce
from querywright.optimize.rewriter.rewards import Reward
from querywright.optimize.rewriter.settings import TrainSettings
from querywright.optimize.rewriter.train import split_pairs
from querywright.optimize.rewriter.warmup import warm_up
from querywright.programs import make_program
from querywright.retrieval.chroma import ChromaRetriever
from querywright.retrieval.index import build_collection

TECHNIQUE, KNOBS = "rrr", {"max_passages": 10, "top_k": 10}
FORMS = {"hotpotqa": "q T", "sample": "E T", "squad2": "q T", "medquad": "E T"}
"""What is learnt of each set: parts of one query, in their order."""
TRAIN = {"hotpotqa": 77, "sample": 68, "squad2": 300, "medquad": 300}
"""Train questions that are asked."""
LEARNT = {"squad2": 160, "medquad": 120}
"""Pairs that are learnt from at most, the first ones."""
SQUAD: dict[str, Any] = {"limit": 2000, "columns": {"evidence": "passage"}}

Queries = Callable[[Question], list[str]]


class Taught:
    """One set: its train and dev questions, and rewrites of them.

    Args:
        name: Its name.
        data: The folder of all sets.
        lm: The large LM.
        threads: Questions under way at a time.
    """

    def __init__(self, name: str, data: Path, lm: Any, threads: int) -> None:
        self.name, self.lm, self.threads = name, lm, threads
        files = (
            ["sample", "sample"] if name == "sample" else [data / name / f"{n}.jsonl" for n in ("corpus", "questions")]
        )
        embedder = resolve_embedder("embedded", store=open_store())
        build_collection(name, read_passages(files[0]), embedder=embedder)
        self.program = make_program(TECHNIQUE, ChromaRetriever(name, embedder=embedder), **KNOBS)
        splits = split_questions(read_questions(files[1], **(SQUAD if name == "squad2" else {})))
        self.splits: Splits = splits._replace(train=splits.train[: TRAIN[name]])
        self.reward = Reward(OURS, self.program, threads=threads)

    def by_lm(self) -> Queries:
        """What the large LM writes for each train question."""
        with asking(self.lm):
            found = {one.id: [query.text for query in self.program(**one.inputs).queries] for one in self.splits.train}
        return lambda question: found[question.id]

    def by_evidence(self) -> Queries:
        """What its evidence teaches for each train question."""
        technique, train = self.program.technique, self.splits.train

        def rewards(writers: Sequence[Any]) -> list[list[float]]:
            return [list(each) for each in zip(*map(self._earned, writers), strict=True)]

        write = taught_by_evidence(technique, train, rewards, self.reward.found)
        return lambda question: json.loads((write(question) or ["{}"])[0]).get("queries", [question.question])

    def _earned(self, write: Any) -> list[float]:
        texts = [(write(one) or [""])[0] for one in self.splits.train]
        scored = self.reward.score(self.played(texts))
        return [one.reward if text else math.nan for one, text in zip(scored, texts, strict=True)]

    def played(self, texts: Sequence[str]) -> list[Episode]:
        """Episodes of the train questions in which these texts are what was written."""
        given: dict[str, Any] = {"settings": REWRITER_LIMITS, "threads": self.threads}
        return run_episodes(self.program, self.splits.train, lambda turns: [texts[one.place] for one in turns], **given)

    def pairs(self, say: Callable[[str], None]) -> list[Pair]:
        """Pairs of the form that is learnt; what every form gains is told."""
        parts: dict[str, Queries] = {"q": lambda one: [one.question], "E": self.by_evidence(), "T": self.by_lm()}
        plain = statistics.fmean(self.reward.plain_values(self.splits.train))
        say(f"{self.name}: {len(self.splits.train)} train questions, ndcg@10 {plain:.4f}")
        learnt: list[Pair] = []
        for form in ("T", "E", "q T", "E T"):
            texts = [self._written([parts[part](one) for part in form.split()]) for one in self.splits.train]
            episodes = self.played(texts)
            scored = self.reward.score(episodes)
            gains = [one.reward for one in scored]
            up, down = sum(gain > 1e-9 for gain in gains), sum(gain < -1e-9 for gain in gains)
            say(f"  {form:4} {statistics.fmean(gains):+.4f}, better {up}, worse {down}")
            if form == FORMS[self.name]:
                both = zip(episodes, gains, strict=True)
                learnt = [self._pair(episode, gain) for episode, gain in both if gain > -1e-9]
        return learnt[: LEARNT.get(self.name)]

    def _written(self, parts: Sequence[list[str]]) -> str:
        queries = parts[0] if len(parts) == 1 else [" ".join(query for part in parts for query in part)]
        return json.dumps({"thought": "Look these up.", "queries": queries[:3]}, ensure_ascii=False)

    def _pair(self, episode: Episode, reward: float) -> Pair:
        turn, text, question = episode.turns[0], episode.read[0] or "", episode.question
        told: dict[str, Any] = {"data": self.name, "asked": asked_of(question)}
        return Pair(question.id, TECHNIQUE, turn.number, turn.messages, text, reward, self.lm.model, **told)


def main() -> None:
    """Collect, warm up, reinforce, and write both rewriters."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--lm", default=RECORDING)
    parser.add_argument("--rewriter", type=Path, default=ARTIFACT)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=8)
    given = parser.parse_args()
    say = partial(print, flush=True)
    lm = resolve_lm(given.lm, store=open_store())
    sets = {name: Taught(name, given.data, lm, given.threads) for name in FORMS}
    learnt, looked_at = split_pairs([pair for one in sets.values() for pair in one.pairs(say)], 0)
    policy = started(given.rewriter, "auto")

    def progress(what: str, done: int, total: int) -> None:
        say(f"{what}: {done} of {total}")

    def write(name: str, recipe: str) -> None:
        policy.save(given.out / f"{name}-weights")
        limits = {"max_chars": REWRITER_LIMITS.max_chars, "max_items": REWRITER_LIMITS.max_items}
        write_rewriter(
            given.out / name, given.out / f"{name}-weights", base=describe_base("embedded"), techniques=[TECHNIQUE],
            recipe=recipe, created=today(), card={}, readme=f"# {name}\n", **limits,
        )  # fmt: skip

    settings = TrainSettings(TECHNIQUE, KNOBS, epochs=1, warmup_lr=3e-4, look_each=given.steps)
    say(str(warm_up(policy, learnt, looked_at, given.out / "warmup", settings, progress=progress)))
    write("warmed", "warm-up")
    recipe, hops = replace(OURS, batch=4, group=4, steps=given.steps), sets["hotpotqa"]
    run: Any = partial(run_episodes, hops.program, settings=REWRITER_LIMITS, threads=given.threads)
    reward, (train, dev, _) = Reward(recipe, hops.program, threads=given.threads), hops.splits
    folder, told = given.out / "reinforce", replace(settings, recipe=recipe)
    say(str(reinforce(policy, train, dev[:8], folder, told, run=run, reward=reward, progress=progress)))
    write("reinforced", recipe.name)


if __name__ == "__main__":
    main()
