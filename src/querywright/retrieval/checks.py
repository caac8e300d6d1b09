"""Checks of what is searched against a filter and the labels of questions, before anything is spent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from querywright.data.reading import check_evidence, check_labels
from querywright.data.types import Label, Passage, Question
from querywright.retrieval.callable import ID_KEYS, MADE_ID, CallableRetriever
from querywright.retrieval.filters import check_passes, conditions, unknown_key
from querywright.retrieval.fusion import reading
from querywright.retrieval.replay import searched_by

Tell = Callable[[str], object]

SHOWN_WARNINGS = 3
PROBED = 5
"""Labelled questions that a retriever of the user's own is asked before the run."""
PROBE_DEPTH = 10


def check_filter(retriever: Any) -> Collection[str] | None:
    """Return the ids of the passages that the filter of a retriever passes; None for a retriever without one.

    Raises:
        InputError: The filter passes nothing.
    """
    where, passing = getattr(retriever, "where", None), getattr(retriever, "passing", None)
    if not isinstance(where, Mapping) or passing is None:
        return None
    return check_passes(where, passing, retriever.passages)


def tell_searched(questions: Sequence[Question], retriever: Any, tell: Tell) -> None:
    """Report what keeps a retriever from finding the labelled passages of questions.

    A retriever that cannot list its passages is asked some of the questions. If labels name only the ids in the
    metadata of its passages, these become the ids of its passages.

    Raises:
        InputError: Its filter passes nothing.
        DataError: Labels that say who gave them are of another collection.
    """
    passed = check_filter(retriever)
    labelled = [question for question in questions if question.evidence]
    if not labelled or retriever is None:
        return
    if callable(getattr(retriever, "passages", None)):
        where = getattr(retriever, "where", None)
        tell_passages(questions, retriever.passages(), where if isinstance(where, Mapping) else None, passed, tell)
    else:
        _tell_ids(labelled, searched_by(retriever), tell)  # without keeping rankings under ids that may change


def tell_passages(
    questions: Sequence[Question],
    passages: Iterable[Passage],
    where: Mapping[str, Any] | None,
    passed: Collection[str] | None,
    tell: Tell,
) -> None:
    """Report labelled passages that are missing, that a filter leaves out, or whose text has several ids.

    Args:
        questions: Labelled or not.
        passages: All passages of the collection.
        where: The filter of the search.
        passed: The ids of the passages that the filter passes; None for all.
        tell: Called with each report.

    Raises:
        DataError: Labels that say who gave them are of another collection.
    """
    held, texts, keys = dict[str, bool](), dict[str, bytes](), set[str]()
    for passage in passages:
        held[passage.id] = passed is None or passage.id in passed
        texts[passage.id] = reading("", passage.text)
        keys.update(passage.metadata)
    for key in dict.fromkeys(key for key, _ in conditions(where or {}) if key not in keys):
        tell(f"warning: the filter (--where, where=): {unknown_key(key, keys)}")
    _tell_missing(questions, held, tell)
    _tell_filtered(questions, held, tell)
    _tell_copies(questions, held, texts, tell)


def helpful(question: Question) -> list[str]:
    """The passages of a question whose label says that they help."""
    return [id for id, label in question.evidence.items() if label != Label.NOT_USEFUL]


def _tell_missing(questions: Sequence[Question], held: Mapping[str, bool], tell: Tell) -> None:
    check_labels(questions, held)
    missing = check_evidence(questions, held)
    lost = sum(bool(one.evidence) and held.keys().isdisjoint(one.evidence) for one in questions)
    if lost:
        tell(
            f"warning: no labelled passage of {lost} of {len(questions)} questions is in the collection, so they are "
            "lost (not indexed) whatever is searched, and score 0: index these passages, search the collection that "
            "the labels are of, or correct the ids"
        )
    for line in missing[:SHOWN_WARNINGS]:
        tell(f"warning: {line}")
    if len(missing) > SHOWN_WARNINGS:
        tell(f"warning: and {len(missing) - SHOWN_WARNINGS} questions more")


def _tell_filtered(questions: Sequence[Question], held: Mapping[str, bool], tell: Tell) -> None:
    """Report the questions whose evidence a filter leaves out."""
    left = [[held[id] for id in helpful(question) if id in held] for question in questions]
    none, some = sum(bool(one) and not any(one) for one in left), sum(any(one) and not all(one) for one in left)
    if none or some:
        tell(
            f"warning: the filter (--where, where=) passes {sum(held.values())} of {len(held)} passages. Of "
            f"{len(questions)} questions, it removes all labelled passages of {none}, which score 0 whatever is "
            f"searched, and some of {some}: change the filter, or leave these questions out"
        )


def _tell_copies(
    questions: Sequence[Question], held: Mapping[str, bool], texts: Mapping[str, bytes], tell: Tell
) -> None:
    """Report labelled passages whose text is also in the collection under an id without a label."""
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
            f"warning: the collection has the text of labelled passages under other ids too, such as {id!r} and "
            f"{copy!r} (labelled passages: {passages}, questions: {asked} of {len(questions)}). A search that finds "
            "only the copy counts as a miss: index each text once, or label the copies"
        )


def _tell_ids(labelled: Sequence[Question], retriever: Any, tell: Tell) -> None:
    """Report ids of passages that no label can name."""
    asked = [question.question for question in labelled[:PROBED]]
    found: list[Passage] | None = None
    with suppress(Exception):  # the run reports what fails, question by question
        found = [hit.passage for hits in retriever.search(asked, PROBE_DEPTH) for hit in hits]
    if found is None:
        return
    named = dict.fromkeys(id for question in labelled for id in question.evidence)
    made = sum(passage.id.startswith(MADE_ID) for passage in found)
    remedy = f"return the ids that the labels name, as the id of a passage or in its metadata ({', '.join(ID_KEYS)})"
    if not found:
        tell(
            f"warning: the retriever found nothing for the first {len(asked)} labelled questions, so their scores are "
            "0: check that its index is not empty, and what it filters by"
        )
    elif not any(passage.id in named for passage in found):
        key = next((key for one in found for key, value in one.metadata.items() if str(value) in named), None)
        if key is not None and isinstance(retriever, CallableRetriever):
            retriever.id_key = key
            tell(
                f"the labels name the metadata {key!r} of the passages that the retriever finds, not its ids such as "
                f"{found[0].id!r}: the metadata are used as the ids"
            )
            return
        hint = "" if key is None else f"; the labels name their metadata {key!r}, so give that as the id"
        tell(
            f"warning: no label names any of the {len(found)} passages that the retriever found for the first "
            f"{len(asked)} labelled questions: it gives ids such as {found[0].id!r}, the labels name ids such as "
            f"{next(iter(named))!r}. If these are not the same ids, every score from labels is 0: {remedy}{hint}"
        )
    elif made:
        tell(
            f"warning: {made} of the {len(found)} passages that the retriever found for the first {len(asked)} "
            f"labelled questions have no id, so no label can name them: {remedy}"
        )
