"""From what was named to what can be asked: all is checked, and read, before anything is spent.

An arm is the name of a technique, ``NAME[@ENGINE][:KNOB=VALUE,...]`` (``writer=LM`` may stand among the knobs, with
``none`` for the LM that reads), the folder of an artifact, a loaded one, a technique, or a technique with its reader.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import dspy

from querywright.data import Question, read_questions
from querywright.data.labels import evidence_by
from querywright.errors import InputError
from querywright.metrics.dspy_metrics import METRICS, RANKED, Metric, needs
from querywright.metrics.guideline import Guidelines
from querywright.metrics.judge import JudgedMetric
from querywright.metrics.judges import JUDGED
from querywright.models.flow import MOST
from querywright.models.rewriters import rewriter_of
from querywright.named import (
    check_reader,
    engine_for,
    knob_values,
    of_grounded,
    of_mixed,
    open_reranker,
    pairs,
    tell_unlearnt,
)
from querywright.optimize.artifacts.files import Artifact, read_artifact
from querywright.optimize.artifacts.load import load
from querywright.optimize.hints import hints, repeats
from querywright.optimize.judge_files import resolve_judge
from querywright.optimize.judging import judged_metrics
from querywright.programs import (
    RAG,
    READERS,
    Technique,
    check_takes_writer,
    make_program,
    make_reader,
    technique_class,
)
from querywright.programs.base import MAX_PASSAGES
from querywright.programs.readers import reader_for
from querywright.retrieval.callable import as_retriever, is_collection
from querywright.retrieval.checks import tell_searched
from querywright.retrieval.chroma import ForeignChromaRetriever
from querywright.retrieval.collection import collection_folder, read_manifest
from querywright.retrieval.engines import check_engine
from querywright.retrieval.rerank import Reranker
from querywright.workspace import Tell, Workspace

Metrics: TypeAlias = "Sequence[str | Metric] | Mapping[str, str | Metric]"
"""Names of metrics, as ``judged_metrics`` takes them, and functions; or these by name."""

DEFAULT_JUDGE = "usefulness"
DEFAULT_TECHNIQUES = ("closed_book", "plain", "hcqr")
LACKING = {
    "support": "a reader that names its support such as grounded (--reader)",
    "sentences": "support by sentences, which no question and no reader here has (see joint_passage_f1)",
}
"""What a metric needs, in words, where its name alone does not tell."""


@dataclass(slots=True, kw_only=True)
class Prepared:
    """What is ready to be asked.

    Args:
        reader: Of the arms that bring none.
        lacks: What the metrics that cannot be scored do without, by their names.
        notes: What is said below the table.
        retrievers: By engine.
        opens: Opens what was given to be searched, by an engine; None where nothing was.
        programs: By the names of their arms.
    """

    workspace: Workspace
    reader: str | None
    questions: list[Question]
    metrics: Mapping[str, Metric]
    lacks: Mapping[str, str]
    notes: list[str]
    reranker: Reranker | None = None
    retrievers: dict[str, Any] = field(default_factory=dict)
    opens: Callable[[str], Any] | None = None
    programs: dict[str, RAG] = field(default_factory=dict)
    _writers: dict[Any, Any] = field(default_factory=dict)

    def writer(self, given: Any) -> Any:
        """The LM that writes, the same one for all arms that have it; None where it is the one that reads."""
        if given not in self._writers:
            self._writers[given] = self.workspace.writer(given)
        return self._writers[given]

    def searched_by(self, engine: str) -> Any:
        """What was given to be searched, by that engine."""
        if engine not in self.retrievers and self.opens is not None:
            self.retrievers[engine] = self.opens(engine)
        return self.retrievers[engine]

    @property
    def writers(self) -> dict[str, list[str]]:
        """The arms that each LM writes for which does not read."""
        found: dict[str, list[str]] = {}
        for name, program in self.programs.items():
            if program.technique.writer_lm is not None:
                found.setdefault(str(program.technique.writer_lm.model), []).append(name)
        return found

    @property
    def retriever(self) -> Any:
        """What is searched, else what the first arm searches; None where nothing searches."""
        own = (program.technique.retriever for program in self.programs.values())
        return next((one for one in (*self.retrievers.values(), *own) if one is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arm:
    """What can be asked, once all is open: a technique that was named, or an artifact, or a program that is there.

    Args:
        reader: The name of a reader of its own; None where it takes that of all arms, or has none.
        writer: What writes in place of the LM; beside an artifact, of its own writer.
        given: A technique, or one with its reader.
    """

    kind: type[Technique]
    reader: str | None = None
    engine: str = "dense"
    knobs: Mapping[str, Any] = field(default_factory=dict)
    writer: Any = None
    path: Path | None = None
    artifact: Artifact | None = None
    given: Technique | RAG | None = None

    @property
    def is_named(self) -> bool:
        return self.artifact is None and self.given is None

    @property
    def searches(self) -> bool:
        """Whether a retriever is opened for it."""
        return self.is_named and self.kind.SEARCHES != "0"

    @property
    def needs_options(self) -> bool:
        """Whether every question must have options."""
        return self.kind.NEEDS_OPTIONS or self.reader == "multiple_choice"

    def program(self, name: str, ready: Prepared) -> RAG:
        """The program of the arm of that name."""
        reranker = ready.reranker if self.kind.USES_RERANKER else None
        if isinstance(self.given, RAG):
            return self.given
        if self.given is not None:
            return RAG(self.given, None if ready.reader is None else make_reader(ready.reader))
        if self.artifact is None:
            return make_program(
                self.kind.NAME, ready.retrievers[self.engine] if self.searches else None, reader=ready.reader,
                reranker=reranker, writer_lm=ready.writer(self.writer), **self.knobs,
            )  # fmt: skip
        own, home, lm = self.artifact.manifest, ready.workspace.home, ready.workspace.lm
        opened = next((one for one in ready.retrievers.values() if one.fingerprint == own.fingerprint), None)
        if opened is None and ready.opens is not None and not _is_here(own.collection, home):
            opened = ready.searched_by(own.engine or "dense")
            ready.notes.append(f"{name} was compiled over {own.collection or 'another retriever'}, which is not here")
        if own.lm != lm.model:
            ready.notes.append(f"{name} was compiled for the LM {own.lm}")
        if self.writer is not None and own.writer is not None:
            ready.notes.append(f"{name} was compiled with the writer {own.writer}")
        writer = None if self.writer is None else ready.writer(self.writer) or lm
        return load(self.artifact, home=home, lm=lm, retriever=opened, reranker=reranker, writer_lm=writer).program


def prepare(
    arms: Iterable[Any] | Mapping[str, Any],
    questions: Any,
    *,
    workspace: Callable[[bool], Workspace],
    retriever: Any = None,
    embedder: Any = "embedded",
    engine: str = "dense",
    where: Mapping[str, Any] | None = None,
    reader: str | None = "auto",
    max_passages: int | None = 5,
    knobs: Mapping[str, Any] | None = None,
    metrics: Metrics = (),
    judges: Sequence[str | Path] = (),
    judge_lm: Callable[[Workspace], dspy.LM] | None = None,
    guidelines: Guidelines | None = None,
    threads: int | None = None,
    reranker: Reranker | str | None = None,
    writer_lm: Any = None,
    reading: Mapping[str, Any] | None = None,
    scores: bool = True,
    tell: Tell = print,
) -> Prepared:
    """Check, read and open all that was named.

    What is given is as ``querywright.compare`` has it, but for this. Without arms there are those that fit the
    questions. ``workspace`` opens the working folder and the LM once the names are checked and the questions are read,
    given whether that LM is asked, and ``judge_lm`` the LM of the judges, of which that of usefulness scores where no
    other is named. ``max_passages=None`` leaves each technique its own number. ``guidelines``, for the judge of
    coverage, may be filled in later. ``reading`` holds ``columns``, ``limit``, ``split`` and ``labels`` of the
    questions. Without ``scores`` nothing is measured, only searched.

    Raises:
        InputError: Something cannot be used; it names what, and what may be given.
    """
    check_engine(engine)
    check_reader(reader)
    knobs = knobs or {}
    shared = {**({} if max_passages is None else {MAX_PASSAGES.name: max_passages}), **knobs}
    chosen, judged = _metrics(metrics, judges, judge_lm is not None, guidelines, max(8, threads or MOST))
    silent = reader == "auto" and scores and _reads_nothing(chosen)
    reader = None if silent else reader
    named = _named_arms(arms, engine, shared, writer_lm)
    is_given = bool(named)
    if not named:
        defaults = [one for one in DEFAULT_TECHNIQUES if reader not in (None, "none") or one != "closed_book"]
        named = _named_arms(defaults, engine, shared, writer_lm)
    _check_shared(knobs, writer_lm, named.values())
    asked = _questions(questions, named if is_given else {}, reader, reading or {})
    notes: list[str] = []
    if not is_given and not all(question.options for question in asked):
        left_out = [name for name, arm in named.items() if arm.needs_options]
        named = {name: arm for name, arm in named.items() if name not in left_out}
        notes += [f"left out: {', '.join(left_out)}, because not every question has options"] if left_out else []
    read_by = reader_for(asked, reader)
    own = [None if silent else arm.reader for arm in named.values()]
    readers = list(dict.fromkeys(one for one in ([read_by] if None in own else []) + own if one is not None))
    chosen, lacks = _scorable(chosen, judged, asked, readers) if scores else ({}, {})
    notes += [line for name in readers for line in of_grounded(name)] + (of_mixed(asked, reader) if None in own else [])
    grounded = any(READERS[name].GROUNDED for name in readers)
    if grounded and "accuracy" in chosen and not all(question.options for question in asked):
        notes.append("accuracy is contains_answer where a reader names its support, else exact_match")
    labelled = any(question.evidence for question in asked)
    notes.append(evidence_by(asked) if labelled else "no labelled evidence")
    searching = {name: arm for name, arm in named.items() if arm.searches}
    if searching and retriever is None:
        name = next(iter(searching))
        raise InputError(f"{name} searches; give retriever=...")
    if reranker is not None and not any(arm.kind.USES_RERANKER for arm in named.values()):
        raise InputError("nothing here reranks; leave reranker= out, or name a technique that does")
    asks = bool(readers) or any(arm.kind.LM_STAGES and arm.writer is None for arm in named.values())
    judging = [one for one in chosen.values() if isinstance(one, JudgedMetric) and one.lm is None]
    ready = Prepared(
        workspace=workspace(asks or (bool(judging) and judge_lm is None)), reader=read_by, questions=asked,
        metrics=chosen, lacks=lacks, notes=notes,
    )  # fmt: skip
    if retriever is not None:
        ready.opens = lambda one: opened(ready.workspace, retriever, embedder, one, where)
        for one in dict.fromkeys([arm.engine for arm in searching.values()] or [engine]):
            ready.searched_by(one)
    own_lm = ready.workspace.lm if judge_lm is None else judge_lm(ready.workspace)
    for name, metric in chosen.items():
        if isinstance(metric, JudgedMetric) and metric.lm is None:
            chosen[name] = metric = metric.of(metric.name)  # the one that was given may be asked of another LM next
            metric.lm = own_lm
    ready.reranker = open_reranker(reranker)

    def made(name: str, arm: _Arm) -> RAG:
        program = arm.program(name, ready)
        return RAG(program.technique, None) if silent and type(program) is RAG else program

    ready.programs |= {name: made(name, arm) for name, arm in named.items()}
    tell_searched(asked, ready.retriever, tell)
    asked_by: dict[Any, list[str]] = {}
    for technique in (program.technique for program in ready.programs.values()):
        asked_by.setdefault(technique.writer_lm, []).append(technique.NAME)
    for writer, techniques in asked_by.items():
        tell_unlearnt(rewriter_of(writer), techniques, tell)
    ready.notes += _shallow(chosen, ready.programs)
    for line in (*repeats(asked), *hints(asked, chosen, tests=len(named) - 1)) if scores else ():
        tell(line)
    return ready


def _is_here(collection: str | None, home: Path) -> bool:
    return collection is not None and read_manifest(collection_folder(collection, home)) is not None


def opened(
    workspace: Workspace, retriever: Any, embedder: Any, engine: str, where: Mapping[str, Any] | None = None
) -> Any:
    """A retriever of that engine: of a collection, a retriever over one, or anything that searches."""
    if isinstance(retriever, str) or is_collection(retriever):
        return workspace.retriever(retriever, embedder, engine, where)
    found: Any = as_retriever(retriever)
    if where:
        raise InputError(
            f"a filter is for a collection, its name or its place, but got {found!r:.80}; give it to that: where=..."
        )
    if engine != "dense" and isinstance(found, ForeignChromaRetriever):
        return workspace.retriever(found, engine=engine)
    own = getattr(found, "name", None)
    if engine != "dense" and found.kind == "dense" and isinstance(own, str):
        return workspace.retriever(own, found.embedder, engine, getattr(found, "where", None))
    return found


def is_folder(name: str) -> bool:
    """Whether an arm is the folder of an artifact, not a technique."""
    return os.sep in name.partition(":")[0] or os.path.isfile(os.path.join(name, "manifest.json"))


def check_arm(name: str) -> None:
    """Raise when the name of an arm is that of no technique, engine or knob; a folder is read when it is opened."""
    if not is_folder(name):
        _technique_arm(name, "dense", {}, None)


def _named_arms(
    arms: Iterable[Any] | Mapping[str, Any], engine: str, knobs: Mapping[str, Any], writer: Any
) -> dict[str, _Arm]:
    """The arms by name: a technique's as it was written, an artifact's folder, a program's technique with a number."""
    if isinstance(arms, str | os.PathLike | dspy.Module) or hasattr(arms, "program"):
        arms = [arms]
    if isinstance(arms, Mapping):
        return {str(name): _arm(one, engine, knobs, writer) for name, one in arms.items()}
    found: dict[str, _Arm] = {}
    for one in arms:
        arm = _arm(one, engine, knobs, writer)
        name = str(one) if arm.is_named else arm.kind.NAME
        if arm.path is not None:
            name = str(arm.path) if arm.path.name in found else arm.path.name
        number = 2
        while arm.given is not None and name in found:
            name, number = f"{arm.kind.NAME} {number}", number + 1
        if name in found or (arm.path is not None and any(arm.path == other.path for other in found.values())):
            raise InputError(f"the arm {name!r} is named twice; name it once, or give the two names of their own")
        found[name] = arm
    return found


