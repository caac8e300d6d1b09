"""The Python API: evaluate, compare, label, and compile.

Questions and passages are paths, DataFrames, ``datasets.Dataset`` and ``DatasetDict``, or lists of dicts, ``Question``,
``Passage``, or ``dspy.Example``. An LM is any ``dspy.LM`` or a name. A retriever is a collection's name, a
``ChromaRetriever``, or any other retriever. LM answers are cached in the workspace, so repeating a call costs nothing.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

import dspy

from querywright.arms import ArmDefaults, Arms, engine_for, split_knobs
from querywright.data import Question, Splits, read_questions, split_questions
from querywright.data.labels import read_labels
from querywright.data.splits import data_hash
from querywright.data.types import History
from querywright.errors import InputError
from querywright.models.circuit_breaker import Limits
from querywright.models.lm import lm_digest
from querywright.models.rewriters import rewriter_of
from querywright.opening import Metrics, Scoring, open_experiment
from querywright.optimize.artifacts.files import ArtifactManifest
from querywright.optimize.artifacts.save import check_same, given_to, save_compiled
from querywright.optimize.artifacts.writers import keep_rewriter, ref_of
from querywright.optimize.comparison import RIGHT, Comparison, check_settings, read_settings
from querywright.optimize.evaluate import Evaluation, Progress
from querywright.optimize.judge_files import SavedJudge, resolve_judge, resolve_judges
from querywright.optimize.labels import PoolLabels, check_judge, earlier_labels, label_pool, pool_passages
from querywright.optimize.objectives import check_judges, objectives_of
from querywright.optimize.results import CompileResult, CompileSettings
from querywright.optimize.search.compile import compile_program
from querywright.optimize.search.core import further_questions
from querywright.optimize.slices import check_known, columns_of
from querywright.progress import shown
from querywright.retrieval.checks import helpful
from querywright.retrieval.edits import former_passages, labeled_passages
from querywright.retrieval.engines import passages_in
from querywright.technique_names import technique_named
from querywright.workspace import Tell, Workspace

LM: TypeAlias = str | dspy.LM


def evaluate(program: Any, questions: Any, *, name: str | None = None, **options: Any) -> Evaluation:
    """Run one program on questions and score it. Failed questions are counted, but never scored as 0.

    Args:
        program: An arm, in any form that ``compare`` accepts.
        questions: The questions, in any form that ``read_questions`` accepts.
        name: The name of the arm. Default: the program's name.
        options: Arguments for ``compare``, such as ``lm=``, ``retriever=``, ``metrics=`` and ``judge=``.

    Raises:
        InputError: A value cannot be used; the message names the value, the rule, and the remedy.
        OutageError: The LM does not answer.
        TooManyFailuresError: More questions failed than allowed.
    """
    if isinstance(program, list | tuple | Mapping):
        raise InputError(f"evaluate takes one arm, but got {program!r:.80}; to evaluate several arms, call compare")
    arms = {name: program} if name else [program]
    return compare(arms, questions, **{"references": False, **options}).arms[0]


def compare(
    arms: Arms,
    questions: Any,
    *,
    lm: LM | Workspace = "embedded",
    retriever: Any = None,
    where: Mapping[str, Any] | None = None,
    baseline: str | None = None,
    metrics: Metrics = (),
    judge: str | Path | Sequence[str | Path] = (),
    judge_lm: LM | None = None,
    guidelines: str | Path | None = None,
    labels: Any = None,
    reading: Mapping[str, Any] | None = None,
    reader: str | None = "auto",
    max_passages: int = 5,
    knobs: Mapping[str, Any] | None = None,
    engine: str = "dense",
    embedder: Any = "embedded",
    reranker: Any = None,
    writer_lm: LM | Path | None = None,
    references: bool = True,
    threads: int | None = None,
    max_failures: float = 0.05,
    slices: Sequence[str] = (),
    home: str | Path | None = None,
    out: str | Path | None = None,
    progress: Progress | bool | None = None,
    tell: Tell | None = None,
) -> Comparison:
    """Compare arms with a baseline on the same questions, using paired tests.

    Args:
        arms: Names of techniques (``NAME``, ``NAME@ENGINE``, ``NAME:KNOB=VALUE,...``), artifact folders, programs from
            ``load``, techniques such as ``HCQR(retriever)``, programs from ``make_program``, and custom programs: any
            ``dspy.Module`` or function that takes ``question`` and returns passages, an answer, or a prediction with
            both. ``module:NAME`` and ``file.py:NAME`` refer to techniques and programs in your code. You can also pass
            a mapping from names to any of these. If empty: closed book, plain, and (if the questions have options)
            hcqr.
        questions: The questions, in any form that ``read_questions`` accepts.
        lm: The LM or its name, or an open ``Workspace`` with its LM and call limit. Default ``embedded``.
        retriever: The retriever for named techniques: a collection's name, a ``chromadb`` collection, or a retriever.
        where: A Chroma filter on the collection's metadata. Default: every passage.
        baseline: The arm with which the other arms are compared. Default ``plain``, or the first arm.
        metrics: Names such as ``recall@5``, ``judged_useful``, or ``module:function``, or functions ``(example,
            prediction, trace=None)``; or a mapping from names to these. Default: accuracy if a reader runs, and
            decision_useful and recall if evidence is labeled.
        judge: Additional judges that score the programs, given by name or by the path of a saved judge, which replaces
            the built-in judge of the same name. If no evidence is labeled, a usefulness judge's labels serve as
            evidence for diagnosis and decisions, and the results say so.
        judge_lm: The judges' LM, or its name. Default: ``lm``. If you pass it without a judge or a judged metric, it
            judges usefulness.
        guidelines: A file with the points that the ``coverage`` judge looks for in answers. If the file has no points
            for a question, the judge's LM writes them first.
        labels: Passage labels, which become evidence: a file, or a table such as ``label(...).to_pandas()``.
        reading: Arguments for ``read_questions``: ``columns``, ``limit``, and ``split``.
        reader: The reader for arms that do not have their own: ``auto``, ``multiple_choice``, ``short_answer``,
            ``reasoning``, ``grounded``, ``long_answer``, or None (no reader runs, even if an artifact or a program has
            its own). Default ``auto``.
        max_passages: Maximum number of passages that named techniques show to the reader, 1 to 50. Default 5. If an arm
            has a different number (``hcqr:max_passages=15``), the results say so.
        knobs: Values, keyed by knob name, for every named technique that has the knob.
        engine: The search engine for arms that do not name an engine. Default ``dense``.
        embedder: The embedder for a named collection. Default ``embedded``.
        reranker: A cross-encoder, or its name or path, for techniques that rerank.
        writer_lm: The LM that named techniques and artifacts call before the reader: any LM, its name, or a rewriter's
            folder. Default: ``lm``, or an artifact's own LM.
        references: Whether to also evaluate the reader without passages (closed book) and with the passages labeled
            ``ENTAILED`` (oracle evidence). Default True.
        threads: Number of questions to run in parallel, and the limit on parallel calls to an LM given by name; 1 or
            more. Default: 4; for a remote LM, as many as its server can handle.
        max_failures: Share of an arm's questions that may fail, 0 to 1. Default 0.05.
        slices: Question columns by which to break down the results, such as ``topic``, or ``options`` (whether the
            question has options) or ``known`` (whether the reader answers the question correctly without passages).
            Default none.
        home: The workspace folder. Default ``$QUERYWRIGHT_HOME`` or ``.querywright``.
        out: The folder to which you will ``save`` the comparison; this call only reads it, and only
            ``save(folder)`` writes files. Arms that are already saved there come first in the results. It is an error
            if the folder's settings or questions are different. Default: none.
        progress: True to show a bar (also in notebooks), or a function that is called with the step, the amount done,
            and the total.
        tell: A function that is called with each warning about questions and names. Default: ``warnings.warn``.

    Returns:
        The comparison, with ``to_pandas()``, ``save(folder)``, ``report(path)``, ``comparisons``, and ``notes``.
        Notebooks show it as a table.

    Raises:
        InputError: A value cannot be used; the message names the value, the rule, and the remedy.
        OutageError: The LM does not answer.
        TooManyFailuresError: More questions failed for an arm than allowed.
    """
    judges = (judge,) if isinstance(judge, str | Path) else judge
    earlier = {} if out is None else read_settings(out)
    with shown(progress, "opening questions, retriever, and models") as update:
        experiment = open_experiment(
            arms, questions, open_workspace(lm, home, threads),
            defaults=ArmDefaults(
                retriever=retriever, where=where, embedder=embedder, engine=engine, max_passages=max_passages,
                knobs=knobs or {}, reader=reader, writer_lm=writer_lm, reranker=reranker,
            ),
            scoring=Scoring(
                metrics=metrics, judges=judges, judge_lm=judge_lm, threads=threads,
                guidelines=None if guidelines is None else Path(guidelines),
            ),
            reading={"labels": labels, "slices": columns_of(slices), **(reading or {})}, earlier=earlier.get("arms"),
            tell=tell or warn_caller,
        )  # fmt: skip
        if out is not None:
            check_settings(out, earlier, {**experiment.settings, "baseline": experiment.baseline(baseline)})
        return experiment.compare(
            baseline, references=references, threads=threads, max_failures=max_failures,
            slices=slices, progress=update,
        )  # fmt: skip


def label(
    arms: Arms,
    questions: Any,
    *,
    retriever: Any,
    where: Mapping[str, Any] | None = None,
    judge: str | Path | SavedJudge | None = "usefulness",
    judge_lm: LM | None = None,
    lm: LM | Workspace = "embedded",
    depth: int = 5,
    labels: Any = None,
    reading: Mapping[str, Any] | None = None,
    knobs: Mapping[str, Any] | None = None,
    engine: str = "dense",
    embedder: Any = "embedded",
    reranker: Any = None,
    writer_lm: LM | Path | None = None,
    threads: int | None = None,
    max_failures: float = 0.05,
    home: str | Path | None = None,
    progress: Progress | bool | None = None,
    tell: Tell | None = None,
) -> PoolLabels:
    """Label the passages that arms find, and return a table that people can correct and that ``labels=`` accepts.

    The table also contains the labels that the questions already have, with the passages' text. If a labeled passage
    was split or deleted, its row keeps the former id and text, and the parts get no label.

    Args:
        arms: The arms, in any form that ``compare`` accepts. Their top passages are pooled.
        questions: The questions, in any form that ``read_questions`` accepts.
        retriever: The retriever for named techniques, as in ``compare``.
        where: A filter, as in ``compare``.
        judge: A usefulness judge, or the path of a saved judge. If None, people assign all labels.
        judge_lm: The judge's LM, or its name. Default: ``lm``.
        lm: The arms' LM, as in ``compare``. Default ``embedded``.
        depth: Number of passages to take from each arm for each question, 1 to 50. Default 5.
        labels: Earlier labels. They are kept, and follow passages that moved or changed a little; only passages without
            a label are added and judged.
        reading: Arguments for ``read_questions``, as in ``compare``.
        knobs: Values, keyed by knob name, for every named technique that has the knob.
        engine: The search engine for arms that do not name an engine. Default ``dense``.
        embedder: The embedder for a named collection. Default ``embedded``.
        reranker: A cross-encoder, as in ``compare``.
        writer_lm: The LM that techniques call before the reader, as in ``compare``.
        threads: Number of questions and judgments to run in parallel. Default: 4; for a remote LM, as many as its
            server can handle.
        max_failures: Share of an arm's questions that may fail, 0 to 1. Default 0.05.
        home: The workspace folder. Default ``$QUERYWRIGHT_HOME`` or ``.querywright``.
        progress: True to show a bar (also in notebooks), or a function that is called with the step, the amount done,
            and the total.
        tell: A function that is called with each warning about questions and names. Default: ``warnings.warn``.

    Returns:
        The labels, with ``to_pandas()`` (one row per passage, with the columns of
        ``querywright.data.labels.PassageLabel``), ``counts``, and ``notes``.

    Raises:
        InputError: A value cannot be used; the message names the value, the rule, and the remedy.
        OutageError: An LM does not answer. The judge's answers so far are cached.
        TooManyFailuresError: More questions failed for an arm or for the judge than allowed.
    """
    saved = judge if judge is None or isinstance(judge, SavedJudge) else resolve_judge(judge)
    judging = None if saved is None else saved.judge
    check_judge(judging)
    with shown(progress, "opening questions, retriever, and models") as update:
        place = open_workspace(lm, home, threads)
        place.check_key()
        experiment = open_experiment(
            arms, questions, place, reading=reading, tell=tell or warn_caller,
            defaults=ArmDefaults(
                retriever=retriever, where=where, embedder=embedder, engine=engine, max_passages=depth,
                knobs=knobs or {}, reader=None, writer_lm=writer_lm, reranker=reranker,
            ),
        )  # fmt: skip
        run: dict[str, Any] = {"threads": threads or place.threads, "max_failures": max_failures, "progress": update}
        asked = place.lm if judge_lm is None else place.another_lm(judge_lm)
        pool, failed = pool_passages(experiment.programs, experiment.questions, lm=place.lm, depth=depth, **run)
        earlier = [] if labels is None else read_labels(labels)
        former = {**labeled_passages(labels), **labeled_passages((reading or {}).get("labels"))}
        searched = [one for one in dict.fromkeys(experiment.searched) if callable(getattr(one, "passages", None))]
        for one in searched:
            former |= former_passages(one)
        held = [passages_in(one) for one in searched]
        there, labeled = earlier_labels(earlier, experiment.given, held, former, tell or warn_caller)
        found = label_pool(pool, experiment.given, judging, there=there, labeled=labeled, lm=asked, **run)
    failed = {**failed, **found.failed}
    notes = [] if saved is None else [saved.standing(asked.model, lm_digest(asked))]
    if found.unreadable:
        notes.append(
            f"answers from the judge that could not be read: {found.unreadable}; label their passages yourself, or "
            "rerun with a different judge LM"
        )
    notes += [f"failed questions in {name}: {count}" for name, count in failed.items()]
    added = max(0, len(found.labels) - len({one.key for one in earlier}))  # rows that moved can unite
    return replace(found, added=added, failed=failed, notes=tuple(notes))


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Compilation(CompileResult):
    """The result of ``compile``. It answers questions with the recommended program, and can be saved.

    Args:
        splits: The questions, split into train, dev, and test.
        workspace: The workspace and its LM.
        writer_lm: The LM that the technique calls before the reader; None if it is the workspace's LM.
        given: The inputs to the compilation, as plain data.
    """

    splits: Splits
    workspace: Workspace
    writer_lm: dspy.LM | None = None
    given: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, question: str, options: Sequence[str] | None = None, history: History = None) -> dspy.Prediction:
        """Answer a question with the recommended program."""
        from querywright.optimize.contexts import asking

        with asking(self.workspace.lm):
            return self.program(question=question, options=options, history=history)

    def save(self, path: str | Path, *, replace: bool = False) -> ArtifactManifest:
        """Write the recommended program as an artifact, with golden answers and a card.

        Args:
            path: The artifact's folder.
            replace: Whether to replace an existing program that was compiled from different inputs. Default False.

        Raises:
            ArtifactError: The folder cannot be written, or contains a different program.
        """
        if not replace:
            check_same(path, self.given)
        return save_compiled(
            path, self, self.splits, lm=self.workspace.lm,
            threads=self.settings.threads or self.workspace.threads, given=self.given,
        )  # fmt: skip


def compile(
    technique: Any,
    questions: Any,
    *,
    retriever: Any,
    where: Mapping[str, Any] | None = None,
    lm: LM | Workspace = "embedded",
    reader: str | None = "auto",
    max_passages: int | None = None,
    knobs: Mapping[str, Any] | None = None,
    settings: CompileSettings | None = None,
    sizes: tuple[int, int, int] | None = None,
    embedder: Any = "embedded",
    engine: str | None = None,
    reranker: Any = None,
    writer_lm: LM | Path | None = None,
    judge: str | Path | SavedJudge | Sequence[str | Path | SavedJudge] = (),
    judge_lm: LM | None = None,
    reader_check: int | Sequence[Question] = 0,
    labels: Any = None,
    reading: Mapping[str, Any] | None = None,
    slices: Sequence[str] = (),
    home: str | Path | None = None,
    out: str | Path | None = None,
    progress: Progress | bool | None = None,
    tell: Tell | None = None,
    **changes: Any,
) -> Compilation:
    """Tune a technique's prompts and knobs on dev, then compare the winner once with the baseline on test.

    Args:
        technique: A name in ``TECHNIQUES``, a technique class, or a custom program as in ``compare``.
        questions: The questions, in any form that ``read_questions`` accepts; they are split by a hash of seed and id.
            To use your own split, pass ``Splits``, or a mapping with ``train``, ``dev`` (or ``validation``), and
            ``test``, such as a ``DatasetDict``.
        retriever: A collection's name, a ``chromadb`` collection, or a retriever.
        where: A filter, as in ``compare``; it is saved in the artifact.
        lm: The LM, its name, or an open ``Workspace``, as in ``compare``. Default ``embedded``.
        reader: The reader, as in ``compare``.
        max_passages: Maximum number of passages that each arm shows to the reader, 1 to 50. Default 5.
        knobs: Values, keyed by knob name, which may include ``max_passages``. A single value is fixed; a list of values
            or a range ``(low, high)`` is searched. If ``max_passages`` is searched, the baseline uses its maximum.
        settings: The settings of the search, such as its size.
        sizes: Number of questions in train, dev, and test. Default: all, about 30%, 30%, and 40% (``split_questions``).
        embedder: The embedder for a named collection. Default ``embedded``.
        engine: The search engine. Default: the technique's own engine, or else dense.
        reranker: A cross-encoder, or its name or path, for a technique that reranks.
        writer_lm: The LM that the technique (but not the reader) calls: any LM, its name, or a rewriter's folder.
            Default: ``lm``.
        judge: Judges, by name, by path, or as objects. Each adds its metric, such as ``judged_useful``, to the
            available objectives.
        judge_lm: The judges' LM, or its name. Default: ``lm``.
        reader_check: Additional questions on which only closed book and oracle evidence are evaluated: a list, or the
            number of questions to take from those left over after the split.
        labels: Passage labels, as in ``compare``.
        reading: Arguments for ``read_questions``: ``columns``, ``limit``, and ``split``.
        slices: Question columns, ``options``, or ``known``, by which to break down the test results, as in ``compare``.
        home: The workspace folder. Default ``$QUERYWRIGHT_HOME`` or ``.querywright``.
        out: The folder to which you will ``save`` the program; this call only reads it, and only ``save(path)`` writes
            files. If the folder contains a different program, an error is raised before any LM call. Default: none.
        progress: True to show a bar (also in notebooks), or a function that is called with the step, the amount done,
            and the total.
        tell: A function that is called with each warning and note. Default: ``warnings.warn``.
        changes: Fields of ``CompileSettings``, such as ``trials=10`` or ``teleprompter="gepa"``. The default objective
            is the judge's metric if a judge or its LM is given; otherwise ``decision_useful`` if dev has labels, or
            else ``accuracy``, with a warning.

    Returns:
        The compilation, with ``verdict``, ``sentence``, ``program``, ``save(path)``, ``report(path)``, and
        ``to_pandas()``. Call it with a question to run the recommended program.

    Raises:
        InputError: A value cannot be used; the message names the value, the rule, and the remedy.
        OutageError: The LM does not answer. Answers so far are cached, but no program is chosen.
    """
    settings, tell = settings or CompileSettings(objective="auto"), tell or warn_caller
    try:
        settings = replace(settings, **changes)
    except TypeError:
        known = CompileSettings.__dataclass_fields__
        strange = [name for name in changes if name not in known] or changes
        raise InputError(f"unknown settings: {', '.join(strange)}; available: {', '.join(known)}") from None
    technique = technique_named(technique).NAME
    fixed, searched = split_knobs(technique, knobs or {})
    judges, parts = resolve_judges(judge), read_parts(questions, columns_of(slices))
    with shown(progress, "opening retriever and models") as update:
        place = open_workspace(lm, home, settings.threads)
        place.check_key()
        experiment = open_experiment(
            [technique], questions if parts is None else [one for part in parts for one in part], place,
            reading={"labels": labels, "slices": columns_of(slices), **({} if parts else reading or {})}, tell=tell,
            defaults=ArmDefaults(
                retriever=retriever, where=where, embedder=embedder, engine=engine_for(technique, engine) or "dense",
                max_passages=max_passages, knobs=fixed, reader=reader, writer_lm=writer_lm, reranker=reranker,
            ),
        )  # fmt: skip
        asked, read_by, index = experiment.questions, experiment.reader, experiment.retriever
        check_known(slices, RIGHT, has_closed_book=read_by is not None)
        splits = split_parts(asked, parts, settings.seed, sizes)
        if "auto" in settings.objectives:
            auto = _auto(splits, judges, judge_lm is not None, tell)
            settings = replace(settings, objective=tuple(auto if one == "auto" else one for one in settings.objectives))
        aims = [metric for one in objectives_of(settings.objectives) for metric in one.metrics]
        check_judges(aims, judges, asks=judge_lm is not None)
        if isinstance(reader_check, int):
            reader_check = further_questions(reader_check, asked, splits, read_by, settings.seed)
        (program,), (arm,) = experiment.programs.values(), experiment.arms.values()
        writer, ranker, values = program.technique.writer_lm, experiment.reranker, {**arm.knobs, **searched}
        keep_writer(writer, place, tell)
        asks = None if judge_lm is None else place.another_lm(judge_lm)
        given = given_to(
            splits, settings, index, technique=technique, reader=read_by, lm=place.lm.model, knobs=values,
            writer=None if writer is None else str(ref_of(writer)), reranker=None if ranker is None else ranker.id,
            judges=[one.judge.digest() for one in judges], judge_lm=None if asks is None else asks.model,
            reader_check=data_hash(reader_check),
        )  # fmt: skip
        if out is not None:
            check_same(out, given)
        found = compile_program(
            technique, splits, retriever=index, lm=place.lm, reader=read_by,
            knobs=values, settings=settings, reader_check=reader_check, reranker=ranker,
            writer_lm=writer, judges=judges, judge_lm=asks, progress=update, tell=tell,
        ).by_slice(slices, splits.test)  # fmt: skip
    found = replace(found, hints=(*experiment.hints, *found.hints))
    made = {one.name: getattr(found, one.name) for one in fields(found)}
    return Compilation(**made, splits=splits, workspace=place, writer_lm=writer, given=given)


def read_parts(questions: Any, slices: Sequence[str] = ()) -> list[list[Question]] | None:
    """Return train, dev, and test if the questions are already split, else None."""
    if isinstance(questions, Splits):
        questions = questions._asdict()
    if not isinstance(questions, Mapping):
        return None
    dev = "dev" if "dev" in questions else "validation"
    missing = [name for name in ("train", dev, "test") if name not in questions]
    if missing:
        raise InputError(
            f"the splits {', '.join(map(str, questions))} are incomplete; add {' and '.join(missing)}, or pass one "
            "list of questions"
        )
    return [read_questions(questions[name], slices=slices) for name in ("train", dev, "test")]


def split_parts(
    asked: Sequence[Question], parts: Sequence[Sequence[Question]] | None, seed: int, sizes: tuple[int, int, int] | None
) -> Splits:
    """Return the questions as train, dev, and test, using the given parts or else splitting them by id."""
    if parts is None:
        return split_questions(asked, seed=seed, sizes=sizes)
    left = iter(asked)
    return Splits(*([next(left) for _ in part] for part in parts))


def keep_writer(writer: dspy.LM | None, place: Workspace, tell: Tell) -> None:
    """Copy a rewriter to the workspace for the artifact. The run itself uses the rewriter's original folder."""
    rewriter = rewriter_of(writer)
    if rewriter is not None and keep_rewriter(rewriter.path, place.home) is None:
        tell(f"the rewriter {rewriter.name!r} is too large to copy; set the writer LM when you load the artifact")


