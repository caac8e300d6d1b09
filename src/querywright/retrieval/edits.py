"""Follow document edits: move labels from former to current passages, and measure how much of a collection changed.

If documents are removed or replaced, the collection keeps their former passages in ``former.jsonl``; a label file also
contains the text of its passages. A label that names a former passage is moved to the passage that contains most of its
text. If several labels then name the same passage, a person's label takes precedence over a judge's, then the label of
the passage itself over a label that moved to it, and then the better label. If a passage was split, a person's useful
label for a part replaces the passage's label.
"""

from __future__ import annotations

import heapq
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from querywright.data.labels import GRADES, PassageLabel, read_labels
from querywright.data.sources import Source
from querywright.data.types import PERSON, Label, Passage, Question
from querywright.files import write_file
from querywright.retrieval.addresses import is_address
from querywright.retrieval.collection import collection_folder, passage_line, passage_of

FORMER = "former.jsonl"
SAME = 0.5
"""Share of a former passage's word trigrams that its current passages must contain together."""
PART = 0.2
"""Share of a former passage's word trigrams that a passage must contain to count as a part of it."""
EDITED = 0.8
"""Share of a former passage's word trigrams that a passage under the same headings must contain to count as the same
passage, even if a copy in another place contains more of them."""
SAMPLE = 200
"""Number of passages in a sample; with it, the estimated share of changed passages is accurate to about 7 points."""
PASSAGES_SAMPLE = "passages_sample"
"""The key of the sample in an artifact's provenance record."""
SHOWN = 3
WHERE = "listed in the report, --json, and all_notes"
"""Where to find the lines that are not shown."""

_logger = logging.getLogger(__name__)


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


