"""Open an experiment: check every name and read every question before an LM is called."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import dspy

from querywright import __version__
from querywright.arms import Arm, ArmDefaults, Arms, check_defaults, check_reader, named_arms
from querywright.data import Question, read_questions
from querywright.data.splits import data_hash
from querywright.data.types import Label, Passage
from querywright.errors import InputError
from querywright.metrics.dspy_metrics import METRICS, RANKED, Metric, needs
from querywright.metrics.guideline import GuidelineMetric, Guidelines
from querywright.metrics.judge import JudgedMetric
from querywright.metrics.judges import JUDGED
from querywright.models.flow import MOST
from querywright.models.rewriters import Rewriter, rewriter_of
from querywright.optimize.artifacts.load import load
from querywright.optimize.comparison import RIGHT, Comparison, engines_of
from querywright.optimize.comparison import compare as compare_programs
from querywright.optimize.hints import hints, repeats
from querywright.optimize.judge_files import SavedJudge, resolve_judge, resolve_judges
from querywright.optimize.judging import freeze_guidelines, judged_metrics
from querywright.optimize.notes import arms_by_writer, passage_warnings, score_notes
from querywright.optimize.results import PLAIN
from querywright.optimize.tables import pool_notes
from querywright.programs import RAG, READERS, make_program, make_reader
from querywright.programs.ensemble import without_reader
from querywright.programs.readers import reader_for
from querywright.retrieval import rerank
from querywright.retrieval.checks import TO_LABEL, rebuilt, tell_all_searched, tell_rebuilt
from querywright.retrieval.collection import collection_folder, read_manifest
from querywright.retrieval.edits import former_passages, labeled_passages, settle_labels
from querywright.retrieval.engines import check_engine, passages_in
from querywright.retrieval.rerank import CrossEncoderReranker, Reranker
from querywright.workspace import Tell, Workspace

Metrics: TypeAlias = "Sequence[str | Metric] | Mapping[str, str | Metric]"
"""Metrics as names (see ``judged_metrics``) or functions; or a mapping from names to these."""

DEFAULT_JUDGE = "usefulness"
DEFAULT_TECHNIQUES = ("closed_book", "plain", "hcqr")
LACKING = {
    "answer": "correct answers",
    "options": "answer options",
    "evidence": "labeled evidence",
    "reader": "a reader",
    "support": "a reader that cites passages, such as grounded (reader=)",
    "sentences": "sentence-level support from the questions and the reader (see joint_passage_f1)",
}
"""Descriptions of metric requirements whose names are not clear enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """The metrics and judges that score programs.

    Args:
        metrics: Metrics, as names or functions. Default: metrics that fit the questions.
        judges: Additional judges that score the programs, given by name or by the path of a saved judge.
        judge_lm: The judges' LM, or its name. If given without a judge or a judged metric, it judges usefulness.
            Default: the programs' LM.
        guidelines: A file with the points that the coverage judge looks for in answers. If the file has no points for a
            question, the judge's LM writes them first.
        threads: Number of judgments that a judge makes in parallel; values below 8 count as 8. Default: up to the
            LM's limit.
    """

    metrics: Metrics = ()
    judges: Sequence[str | Path | SavedJudge] = ()
    judge_lm: dspy.LM | str | None = None
    guidelines: Path | None = None
    threads: int | None = None


