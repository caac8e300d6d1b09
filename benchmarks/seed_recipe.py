"""The seed's recipe at length: the shipped rewriter reinforced by what a reader makes of its rewrites, lean enough for
many steps.

Usage: python benchmarks/seed_recipe.py --work FOLDER [--data ../shared/data] [--recipe seed] [--batch 32]
       [--steps 2000] [--minutes 9]

The loop, its loss, the prompts and what is read of a rewrite are the package's own. Other than there, the search
compares with every passage; the reader asks the embedded LM through transformers, many questions at a time and none
twice with the same three passages (no grammar: the answer is begun for it, as JSON, and ends with a quotation mark);
and rewrites are drawn from a copy of the model with the adapter merged into its weights. HotpotQA of DATA: 77 train
questions, and of dev the 17th to the 56th. The length aimed at is the median of what the rewriter writes for the train
questions at the start. --work gets the curve, looks.jsonl (token F1 and nDCG@10 of dev, greedy), and at the end two
rewriters, `best` by dev and `last`. After --minutes it ends at the next checkpoint, and the same command goes on from
there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from recipes import ARTIFACT, started
from safetensors.torch import load_file

from querywright.data import read_passages, read_questions, split_questions
from querywright.data.types import Passage, Question
from querywright.metrics.dspy_metrics import metric_named
from querywright.models.constrained_decoding import ended
from querywright.models.embedded import EmbeddedSettings
from querywright.models.embedder import Embedder, resolve_embedder
from querywright.models.hf import Base, load_base
from querywright.models.rewriters import describe_base, write_rewriter
from querywright.models.store import open_store
from querywright.optimize.results import today
from querywright.optimize.rewriter.checkpoints import read_lines
from querywright.optimize.rewriter.episodes import REWRITER_LIMITS, Answer, Episode, first_asked, roll_out, run_episodes
from querywright.optimize.rewriter.policy import Completion, HFPolicy
from querywright.optimize.rewriter.recipes import RECIPES
from querywright.optimize.rewriter.reinforce import LOG, reinforce
from querywright.optimize.rewriter.rewards import Reward
from querywright.optimize.rewriter.settings import TrainSettings
from querywright.programs import make_program
from querywright.programs.readers import make_reader
from querywright.retrieval.replay import ReplayRetriever
from querywright.retrieval.types import Hit, Kind

TECHNIQUE, KNOBS = "rrr", {"max_passages": 10, "top_k": 10}
READ = 3
"""Passages that the reader is shown."""
DEV = slice(16, 56)
_LONGEST = EmbeddedSettings().max_chars
_BEGUN = '{"answer": "'
_ROOM, _AT_ONCE, _LEARNT = 24, 16, 8  # tokens of an answer, prompts read side by side, completions learnt from


class BatchReader:
    """The embedded LM as the reader of short answers, many at a time.

    Args:
        reader: Frames the prompts.
        device: As torch names it.
        dtype: What is computed in.
    """

    def __init__(self, reader: Any, device: str, dtype: str) -> None:
        base, self._reader = load_base("embedded"), reader
        quotes = [token for name, token in base.tokenizer.get_vocab().items() if name.lstrip("Ġ").startswith('"')]
        base.model.generation_config.eos_token_id = [base.tokenizer.eos_token_id, *quotes]
        self._policy = frozen(base, device, dtype)
        self._known: dict[tuple[str, ...], str] = {}
        self.asked = 0

    def answers(self, asked: Sequence[tuple[Question, Sequence[Passage]]]) -> list[str]:
        """An answer each, in order."""
        keys = [(question.id, *(one.id for one in passages)) for question, passages in asked]
        new = {key: one for key, one in zip(keys, asked, strict=True) if key not in self._known}
        prompts = [(*self.messages(*one), ("assistant", _BEGUN)) for one in new.values()]
        order = sorted(range(len(prompts)), key=lambda place: len(prompts[place][1][1]))
        names, self.asked = list(new), self.asked + len(new)
        for start in range(0, len(order), _AT_ONCE):
            places = order[start : start + _AT_ONCE]
            for place, one in zip(places, self._policy.write([prompts[i] for i in places], room=_ROOM), strict=True):
                self._known[names[place]] = ended(one.text.partition('"')[0][:_LONGEST], _LONGEST)
        return [self._known[key] for key in keys]

    def messages(self, question: Question, passages: Sequence[Passage]) -> tuple[tuple[str, str], ...]:
        """What the package's reader asks."""
        return first_asked(lambda: self._reader(question.question, None, passages))[0]