def _arm(one: Any, engine: str, knobs: Mapping[str, Any], writer: Any) -> _Arm:
    if not isinstance(one, (str, os.PathLike, dspy.Module)):
        one = getattr(one, "program", one)  # of what was loaded, or of a compilation the one that it recommends
    if isinstance(one, Technique):
        return _Arm(kind=type(one), given=one)
    if isinstance(one, RAG):
        return _Arm(kind=type(one.technique), reader=None if one.reader is None else one.reader.NAME, given=one)
    if isinstance(one, os.PathLike) or (isinstance(one, str) and is_folder(one)):
        artifact = read_artifact(Path(one))
        own = artifact.manifest
        kind = technique_class(own.technique)
        return _Arm(
            kind=kind, reader=own.reader, writer=writer if kind.LM_STAGES else None, path=Path(one), artifact=artifact
        )
    if isinstance(one, str):
        return _technique_arm(one, engine, knobs, writer)
    raise InputError(
        "an arm is the name of a technique, the folder of an artifact, what load, make_program or compile gives, or a "
        f"technique such as HCQR(retriever), but got {one!r:.80}"
    )


def _technique_arm(text: str, engine: str, knobs: Mapping[str, Any], writer: Any) -> _Arm:
    """The arm that a text names; knobs of its own, and a writer, go before those of all arms."""
    head, _, own = text.partition(":")
    technique, at, named = head.partition("@")
    kind = technique_class(technique)
    engine = engine_for(technique, named if at else None) or engine
    given = pairs([one for one in own.split(",") if one], f"the arm {text!r}:")
    if "writer" in given:
        named = given.pop("writer")
        if named != getattr(writer, "model", None):
            writer = None if named == "none" else named
        check_takes_writer(kind, writer)
    elif not kind.LM_STAGES:
        writer = None
    values = {**knob_values(technique, knobs, strict=False), **knob_values(technique, given)}
    if at and kind.SEARCHES == "0":
        raise InputError(f"{technique} does not search, so it has no engine; write {technique} for {text!r}")
    return _Arm(kind=kind, engine=engine, knobs=values, writer=writer)


