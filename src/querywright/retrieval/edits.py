"""Follow document edits: move labels from former to current passages, and measure how much of a collection changed.

If documents are removed or replaced, the collection keeps their former passages in ``former.jsonl``. A label that names
a former passage is moved to the passage that contains most of its text.
"""

from __future__ import annotations

import heapq
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from querywright.data.labels import GRADES
from querywright.data.types import Label, Passage, Question
from querywright.files import write_file
from querywright.retrieval.addresses import is_address
from querywright.retrieval.collection import collection_folder, passage_line, passage_of

FORMER = "former.jsonl"
SAME = 0.5
"""Share of a former passage's word trigrams that its current passages must contain together."""
PART = 0.2
"""Share of a former passage's word trigrams that a passage must contain to count as a part of it."""
SAMPLE = 200
"""Number of passages in a sample; with it, the estimated share of changed passages is accurate to about 7 points."""
PASSAGES_SAMPLE = "passages_sample"
"""The key of the sample in an artifact's provenance record."""
SHOWN = 3

_logger = logging.getLogger(__name__)

_Candidate: TypeAlias = tuple[float, bool, str, set[tuple[str, ...]]]
"""The share of a former passage's trigrams, whether the file is the same, the passage's id, and the shared trigrams."""


def remember_former(folder: Path, before: Mapping[str, Passage], now: Mapping[str, Passage]) -> None:
    """Keep the document passages that a build removes from a collection.

    Args:
        folder: The collection's folder.
        before: Its published passages by id.
        now: The passages that replace them.
    """
    removed = {id: one for id, one in before.items() if id not in now and one.is_of_document}
    if removed:
        kept = {**_read(folder), **removed}
        write_file(folder / FORMER, (passage_line(kept[id]) for id in sorted(kept)))


def former_passages(searched: object, home: Path | None = None) -> dict[str, Passage]:
    """Return the former passages of a collection, keyed by id; empty if there are none or it is not in a workspace.

    Args:
        searched: A collection's name, or an open retriever.
        home: The workspace of a collection given by name. Default: ``querywright.home.home()``.
    """
    if isinstance(searched, str):
        folder = None if is_address(searched) else collection_folder(searched, home)
    else:
        folder = getattr(searched, "folder", None)
    return _read(folder) if isinstance(folder, Path) else {}


def _read(folder: Path) -> dict[str, Passage]:
    try:
        passages = [passage_of(line) for line in (folder / FORMER).read_bytes().splitlines()]
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError) as error:
        _logger.warning("ignoring the former passages of %r because they cannot be read: %s", folder.name, error)
        return {}
    return {passage.id: passage for passage in passages}


def follow_labels(
    questions: Sequence[Question],
    passages: Callable[[], Iterable[Passage]],
    former: Mapping[str, Passage],
    tell: Callable[[str], object],
    rest: Callable[[str], object],
) -> list[Question]:
    """Return the questions with each former passage's label moved to the passage that now contains most of its text.

    If a former passage was split, each part gets the label, and the parts are alternatives: finding one is enough.

    Args:
        questions: The questions, labeled or not.
        passages: A function that returns the collection's passages. It is called only if a label names a former
            passage.
        former: The former passages by id.
        tell: A function that is called with the number of labels that were moved, and with each passage that was split.
            ``tell_passages`` reports the labels that could not be moved.
        rest: A function that is called with the moved labels that ``tell`` only counts, if there are more than three.
    """
    named = {id for question in questions for id in question.evidence if id in former}
    if not named:
        return list(questions)
    held = list(passages())
    found = _matches({id: former[id] for id in named - {one.id for one in held}}, held)
    matched = {id: parts for id, parts in found.items() if parts}
    if matched:
        each = [f"{old!r} is now {' and '.join(map(repr, new))}" for old, new in sorted(matched.items())]
        shown, hidden = ", ".join(each[:SHOWN]), each[SHOWN:]
        more = f", and {len(hidden)} more, listed in the report, --json, and all_notes" if hidden else ""
        tell(f"labeled passages that moved or changed: {len(each)} ({shown}{more}); their labels moved with them")
        if hidden:
            rest(f"more labeled passages that moved or changed: {', '.join(hidden)}")
    for question in questions:
        for id in question.evidence:
            if len(matched.get(id, ())) > 1:
                tell(
                    f"warning: question {question.in_words}: the labeled passage {id!r} was split into "
                    f"{len(matched[id])} passages, and finding any of them is enough; check which passage answers "
                    "the question"
                )
    return [_relabeled(question, matched) if matched.keys() & question.evidence else question for question in questions]


