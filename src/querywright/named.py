"""Single names that commands and scripts are given: engines, readers, rerankers, writers and knobs, checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from querywright.data.types import Question
from querywright.errors import InputError, unknown
from querywright.models.rewriters import Rewriter
from querywright.programs import READERS, TECHNIQUES, technique_class
from querywright.programs.hyperparameters import Knobs
from querywright.retrieval import rerank
from querywright.retrieval.engines import check_engine
from querywright.retrieval.rerank import CrossEncoderReranker, Reranker


def engine_for(technique: str, named: str | None) -> str | None:
    """The engine that a technique searches with: its own, else the one that was named; None when there is neither."""
    own = technique_class(technique).ENGINE
    named = None if named is None else check_engine(named)
    if own is not None and named not in (None, own):
        raise InputError(f"{technique} searches with the engine {own}, not with {named}; leave the engine out")
    return own or named


def open_reranker(reranker: Reranker | str | None) -> Reranker | None:
    """Load the reranker that was named, so that a missing model is told before anything is spent."""
    if not isinstance(reranker, str):
        return reranker
    found: CrossEncoderReranker = rerank.resolve_reranker(reranker)
    found.load()
    return found


def tell_unlearnt(rewriter: Rewriter | None, techniques: Iterable[str], tell: Callable[[str], object]) -> None:
    """Say, in one line, which techniques ask a rewriter that did not learn their prompts; nothing without one."""
    strange = () if rewriter is None else sorted({*techniques} - {*rewriter.techniques})
    if rewriter is not None and strange:
        tell(
            f"the rewriter {rewriter.name} learnt the prompts of {', '.join(rewriter.techniques)}, and not of "
            f"{', '.join(strange)}: measure it there before you rely on it (querywright compare)"
        )


def pairs(values: Iterable[str], option: str) -> dict[str, str]:
    """``NAME=VALUE`` texts as a mapping; ``option`` is what they were given to."""
    found: dict[str, str] = {}
    for value in values:
        name, separator, rest = value.partition("=")
        name = name.strip()
        if not separator or not name or not rest.strip():
            raise InputError(f"{option} takes NAME=VALUE, but got {value!r}")
        if name in found:
            raise InputError(f"{option} {name} is given twice: {found[name]!r} and {rest.strip()!r}")
        found[name] = rest.strip()
    return found


def knob_values(technique: str, given: Mapping[str, Any], *, strict: bool = True) -> dict[str, Any]:
    """Values of knobs, or their texts, in the types of a technique; unless strict, knobs that it lacks are left out."""
    knobs = Knobs(technique_class(technique).KNOBS)
    return {
        name: knobs.knob(name).parse(value) if isinstance(value, str) else value
        for name, value in given.items()
        if strict or name in knobs
    }


def check_knob(text: str) -> None:
    """Raise when ``NAME=VALUE`` names a knob that no technique has."""
    known = dict.fromkeys(knob.name for one in TECHNIQUES.values() for knob in one.KNOBS)
    for name in pairs([text], "--knob"):
        if name not in known:
            raise InputError(unknown("knob", name, known))


def check_reader(reader: str | None) -> None:
    """Raise when there is no such reader."""
    known = ["auto", *READERS, "none"]
    if reader is not None and reader not in known:
        raise InputError(unknown("reader", reader, known))


def of_mixed(questions: Sequence[Question], reader: str | None) -> list[str]:
    """What must be known where ``auto`` makes short answers of questions that have options, for others have none."""
    bare = [question.id for question in questions if not question.options]
    if reader != "auto" or not bare or len(bare) == len(questions):
        return []
    return [
        f"{len(bare)} of {len(questions)} questions have no options, such as {bare[0]!r}: so every answer is a "
        "short one, also where there are options; leave them out, or name another reader"
    ]


def of_grounded(reader: str | None) -> list[str]:
    """What must be known of closed book where it has this reader."""
    if reader is None or not READERS[reader].GROUNDED:
        return []
    return [f"the reader {reader} declines where it has no passages: closed book tells nothing of the LM"]
