"""What is known of a collection's questions: how many are kept, how near they lie to one another, what they cost.

Source: QB-RAG, arXiv:2407.18044, its table of mean similarities: questions of the same passage, of different passages,
a question and its own passage, a question and another one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from querywright.data.types import Passage
from querywright.errors import CollectionError
from querywright.home import home as working_folder
from querywright.models.embedder import Embedder, TextEmbedder, Vectors, with_store
from querywright.optimize.question_made import QuestionsMade, read_made
from querywright.programs.question_rules import REPEATED
from querywright.retrieval.collection import collection_folder, published_passages
from querywright.retrieval.question_records import (
    COMPLETE,
    IMPORTED,
    NONE,
    PARTIAL,
    PassageRecord,
    questions_folder,
    read_records,
)

SAMPLE = 1000
"""Complete questions whose similarities are looked at; all where there are no more."""


@dataclass(frozen=True, slots=True)
class Similarities:
    """Mean cosine similarities; NaN where there is no such pair.

    Args:
        same_passage: Two questions of one passage.
        other_passage: Two questions of different passages.
        own_passage: A question and the passage that it was written for.
        not_own_passage: A question and another passage.
        questions: Questions that were looked at.
    """

    same_passage: float
    other_passage: float
    own_passage: float
    not_own_passage: float
    questions: int


@dataclass(frozen=True, slots=True)
class QuestionStats:
    """What is known of a collection's questions.

    Args:
        collection: Its name.
        passages: Passages in the collection.
        recorded: Passages whose questions were written, as they are now.
        stale: Passages that changed since.
        unwritten: Passages for which none were written yet.
        removed: Passages with questions that are in the collection no more.
        imported: Passages as they are now whose questions people edited and imported.
        other_settings: Other passages whose questions were written in another way than ``made`` says.
        written: Questions written for passages as they are now, repetitions left out.
        labels: How many of them have each label; ``unreadable`` where the judge's answer was.
        kept_share: Share of complete ones among those that could be judged; NaN without any.
        per_passage: Mean, least and most complete questions a recorded passage.
        bare: Ids of recorded passages without a complete question; a search through questions does not find them.
        coverage: Share of the collection's passages that have a complete question.
        dropped: Questions that were dropped before they were judged, by reason.
        similarities: How near the complete questions lie.
        made: How they were made and what that cost; None where it is not known.
    """

    collection: str
    passages: int
    recorded: int
    stale: int
    unwritten: int
    removed: int
    imported: int
    other_settings: int
    written: int
    labels: Mapping[str, int]
    kept_share: float
    per_passage: tuple[float, int, int]
    bare: tuple[str, ...]
    coverage: float
    dropped: Mapping[str, int]
    similarities: Similarities
    made: QuestionsMade | None

    def to_json(self) -> dict[str, Any]:
        """The figures as a JSON object; a NaN stays one."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        made = None if self.made is None else self.made.model_dump()
        return {**fields, "similarities": asdict(self.similarities), "made": made}


def question_stats(
    collection: str, *, embedder: TextEmbedder, home: Path | None = None, size: int = SAMPLE, seed: int = 0
) -> QuestionStats:
    """The figures of a collection's questions, from their records.

    Args:
        collection: Name of the collection whose passages the questions are about.
        embedder: Embeds questions and passages; vectors that are stored are not computed again.
        home: The working folder. Default: ``querywright.home.home()``.
        size: Complete questions whose similarities are looked at, drawn where there are more. Default 1000.
        seed: Of the draw. Default 0.

    Raises:
        CollectionError: There is no such collection, or no questions were written for it.
    """
    home = working_folder(home)
    _, passages = published_passages(collection_folder(collection, home), home)
    folder = questions_folder(collection, home)
    records = read_records(folder)
    if not records:
        raise CollectionError(
            f"no questions were written for {collection!r}; write them: querywright questions build {collection}"
        )
    made = read_made(folder)
    known = records.keys() & passages.keys()
    found = _found((records[id] for id in known), passages)
    labels, complete = found.labels, found.complete
    counts = list(complete.values())
    readable = labels.total() - labels["unreadable"]
    return QuestionStats(
        collection=collection,
        passages=len(passages),
        recorded=len(complete),
        stale=len(known) - len(complete),
        unwritten=len(passages) - len(known),
        removed=len(records) - len(known),
        imported=found.settings[IMPORTED],
        other_settings=0
        if made is None
        else sum(count for one, count in found.settings.items() if one not in {made.settings, IMPORTED}),
        written=labels.total(),
        labels={label: labels[label] for label in (COMPLETE, PARTIAL, NONE, "unreadable")},
        kept_share=labels[COMPLETE] / readable if readable else math.nan,
        per_passage=(sum(counts) / len(counts), min(counts), max(counts)) if counts else (math.nan, 0, 0),
        bare=tuple(sorted(id for id, count in complete.items() if not count)),
        coverage=sum(count > 0 for count in counts) / len(passages),
        dropped={why: count for why, count in sorted(found.dropped.items()) if count},
        similarities=_similarities(records, complete, passages, with_store(embedder, home), size, seed),
        made=made,
    )


