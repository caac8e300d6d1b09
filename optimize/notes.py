"""Lines to show below a table of scores, and warnings about the passages that programs showed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from querywright.data.labels import evidence_by
from querywright.data.types import Question
from querywright.optimize.comparison import budgets, held_by
from querywright.optimize.evaluate import Evaluation
from querywright.optimize.slices import OPTIONS
from querywright.programs import RAG, READERS
from querywright.retrieval.checks import rebuilt


def score_notes(
    programs: Mapping[str, RAG],
    evaluations: Sequence[Evaluation],
    questions: Sequence[Question],
    *,
    lm: str,
    slices: Collection[str] = (),
) -> list[str]:
    """Return lines that say how scores were measured: LM, passage limit, reader, and labels.

    Args:
        programs: The programs by name.
        evaluations: Their results.
        questions: The questions, with their labels.
        lm: Name of the LM.
        slices: Columns by which the results are shown. Default: none.
    """
    asks = any(one.cost.asked for one in evaluations)
    most = {*budgets(programs).values()}
    budget = f"; at most {max(most)} passage{'s' * (max(most) > 1)} per arm" if len(most) == 1 else ""
    lines = [f"{f'LM {lm}; ' if asks else ''}mean in percent with 95% interval{budget}"]
    lines += [] if asks else ["no arm calls an LM for these metrics"]
    lines += [
        f"{', '.join(names)}: writer LM {writer}, reader LM {lm}" for writer, names in arms_by_writer(programs).items()
    ]
    readers = [*dict.fromkeys(one.reader.NAME for one in programs.values() if one.reader is not None)]
    lines += [
        f"the reader {name!r} declines to answer without passages, so closed book does not measure the LM's knowledge"
        for name in readers
        if READERS[name].GROUNDED
    ]
    if readers and any("accuracy" in one.metrics for one in evaluations):
        lines += _of_accuracy(questions, readers, is_sliced=OPTIONS in slices)
    return [*lines, evidence_by(questions) if any(one.evidence for one in questions) else "no labeled evidence"]


def arms_by_writer(programs: Mapping[str, RAG]) -> dict[str, list[str]]:
    """Return the programs that use each writer LM, by the LM's name."""
    found: dict[str, list[str]] = {}
    for name, program in programs.items():
        if program.technique.writer_lm is not None:
            found.setdefault(str(program.technique.writer_lm.model), []).append(name)
    return found


def _of_accuracy(questions: Sequence[Question], readers: Sequence[str], *, is_sliced: bool) -> list[str]:
    """Return a line on how accuracy scores these readers' answers to questions without options, if there are any."""
    with_options = sum(bool(question.options) for question in questions)
    if with_options == len(questions):
        return []
    if any(READERS[name].GROUNDED for name in readers):
        note = "accuracy means contains_answer for readers that cite passages, and exact_match for other readers"
    else:
        note = (
            "accuracy means exact_match for questions without options, so a sentence that contains the right answer "
            "scores 0; contains_answer and token_f1 are more lenient"
        )
    kinds = "; to show questions with and without options separately, use the slice 'options'"
    return [note + (kinds if with_options and not is_sliced else "")]


def passage_warnings(
    evaluations: Sequence[Evaluation], retrievers: Iterable[Any], own: Mapping[str, Any] = MappingProxyType({})
) -> list[str]:
    """Return warnings about programs whose passages do not come from the current collection.

    A custom program may search a collection as it was before it was rebuilt, or show passages that none of the
    retrievers has.

    Args:
        evaluations: Results of the programs.
        retrievers: The open retrievers of the run. A collection that was rebuilt after one of them was opened, or for
            a program after its retriever in ``own`` was opened, is not reported, because ``tell_rebuilt`` has reported
            it.
        own: The programs' own retrievers, by the name of the evaluation. Default: none.
    """
    retrievers = [*dict.fromkeys(retrievers)]
    known, lines, others = rebuilt(retrievers), list[str](), list[Evaluation]()
    for one in evaluations:
        told = {*known, *rebuilt([own.get(one.name)])}
        names = sorted({name for row in one.rows for name in row.rebuilt} - told)
        lines += [
            f"warning: {one.name} searched the collection {name!r} as it was before it was rebuilt, so do not compare "
            "its scores with the scores of other arms; open its retriever again, or create the program again"
            for name in names
        ]
        others += [] if names else [one]
    return [
        *lines,
        *_unknown_passages(others, retrievers, [one for one in dict.fromkeys(own.values()) if one is not None]),
    ]


def _unknown_passages(evaluations: Sequence[Evaluation], retrievers: Sequence[Any], own: Sequence[Any]) -> list[str]:
    """Return a warning for each program that showed passages that none of the retrievers has.

    Nothing is reported if a retriever of the run cannot look up ids. A program's retriever that cannot is skipped.
    """
    shown = {one.name: dict.fromkeys(id for row in one.rows for id in row.passages) for one in evaluations}
    every = {id for ids in shown.values() for id in ids}
    if any(held_by(part, ()) is None for part in _parts(retrievers)):
        return []
    parts = _parts(dict.fromkeys([*retrievers, *own]))
    searched = [found for one in parts if (found := held_by(one, every)) is not None]
    held = {id for passages in searched for id in passages}
    names = sorted({repr(one.name) for one in parts if isinstance(getattr(one, "name", None), str)})
    where = f"collection{'s' * (len(names) > 1)} {' and '.join(names)}".strip()
    lines = []
    for name, ids in shown.items() if searched else ():
        unknown = [id for id in ids if id not in held]
        if unknown:
            lines.append(
                f"warning: {name}: {len(unknown)} of {len(ids)} distinct passages that it showed are not in the "
                f"{where}, such as {unknown[0]!r}, so do not compare its scores with the scores of other arms. If the "
                "program has its own retriever, open the retriever again after you index; otherwise, return the "
                "collection's IDs"
            )
    return lines


def _parts(retrievers: Iterable[Any]) -> list[Any]:
    """Return the retrievers, with the fused retrievers in place of a hybrid retriever."""
    return [part for one in retrievers for part in getattr(one, "retrievers", (one,))]