@dataclass(slots=True, kw_only=True)
class Experiment:
    """An experiment whose programs, questions, and metrics have been checked and opened.

    Args:
        workspace: The workspace with the LM.
        questions: The questions.
        defaults: The defaults for arms.
        reader: The reader for arms without their own reader.
        reranker: The reranker for techniques that rerank.
        scoring: The metrics and judges.
        source: The name of the question file; empty if the questions do not come from a file.
        metrics: Metrics, keyed by name.
        lacking: For each metric that cannot be scored, the requirements that the questions and readers do not meet.
        notes: Remarks to show with the results.
        hints: Warnings about the questions and names, which are also reported when the experiment is opened, and the
            rest of the moved labels.
        tell: A function that is called with each warning.
        arms: The arms by name.
        programs: The programs of the arms, by name.
        retrievers: Open retrievers by engine.
        given: The questions with the labels as given, before labels followed edits.
    """

    workspace: Workspace
    questions: list[Question]
    defaults: ArmDefaults
    reader: str | None
    reranker: Reranker | None = None
    scoring: Scoring | None = None
    source: str = ""
    metrics: dict[str, Metric] = field(default_factory=dict)
    lacking: Mapping[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)
    tell: Tell = print
    arms: dict[str, Arm] = field(default_factory=dict)
    programs: dict[str, RAG] = field(default_factory=dict)
    retrievers: dict[str, Any] = field(default_factory=dict)
    given: Sequence[Question] = ()
    _writers: dict[Any, Any] = field(default_factory=dict)

    @property
    def searched(self) -> list[Any]:
        """The open retrievers, and the retrievers of the arms."""
        own = (program.technique.retriever for program in self.programs.values())
        return [one for one in (*self.retrievers.values(), *own) if one is not None]

    @property
    def retriever(self) -> Any:
        """The first open retriever, or else the retriever of the first arm; None if no arm searches."""
        return next(iter(self.searched), None)

    def compare(
        self,
        baseline: str | None = None,
        *,
        references: bool = False,
        threads: int | None = None,
        max_failures: float = 0.05,
        slices: Sequence[str] = (),
        progress: Any = None,
    ) -> Comparison:
        """Evaluate the programs and compare them with the baseline. For arguments and errors, see ``compare``.

        Missing guidelines are written first.
        """
        run: dict[str, Any] = {"threads": threads or self.workspace.threads, "max_failures": max_failures}
        run["progress"] = progress
        self._write_guidelines(run)
        found = compare_programs(
            self.programs, self.questions, lm=self.workspace.lm, baseline=self.baseline(baseline),
            references=references, metrics=self.metrics, slices=slices, **run,
        )  # fmt: skip
        own = {name: one.technique.retriever for name, one in self.programs.items()}
        later = passage_warnings(found.arms, self.retrievers.values(), own)
        for line in later:
            self.tell(line)
        return replace(
            found, source=self.source, facts=self._facts(found), hints=(*self.hints, *later),
            remarks=tuple(self._remarks(found, references)), settings={**self.settings, "baseline": found.baseline},
        )  # fmt: skip

    def baseline(self, given: str | None) -> str:
        """Return the baseline's name; the argument may also be the arm's text. Default: ``plain``, or the first arm."""
        if given is None:
            return PLAIN if PLAIN in self.arms else next(iter(self.arms), PLAIN)
        return next((name for name, arm in self.arms.items() if arm.text == given), given)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings, the arms, and a digest of the questions, as plain data."""
        defaults, scoring = self.defaults, self.scoring or Scoring()
        given = {
            "lm": self.workspace.lm.model, "collection": _name(defaults.retriever), "where": defaults.where,
            "embedder": _name(defaults.embedder), "engine": defaults.engine, "max_passages": defaults.max_passages,
            "knobs": {name: str(value) for name, value in defaults.knobs.items()},
            "writer_lm": _name(defaults.writer_lm), "reader": self.reader,
            "reranker": None if self.reranker is None else self.reranker.id, "metrics": list(self.metrics),
            "judges": [_name(one) for one in scoring.judges], "judge_lm": _name(scoring.judge_lm),
            "arms": {name: arm.text for name, arm in self.arms.items()}, "questions": data_hash(self.questions),
        }  # fmt: skip
        settings: dict[str, Any] = json.loads(json.dumps(given, default=str))
        return settings

    def open_retriever(self, engine: str) -> Any:
        """Return the retriever for named techniques; it is opened only once per engine."""
        if engine not in self.retrievers:
            given = self.defaults
            found = self.workspace.retriever(given.retriever, given.embedder, engine, given.where)
            self.retrievers[engine] = found
        return self.retrievers[engine]

    def open_writer(self, given: Any) -> Any:
        """Return the writer LM, as the same object for all its arms; None if it is the reader's LM."""
        if given not in self._writers:
            self._writers[given] = self.workspace.writer(given)
        return self._writers[given]

    def open(self, name: str, arm: Arm) -> RAG:
        """Return the program of an arm."""
        reranker = self.reranker if arm.technique.USES_RERANKER else None
        if isinstance(arm.program, RAG):
            return arm.program
        if arm.program is not None:
            return RAG(arm.program, None if self.reader is None else make_reader(self.reader))
        if arm.artifact is not None:
            return self._load(name, arm, reranker)
        return make_program(
            arm.technique.NAME, self.open_retriever(arm.engine) if arm.searches else None, reader=self.reader,
            reranker=reranker, writer_lm=self.open_writer(arm.writer), **arm.knobs,
        )  # fmt: skip

    def _load(self, name: str, arm: Arm, reranker: Reranker | None) -> RAG:
        """Return an artifact's program, and note changes in its collection, LM, or writer since it was compiled."""
        assert arm.artifact is not None
        own, home, lm = arm.artifact.manifest, self.workspace.home, self.workspace.lm
        retriever = next((one for one in self.retrievers.values() if one.fingerprint == own.fingerprint), None)
        here = own.collection is not None and read_manifest(collection_folder(own.collection, home)) is not None
        if retriever is None and self.defaults.retriever is not None and not here:
            retriever = self.open_retriever(own.engine or "dense")
            self.notes.append(
                f"{name} was compiled with {own.collection or 'a different retriever'}, but runs with the given "
                "retriever"
            )
        if own.lm != lm.model:
            self.notes.append(f"{name} was compiled for the LM {own.lm}")
        if arm.writer is not None and own.writer is not None:
            self.notes.append(f"{name} was compiled with the writer {own.writer}")
        writer = None if arm.writer is None else self.open_writer(arm.writer) or lm
        return load(
            arm.artifact, home=home, lm=lm, retriever=retriever, reranker=reranker, writer_lm=writer,
            tell=lambda _: None,  # reported with the other hints
        ).program  # fmt: skip

    def _write_guidelines(self, run: Mapping[str, Any]) -> None:
        """Load the coverage judge's guidelines from the file, and have the LM write those that are missing."""
        judges = [one for one in self.metrics.values() if isinstance(one, GuidelineMetric)]
        file = None if self.scoring is None else self.scoring.guidelines
        if file is None:
            return
        known: Mapping[str, Any] = {} if self.retriever is None else {one.id: one for one in self.retriever.passages()}
        sourced: list[tuple[Question, Sequence[Any]]] = []
        for question in self.questions:
            found = [known[key] for key, label in question.evidence.items() if label is Label.ENTAILED and key in known]
            sourced += [(question, found)] if found else []
        if not sourced:
            raise InputError(
                "guidelines are written from passages labeled ENTAILED, but no question has such a passage in this "
                "collection; use questions with such passages and pass retriever=..., or remove the judge 'coverage'"
            )
        before = Guidelines.load(file) if file.exists() else Guidelines()
        lm = judges[0].lm or self.workspace.lm
        frozen = freeze_guidelines(before, sourced, lm=lm, **run)
        frozen.save(file)
        kept = {question.id: frozen[question.id] for question, _ in sourced if question.id in frozen}
        judges[0].guidelines.update(kept)

    def _remarks(self, found: Comparison, references: bool) -> list[str]:
        """Return the lines to show below the results table."""
        lm, arms = self.workspace.lm.model, found.arms
        slices = {one.column for one in found.slices}
        lines = [*score_notes(self.programs, arms, self.questions, lm=lm, slices=slices), *self.notes]
        lines += pool_notes(arms, found.questions)
        if references and self.defaults.reads and not any(metric in one.metrics for one in arms for metric in RIGHT):
            lines.append(f"no diagnosis: add the metric {' or '.join(RIGHT)}")
        lines += [
            f"{name} was not scored, because the metric needs {lacking}" for name, lacking in self.lacking.items()
        ]
        tried = dict.fromkeys(name for one in arms for row in one.rows for name in row.scores)
        unscored = [name for name in tried if not any(name in one.metrics for one in arms)]
        return [*lines, *(f"{name}: no question could be scored" for name in unscored if name not in self.lacking)]

    def _facts(self, found: Comparison) -> dict[str, str]:
        """Return the facts about the comparison for a report."""
        facts = {
            "Questions": " of ".join(filter(None, [str(len(self.questions)), self.source])),
            **({"LM": str(self.workspace.lm.model)} if found.asks else {}),
            "Reader": self.reader or "none",
        }
        if writers := arms_by_writer(self.programs):
            facts["Writer"] = "; ".join(f"{name} ({', '.join(arms)})" for name, arms in writers.items())
        if isinstance(self.defaults.retriever, str) and self.retrievers:
            facts["Collection"] = f"{self.defaults.retriever}, {self.retriever.count} passages"
        engines: dict[str, list[str]] = {}
        for name, engine in engines_of(self.programs).items():
            engines.setdefault(engine, []).append(name)
        several = len(engines) > 1
        facts["Engines"] = "; ".join(one + f" ({', '.join(arms)})" * several for one, arms in engines.items())
        return {**{name: one for name, one in facts.items() if one}, "querywright": __version__}


