"""The numbers of RAG-Fusion searched by hand: a DSPy module, Chroma, ``dspy.Evaluate`` and Optuna, no querywright.

Written as somebody would who knows all four: one batch a question is embedded and searched, answers are kept where
DSPy can keep them, and vectors of queries are kept in memory, which is more than most such loops do.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import dspy

CUT = 5
MOST_QUERIES = 4

Embed = Callable[[Sequence[str]], Any]
"""Texts to one vector each."""


@dataclass(frozen=True)
class Variant:
    """How the loop saves calls.

    Args:
        name: In words.
        cache: Whether DSPy keeps answers.
        always: Queries that are asked for in every trial; None for as many as the trial wants.
    """

    name: str
    cache: bool
    always: int | None


VARIANTS = (
    Variant("by hand, no cache", False, None),
    Variant("by hand, DSPy's cache, the number in the prompt", True, None),
    Variant("by hand, DSPy's cache, always four queries", True, MOST_QUERIES),
)


@dataclass(frozen=True)
class Looped:
    """What a search by hand took.

    Args:
        seconds: Of all trials.
        best: The best recall.
    """

    seconds: float
    best: float


@dataclass(frozen=True)
class Task:
    """What is searched and asked.

    Args:
        url: Address of the LM.
        passages: Vector of each passage by its id.
        questions: Text, and the ids of its passages.
        embed: Embeds queries.
        threads: Questions under way at a time.
        trials: Trials.
        seed: Of Optuna.
    """

    url: str
    passages: Mapping[str, Any]
    questions: Sequence[tuple[str, frozenset[str]]]
    embed: Embed
    threads: int
    trials: int
    seed: int


class Fusion(dspy.Module):
    """Writes queries, searches them, fuses by reciprocal rank."""

    def __init__(self, search: Callable[[list[str], int], list[list[str]]], always: int | None) -> None:
        super().__init__()
        self.write = dspy.Predict("question -> queries: list[str]")
        self.search, self.always = search, always
        self.numbers: dict[str, Any] = {}

    def forward(self, question: str) -> dspy.Prediction:
        """The ids of the best passages."""
        numbers = self.numbers
        count = self.always or numbers["n_queries"]
        asked = f"Look at the question from different sides. Write:\n- queries: {count} short search queries"
        signature = self.write.signature.with_instructions(asked)
        queries = self.write(question=question, signature=signature).queries[: numbers["n_queries"]]
        weights = [1.0] * len(queries)
        if numbers["search_question"]:
            queries, weights = [question, *queries], [numbers["question_weight"], *weights]
        scores: dict[str, float] = defaultdict(float)
        for weight, ids in zip(weights, self.search(queries, numbers["top_k"]), strict=True):
            for rank, id in enumerate(ids, start=1):
                scores[id] += weight / (numbers["rrf_k"] + rank)
        return dspy.Prediction(passages=sorted(scores, key=lambda id: -scores[id])[:CUT])


def numbers_of(trial: Any) -> dict[str, Any]:
    """The numbers of a trial."""
    return {
        "n_queries": trial.suggest_int("n_queries", 1, MOST_QUERIES),
        "top_k": trial.suggest_int("top_k", 1, 50),
        "rrf_k": trial.suggest_int("rrf_k", 1, 200),
        "search_question": trial.suggest_categorical("search_question", [True, False]),
        "question_weight": trial.suggest_float("question_weight", 0.25, 4.0),
    }


def recall(example: dspy.Example, prediction: dspy.Prediction, trace: Any = None) -> float:
    """Share of the question's passages among those found."""
    return len(example.gold & set(prediction.passages)) / len(example.gold)


def search_by_hand(task: Task, variant: Variant) -> Looped:
    """All trials, one after another."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    logging.getLogger("dspy.evaluate.evaluate").setLevel(logging.WARNING)
    devset = [dspy.Example(question=text, gold=gold).with_inputs("question") for text, gold in task.questions]
    evaluate = dspy.Evaluate(devset=devset, metric=recall, num_threads=task.threads, display_progress=False)
    lm = dspy.LM("openai/bench", api_base=task.url, api_key="x", temperature=0, cache=variant.cache)
    with _chroma(task) as search, _fresh_cache(), dspy.context(lm=lm):
        program = Fusion(search, variant.always)

        def objective(trial: Any) -> float:
            program.numbers = numbers_of(trial)
            return float(evaluate(program).score)

        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=task.seed))
        began = time.perf_counter()
        study.optimize(objective, n_trials=task.trials)
        return Looped(time.perf_counter() - began, study.best_value / 100)


@contextmanager
def _chroma(task: Task) -> Iterator[Callable[[list[str], int], list[list[str]]]]:
    import chromadb

    client = chromadb.EphemeralClient(chromadb.Settings(anonymized_telemetry=False))
    name = f"by-hand-{uuid.uuid4()}"
    collection = client.create_collection(name, configuration={"hnsw": {"space": "cosine"}}, embedding_function=None)
    ids = list(task.passages)
    for start in range(0, len(ids), 1000):
        part = ids[start : start + 1000]
        collection.add(ids=part, embeddings=[task.passages[id] for id in part])
    known: dict[str, Any] = {}

    def search(queries: list[str], k: int) -> list[list[str]]:
        missing = [query for query in dict.fromkeys(queries) if query not in known]
        if missing:
            known.update(zip(missing, task.embed(missing), strict=True))
        found = collection.query(query_embeddings=[known[query] for query in queries], n_results=k, include=[])
        lists: list[list[str]] = found["ids"]
        return lists

    try:
        yield search
    finally:
        client.delete_collection(name)


@contextmanager
def _fresh_cache() -> Iterator[None]:
    """DSPy's cache in memory, empty."""
    before = dspy.cache
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=True)
    try:
        yield
    finally:
        dspy.cache = before
