"""The main job in Python: evaluate, compare, compile and load, on what people have.

Questions and passages are lists of dicts, of ``Question`` and ``Passage`` or of ``dspy.Example``, DataFrames,
``datasets.Dataset`` and ``DatasetDict``, or paths; an LM is any ``dspy.LM`` or a name; a retriever is a collection's
name, a ``ChromaRetriever`` or anything that searches. What an LM answered is kept in the working folder: the same call
again asks nothing twice.
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

from querywright.arms import ArmDefaults, Arms, engine_for
from querywright.data import Question, Splits, read_questions, split_questions
from querywright.data.labels import evidence_by, read_labels
from querywright.data.splits import data_hash
from querywright.data.types import History
from querywright.errors import InputError
from querywright.models.circuit_breaker import Limits
from querywright.models.lm import lm_digest
from querywright.models.rewriters import rewriter_of
from querywright.opening import (
    Metrics,
    Scoring,
    of_grounded,
    open_experiment,
)
from querywright.optimize.artifacts.files import ArtifactManifest
from querywright.optimize.artifacts.save import check_same, given_to, save_compiled
from querywright.optimize.artifacts.writers import keep_rewriter, ref_of
from querywright.optimize.comparison import Comparison, check_settings, read_settings
from querywright.optimize.evaluate import Evaluation, Progress
from querywright.optimize.judge_files import SavedJudge, resolve_judge, resolve_judges
from querywright.optimize.labels import PoolLabels, check_judge, label_pool, pool_passages
from querywright.optimize.objectives import check_judges, objectives_of
from querywright.optimize.results import CompileResult, CompileSettings, by_judges
from querywright.optimize.search.compile import compile_program
from querywright.optimize.search.core import further_questions
from querywright.optimize.tables import pool_notes
from querywright.progress import shown
from querywright.technique_names import technique_named
from querywright.workspace import Tell, Workspace

LM: TypeAlias = str | dspy.LM


def evaluate(program: Any, questions: Any, *, name: str | None = None, **options: Any) -> Evaluation:
    """Run one program on questions and score it; a failed question is counted, and never a zero.

    Args:
        program: What ``compare`` takes as an arm.
        questions: What is asked, as ``read_questions`` takes it.
        name: The name of the arm. Default: its own name.
        options: Arguments of ``compare``, such as ``lm=``, ``retriever=``, ``metrics=`` and ``judge=``.

    Raises:
        InputError: Something cannot be used; the message names it, and what may be given.
        OutageError: The LM is out of reach.
        TooManyFailuresError: More questions failed than allowed.
    """
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
    home: str | Path | None = None,
    out: str | Path | None = None,
    progress: Progress | bool | None = None,
    tell: Tell | None = None,
) -> Comparison:
    """Compare arms with a baseline on the same questions, by paired tests.

    Args:
        arms: Names of techniques (``NAME``, ``NAME@ENGINE``, ``NAME:KNOB=VALUE,...``), folders of artifacts, what
            ``load`` gives, techniques such as ``HCQR(retriever)``, programs of ``make_program``, and custom programs:
            any ``dspy.Module`` or function that takes ``question`` and returns passages, an answer, or a prediction
            with both; ``module:NAME`` and ``file.py:NAME`` name techniques and programs in your code. Or these by name.
            If empty: closed book, plain and, if the questions have options, hcqr.
        questions: What is asked, as ``read_questions`` takes it.
        lm: The LM, or its name; or an open ``Workspace``, with its LM and its limit of calls. Default ``embedded``.
        retriever: What techniques that are named search: a collection's name, one of ``chromadb``, or a retriever.
        where: Chroma's filter over the metadata of the collection. Default: every passage.
        baseline: The arm that the others are compared with. Default ``plain``, or the first arm.
        metrics: Names, such as ``recall@5``, ``judged_useful`` or ``module:function``, and functions ``(example,
            prediction, trace=None)``; or these by name. Default: accuracy if an answer is read, and decision_useful
            and recall if evidence is labelled.
        judge: Judges that score as well, by name or by the path of a saved one, which replaces the built-in judge of
            the same name. If nothing is labelled, the labels of a judge of usefulness are the evidence of diagnosis
            and decisions, and the results say so.
        judge_lm: The LM of the judges, or its name. Default: ``lm``. Given alone, it judges usefulness.
        guidelines: A file of points that the judge ``coverage`` looks for in answers; missing ones are written first.
        labels: Labels of passages, which become evidence: a file of them or its rows, as ``label`` gives them.
        reading: ``columns``, ``limit`` and ``split`` of the questions, as ``read_questions`` takes them.
        reader: ``auto``, ``multiple_choice``, ``short_answer``, ``reasoning``, ``grounded``, ``long_answer`` or
            None, for techniques without one.
        max_passages: Passages shown to the reader at most, 1 to 50, by techniques that are named. Default 5. If an
            arm has another number (``hcqr:max_passages=15``), the results say so.
        knobs: Values for every technique that is named and has the knob.
        engine: What techniques search with if their arm names no engine. Default ``dense``.
        embedder: What a collection that is named was built with. Default ``embedded``.
        reranker: A cross-encoder, or its name or path, for techniques that rerank.
        writer_lm: What techniques that are named, and artifacts, ask before they read: any LM, its name or a rewriter's
            folder. Default: ``lm``, or an artifact's own.
        references: Whether closed book and oracle evidence are evaluated too. Default True.
        threads: Questions under way at a time, 1 or more, and calls of an LM that was named. Default: 4, or as many
            as the server of a remote LM takes.
        max_failures: Share of an arm's questions that may fail, 0 to 1. Default 0.05.
        home: The workspace folder. Default ``$QUERYWRIGHT_HOME`` or ``.querywright``.
        out: A folder in which ``save`` kept a comparison, or will: the arms that it holds come first, and a comparison
            with other settings or on other questions is refused. Default: none.
        progress: True for a bar (in a notebook too), or called with what, done and total after each question.
        tell: Called with each warning about questions and names. Default: ``warnings.warn``.

    Returns:
        Drawn as a table in a notebook; ``to_pandas()``, ``save(folder)``, ``report(path)``, ``comparisons``, ``notes``.

    Raises:
        InputError: Something cannot be used; the message names it, and what may be given.
        OutageError: The LM is out of reach.
        TooManyFailuresError: More questions of an arm failed than allowed.
    """
    judges = (judge,) if isinstance(judge, str | Path) else judge
    earlier = {} if out is None else read_settings(out)
    with shown(progress, "opening questions, retriever and models") as update:
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
            reading={"labels": labels, **(reading or {})}, earlier=earlier.get("arms"), tell=tell or warn_caller,
        )  # fmt: skip
        if out is not None:
            check_settings(out, earlier, {**experiment.settings, "baseline": experiment.baseline(baseline)})
        return experiment.compare(
            baseline, references=references, threads=threads, max_failures=max_failures, progress=update,
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
    """Label what arms find: a table that people correct and that ``labels=`` takes.

    Args:
        arms: What is searched with, as ``compare`` takes arms; their first passages are pooled.
        questions: What is asked, as ``read_questions`` takes it.
        retriever: What techniques that are named search, as ``compare`` takes it.
        where: A filter, as ``compare`` takes it.
        judge: A judge of usefulness, or the path of a saved one; None leaves all labels to people.
        judge_lm: Its LM, or its name. Default: ``lm``.
        lm: The LM of the arms, as ``compare`` takes it. Default ``embedded``.
        depth: Passages of each arm for each question, 1 to 50. Default 5.
        labels: Earlier labels: they stay, and only passages without a label are added and judged.
        reading: As ``compare`` takes it.
        knobs: Values for every technique that is named and has the knob.
        engine: What techniques search with if their arm names no engine. Default ``dense``.
        embedder: What a collection that is named was built with. Default ``embedded``.
        reranker: A cross-encoder, as ``compare`` takes it.
        writer_lm: What techniques ask before they read, as ``compare`` takes it.
        threads: Questions, and judgements, under way at a time. Default: 4, or as many as the server of a remote LM
            takes.
        max_failures: Share of an arm's questions that may fail, 0 to 1. Default 0.05.
        home: The workspace folder. Default ``$QUERYWRIGHT_HOME`` or ``.querywright``.
        progress: True for a bar (in a notebook too), or called with what, done and total after each question.
        tell: Called with each warning about questions and names. Default: ``warnings.warn``.

    Returns:
        ``to_pandas()``, a row for each passage, whose columns are those of ``querywright.data.labels.PassageLabel``;
        ``counts`` and ``notes``.

    Raises:
        InputError: Something cannot be used; the message names it, and what may be given.
        OutageError: An LM is out of reach; the judge's answers are kept.
        TooManyFailuresError: More questions of an arm, or of the judge, failed than allowed.
    """
    saved = judge if judge is None or isinstance(judge, SavedJudge) else resolve_judge(judge)
    judging = None if saved is None else saved.judge
    check_judge(judging)
    with shown(progress, "opening questions, retriever and models") as update:
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
        earlier = () if labels is None else read_labels(labels)
        found = label_pool(pool, experiment.questions, judging, there=earlier, lm=asked, **run)
    failed = {**failed, **found.failed}
    notes = [] if saved is None else [saved.standing(asked.model, lm_digest(asked))]
    if found.unreadable:
        notes.append(
            f"{found.unreadable} answers of the judge could not be read, and their passages are unjudged: label "
            "them, or run again with another judge_lm="
        )
    notes += [f"{name}: {count} questions failed" for name, count in failed.items()]
    return replace(found, failed=failed, notes=tuple(notes))


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Compilation(CompileResult):
    """A compilation with the questions and the LM that it was made with: it answers questions, and can be saved.

    Args:
        splits: The questions that it was made with.
        workspace: The workspace and its LM.
        writer_lm: The LM that the technique was asked with in place of that; None if it was the same.
        given: What it was compiled from, as plain data.
    """

    splits: Splits
    workspace: Workspace
    writer_lm: dspy.LM | None = None
    given: Mapping[str, Any] = field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        """What a reader of the test's figures should know."""
        lm, test, reader = self.workspace.lm.model, self.splits.test, self.program.reader
        by = by_judges(self.judges).replace(",", " or", 1)
        budget = self.program.technique.knobs["max_passages"]
        notes = [
            f"met once; per cent with 95 % interval; at most {budget} passages an arm; LM {lm}; {evidence_by(test)}{by}"
        ]
        if self.reader_check:
            count = len(self.reader_check)
            notes.append(f"closed book and oracle evidence were evaluated on {count} further questions")
        notes += [one["standing"] for one in self.judges]
        notes += [*pool_notes(self.test, test), *of_grounded(None if reader is None else reader.NAME)]
        if self.writer_lm is not None:
            notes.append(f"{self.technique}: written by {self.writer_lm.model}, read by {lm}")
        return notes

    def __call__(self, question: str, options: Sequence[str] | None = None, history: History = None) -> dspy.Prediction:
        """Ask the recommended program."""
        from querywright.optimize.dspy_context import asking

        with asking(self.workspace.lm):
            return self.program(question=question, options=options, history=history)

    def save(self, path: str | Path, *, replace: bool = False) -> ArtifactManifest:
        """Write the recommended program as an artifact, with golden answers and a card.

        Args:
            path: The artifact's folder.
            replace: Whether a program there that was compiled from something else goes. Default False.

        Raises:
            ArtifactError: It cannot be written there, or another program stands there.
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
    home: str | Path | None = None,
    out: str | Path | None = None,
    progress: Progress | bool | None = None,
    tell: Tell | None = None,
    **changes: Any,
) -> Compilation:
    """Tune a technique's prompts and knobs on dev, and compare the winner with the baseline on test once.

    Args:
        technique: A name in ``TECHNIQUES``; or a technique's class, or a custom program as ``compare`` takes it.
        questions: As ``read_questions`` takes it; split by a hash of seed and id. Or ``Splits``, or a mapping of
            ``train``, ``dev`` (or ``validation``) and ``test``, such as a ``DatasetDict``.
        retriever: What is searched: a collection's name, one of ``chromadb``, or a retriever.
        where: As ``evaluate`` has it; the artifact keeps it.
        lm: The LM, or its name, or an open ``Workspace``, as ``compare`` takes it. Default ``embedded``.
        reader: As ``evaluate`` has it.
        max_passages: The budget of every arm: passages shown to the reader at most, 1 to 50. Default 5.
        knobs: Values that are fixed and not searched; ``max_passages`` may stand here too.
        settings: How much is tried.
        sizes: Questions in train, dev and test. Default 30 %, 30 % and 40 % of all.
        embedder: What a collection that is named was built with. Default ``embedded``.
        engine: What is searched with. Default: the technique's own, else dense.
        reranker: A cross-encoder, or its name or path, for a technique that reranks.
        writer_lm: What the technique asks, and the reader does not: any LM, its name or a rewriter's folder. Default:
            ``lm``.
        judge: Names of judges, saved ones or their paths, which give the ``judged_`` objectives of their name.
        judge_lm: The LM of the judges, or its name. Default: ``lm``.
        reader_check: So many further questions that the splits leave over, or the questions, which closed book and
            oracle evidence meet.
        labels: Labels of passages, as ``evaluate`` takes them.
        reading: ``columns``, ``limit`` and ``split`` of the questions, as ``read_questions`` takes them.
        home: The working folder. Default ``$QUERYWRIGHT_HOME`` or ``.querywright``.
        out: Where it will be saved: a folder with another program is refused before anything is asked. Default: none.
        progress: True for a bar (in a notebook too), or called with what, done and total as work proceeds.
        tell: Called with what a user should know meanwhile. Default: ``warnings.warn``.
        changes: Fields of ``CompileSettings``, such as ``trials=10`` or ``teleprompter="gepa"``. The objective,
            unless it is given, is the judge's where one or its LM is named, else ``decision_useful`` where dev is
            labelled, else ``accuracy``, and then that is said.

    Returns:
        ``verdict``, ``sentence``, ``program``, ``save(path)``, ``report(path)``, ``to_pandas()``; and asked as it is.

    Raises:
        InputError: Something cannot be used; it names what, and what may be given.
        OutageError: The LM is out of reach; answers so far are kept, nothing is chosen.
    """
    settings, tell = settings or CompileSettings(objective="auto"), tell or warn_caller
    try:
        settings = replace(settings, **changes)
    except TypeError:
        known = ", ".join(CompileSettings.__dataclass_fields__)
        raise InputError(f"compile takes the settings {known}, but got {', '.join(changes)}") from None
    technique = technique_named(technique).NAME
    judges, parts = resolve_judges(judge), read_parts(questions)
    with shown(progress, "opening retriever and models") as update:
        place = open_workspace(lm, home, settings.threads)
        place.check_key()
        experiment = open_experiment(
            [technique], questions if parts is None else [one for part in parts for one in part], place,
            reading={"labels": labels} if parts else {"labels": labels, **(reading or {})}, tell=tell,
            defaults=ArmDefaults(
                retriever=retriever, where=where, embedder=embedder, engine=engine_for(technique, engine) or "dense",
                max_passages=max_passages, knobs=knobs or {}, reader=reader, writer_lm=writer_lm, reranker=reranker,
            ),
        )  # fmt: skip
        asked, read_by, index = experiment.questions, experiment.reader, experiment.retriever
        splits = split_parts(asked, parts, settings.seed, sizes)
        if "auto" in settings.objectives:
            auto = _auto(splits, judges, judge_lm is not None, tell)
            settings = replace(settings, objective=tuple(auto if one == "auto" else one for one in settings.objectives))
        aims = [metric for one in objectives_of(settings.objectives) for metric in one.metrics]
        check_judges(aims, judges, asks=judge_lm is not None)
        if isinstance(reader_check, int):
            reader_check = further_questions(reader_check, asked, splits, read_by, settings.seed)
        (program,), (arm,) = experiment.programs.values(), experiment.arms.values()
        writer, ranker, values = program.technique.writer_lm, experiment.reranker, arm.knobs
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
        )  # fmt: skip
    made = {one.name: getattr(found, one.name) for one in fields(found)}
    return Compilation(**made, splits=splits, workspace=place, writer_lm=writer, given=given)


def read_parts(questions: Any) -> list[list[Question]] | None:
    """Return train, dev and test, if the questions were given in parts; None if they have to be split."""
    if isinstance(questions, Splits):
        questions = questions._asdict()
    if not isinstance(questions, Mapping):
        return None
    dev = "dev" if "dev" in questions else "validation"
    missing = [name for name in ("train", dev, "test") if name not in questions]
    if missing:
        raise InputError(
            f"questions as splits need train, dev (or validation) and test, but {', '.join(missing)} is missing among "
            f"{', '.join(map(str, questions))}; give all three, or one list of questions"
        )
    return [read_questions(questions[name]) for name in ("train", dev, "test")]


def split_parts(
    asked: Sequence[Question], parts: Sequence[Sequence[Question]] | None, seed: int, sizes: tuple[int, int, int] | None
) -> Splits:
    """Return the questions that were read as train, dev and test: in the parts that were given, else by their ids."""
    if parts is None:
        return split_questions(asked, seed=seed, sizes=sizes)
    left = iter(asked)
    return Splits(*([next(left) for _ in part] for part in parts))


def keep_writer(writer: dspy.LM | None, place: Workspace, tell: Tell) -> None:
    """Copy a rewriter to the workspace, for the program that is saved; what runs is its own folder, near its base."""
    rewriter = rewriter_of(writer)
    if rewriter is not None and keep_rewriter(rewriter.path, place.home) is None:
        tell(f"the rewriter {rewriter.name!r} is too large to be copied; give writer_lm= with what is saved here")


def _auto(splits: Splits, judges: Sequence[SavedJudge], asks: bool, tell: Tell) -> str:
    """The objective where none is named: what a judge says where one is given, else what people labelled."""
    if judges or asks:
        return judges[0].judge.METRIC if judges else "judged_useful"
    if any(question.evidence for question in splits.dev):
        return "decision_useful"
    tell(
        "no evidence is labelled and no judge is named, so the objective is accuracy, which says nothing of what was "
        "found; name the judge's LM, or the objective judged_useful, to tune for passages that help"
    )
    return "accuracy"


def open_workspace(lm: LM | Workspace, home: str | Path | None, threads: int | None) -> Workspace:
    """Return the workspace of an LM, which may be one; its LM needs no key yet."""
    if isinstance(lm, Workspace):
        return lm
    limits = Limits(at_once=threads) if isinstance(lm, str) else None  # an open LM has its own
    return Workspace.open(home, lm, limits=limits, asks=False)


def warn_caller(text: str) -> None:
    """Warn at the line outside this package that called it."""
    frame: FrameType | None = sys._getframe()
    depth = 0
    while frame is not None and frame.f_globals.get("__name__", "").startswith(("querywright.", "contextlib")):
        frame, depth = frame.f_back, depth + 1
    warnings.warn(text, stacklevel=depth + 1)