def open_experiment(
    arms: Arms,
    questions: Any,
    workspace: Workspace,
    *,
    defaults: ArmDefaults,
    scoring: Scoring | None = None,
    reading: Mapping[str, Any] | None = None,
    earlier: Mapping[str, str] | None = None,
    tell: Tell = print,
) -> Experiment:
    """Check and open arms, questions, retrievers, and models.

    Args:
        arms: The arms, in any form that ``querywright.compare`` accepts. If empty: techniques that fit the questions.
        questions: The questions, in any form that ``read_questions`` accepts.
        workspace: The open workspace; its LM needs an API key only if it is called.
        defaults: The defaults for arms.
        scoring: The metrics and judges. If None, the programs are not scored.
        reading: ``columns``, ``limit``, ``split``, and ``labels`` for the questions.
        earlier: The texts of the arms that come first in the results, by name.
        tell: A function that is called with each warning about the questions or the names.

    Raises:
        InputError: A value cannot be used; the message names the value, the rule, and the remedy.
    """
    check_engine(defaults.engine)
    check_reader(defaults.reader)
    metrics, judged = ({}, {}) if scoring is None else _metrics(scoring)
    silent = not defaults.reads or (defaults.reader == "auto" and _reads_nothing(metrics))
    reader = None if silent else defaults.reader
    named = named_arms(arms, defaults, earlier=earlier)
    if silent:
        named = {name: replace(arm, reader=None) for name, arm in named.items()}
    is_default = not named
    if is_default:
        techniques = [one for one in DEFAULT_TECHNIQUES if reader is not None or one != "closed_book"]
        named = named_arms(techniques, defaults)
    check_defaults(named, defaults)
    needing = [] if is_default else [name for name, arm in named.items() if arm.needs_options]
    needing += ["the 'multiple_choice' reader"] if reader == "multiple_choice" else []
    asked = read_questions(questions, **(reading or {}), multiple_choice=" and ".join(needing))
    left_out = [name for name, arm in named.items() if arm.needs_options]
    if is_default and not all(question.options for question in asked):
        named = {name: arm for name, arm in named.items() if name not in left_out}
    else:
        left_out = []
    shared = reader_for(asked, reader)
    own = [arm.reader for arm in named.values()]
    readers = list(dict.fromkeys(one for one in ([shared] if None in own else []) + own if one is not None))
    metrics, lacking = ({}, {}) if scoring is None else _scorable(metrics, judged, asked, readers)
    judge_lm = None if scoring is None else scoring.judge_lm
    judging = [name for name, one in metrics.items() if isinstance(one, JudgedMetric) and one.lm is None]
    writes = any(arm.technique.LM_STAGES and arm.writer is None for arm in named.values())
    if readers or writes or (judging and judge_lm is None):
        workspace.check_key()
    experiment = Experiment(
        workspace=workspace, questions=asked, defaults=defaults, reader=shared, scoring=scoring,
        source=Path(questions).name if isinstance(questions, str | Path) else "", metrics=metrics, lacking=lacking,
        arms=named, tell=tell, given=asked,
    )  # fmt: skip
    notes = experiment.notes
    notes += [f"left out: {', '.join(left_out)}, because not every question has options"] if left_out else []
    if defaults.retriever is not None:
        for engine in dict.fromkeys([arm.engine for arm in named.values() if arm.searches] or [defaults.engine]):
            experiment.open_retriever(engine)
    lm = workspace.lm if judge_lm is None else workspace.another_lm(judge_lm)
    for name in judging:
        metric: Any = metrics[name]
        metrics[name] = metric = metric.of(name)  # a copy, because the next run may use another LM
        metric.lm = lm
    experiment.reranker = open_reranker(defaults.reranker)
    for name, arm in named.items():
        program = experiment.open(name, arm)
        experiment.programs[name] = without_reader(program) if silent else program
    notes += _shallow(metrics, experiment.programs)
    several = [one for one in dict.fromkeys(experiment.searched) if callable(getattr(one, "passages", None))]
    former = labeled_passages((reading or {}).get("labels"))
    for one in several:
        former |= former_passages(one)
    rest: list[str] = []
    opened = {one: partial(passages_in, one) for one in several}
    before = [opened.pop(one) for one in several if rebuilt([one])]
    now, before = ([*opened.values()], before) if opened else (before, [])
    experiment.questions = settle_labels(asked, now, former, experiment.hints.append, rest.append, before)
    experiment.hints += _hints(experiment, former)
    for line in experiment.hints:
        tell(line)
    experiment.hints += rest
    return experiment