def _check_shared(knobs: Mapping[str, Any], writer: Any, arms: Iterable[_Arm]) -> None:
    """Raise when a knob or a writer was named for all arms that none of them has."""
    arms = list(arms)
    named = [arm for arm in arms if arm.is_named]
    known = {arm.kind.NAME: [knob.name for knob in arm.kind.KNOBS] for arm in named}
    for key in knobs:
        if not any(key in own for own in known.values()):
            said = "; ".join(f"{name}: {', '.join(own) or 'none'}" for name, own in known.items())
            raise InputError(f"no technique here has the knob {key!r}; the knobs are: {said or 'none, in an artifact'}")
    if writer is not None and not any(arm.writer == writer for arm in arms):
        raise InputError(
            "nothing here asks an LM before it reads, so a writer has nothing to do; leave writer_lm= "
            "out, or name a technique that writes, such as rrr"
        )


def _questions(source: Any, arms: Mapping[str, _Arm], reader: str | None, reading: Mapping[str, Any]) -> list[Question]:
    """Read the questions; where an arm that was named compares options, every one must have some."""
    needing = [name for name, arm in arms.items() if arm.needs_options]
    needing += ["the reader multiple_choice"] if reader == "multiple_choice" else []
    return read_questions(source, **reading, multiple_choice=" and ".join(needing))