def labeled_passages(labels: Source | None) -> dict[str, Passage]:
    """Return the passages in a label file or its rows, keyed by id; empty if it is None.

    The passages may be from an earlier version of the collection, even in a different workspace.
    """
    rows = [] if labels is None else [one for one in read_labels(labels) if one.text.strip()]
    return {one.passage_id: Passage(one.passage_id, one.text, one.title) for one in rows}


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

    If a former passage was split, each part gets the label, and the parts are alternatives: finding one is enough. The
    same applies if the passage was edited, and a copy contains more of its text. A person's label for a part
    replaces the former passage's label for that part, and for all parts if it is useful.

    Args:
        questions: The questions, labeled or not.
        passages: A function that returns the collection's passages. It is called only if a label names a former
            passage.
        former: The former passages by id.
        tell: A function that is called with the number of labels that were moved, with up to three passages whose text
            is now in several passages, and with each conflict between labels. ``tell_passages`` reports the labels that
            could not be moved.
        rest: A function that is called with the lines that ``tell`` only counts, if there are more than three.
    """
    named = {id for question in questions for id in question.evidence if id in former}
    if not named:
        return list(questions)
    held = {one.id: one for one in passages()}
    found = _matches({id: former[id] for id in named - held.keys()}, held.values())
    matched = {id: parts for id, parts in found.items() if parts}
    moved = [id for id in matched if any(_unsettled(one, matched[id]) for one in questions if id in one.evidence)]
    if moved:
        changed = {
            old
            for old, new in matched.items()
            if old in moved and len(new) == 1 and not _triples(former[old].text) <= _triples(held[new[0]].text)
        }
        each = [
            f"{old!r} is now {' and '.join(map(repr, matched[old]))}{', with different text' * (old in changed)}"
            for old in sorted(moved, key=lambda id: (id not in changed, id))
        ]
        shown, hidden = "; ".join(each[:SHOWN]), each[SHOWN:]
        more = f"; and {len(hidden)} more, {WHERE}" if hidden else ""
        check = ". Check that the passages with different text still answer the questions" if changed else ""
        tell(
            f"labeled passages that moved or changed: {len(each)} ({shown}{more}); their labels moved with them{check}"
        )
        if hidden:
            rest(f"more labeled passages that moved or changed: {'; '.join(hidden)}")
    several = [
        f"warning: question {question.in_words}: the text of the labeled passage {id!r} is now in {count} passages, "
        "and finding any of them is enough; label the passages that answer the question"
        for question in questions
        for id, label in question.evidence.items()
        if label != Label.NOT_USEFUL and (count := len(_unsettled(question, matched.get(id, ())))) > 1
    ]
    for line in several[:SHOWN]:
        tell(line)
    if hidden := several[SHOWN:]:
        tell(f"more labeled passages whose text is now in several passages: {len(hidden)}, {WHERE}")
        for line in hidden:
            rest(line)
    return [
        _relabeled(question, matched, tell) if matched.keys() & question.evidence else question
        for question in questions
    ]


def settle_labels(
    questions: Sequence[Question],
    collections: Sequence[Callable[[], Mapping[str, Passage]]],
    former: Mapping[str, Passage],
    tell: Callable[[str], object],
    rest: Callable[[str], object],
    earlier: Sequence[Callable[[], Mapping[str, Passage]]] = (),
) -> list[Question]:
    """Return the questions with labels for the current passages of all collections.

    The labels follow the passages of the collection that has most of them, and then apply to the other collections.

    Args:
        questions: The questions, labeled or not.
        collections: Functions that return the passages of a collection by id. They are called only if there are several
            collections, or if a label names a former passage.
        former: The former passages of all collections by id.
        tell: As in ``follow_labels``.
        rest: As in ``follow_labels``.
        earlier: Functions as in ``collections``, for collections that were opened before they were rebuilt.
    """
    named = {id for question in questions for id in question.evidence}
    if not collections or not named or (len(collections) + len(earlier) == 1 and not named & former.keys()):
        return list(questions)
    first, *others = labeled_first(named, [one() for one in collections])
    others += [one() for one in earlier]
    found = follow_labels(questions, first.values, former, tell, rest)
    for other in others:
        found = spread_labels(found, first, other)
    return found


def labeled_first(
    labeled: Collection[str], collections: Iterable[Mapping[str, Passage]]
) -> list[Mapping[str, Passage]]:
    """Return distinct collections, the one with the most labeled passages first.

    Args:
        labeled: The ids of the labeled passages.
        collections: The passages of each collection by id.
    """
    found: list[Mapping[str, Passage]] = []
    for one in collections:
        if all(one.keys() != other.keys() for other in found):
            found.append(one)
    return sorted(found, key=lambda one: -len(one.keys() & labeled))


def spread_labels(
    questions: Sequence[Question], labeled: Mapping[str, Passage], held: Mapping[str, Passage]
) -> list[Question]:
    """Return the questions with labels that also name the passages of another collection.

    A label applies to the passages of the other collection that together contain most of the labeled passage's text.
    The labeled passage and these passages are alternatives: finding one is enough.

    Args:
        questions: The questions, labeled or not.
        labeled: The passages of the labeled collection, by id.
        held: The passages of the other collection, by id.
    """
    named = {id for question in questions for id in question.evidence}
    found = _matches({id: labeled[id] for id in named & labeled.keys() - held.keys()}, held.values())
    return [_spread(question, found) for question in questions]


def _spread(question: Question, found: Mapping[str, tuple[str, ...]]) -> Question:
    evidence, assessors = dict(question.evidence), dict(question.assessors)
    useful = [id for id, label in question.evidence.items() if label != Label.NOT_USEFUL]
    alone = [(id,) for id in useful if not any(id in group for group in question.alternatives)]
    for id, label in question.evidence.items():
        for new in found.get(id, ()):
            if new not in question.evidence:
                evidence[new] = max(evidence.get(new, label), label, key=GRADES.index)
                assessors |= {new: question.assessors[id]} if id in question.assessors else {}
    groups = [
        tuple(dict.fromkeys([*group, *(new for id in group for new in found.get(id, ()))]))
        for group in (*question.alternatives, *alone)
    ]
    alternatives = tuple(group for group in groups if len(group) > 1)
    return replace(question, evidence=evidence, assessors=assessors, alternatives=alternatives)


def within(question: Question, ids: Collection[str]) -> Question:
    """Return a question without the labels of passages that have an alternative in a collection with these ids."""
    replaced = {id for group in question.alternatives if any(one in ids for one in group) for id in group}
    evidence = {id: label for id, label in question.evidence.items() if id in ids or id not in replaced}
    return replace(question, evidence=evidence)


def follow_rows(
    labels: Sequence[PassageLabel],
    passages: Iterable[Passage],
    former: Mapping[str, Passage],
    tell: Callable[[str], object],
) -> list[PassageLabel]:
    """Return the rows of a label file, with current ids and texts for passages that moved or changed a little.

    The rows of deleted passages, and of passages whose text is now in several passages, stay unchanged.

    Args:
        labels: The rows.
        passages: The collection's passages.
        former: The former passages by id.
        tell: A function that is called with the number of rows that moved, and with each conflict between labels.
    """
    held = {passage.id: passage for passage in passages}
    lost = {one.passage_id for one in labels} & former.keys() - held.keys()
    moved = _matches({id: former[id] for id in lost}, held.values())
    now = {old: held[new[0]] for old, new in moved.items() if len(new) == 1}
    rows: defaultdict[tuple[str, str], list[tuple[PassageLabel, PassageLabel]]] = defaultdict(list)
    for one in labels:
        passage = now.get(one.passage_id)
        new = one if passage is None else replace(one, passage_id=passage.id, title=passage.title, text=passage.text)
        rows[new.key].append((one, new))
    found = []
    for (question, id), given in rows.items():
        said = [_Given(one.label, (one.by,), one.passage_id) for one, _ in given if one.label is not None]
        kept = _kept(repr(question), id, said, tell).id if said else id
        found.append(next((new for one, new in given if one.passage_id == kept), given[0][1]))
    if count := sum(one.passage_id in now for one in labels):
        tell(f"rows of passages that moved or changed: {count}; they now have the passages' current IDs")
    return found


def _matches(former: Mapping[str, Passage], held: Iterable[Passage]) -> dict[str, tuple[str, ...]]:
    """Return each former passage's id with the ids of the passages that contain its text; empty if most is missing."""
    triples = {id: _triples(one.text) for id, one in former.items()}
    of_triple: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for id, words in triples.items():
        for triple in words:
            of_triple[triple].append(id)
    candidates: defaultdict[str, list[_Candidate]] = defaultdict(list)
    for passage in sorted(held if former else (), key=lambda one: one.id):
        shared: defaultdict[str, set[tuple[str, ...]]] = defaultdict(set)
        for triple in _triples(passage.text):
            for id in of_triple.get(triple, ()):
                shared[id].add(triple)
        for id, common in shared.items():
            same_file = passage.metadata.get("file") == former[id].metadata.get("file")
            candidates[id].append(_Candidate(len(common) / len(triples[id]), same_file, passage.id, common))
    return {id: _parts(id, candidates[id], len(triples[id])) for id in former}