def _matches(former: Mapping[str, Passage], held: Iterable[Passage]) -> dict[str, tuple[str, ...]]:
    """Return each former passage's id with the ids of the passages that contain its text; empty if most is missing."""
    triples = {id: _triples(one.text) for id, one in former.items()}
    of_triple: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for id, words in triples.items():
        for triple in words:
            of_triple[triple].append(id)
    candidates: defaultdict[str, list[_Candidate]] = defaultdict(list)
    for passage in sorted(held, key=lambda one: one.id):
        shared: defaultdict[str, set[tuple[str, ...]]] = defaultdict(set)
        for triple in _triples(passage.text):
            for id in of_triple.get(triple, ()):
                shared[id].add(triple)
        for id, common in shared.items():
            same_file = passage.metadata.get("file") == former[id].metadata.get("file")
            candidates[id].append((len(common) / len(triples[id]), same_file, passage.id, common))
    return {id: _parts(candidates[id], len(triples[id])) for id in former}


def _parts(candidates: Sequence[_Candidate], count: int) -> tuple[str, ...]:
    """Return the passage with most of a former passage's text, and the passages with the parts that it lacks."""
    covered: set[tuple[str, ...]] = set()
    parts: list[str] = []
    for _, _, id, common in sorted(candidates, key=lambda one: one[:2], reverse=True):
        if len(common - covered) >= PART * count:
            parts.append(id)
            covered |= common
    return tuple(parts) if len(covered) >= SAME * count else ()


def _triples(text: str) -> set[tuple[str, ...]]:
    words = text.casefold().split()
    return {tuple(words[place : place + 3]) for place in range(max(1, len(words) - 2))}


def _relabeled(question: Question, matched: Mapping[str, tuple[str, ...]]) -> Question:
    """Return a question whose evidence names current passages; if a passage has two labels, the better one is kept."""
    evidence: dict[str, Label] = {}
    assessors: dict[str, tuple[str, ...]] = {}
    groups = [
        tuple(dict.fromkeys(new for id in one for new in matched.get(id, (id,)))) for one in question.alternatives
    ]
    for id, label in question.evidence.items():
        parts = matched.get(id, (id,))
        for new in parts:
            evidence[new] = max(evidence.get(new, label), label, key=GRADES.index)
            if id in question.assessors:
                assessors[new] = tuple(dict.fromkeys((*assessors.get(new, ()), *question.assessors[id])))
        if len(parts) > 1 and not any(set(parts) & set(group) for group in groups):
            groups.append(parts)
    return replace(question, evidence=evidence, assessors=assessors, alternatives=tuple(groups))


def sample_passages(passages: Iterable[Passage]) -> list[str]:
    """Return digests of a sample of passages, from which ``share_changed`` estimates how many have changed."""
    return heapq.nsmallest(SAMPLE, {_digest(passage) for passage in passages})


def share_changed(sample: Sequence[str], passages: Iterable[Passage]) -> float:
    """Return the share of sampled passages that are no longer in a collection, 0 to 1."""
    missing = set(sample)
    missing.difference_update(map(_digest, passages))
    return len(missing) / len(sample) if sample else 0.0


def _digest(passage: Passage) -> str:
    return replace(passage, id="", metadata={}).digest()[:16]