def _metrics(
    given: Metrics, judges: Iterable[str | Path], asks: bool, guidelines: Guidelines | None, threads: int
) -> tuple[dict[str, Metric], dict[str, Metric]]:
    """The metrics that were given, and those of judges that were named beside them."""
    if isinstance(given, Mapping):
        given = {str(name): one for name, one in given.items()}
    else:
        several = [given] if isinstance(given, str) or callable(given) else list(given)
        names = [one if isinstance(one, str) else getattr(one, "__name__", type(one).__name__) for one in several]
        given = dict(zip(names, several, strict=True))
        if len(given) < len(names):
            raise InputError(f"two metrics have one name among {', '.join(names)}; give them as a mapping of names")
    saved = [resolve_judge(one) for one in judges]
    mine = {name: one for name, one in given.items() if not isinstance(one, str)}
    known = {JUDGED[name] for name in given if name in JUDGED}
    if asks and not saved and not known and not any(isinstance(one, JudgedMetric) for one in mine.values()):
        saved = [resolve_judge(DEFAULT_JUDGE)]
    beside = [one.judge.METRIC for one in saved if type(one.judge) not in known]
    found = judged_metrics(
        [*(name for name in given if name not in mine), *beside], judges=saved, guidelines=guidelines, threads=threads
    )
    return {name: mine.get(name) or found[name] for name in given}, {name: found[name] for name in beside}