def _hints(experiment: Experiment, former: Mapping[str, Passage]) -> list[str]:
    """Return warnings about the questions, the collection and the rewriters."""
    found: list[str] = []
    own = {name: program.technique.retriever for name, program in experiment.programs.items()}
    tell_rebuilt(experiment.searched, found.append, {} if rebuilt(experiment.retrievers.values()) else own)
    retrievers = experiment.retrievers | {name: one for name, one in own.items() if one is not None}
    tell_all_searched(experiment.questions, retrievers, former, found.append)
    techniques: dict[Any, list[str]] = {}
    for program in experiment.programs.values():
        techniques.setdefault(program.technique.writer_lm, []).append(program.technique.NAME)
    for writer, names in techniques.items():
        tell_unlearnt(rewriter_of(writer), names, found.append)
    if experiment.scoring is not None:
        found += repeats(experiment.questions)
        found += hints(experiment.questions, experiment.metrics, tests=len(experiment.arms) - 1)
    return found


def open_reranker(reranker: Reranker | str | None) -> Reranker | None:
    """Load a reranker given by name, so that a missing model is reported before any LM call."""
    if not isinstance(reranker, str):
        return reranker
    found: CrossEncoderReranker = rerank.resolve_reranker(reranker)
    found.load()
    return found


def tell_unlearnt(rewriter: Rewriter | None, techniques: Iterable[str], tell: Callable[[str], object]) -> None:
    """Report the techniques whose prompts the rewriter has not learned."""
    strange = () if rewriter is None else sorted({*techniques} - {*rewriter.techniques})
    if rewriter is not None and strange:
        tell(
            f"the rewriter {rewriter.name!r} was trained for {', '.join(rewriter.techniques)}, but not for "
            f"{', '.join(strange)}; before you use the rewriter, compare its scores with the LM's (querywright compare)"
        )