def _auto(splits: Splits, judges: Sequence[SavedJudge], asks: bool, tell: Tell) -> str:
    """Return the default objective: the judge's metric if there is a judge, else the metric that the labels allow."""
    if judges or asks:
        return judges[0].judge.METRIC if judges else "judged_useful"
    if any(helpful(question) for question in splits.dev):
        return "decision_useful"
    tell(
        "no passage is labeled as helpful and no judge is set, so the objective is accuracy, which does not measure "
        "the passages; to tune for helpful passages, set the judge's LM, or use the objective judged_useful"
    )
    return "accuracy"


def open_workspace(lm: LM | Workspace, home: str | Path | None, threads: int | None) -> Workspace:
    """Return a workspace for an LM, or an open workspace unchanged. The LM does not need an API key yet."""
    if isinstance(lm, Workspace):
        return lm
    check_lm(lm)
    limits = Limits(at_once=threads) if isinstance(lm, str) else None  # an LM object has its own limits
    return Workspace.open(home, lm, limits=limits, asks=False)


def check_lm(lm: Any) -> None:
    """Raise ``InputError`` if an LM is None."""
    if lm is None:
        raise InputError("lm must be an LM or an LM's name, but got None; omit lm to use the embedded LM")


def warn_caller(text: str) -> None:
    """Warn without the prefix of the command line, and attribute the warning to the line that called the API."""
    frame: FrameType | None = sys._getframe()
    depth = 0
    while frame is not None and frame.f_globals.get("__name__", "").startswith(("querywright.", "contextlib")):
        frame, depth = frame.f_back, depth + 1
    warnings.warn(text.removeprefix("warning: "), stacklevel=depth + 1)