def frozen(base: Base, device: str, dtype: str) -> HFPolicy:
    """A policy that only writes; where bfloat16 is asked for, its weights are kept in it."""
    import torch

    policy = HFPolicy(base, rank=None, device=device, dtype=dtype)
    if dtype == "bfloat16":
        policy.model.to(torch.bfloat16)
    return policy


class Merged(HFPolicy):
    """A policy that draws from a copy of its model in which the adapter is part of the weights."""

    copy: HFPolicy

    def parts(self, completions: Sequence[Completion]) -> list[list[int]]:
        """Few at a time, of alike lengths: on a processor what fills up short rows costs as much as words."""
        order = sorted(
            range(len(completions)), key=lambda place: len(completions[place].prompt + completions[place].tokens)
        )
        return [order[start : start + _LEARNT] for start in range(0, len(order), _LEARNT)]

    def write(self, prompts: Sequence[Any], **given: Any) -> list[Completion]:
        """As ``HFPolicy`` does."""
        import torch

        mine, own = dict(self.model.named_modules()), dict(self.copy.model.named_modules())
        with torch.no_grad():
            for name, one in mine.items():
                if hasattr(one, "lora_A"):
                    own[name].weight.copy_(one.base_layer.weight + one.get_delta_weight("default"))
        return self.copy.write(prompts, **given)


class Read(Reward):
    """The package's rewards, of answers that are read in batches."""

    reader: BatchReader

    def plain_values(self, questions: Sequence[Question]) -> list[float]:
        """What each question as it was written is worth."""
        if not self.needs_reader:
            return super().plain_values(questions)
        new = list({one.id: one for one in questions if one.id not in self._known}.values())
        found = [self._plain.technique(**one.inputs) for one in new]
        answered(self.reader, new, found)
        self._known |= {one.id: self.value(one, made) for one, made in zip(new, found, strict=True)}
        return [self._known[one.id] for one in questions]


def answered(reader: BatchReader, questions: Sequence[Question], predictions: Sequence[Any]) -> None:
    """Put what the reader answers into predictions; None stays None."""
    both = [(one, made) for one, made in zip(questions, predictions, strict=True) if made is not None]
    answers = reader.answers([(one, made.passages[:READ]) for one, made in both])
    for (_, made), answer in zip(both, answers, strict=True):
        made.answer = answer