def _parts(former: str, candidates: Sequence[_Candidate], count: int) -> tuple[str, ...]:
    """Return the passages with a former passage's text: the one with most of it, the edited one, and other parts.

    Passages of other files with the same headings and text, which end with the same part of the id, are included.
    """
    place = _place(former)
    covered: set[tuple[str, ...]] = set()
    parts: list[str] = []
    same = {one.id for one in candidates if "#" in former and one.id.endswith(former[former.rindex("#") :])}
    for one in sorted(candidates, key=lambda one: (one.share, one.id in same, one.same_file), reverse=True):
        stayed = one.share >= EDITED and _place(one.id) == place and all(_place(part) != place for part in parts)
        if stayed or one.id in same or len(one.common - covered) >= PART * count:
            parts.append(one.id)
            covered |= one.common
    return tuple(parts) if len(covered) >= SAME * count else ()


def _place(id: str) -> str:
    """Return the part of a document passage's id that names its file and headings."""
    return id.rpartition("-")[0] or id


def _triples(text: str) -> set[tuple[str, ...]]:
    words = text.casefold().split()
    return {tuple(words[place : place + 3]) for place in range(max(1, len(words) - 2))}


class _Candidate(NamedTuple):
    """A passage that may contain a former passage: its share of that passage's trigrams, and these trigrams."""

    share: float
    same_file: bool
    id: str
    common: set[tuple[str, ...]]


class _Given(NamedTuple):
    """A label for a current passage: its assessors, and the id that it names."""

    label: Label
    assessors: tuple[str, ...]
    id: str


def _kept(question: str, passage: str, given: Sequence[_Given], tell: Callable[[str], object]) -> _Given:
    """Return the label that takes precedence among those for a passage; report a conflict."""
    kept = max(given, key=lambda one: (PERSON in one.assessors, one.id == passage, GRADES.index(one.label)))
    if any(one.label != kept.label for one in given):
        each = ", ".join(f"{one.label} for {one.id!r} by {' and '.join(one.assessors)}" for one in given)
        tell(
            f"warning: question {question}: several labels name the passage {passage!r} since it moved or changed "
            f"({each}); {kept.label} is used. Remove the wrong labels"
        )
    return kept


def _unsettled(question: Question, parts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the current passages to which a former passage's label applies.

    If the passage was split, a person's label for a part replaces it for that part, or for all parts if it is useful.
    """
    own = [part for part in parts if part in question.evidence]
    own = [part for part in own if PERSON in question.assessors.get(part, (PERSON,))] if len(parts) > 1 else []
    if any(question.evidence[part] != Label.NOT_USEFUL for part in own):
        return ()
    return tuple(part for part in parts if part not in own)


def _relabeled(question: Question, matched: Mapping[str, tuple[str, ...]], tell: Callable[[str], object]) -> Question:
    """Return a question whose evidence names current passages."""
    given: defaultdict[str, list[_Given]] = defaultdict(list)
    for id, label in question.evidence.items():
        for new in _unsettled(question, matched.get(id, (id,))):
            given[new].append(_Given(label, question.assessors.get(id, (PERSON,)), id))
    kept = {new: _kept(question.in_words, new, ones, tell) for new, ones in given.items()}
    groups = [
        tuple(dict.fromkeys(new for id in one for new in matched.get(id, (id,)) if new in kept))
        for one in question.alternatives
    ]
    groups = [one for one in groups if len(one) > 1]
    for id in question.evidence:
        if question.evidence[id] == Label.NOT_USEFUL:
            continue
        parts = tuple(new for new in matched.get(id, ()) if new in kept and kept[new].id == id)
        if len(parts) > 1 and not any(set(parts) & set(group) for group in groups):
            groups.append(parts)
    return replace(
        question,
        evidence={new: one.label for new, one in kept.items()},
        assessors={new: one.assessors for new, one in kept.items()} if question.assessors else {},
        alternatives=tuple(groups),
    )


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