def _reads_nothing(metrics: Mapping[str, Metric]) -> bool:
    """Whether no metric needs an answer; one of the user's own may."""
    known = all(name in METRICS or name.partition("@")[0] in RANKED or name in JUDGED for name in metrics)
    return bool(metrics) and known and not any({"reader", "support"} & needs(name) for name in metrics)


def _scorable(
    metrics: dict[str, Metric], judged: Mapping[str, Metric], asked: Sequence[Question], readers: Sequence[str]
) -> tuple[dict[str, Metric], dict[str, str]]:
    """The metrics with those of judges, and what those do without that cannot be scored."""
    labelled = any(question.evidence for question in asked)
    if not metrics:
        names = ["accuracy"] if readers else []
        metrics = judged_metrics([*names, *(["decision_useful", "recall"] if labelled else [])])
    metrics = {**metrics, **judged}
    given = {
        "answer": any(question.answer for question in asked),
        "options": any(question.options for question in asked),
        "evidence": labelled,
        "reader": bool(readers),
        "support": any(READERS[name].GROUNDED for name in readers),
    }
    missing = {
        name: [LACKING.get(need, need) for need in sorted(needs(name)) if not given.get(need)] for name in metrics
    }
    lacks = {name: " and ".join(lacking) for name, lacking in missing.items() if lacking}
    if len(lacks) == len(metrics):
        wanting = "; ".join(f"{name} needs {lacking}" for name, lacking in lacks.items())
        raise InputError(
            f"nothing can be scored: {wanting or 'no metric'}; give questions with an answer (and a reader) or with "
            "labelled evidence, or name a judge with judge_lm="
        )
    return metrics, lacks


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
            notes.append(f"{metric}: fewer are found by {', '.join(short)}; see max_passages={depth}")
    return notes