class Exact:
    """A retriever that compares a query with every passage: exact, and without Chroma.

    Args:
        passages: What is searched.
        embedder: Makes the vectors.
    """

    kind: Kind = "dense"

    def __init__(self, passages: Sequence[Passage], embedder: Embedder) -> None:
        self._passages, self._embedder = passages, embedder
        self._vectors = embedder.encode([one.content for one in passages])
        self.fingerprint = f"exact {len(passages)} {embedder.id}"

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The nearest passages of each query."""
        scores = self._embedder.encode(queries, side="query") @ self._vectors.T
        best = (-scores).argsort(axis=1, kind="stable")[:, :k]
        return [
            [Hit(self._passages[place], float(row[place]), rank) for rank, place in enumerate(places, 1)]
            for row, places in zip(scores, best, strict=True)
        ]


class Enough(Exception):  # noqa: N818 - nothing is wrong
    """The time is over."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Reinforce, and write what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--rewriter", type=Path, default=ARTIFACT)
    parser.add_argument("--recipe", default="seed", choices=("seed", "ours"))
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, help="questions a step (as the recipe has it)")
    parser.add_argument("--train", type=int, help="questions to learn from (all)")
    parser.add_argument("--dev", type=int, help="questions that are looked at (40)")
    parser.add_argument("--look-each", type=int, default=50)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    given = parser.parse_args(arguments)
    ends = time.monotonic() + 60 * given.minutes
    embedder = resolve_embedder("embedded", store=open_store())
    exact = Exact(list(read_passages(given.data / "hotpotqa" / "corpus.jsonl")), embedder)
    program = make_program(TECHNIQUE, ReplayRetriever(exact, store=None, deepest=10), **KNOBS)
    splits = split_questions(read_questions(given.data / "hotpotqa" / "questions.jsonl"))
    train, dev = splits.train[: given.train], splits.dev[DEV][: given.dev]
    looked_at = {one.id for one in dev}

    place = {"device": given.device, "dtype": given.dtype}
    policy = started(given.rewriter, kind=Merged, **place)
    policy.copy = frozen(load_base("embedded"), **place)
    reader = BatchReader(make_reader("short_answer"), **place)
    looks, known = given.work / "looks.jsonl", read_lines(given.work / "curve" / LOG)
    steps = sum(line["kind"] == "step" for line in known)

    def run(questions: Sequence[Question], answer: Answer) -> list[Episode]:
        """Episodes whose predictions have answers; what dev comes to is noted."""
        nonlocal steps
        episodes = run_episodes(program, questions, answer, settings=REWRITER_LIMITS)
        looking = questions[0].id in looked_at
        steps += not looking
        if recipe.needs_reader or looking:
            answered(reader, questions, [one.prediction for one in episodes])
        if looking:
            note(episodes)
        return episodes

    def note(episodes: Sequence[Episode]) -> None:
        made = [(one.question.to_example(), one.prediction) for one in episodes if one.prediction is not None]
        told = {name: [float(metric_named(name)(*one)) for one in made] for name in ("token_f1", "ndcg@10")}
        with looks.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"after": steps, **told, "queries": [one.queries for one in episodes]}) + "\n")

    def progress(what: str, done: int, total: int) -> None:
        print(f"{what}: {done} of {total}, {reader.asked} answers read", flush=True)
        if done % 5 == 0 and time.monotonic() > ends:
            raise Enough

    recipe = replace(RECIPES[given.recipe], steps=given.steps)
    recipe = replace(recipe, batch=given.batch or recipe.batch)
    given.work.mkdir(parents=True, exist_ok=True)
    first = roll_out(policy, partial(run_episodes, program, settings=REWRITER_LIMITS), train, replace(recipe, room=128))
    target = statistics.median(len(completion.tokens) for one in first for completion in one.completions)
    reward = Read(recipe, program, target=target if recipe.length_penalty else None)
    reward.reader = reader
    print(f"{recipe}\nlength aimed at {target}", flush=True)
    settings = TrainSettings(TECHNIQUE, KNOBS, recipe=recipe, look_each=given.look_each, patience=given.steps)
    with suppress(Enough):
        reinforce(policy, train, dev, given.work / "curve", settings, run=run, reward=reward, progress=progress)
    for name, file in (("best", "best"), ("last", "checkpoint")):
        kept = load_file(given.work / "curve" / f"{file}.safetensors")
        policy.set_parameters({one.removeprefix("weights/"): tensor for one, tensor in kept.items()})
        policy.save(given.work / f"{name}-weights")
        limits = {"max_chars": REWRITER_LIMITS.max_chars, "max_items": REWRITER_LIMITS.max_items}
        write_rewriter(
            given.work / name, given.work / f"{name}-weights", base=describe_base("embedded"), techniques=[TECHNIQUE],
            recipe=recipe.name, created=today(), card={}, readme=f"# {name}\n", **limits,
        )  # fmt: skip


if __name__ == "__main__":
    main()