def _name(given: Any) -> str | None:
    """Return the name of a retriever, model, or judge, as plain data."""
    if given is None or isinstance(given, str | Path):
        return None if given is None else str(given)
    judge = getattr(given, "judge", None)
    return str(getattr(given, "model", None) or getattr(judge, "NAME", None) or getattr(given, "name", None) or "?")


def _metrics(scoring: Scoring) -> tuple[dict[str, Metric], dict[str, Metric]]:
    """Return the given metrics, and the metrics of the given judges."""
    if isinstance(scoring.metrics, Mapping):
        given = {str(name): one for name, one in scoring.metrics.items()}
    else:
        several: Any = scoring.metrics
        several = [several] if isinstance(several, str) or callable(several) else list(several)
        names = [one if isinstance(one, str) else getattr(one, "__name__", type(one).__name__) for one in several]
        given = dict(zip(names, several, strict=True))
        if len(given) < len(names):
            raise InputError(
                f"duplicate metric name in {', '.join(names)}; pass a dict that gives each metric a unique name"
            )
    saved = resolve_judges(scoring.judges)
    own = {name: one for name, one in given.items() if not isinstance(one, str)}
    known = {JUDGED[name] for name in given if name in JUDGED}
    judged = bool(saved or known) or any(isinstance(one, JudgedMetric) for one in own.values())
    if scoring.judge_lm is not None and not judged:
        saved = [resolve_judge(DEFAULT_JUDGE)]
    more = [one.judge.METRIC for one in saved if type(one.judge) not in known]
    found = judged_metrics(
        [*(name for name in given if name not in own), *more], judges=saved, threads=max(8, scoring.threads or MOST),
        guidelines=None if scoring.guidelines is None else Guidelines(),
    )  # fmt: skip
    if scoring.guidelines is not None and not any(isinstance(one, GuidelineMetric) for one in found.values()):
        raise InputError("guidelines= is used only by the judge 'coverage'; add this judge, or omit guidelines=")
    return {name: own.get(name) or found[name] for name in given}, {name: found[name] for name in more}


