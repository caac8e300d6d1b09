"""From what was named to what can be asked: all is checked, and read, before anything is spent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from querywright.arms import Arm, NamedArm, Opened, SavedArm, named_arms
from querywright.data import Question, read_questions
from querywright.data.reading import check_evidence
from querywright.errors import DataError, InputError
from querywright.metrics.dspy_metrics import Metric, needs
from querywright.named import (
    check_reader,
    of_grounded,
    open_reranker,
    reader_for,
    tell_unlearnt,
)
from querywright.optimize.evaluate import metrics_by_name
from querywright.programs import (
    RAG,
    READERS,
)
from querywright.retrieval.callable import as_retriever
from querywright.retrieval.engines import check_engine
from querywright.retrieval.rerank import Reranker
from querywright.workspace import Workspace

DEFAULT_TECHNIQUES = ("closed_book", "plain", "hcqr")
SHOWN_WARNINGS = 3
LACKING = {
    "support": "a reader that names its support (--reader grounded)",
    "sentences": "support by sentences, which no question and no reader here has (see joint_passage_f1)",
}
"""What a metric needs, in words, where its name alone does not tell."""


@dataclass(slots=True, kw_only=True)
class Prepared(Opened):
    """What is ready to be asked.

    Args:
        arms: By name.
        questions: What is asked.
        metrics: By name.
        lacks: What the metrics that cannot be scored do without, by their names.
        programs: By the names of their arms.
    """

    arms: dict[str, Arm]
    questions: list[Question]
    metrics: Mapping[str, Metric]
    lacks: Mapping[str, str]
    programs: dict[str, RAG] = field(default_factory=dict)

    @property
    def searched(self) -> dict[str, Any]:
        """By arm the retriever of those that search."""
        found = {name: program.technique.retriever for name, program in self.programs.items()}
        return {name: retriever for name, retriever in found.items() if retriever is not None}

    @property
    def rewriters(self) -> dict[str, list[str]]:
        """The arms that each rewriter writes for."""
        found: dict[str, list[str]] = {}
        for name, program in self.programs.items():
            if program.technique.own_lm is not None:
                found.setdefault(str(program.technique.own_lm.model), []).append(name)
        return found

    @property
    def retriever(self) -> Any:
        """What is searched, else what the first arm searches; None where nothing searches."""
        return next(iter((*self.retrievers.values(), *self.searched.values())), None)


def prepare(
    arms: Iterable[Any] | Mapping[str, Any],
    questions: Any,
    *,
    workspace: Callable[[], Workspace],
    retriever: Any = None,
    embedder: Any = "embedded",
    engine: str = "dense",
    reader: str | None = "auto",
    knobs: Mapping[str, Any] | None = None,
    metrics: Sequence[str] | Mapping[str, Metric] = (),
    reranker: Reranker | str | None = None,
    rewriter: Path | None = None,
    reading: Mapping[str, Any] | None = None,
    jointly: bool | None = None,
    judged: bool = False,
    tell: Callable[[str], object] = print,
) -> Prepared:
    """Check, read and open all that was named.

    Args:
        arms: What is compared, see the head of this module; none for those that fit the questions.
        questions: What is asked, as ``read_questions`` takes it.
        workspace: Opens working folder and LM, once the names are checked and the questions are read.
        retriever: A collection's name, a retriever, or any callable that searches.
        embedder: What the collection was built with.
        engine: What techniques search with that neither name an engine nor have one of their own.
        reader: Name of the reader of techniques; ``auto`` chooses between options where all questions have them; None
            or ``none`` for retrieval alone.
        knobs: Values for every technique that has the knob.
        metrics: Names, or metrics by name. Default: accuracy, and by evidence where it is labelled.
        reranker: A cross-encoder, or its name or path, for techniques that rerank.
        rewriter: Folder of a rewriter, for techniques that write.
        reading: ``columns``, ``limit`` and ``split`` of the questions.
        jointly: Whether every question takes all of its helpful passages. Default: as the data says.
        judged: Whether judges score as well.
        tell: Says what a user should know meanwhile.

    Raises:
        InputError: Something cannot be used; it names what, and what may be given.
    """
    check_engine(engine)
    check_reader(reader)
    knobs = knobs or {}
    named = named_arms(arms, engine, knobs, rewriter)
    is_given = bool(named)
    if not named:
        defaults = [one for one in DEFAULT_TECHNIQUES if reader not in (None, "none") or one != "closed_book"]
        named = named_arms(defaults, engine, knobs, rewriter)
    _check_knobs(knobs, named)
    _check_rewriter(rewriter, named, tell)
    chosen: Mapping[str, Metric] = metrics_by_name(metrics) if not isinstance(metrics, Mapping) else dict(metrics)
    asked = _questions(questions, named if is_given else {}, reader, reading or {})
    if jointly is not None:
        asked = [replace(question, jointly=jointly) for question in asked]
    notes: list[str] = []
    if not is_given and not all(question.options for question in asked):
        left_out = [name for name, arm in named.items() if arm.needs_options]
        named = {name: arm for name, arm in named.items() if name not in left_out}
        notes += [f"left out: {', '.join(left_out)}, because not every question has options"] if left_out else []
    read_by = reader_for(asked, reader)
    chosen, lacks, said = _settled(named, asked, read_by, chosen, judged=judged)
    searching = {name: arm for name, arm in named.items() if arm.searches}
    if searching and retriever is None:
        raise InputError(f"{next(iter(searching))} searches; name a collection with --collection (retriever=)")
    if reranker is not None and not any(arm.kind.USES_RERANKER for arm in named.values()):
        raise InputError("nothing here reranks; leave the reranker out (--reranker), or name a technique that does")
    ready = Prepared(
        workspace=workspace(), reader=read_by, notes=[*notes, *said], arms=named, questions=asked, metrics=chosen,
        lacks=lacks,
    )  # fmt: skip
    if retriever is not None:
        engines = [one.engine for one in searching.values() if isinstance(one, NamedArm)] or [engine]
        for one in dict.fromkeys(engines):
            ready.retrievers[one] = opened(ready.workspace, retriever, embedder, one)
        _tell_missing_evidence(asked, next(iter(ready.retrievers.values())), tell)
    ready.reranker = open_reranker(reranker)
    for name, arm in named.items():
        ready.programs[name] = arm.program(name, ready)
    ready.notes += _shallow(chosen, ready.programs)
    return ready


def opened(workspace: Workspace, retriever: Any, embedder: Any, engine: str) -> Any:
    """A retriever of that engine.

    Args:
        workspace: Where collections are.
        retriever: A collection's name, a retriever over one, or anything that searches.
        embedder: What a collection that is named was built with.
        engine: The engine.
    """
    if isinstance(retriever, str):
        return workspace.retriever(retriever, embedder, engine)
    found: Any = as_retriever(retriever)
    own = getattr(found, "name", None)
    if engine != "dense" and found.kind == "dense" and isinstance(own, str):
        return workspace.retriever(own, found.embedder, engine)
    return found


def _check_knobs(knobs: Mapping[str, Any], arms: Mapping[str, Arm]) -> None:
    named = {
        arm.kind.NAME: [knob.name for knob in arm.kind.KNOBS] for arm in arms.values() if isinstance(arm, NamedArm)
    }
    for key in knobs:
        if not any(key in known for known in named.values()):
            known = "; ".join(f"{name}: {', '.join(own) or 'none'}" for name, own in named.items())
            raise InputError(
                f"no technique here has the knob {key!r}; the knobs are: {known or 'none, in an artifact'}"
            )


def _check_rewriter(rewriter: Path | None, arms: Mapping[str, Arm], tell: Callable[[str], object]) -> None:
    """Raise when a rewriter was named for all arms, and none of them would ask it; tell whose prompts are strange."""
    named = [arm for arm in arms.values() if isinstance(arm, NamedArm)]
    saved = [arm for arm in arms.values() if isinstance(arm, SavedArm)]
    asks = any(arm.rewriter == rewriter for arm in named) or any(arm.manifest.rewriter for arm in saved)
    if rewriter is not None and not asks:
        raise InputError(
            "no technique here writes what is searched for, and no artifact was compiled with a rewriter; leave the "
            "rewriter out (--rewriter), or name a technique that writes, such as rrr"
        )
    for folder in dict.fromkeys(arm.rewriter for arm in named):
        tell_unlearnt(folder, [arm.kind.NAME for arm in named if arm.rewriter == folder], tell)


def _questions(source: Any, arms: Mapping[str, Arm], reader: str | None, reading: Mapping[str, Any]) -> list[Question]:
    """Read the questions; where an arm that was named compares options, every one must have some."""
    needing = [name for name, arm in arms.items() if arm.needs_options]
    needing += ["the reader multiple_choice"] if reader == "multiple_choice" else []
    try:
        return read_questions(source, **reading, multiple_choice=True if needing else None)
    except DataError as error:
        if not any("multiple_choice=True" in problem for problem in error.problems):
            raise
        raise DataError([f"{', '.join(needing)}: every question needs options", *error.problems]) from error


def _settled(
    arms: Mapping[str, Arm],
    asked: Sequence[Question],
    reader: str | None,
    metrics: Mapping[str, Metric],
    *,
    judged: bool,
) -> tuple[Mapping[str, Metric], dict[str, str], list[str]]:
    """The metrics, what those do without that cannot be scored, and notes."""
    own = [arm.reader for arm in arms.values() if arm.reader is not None]
    readers = list(
        dict.fromkeys(([reader] if reader and any(arm.reader is None for arm in arms.values()) else []) + own)
    )
    labelled = any(question.evidence for question in asked)
    if not metrics:
        names = ["accuracy"] if readers else []
        metrics = metrics_by_name([*names, *(["decision_useful", "recall"] if labelled else [])])
    given = {
        "answer": any(question.answer for question in asked),
        "options": any(question.options for question in asked),
        "evidence": labelled,
        "reader": bool(readers),
        "support": any(READERS[name].GROUNDED for name in readers),
    }
    missing = {name: [need for need in sorted(needs(name)) if not given.get(need)] for name in metrics}
    lacks = {
        name: " and ".join(LACKING.get(one, one) for one in lacking) for name, lacking in missing.items() if lacking
    }
    if len(lacks) == len(metrics) and not judged:
        wanting = "; ".join(f"{name} needs {lacking}" for name, lacking in lacks.items())
        raise InputError(
            f"nothing can be scored: {wanting or 'no metric'}; give questions with an answer (and a reader) or with "
            "labelled evidence, or --judge-lm"
        )
    notes = [line for name in readers for line in of_grounded(name)]
    if given["support"] and "accuracy" in metrics and not all(question.options for question in asked):
        notes.append("accuracy is contains_answer where a reader names its support, else exact_match")
    notes.append("usefulness from labelled evidence" if labelled else "no labelled evidence")
    return metrics, lacks, notes


def _shallow(metrics: Iterable[str], programs: Mapping[str, RAG]) -> list[str]:
    """Which programs find fewer passages than a metric looks at."""
    notes = []
    for metric in metrics:
        depth = metric.partition("@")[2]
        short = [
            f"{name} ({program.technique.max_passages})"
            for name, program in programs.items()
            if depth.isdecimal() and program.technique.KNOBS and program.technique.max_passages < int(depth)
        ]
        if short:
            notes.append(f"{metric}: fewer are found by {', '.join(short)}; see --knob max_passages={depth}")
    return notes


def _tell_missing_evidence(asked: Sequence[Question], retriever: Any, tell: Callable[[str], object]) -> None:
    if not callable(getattr(retriever, "passages", None)):
        return
    missing = check_evidence(asked, {passage.id for passage in retriever.passages()})
    for line in missing[:SHOWN_WARNINGS]:
        tell(f"warning: {line}")
    if len(missing) > SHOWN_WARNINGS:
        tell(f"warning: and {len(missing) - SHOWN_WARNINGS} questions more")