@dataclass(slots=True)
class _Found:
    """What is counted in one pass over the records.

    Args:
        labels: Questions by label.
        settings: Records by settings.
        dropped: Questions by the reason why they were dropped.
        complete: Complete questions by the passage's id.
    """

    labels: Counter[str] = field(default_factory=Counter)
    settings: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    complete: dict[str, int] = field(default_factory=dict)


def _found(records: Iterable[PassageRecord], passages: Mapping[str, Passage]) -> _Found:
    """Of the records that are of passages as they are now."""
    found = _Found()
    for record in records:
        if record.digest == passages[record.passage].text_digest():
            found.labels.update(question.label or "unreadable" for question in record.questions)
            found.settings[record.settings] += 1
            found.dropped.update({**record.unfit, REPEATED: record.repeated})
            found.complete[record.passage] = len(_complete(record))
    return found


def _complete(record: PassageRecord) -> list[str]:
    return [question.text for question in record.questions if question.label == COMPLETE]


def _similarities(
    records: Mapping[str, PassageRecord],
    complete: Mapping[str, int],
    passages: Mapping[str, Passage],
    embedder: Embedder,
    size: int,
    seed: int,
) -> Similarities:
    """Of passages drawn whole, so that there are pairs of one passage, until there are enough questions."""
    chosen: list[tuple[str, str]] = []
    ids = sorted(id for id, count in complete.items() if count)
    for place in np.random.default_rng(seed).permutation(len(ids)):
        if len(chosen) >= size:
            break
        chosen += [(ids[place], text) for text in _complete(records[ids[place]])]
    if not chosen:
        return Similarities(math.nan, math.nan, math.nan, math.nan, 0)
    owners = list(dict.fromkeys(id for id, _ in chosen))
    vectors = embedder.encode([text for _, text in chosen])
    about = embedder.encode([passages[id].content for id in owners])
    return _means(vectors, about, np.array([complete[id] for id in owners]))


def _means(vectors: Vectors, about: Vectors, counts: NDArray[np.int64]) -> Similarities:
    """The mean cosines, from sums of vectors: the sum over all pairs is the product of two sums.

    Args:
        vectors: Of the questions, of length one, those of a passage one after another.
        about: Of the passages, of length one, in the same order.
        counts: Questions of each passage, 1 or more.
    """
    sums = np.add.reduceat(vectors, np.cumsum(counts) - counts, axis=0, dtype=np.float64)
    total = sums.sum(axis=0)
    itself = float(np.einsum("ij,ij->", vectors, vectors, dtype=np.float64))
    same, every = float((sums * sums).sum()), float(total @ total)
    own, to_passages = float((sums * about).sum()), float(total @ about.sum(axis=0, dtype=np.float64))
    n, within = len(vectors), int((counts * counts).sum())
    return Similarities(
        same_passage=_mean(same - itself, within - n),
        other_passage=_mean(every - same, n * n - within),
        own_passage=_mean(own, n),
        not_own_passage=_mean(to_passages - own, n * (len(counts) - 1)),
        questions=n,
    )


def _mean(total: float, pairs: int) -> float:
    return total / pairs if pairs else math.nan