def _reads_nothing(metrics: Mapping[str, Metric]) -> bool:
    """Return whether no metric needs an answer. User-defined metrics are assumed to need one."""
    known = all(name in METRICS or name.partition("@")[0] in RANKED or name in JUDGED for name in metrics)
    return bool(metrics) and known and not any({"reader", "support"} & needs(name) for name in metrics)


def _scorable(
    metrics: dict[str, Metric], judged: Mapping[str, Metric], asked: Sequence[Question], readers: Sequence[str]
) -> tuple[dict[str, Metric], dict[str, str]]:
    """Return all metrics, and the unmet requirements of each metric that cannot be scored."""
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
            f"no metric can be scored: {wanting or 'without a reader or a judge, metrics need labeled evidence'}; use "
            f"questions with correct answers (and a reader), pass a file of labels with labels= ({TO_LABEL}), or "
            "choose a judge with judge_lm="
        )
    return metrics, lacks


def _shallow(metrics: Iterable[str], programs: Mapping[str, RAG]) -> list[str]:
    """Return a note for each metric that looks at more passages than some programs return."""
    notes = []
    for metric in metrics:
        depth = metric.partition("@")[2]
        short = [
            f"{name} ({program.technique.max_passages})"
            for name, program in programs.items()
            if depth.isdecimal() and program.technique.KNOBS and program.technique.max_passages < int(depth)
        ]
        if short:
            notes.append(f"{metric}: {', '.join(short)} return fewer passages; set max_passages={depth}")
    return notes
