"""What is known of a collection's questions: how many are kept, how near they lie to one another, what they cost.

Source: QB-RAG, arXiv:2407.18044, its table of mean similarities: questions of the same passage, of different passages,
a question and its own passage, a question and another one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from querywright.data.types import Passage
from querywright.errors import CollectionError
from querywright.home import home as working_folder
from querywright.models.embedder import Embedder, TextEmbedder, with_store
from querywright.optimize.question_build import read_made
from querywright.programs.question_rules import REPEATED
from querywright.retrieval.collection import collection_folder, published_passages
from querywright.retrieval.generated_questions import (
    COMPLETE,
    IMPORTED,
    NONE,
    PARTIAL,
    build_command,
    questions_folder,
    read_records,
)

SAMPLE = 1000
"""Complete questions whose similarities are looked at, drawn where there are more."""


def question_stats(collection: str, *, embedder: TextEmbedder, home: Path | None = None) -> dict[str, Any]:
    """The figures of a collection's questions, from their records.

    Args:
        collection: Name of the collection whose passages the questions are about.
        embedder: Embeds questions and passages; vectors that are stored are not computed again.
        home: The working folder. Default: ``querywright.home.home()``.

    Returns:
        ``collection``; of passages how many there are (``passages``), have questions as they are now (``recorded``),
        changed since (``stale``), have none yet (``unwritten``), are in the collection no more (``removed``), have
        questions that people imported (``imported``) or that were written in another way than ``made`` says
        (``other_settings``); ``written`` questions, repetitions left out, and how many have each of the ``labels``;
        ``kept_share``, of complete ones among those that could be judged; ``per_passage``, mean, least and most
        complete questions a recorded passage; ``bare``, ids of recorded passages without any, which a search through
        questions does not find; ``coverage``, share of the collection's passages that have one; ``dropped`` before
        they were judged, by reason; ``similarities``, mean cosines of two questions of one passage
        (``same_passage``) and of different ones (``other_passage``), of a question and the passage that it was
        written for (``own_passage``) and another one (``not_own_passage``), and the number of ``questions`` looked
        at; ``made``, how they were made and what that cost, None where it is not known. A share or mean of nothing is
        NaN.

    Raises:
        CollectionError: There is no such collection, or no questions were written for it.
    """
    home = working_folder(home)
    _, passages = published_passages(collection_folder(collection, home), home)
    folder = questions_folder(collection, home)
    records = read_records(folder)
    if not records:
        raise CollectionError(f"no questions were written for {collection!r}; write them: {build_command(collection)}")
    made = read_made(folder)
    known = records.keys() & passages.keys()
    current = [records[id] for id in sorted(known) if records[id].digest == passages[id].text_digest()]
    labels = Counter(question.label or "unreadable" for record in current for question in record.questions)
    ways = Counter(record.settings for record in current)
    dropped: Counter[str] = Counter()
    for record in current:
        dropped.update({**record.unfit, REPEATED: record.repeated})
    complete = {
        record.passage: [question.text for question in record.questions if question.label == COMPLETE]
        for record in current
    }
    counts = [len(texts) for texts in complete.values()]
    readable = labels.total() - labels["unreadable"]
    return {
        "collection": collection,
        "passages": len(passages),
        "recorded": len(complete),
        "stale": len(known) - len(complete),
        "unwritten": len(passages) - len(known),
        "removed": len(records) - len(known),
        "imported": ways[IMPORTED],
        "other_settings": 0 if made is None else len(current) - ways[made.settings] - ways[IMPORTED],
        "written": labels.total(),
        "labels": {label: labels[label] for label in (COMPLETE, PARTIAL, NONE, "unreadable")},
        "kept_share": labels[COMPLETE] / readable if readable else math.nan,
        "per_passage": (sum(counts) / len(counts), min(counts), max(counts)) if counts else (math.nan, 0, 0),
        "bare": [id for id, texts in complete.items() if not texts],
        "coverage": sum(count > 0 for count in counts) / len(passages),
        "dropped": {why: count for why, count in sorted(dropped.items()) if count},
        "similarities": _similarities(complete, passages, with_store(embedder, home)),
        "made": None if made is None else made.model_dump(),
    }


def _similarities(
    complete: Mapping[str, Sequence[str]], passages: Mapping[str, Passage], embedder: Embedder
) -> dict[str, float]:
    """Of passages drawn whole, so that there are pairs of one passage, until there are enough questions."""
    ids = [id for id, texts in complete.items() if texts]
    chosen: list[str] = []
    questions: list[str] = []
    for place in np.random.default_rng(0).permutation(len(ids)):
        if len(questions) < SAMPLE:
            chosen.append(ids[place])
            questions += complete[ids[place]]
    vectors, about = embedder.encode_query(questions), embedder.encode([passages[id].content for id in chosen])
    owner = np.repeat(np.arange(len(chosen)), [len(complete[id]) for id in chosen])
    same, own = owner[:, None] == owner, owner[:, None] == np.arange(len(chosen))
    alike, near, pair = vectors @ vectors.T, vectors @ about.T, ~np.eye(len(questions), dtype=bool)
    return {
        "same_passage": _mean(alike[same & pair]),
        "other_passage": _mean(alike[~same]),
        "own_passage": _mean(near[own]),
        "not_own_passage": _mean(near[~own]),
        "questions": len(questions),
    }


def _mean(values: NDArray[np.floating[Any]]) -> float:
    return float(values.mean(dtype=np.float64)) if values.size else math.nan
