"""Check Chroma filters, and check a collection against the questions' labels, before a run costs anything."""

from __future__ import annotations

import json
import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from types import MappingProxyType
from typing import Any

from querywright.data.reading import check_evidence, check_labels
from querywright.data.sources import Source
from querywright.data.types import Label, Passage, Question
from querywright.errors import InputError, unknown
from querywright.retrieval.callable import ID_KEYS, MADE_ID, CallableRetriever
from querywright.retrieval.edits import follow_labels, former_passages, labeled_passages, within
from querywright.retrieval.fusion import reading
from querywright.retrieval.replay import searched_by

Tell = Callable[[str], object]
Passing = Callable[[Mapping[str, Any]], Collection[str]]
"""A function that returns the ids of the passages that match a filter."""

TO_LABEL = "querywright judge label --judge none lists passages to label"
"""A remedy for missing labels."""
BEGINNING = 60
"""Number of characters of a former passage to show in a message."""
EXAMPLES = 3
"""Number of a key's values to show in a message."""
_KINDS = {"int": "numbers", "float": "numbers", "str": "strings", "bool": "Booleans"}

SHOWN_WARNINGS = 3
PROBED = 5
"""Number of labeled questions to search with a custom retriever before the run."""
PROBE_DEPTH = 10


def all_of(where: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a filter in Chroma's form: one key, or several conditions joined by ``$and``; None for an empty filter."""
    if not where:
        return None
    return {"$and": [{key: value} for key, value in where.items()]} if len(where) > 1 else dict(where)


def check_passes(
    where: Mapping[str, Any] | None, passing: Passing, passages: Callable[[], Iterable[Passage]]
) -> Collection[str] | None:
    """Return the ids of the passages that match a filter; None if there is no filter.

    Args:
        where: The filter.
        passing: A function that returns the ids of the passages that match a filter.
        passages: A function that returns all passages, for the error message.

    Raises:
        InputError: No passage matches the filter. For each condition, the message shows values of its key and the
            number of passages that match.
    """
    filtering = all_of(where)
    if filtering is None:
        return None
    if found := passing(filtering):
        return found
    rows = [passage.metadata for passage in passages()]
    keys = dict.fromkeys(key for row in rows for key in row)
    reasons = [_reason(key, value, passing, rows, keys) for key, value in conditions(filtering)]
    raise InputError(
        f"the filter {_shown(where)} matches 0 of {len(rows)} passages, so searches find nothing: "
        f"{'; '.join(reasons)}. Correct the filter (where=...). Numbers, strings, and Booleans never equal each other"
    )


def conditions(where: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield a filter's conditions as pairs of a metadata key and its required value."""
    for key, value in where.items():
        if key in ("$and", "$or"):
            for one in value:
                yield from conditions(one)
        else:
            yield key, value


def unknown_key(key: str, keys: Iterable[str]) -> str:
    """Return the message for a key that no passage has; it suggests the most similar key and lists the known keys."""
    return f"no passage has the metadata {unknown('key', key, sorted(keys)).removeprefix('unknown ')}"


def _reason(key: str, condition: Any, passing: Passing, rows: Sequence[Mapping[str, Any]], keys: Iterable[str]) -> str:
    """Return a message with some of a key's values and the number of passages that match a condition on the key."""
    values = dict.fromkeys((type(row[key]).__name__, row[key]) for row in rows if key in row)
    if not values:
        return unknown_key(key, keys)
    kinds = " and ".join(dict.fromkeys(_KINDS.get(kind, kind) for kind, _ in values))
    shown = ", ".join(_shown(value) for _, value in islice(values, EXAMPLES))
    count = len(passing({key: condition}))
    return f"{key!r} has {kinds} such as {shown} (passages that match {_shown({key: condition})}: {count})"


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def check_filter(retriever: Any) -> Collection[str] | None:
    """Return the ids of the passages that match a retriever's filter; None if the retriever has no filter.

    Raises:
        InputError: No passage matches the filter.
    """
    where, passing = getattr(retriever, "where", None), getattr(retriever, "passing", None)
    if not isinstance(where, Mapping) or passing is None:
        return None
    return check_passes(where, passing, retriever.passages)


def rebuilt(retrievers: Iterable[Any]) -> list[str]:
    """Return the names of the collections that were rebuilt since the retrievers opened them."""
    parts = (part for one in retrievers for part in (one, *getattr(one, "retrievers", ())))
    return list(dict.fromkeys(part.name for part in parts if getattr(part, "is_rebuilt", False) is True))


def tell_rebuilt(retrievers: Iterable[Any], tell: Tell, arms: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Warn about open retrievers whose collection was rebuilt; each collection is reported only once.

    Args:
        retrievers: The retrievers.
        tell: A function that is called with each warning.
        arms: The retrievers of a comparison's arms. If only some of them search the earlier passages, these are named.
    """
    for name in rebuilt(retrievers):
        old = [arm for arm, one in arms.items() if name in rebuilt([one])]
        whose = f" of {', '.join(old)}" if 0 < len(old) < len(arms) else ""
        tell(
            f"warning: the collection {name!r} was rebuilt after the retriever{whose} was opened, so the retriever "
            f"searches the earlier passages; open it again, for example with ChromaRetriever({name!r}), and load "
            "programs that use it again"
        )


def current_labels(
    questions: Sequence[Question], retriever: Any, labels: Source | None = None, tell: Tell = warnings.warn
) -> list[Question]:
    """Return the questions with labels for a retriever's current passages, for use with DSPy alone.

    ``compare``, ``compile``, and ``study`` do this themselves. Labels follow passages that moved or changed a little.

    Args:
        questions: The questions, with their labels.
        retriever: The retriever.
        labels: The label file or rows from which the questions have labels, because it contains the text of passages
            from other workspaces. Default None.
        tell: A function that is called with each warning about the labels. Default ``warnings.warn``.

    Raises:
        InputError: No passage matches the retriever's filter.
        DataError: The labels were made for a different collection.
    """
    former = labeled_passages(labels) | former_passages(retriever)
    if callable(getattr(retriever, "passages", None)):
        questions = follow_labels(questions, retriever.passages, former, tell, tell)
    tell_searched(questions, retriever, former, tell)
    return list(questions)


def tell_searched(questions: Sequence[Question], retriever: Any, former: Mapping[str, Passage], tell: Tell) -> None:
    """Warn if a retriever cannot find the questions' labeled passages.

    If the retriever cannot list its passages, it searches some of the questions instead. If the labels use ids from the
    passages' metadata, those ids are used instead of the passages' own ids.

    Args:
        questions: The questions, labeled or not.
        retriever: The retriever.
        former: The collection's former passages by id, as in ``tell_passages``.
        tell: A function that is called with each warning.

    Raises:
        InputError: No passage matches the retriever's filter.
        DataError: The labels were made for a different collection.
    """
    passed = check_filter(retriever)
    labeled = [question for question in questions if question.evidence]
    if not labeled or retriever is None:
        return
    if callable(getattr(retriever, "passages", None)):
        where = getattr(retriever, "where", None)
        where = where if isinstance(where, Mapping) else None
        tell_passages(questions, retriever.passages(), where, passed, tell, former)
    else:
        _tell_unhelpful(questions, tell)
        _tell_ids(labeled, searched_by(retriever), tell)  # uncached, because ids may change


def tell_all_searched(
    questions: Sequence[Question], retrievers: Mapping[str, Any], former: Mapping[str, Passage], tell: Tell
) -> None:
    """Warn if retrievers cannot find the questions' labeled passages; each collection is checked only once.

    Args:
        questions: The questions. A label's passages in different collections are alternatives (see ``spread_labels``).
        retrievers: The retrievers by name. If there are several collections, warnings name the retriever.
        former: The former passages by id, as in ``tell_passages``.
        tell: A function that is called with each warning.

    Raises:
        InputError: No passage matches a retriever's filter.
        DataError: The labels were made for a different collection.
    """
    found: list[tuple[str, Any, set[str]]] = []
    for name, one in retrievers.items():
        held = {passage.id for passage in one.passages()} if callable(getattr(one, "passages", None)) else set[str]()
        if not found or (held and all(held != seen for _, _, seen in found)):
            found.append((name, one, held))
    for name, one, held in found:
        tell_searched([within(question, held) for question in questions], one, former, about(name, len(found), tell))


def about(name: str, count: int, tell: Tell) -> Tell:
    """Return a function that names the retriever in a warning if ``count`` collections are searched."""
    if count < 2:
        return tell
    return lambda line: tell(f"warning: retriever {name!r}: {line.removeprefix('warning: ')}")


def tell_passages(
    questions: Sequence[Question],
    passages: Iterable[Passage],
    where: Mapping[str, Any] | None,
    passed: Collection[str] | None,
    tell: Tell,
    former: Mapping[str, Passage],
) -> None:
    """Warn about labeled passages that are missing, that a filter excludes, or whose text occurs under several ids.

    Args:
        questions: The questions, labeled or not.
        passages: All passages of the collection.
        where: The filter of the search.
        passed: The ids of the passages that match the filter; None for all.
        tell: A function that is called with each warning.
        former: The collection's former passages by id. A label that names one was not moved by ``follow_labels``.

    Raises:
        DataError: The labels were made for a different collection.
    """
    held, texts, keys = dict[str, bool](), dict[str, bytes](), set[str]()
    for passage in passages:
        held[passage.id] = passed is None or passage.id in passed
        texts[passage.id] = reading("", passage.text)
        keys.update(passage.metadata)
    for key in dict.fromkeys(key for key, _ in conditions(where or {}) if key not in keys):
        tell(f"warning: the filter (--where, where=): {unknown_key(key, keys)}")
    _tell_unhelpful(questions, tell)
    _tell_missing(questions, held, tell, former)
    _tell_filtered(questions, held, tell)
    _tell_copies(questions, held, texts, tell)


def helpful(question: Question) -> list[str]:
    """Return the ids of the passages that are labeled as useful for a question."""
    return [id for id, label in question.evidence.items() if label != Label.NOT_USEFUL]


def _tell_unhelpful(questions: Sequence[Question], tell: Tell) -> None:
    """Warn about labeled questions without a helpful passage."""
    none = sum(bool(one.evidence) and not helpful(one) for one in questions)
    if none:
        tell(
            f"warning: for {none} of {len(questions)} questions, no passage is labeled as helpful (ENTAILED or "
            f"USEFUL), so no search scores above 0 on these questions; label helpful passages ({TO_LABEL}), or use the "
            "metric abstention_recall"
        )


def _tell_missing(
    questions: Sequence[Question], held: Mapping[str, bool], tell: Tell, former: Mapping[str, Passage]
) -> None:
    """Warn about helpful passages that are not in the collection. Each label is reported only once."""
    check_labels(questions, held)
    deleted = former.keys() - held.keys()
    questions = [replace(one, evidence={id: one.evidence[id] for id in helpful(one)}) for one in questions]
    for question in questions:
        if lost := [id for id in question.evidence if id in deleted]:
            each = (f"{id!r} ({' '.join(former[id].text.split())[:BEGINNING]!r} ...)" for id in lost)
            score = "no search scores above 0 on this question; " * (len(lost) == len(question.evidence))
            tell(
                f"warning: question {question.in_words}: labeled passages no longer exist, and no passage contains "
                f"most of their text: {', '.join(each)}; {score}label a passage in the collection, and remove these "
                "labels"
            )
    missing = check_evidence(questions, held, deleted, kind="helpful")
    none = sum(held.keys().isdisjoint(one.evidence) and not one.evidence.keys() <= deleted for one in questions)
    if none:
        tell(
            f"warning: for {none} of {len(questions)} questions, no helpful passage is in the collection, so no "
            "search scores above 0 on these questions. Index the labeled passages, search the collection that was "
            "labeled, or correct the IDs. If the documents were edited since, pass a label file with the passages' "
            "text, or index the labeled version first, and then the current version"
        )
    if missing:
        gone = sum(id not in held for one in questions for id in one.evidence)
        tell(
            f"warning: {gone} of {sum(len(one.evidence) for one in questions)} labels of helpful passages are for "
            "passages that are not in the collection"
        )
    for line in missing[:SHOWN_WARNINGS]:
        tell(f"warning: {line}")
    if len(missing) > SHOWN_WARNINGS:
        tell(f"warning: more questions with missing passages: {len(missing) - SHOWN_WARNINGS}")


def _tell_filtered(questions: Sequence[Question], held: Mapping[str, bool], tell: Tell) -> None:
    """Warn about questions whose labeled passages are excluded by a filter."""
    left = [[held[id] for id in helpful(question) if id in held] for question in questions]
    none, some = sum(bool(one) and not any(one) for one in left), sum(any(one) and not all(one) for one in left)
    if none or some:
        tell(
            f"warning: the filter (--where, where=) matches {sum(held.values())} of {len(held)} passages. Questions "
            f"that lose all labeled passages: {none} of {len(questions)}; no search scores above 0 on these questions. "
            f"Questions that lose some labeled passages: {some}. Change the filter, or remove these questions"
        )


def _tell_copies(
    questions: Sequence[Question], held: Mapping[str, bool], texts: Mapping[str, bytes], tell: Tell
) -> None:
    """Warn about labeled passages whose text is also in the collection under an unlabeled id."""
    named = {id for question in questions for id in helpful(question)}
    wanted = {text for id, text in texts.items() if id in named}
    same: dict[bytes, list[str]] = defaultdict(list)
    for id, text in texts.items():
        if text in wanted and held[id]:
            same[text].append(id)
    groups = [ids for ids in same.values() if len(ids) > 1]
    others = {id: [one for one in ids if one != id] for ids in groups for id in ids}
    copies = [
        (question.id, id, copy)
        for question in questions
        for id in helpful(question)
        for copy in others.get(id, ())
        if copy not in question.evidence
    ]
    if copies:
        _, id, copy = copies[0]
        passages, asked = (len({one[place] for one in copies}) for place in (1, 0))
        tell(
            f"warning: the collection has copies of labeled passages under different IDs, such as {id!r} and {copy!r} "
            f"(labeled passages: {passages}, questions: {asked} of {len(questions)}). A search that finds only a copy "
            "counts as a miss; index each text once, or label the copies and list them as alternatives (the column "
            "'alternatives')"
        )


def _tell_ids(labeled: Sequence[Question], retriever: Any, tell: Tell) -> None:
    """Warn if the labels do not use the ids of a retriever's passages."""
    asked = [question.question for question in labeled[:PROBED]]
    found: list[Passage] | None = None
    with suppress(Exception):  # the run itself reports each question's error
        found = [hit.passage for hits in retriever.search(asked, PROBE_DEPTH) for hit in hits]
    if found is None:
        return
    named = dict.fromkeys(id for question in labeled for id in question.evidence)
    made = sum(passage.id.startswith(MADE_ID) for passage in found)
    remedy = f"return the IDs that the labels use, as passage IDs or in the passages' metadata ({', '.join(ID_KEYS)})"
    if not found:
        tell(
            f"warning: the retriever found no passages for the first labeled questions ({len(asked)} searched), so "
            "every score is 0; check that the retriever's index is not empty, and check the filter"
        )
    elif not any(passage.id in named for passage in found):
        key = next((key for one in found for key, value in one.metadata.items() if str(value) in named), None)
        if key is not None and isinstance(retriever, CallableRetriever):
            retriever.id_key = key
            tell(
                f"the labels use the passages' metadata key {key!r} instead of passage IDs such as {found[0].id!r}, so "
                "the values of this key are used as IDs"
            )
            return
        hint = "" if key is None else f". The labels use the metadata key {key!r}, so return its value as the ID"
        tell(
            "warning: no label refers to a passage that the retriever found for the first labeled questions "
            f"(passages: {len(found)}, questions: {len(asked)}). The retriever returns IDs such as {found[0].id!r}, "
            f"but the labels use IDs such as {next(iter(named))!r}. If these are "
            f"different kinds of IDs, every score from labels is 0; {remedy}{hint}"
        )
    elif made:
        tell(
            f"warning: {made} of the {len(found)} passages that the retriever found for the first labeled questions "
            f"({len(asked)} searched) have no ID, so labels cannot refer to these passages; {remedy}"
        )
