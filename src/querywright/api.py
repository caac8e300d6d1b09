"""The main job in Python: evaluate, compare, compile and load, on what people have.

Questions and passages are lists of dicts, of ``Question`` and ``Passage`` or of ``dspy.Example``, DataFrames,
``datasets.Dataset`` and ``DatasetDict``, or paths; an LM is any ``dspy.LM`` or a name; a retriever is a collection's
name, a ``ChromaRetriever`` or anything that searches. What an LM answered is kept in the working folder: the same call
again asks nothing twice.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import dspy

from querywright.data import Question, Splits, read_questions, split_questions
from querywright.data.labels import read_labels, with_labels
from querywright.data.splits import data_hash
from querywright.data.types import History
from querywright.errors import InputError
from querywright.models.circuit_breaker import Limits
from querywright.models.rewriters import rewriter_of
from querywright.named import (
    check_reader,
    engine_for,
    knob_values,
    of_mixed,
    open_reranker,
    tell_unlearnt,
)
from querywright.optimize.artifacts.files import ArtifactManifest
from querywright.optimize.artifacts.save import check_same, given_to, save_compiled
from querywright.optimize.artifacts.writers import keep_rewriter, ref_of
from querywright.optimize.comparison import Compared
from querywright.optimize.comparison import compare as compare_programs
from querywright.optimize.compile import compile_program
from querywright.optimize.evaluate import Evaluation, Progress
from querywright.optimize.judge_files import SavedJudge, resolve_judge
from querywright.optimize.labels import check_judge, label_pool, pool_passages
from querywright.optimize.objectives import check_judges, objectives_of
from querywright.optimize.results import Compiled, CompileSettings
from querywright.optimize.study.opening import further_questions
from querywright.prepared import Metrics, opened, prepare
from querywright.programs import check_takes_writer, technique_class
from querywright.programs.base import MAX_PASSAGES
from querywright.programs.readers import reader_for
from querywright.progress import shown
from querywright.retrieval.checks import tell_searched
from querywright.workspace import Tell, Workspace

if TYPE_CHECKING:
    import pandas

LM: TypeAlias = str | dspy.LM


def evaluate(
    program: Any,
    questions: Any,
    *,
    lm: LM = "embedded",
    retriever: Any = None,
    where: Mapping[str, Any] | None = None,
    name: str | None = None,
    metrics: Metrics = (),
    judge: str | Path | Sequence[str | Path] = (),
    judge_lm: LM | None = None,
    labels: Any = None,
    reader: str | None = "auto",
    max_passages: int = 5,
    threads: int | None = None,
    deadline: float | None = None,
    max_failures: float = 0.05,
    home: str | Path | None = None,
    progress: Progress | bool | None = None,
) -> Evaluation:
    """Run one program on questions and score it; a failed question is counted, and never a zero.

    Args:
        program: What ``compare`` takes as an arm.
        questions: What is asked, as ``read_questions`` takes it.
        lm: The LM, or its name. Default ``embedded``.
        retriever: What a technique that is named searches.
        where: Chroma's filter over the metadata of the collection that is given. Default: every passage.
        name: How the arm is called. Default: its own name.
        metrics: Names, such as ``recall@5``, ``judged_useful`` or ``module:function``, and functions ``(example,
            prediction, trace=None)``; or these by name. Default: accuracy where an answer is read, and decision_useful
            and recall where evidence is labelled.
        judge: Judges that score as well, by name or by the path of a saved one; a saved one stands in the place of
            that of its name.
        judge_lm: The LM of the judges, or its name. Default: ``lm``. Given alone, it judges usefulness.
        labels: Labels of passages, which become evidence: a file of them or its rows, as ``label`` gives them.
        reader: ``auto``, ``multiple_choice``, ``short_answer``, ``reasoning``, ``grounded``, ``long_answer`` or
            None, for a technique without one.
        max_passages: Passages shown to the reader at most by a technique that is named and names no other number, 1 to
            50. Default 5.
        threads: Questions under way at a time, 1 or more, and calls of an LM that was named. Default: 4, and as many
            as the server of an LM elsewhere takes.
        deadline: Seconds that one question may take, waiting for a turn at the LM excluded. Default any number.
        max_failures: Share of the questions that may fail, 0 to 1. Default 0.05.
        home: The working folder. Default ``$QUERYWRIGHT_HOME`` or ``.querywright``.
        progress: True for a bar (in a notebook too), or called with what, done and total after each question.

    Raises:
        InputError: Something cannot be used; it names what, and what may be given.
        OutageError: The LM is out of reach.
        TooManyFailuresError: More questions failed than allowed.
    """
    with shown(progress, "opening questions, retriever and models") as update:
        ready = prepare(
            {name: program} if name else [program], questions, workspace=_workspace(home, lm, threads),
            retriever=retriever, where=where, metrics=metrics, reader=reader, max_passages=max_passages,
            threads=threads, **_judging(judge, judge_lm), tell=_warn, reading={"labels": labels},
        )  # fmt: skip
        return compare_programs(
            ready.programs, ready.questions, lm=ready.workspace.lm, references=False, metrics=ready.metrics,
            threads=ready.workspace.threads, deadline=deadline, max_failures=max_failures, progress=update,
        ).arms[0]  # fmt: skip


def compare(
    arms: Iterable[Any] | Mapping[str, Any],
    questions: Any,
    *,
    lm: LM = "embedded",
    retriever: Any = None,
    where: Mapping[str, Any] | None = None,
    baseline: str | None = None,
    metrics: Metrics = (),
    judge: str | Path | Sequence[str | Path] = (),
    judge_lm: LM | None = None,
    labels: Any = None,
    reader: str | None = "auto",
    max_passages: int = 5,
    knobs: Mapping[str, Any] | None = None,
    engine: str = "dense",
    embedder: Any = "embedded",
    reranker: Any = None,
    writer_lm: LM | Path | None = None,
    references: bool = True,
    threads: int | None = None,
    deadline: float | None = None,
    max_failures: float = 0.05,
    home: str | Path | None = None,
    progress: Progress | bool | None = None,
) -> Compared:
    """Compare arms on the same questions, each held against the baseline by paired tests.

    Args:
        arms: Names of techniques (``NAME``, ``NAME@ENGINE``, ``NAME:KNOB=VALUE,...``), folders of artifacts, what
            ``load`` gives, techniques such as ``HCQR(retriever)``, programs of ``make_program``; or these by name.
        questions: What is asked, as ``read_questions`` takes it.
        lm: The LM, or its name. Default ``embedded``.
        retriever: What techniques that are named search: a collection's name, one of ``chromadb``, or a retriever.
        where: As ``evaluate`` has it.
        baseline: The arm that the others are held against. Default ``plain``, or the first arm.
        metrics: Names and functions, as ``evaluate`` has it.
        judge: Judges that score as well, as ``evaluate`` has it. Where nothing is labelled, what a judge of usefulness
            says is the evidence of diagnosis and decisions, and the results say so.
        judge_lm: The LM of the judges, or its name. Default: ``lm``. Given alone, it judges usefulness.
        labels: Labels of passages, as ``evaluate`` takes them.
        reader: Of techniques without one, as ``evaluate`` has it.
        max_passages: The budget of every arm, as ``evaluate`` has it. Where an arm that is named has another
            (``hcqr:max_passages=15``), or a program or an artifact has its own, the results say so.
        knobs: Values for every technique that is named and has the knob.
        engine: What techniques search with that name none. Default ``dense``.
        embedder: What a collection that is named was built with. Default ``embedded``.
        reranker: A cross-encoder, or its name or path, for techniques that rerank.
        writer_lm: What techniques that are named, and artifacts, ask before they read: any LM, its name or a rewriter's
            folder. Default: ``lm``, or an artifact's own.
        references: Whether closed book and oracle evidence stand beside the arms. Default True.
        threads: Questions under way at a time, 1 or more, and calls of an LM that was named. Default: 4, and as many
            as the server of an LM elsewhere takes.
        deadline: Seconds that one question may take, waiting for a turn at the LM excluded. Default any number.
        max_failures: Share of an arm's questions that may fail, 0 to 1. Default 0.05.
        home: The working folder. Default ``$QUERYWRIGHT_HOME`` or ``.querywright``.
        progress: True for a bar (in a notebook too), or called with what, done and total after each question.

    Returns:
        Drawn as a table in a notebook; ``to_pandas()``, ``report(path)``, ``comparisons``.

    Raises:
        InputError: Something cannot be used; it names what, and what may be given.
        OutageError: The LM is out of reach.
        TooManyFailuresError: More questions of an arm failed than allowed.
    """
    with shown(progress, "opening questions, retriever and models") as update:
        ready = prepare(
            arms, questions, workspace=_workspace(home, lm, threads), retriever=retriever, embedder=embedder,
            engine=engine, where=where, reader=reader, max_passages=max_passages, knobs=knobs, metrics=metrics,
            reranker=reranker, writer_lm=writer_lm, threads=threads, **_judging(judge, judge_lm), tell=_warn,
            reading={"labels": labels},
        )  # fmt: skip
        return compare_programs(
            ready.programs, ready.questions, lm=ready.workspace.lm, baseline=baseline, references=references,
            metrics=ready.metrics, threads=ready.workspace.threads, deadline=deadline, max_failures=max_failures,
            progress=update,
        )  # fmt: skip


def label(
    arms: Iterable[Any] | Mapping[str, Any],
    questions: Any,
    *,
    retriever: Any,
    where: Mapping[str, Any] | None = None,
    judge: str | Path | SavedJudge | None = "usefulness",
    judge_lm: LM | None = None,
    lm: LM = "embedded",
    depth: int = 5,
    labels: Any = None,
    knobs: Mapping[str, Any] | None = None,
    engine: str = "dense",
    embedder: Any = "embedded",
    threads: int | None = None,
    max_failures: float = 0.05,
    home: str | Path | None = None,
    progress: Progress | bool | None = None,
) -> pandas.DataFrame:
    """Label what arms find: a table that people correct and that ``labels=`` takes.

    Args:
        arms: What is searched with, as ``compare`` takes arms; their first passages are pooled.
        questions: What is asked, as ``read_questions`` takes it.
        retriever: What techniques that are named search, as ``compare`` has it.
        where: As ``evaluate`` has it.
        judge: A judge of usefulness, or where one was saved; None leaves all labels to people.
        judge_lm: Its LM, or its name. Default: ``lm``.
        lm: The LM of the arms, or its name. Default ``embedded``.
        depth: Passages of each arm for each question, 1 to 50. Default 5.
        labels: Labels that are there: they stay, and only what has none is added and judged.
        knobs: Values for every technique that is named and has the knob.
        engine: What techniques search with that name none. Default ``dense``.
        embedder: What a collection that is named was built with. Default ``embedded``.
        threads: The same, and judgements. Default: 4, and as many as the server of an LM elsewhere takes.
        max_failures: Share of an arm's questions that may fail, 0 to 1. Default 0.05.
        home: The working folder. Default ``$QUERYWRIGHT_HOME`` or ``.querywright``.
        progress: True for a bar (in a notebook too), or called with what, done and total after each question.

    Returns:
        A row a passage; the columns are those of ``querywright.data.labels.PassageLabel``.

    Raises:
        InputError: Something cannot be used; it names what, and what may be given.
        OutageError: An LM is out of reach; what was said is kept.
        TooManyFailuresError: More questions of an arm, or of the judge, failed than allowed.
    """
    asks = judge if judge is None or isinstance(judge, SavedJudge) else resolve_judge(judge)
    check_judge(None if asks is None else asks.judge)
    with shown(progress, "opening questions, retriever and models") as update:
        ready = prepare(
            arms, questions, workspace=lambda _: _workspace(home, lm, threads)(True), retriever=retriever,
            embedder=embedder, engine=engine, where=where, reader=None, max_passages=depth, knobs=knobs, scores=False,
            tell=_warn,
        )  # fmt: skip
        place = ready.workspace
        given: dict[str, Any] = {"threads": threads or place.threads, "max_failures": max_failures, "progress": update}
        pool, _ = pool_passages(ready.programs, ready.questions, lm=place.lm, depth=depth, **given)
        return label_pool(
            pool, ready.questions, None if asks is None else asks.judge,
            there=() if labels is None else read_labels(labels),
            lm=place.lm if judge_lm is None else place.another_lm(cast("Any", judge_lm)), **given,
        ).to_pandas()  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tuned:
    """A compilation: what it found, and how it is kept.

    Args:
        compiled: What was found; ``verdict``, ``sentence``, ``test`` and all else of it are names here too.
        splits: The questions that it was made with.
        workspace: The working folder, and the LM that it was made with.
        writer_lm: The LM that the technique was asked with in place of that; None where it was the same.
        given: What it was compiled from, as plain data.
    """

    compiled: Compiled
    splits: Splits
    workspace: Workspace
    writer_lm: dspy.LM | None = None
    given: Mapping[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.compiled, name)

    def __call__(self, question: str, options: Sequence[str] | None = None, history: History = None) -> dspy.Prediction:
        """Ask the recommended program."""
        from querywright.optimize.dspy_context import asking

        with asking(self.workspace.lm):
            return self.compiled.program(question=question, options=options, history=history)

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
            path, self.compiled, self.splits, lm=self.workspace.lm,
            threads=self.compiled.settings.threads or self.workspace.threads, given=self.given,
        )  # fmt: skip

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *dir(self.compiled)})

    def __repr__(self) -> str:
        return repr(self.compiled)

    def _repr_html_(self) -> str:
        return self.compiled._repr_html_()


def compile(
    technique: str,
    questions: Any,
    *,
    retriever: Any,
    where: Mapping[str, Any] | None = None,
    lm: LM | Callable[[], Workspace] = "embedded",
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
    judge_lm: LM | Callable[[Workspace], dspy.LM] | None = None,
    reader_check: int | Sequence[Question] = 0,
    labels: Any = None,
    reading: Mapping[str, Any] | None = None,
    home: str | Path | None = None,
    out: str | Path | None = None,
    progress: Progress | bool | None = None,
    tell: Tell | None = None,
    **changes: Any,
) -> Tuned:
    """Tune a technique's prompts and knobs on dev, and hold the winner against no rewriting on test.

    Args:
        technique: A name in ``TECHNIQUES``.
        questions: As ``read_questions`` takes it; split by a hash of seed and id. Or ``Splits``, or a mapping of
            ``train``, ``dev`` (or ``validation``) and ``test``, such as a ``DatasetDict``.
        retriever: What is searched: a collection's name, one of ``chromadb``, or a retriever.
        where: As ``evaluate`` has it; the artifact keeps it.
        lm: The LM, or its name, or what opens a ``Workspace`` once all else was checked. Default ``embedded``.
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
        judge_lm: The LM of the judges, or its name, or what opens it in the working folder. Default: ``lm``.
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
    settings, tell = settings or CompileSettings(objective="auto"), tell or _warn
    try:
        settings = replace(settings, **changes)
    except TypeError:
        known = ", ".join(CompileSettings.__dataclass_fields__)
        raise InputError(f"compile takes the settings {known}, but got {', '.join(changes)}") from None
    if not isinstance(technique, str):
        raise InputError(f"compile takes the name of a technique, such as hcqr, but got {technique!r:.80}")
    kind = technique_class(technique)
    check_takes_writer(kind, writer_lm)
    if reranker is not None and not kind.USES_RERANKER:
        raise InputError(f"{technique} does not rerank; leave reranker= out, or use a technique that does")
    needing = technique if kind.NEEDS_OPTIONS else "the reader multiple_choice" if reader == "multiple_choice" else ""
    budget = {} if max_passages is None else {MAX_PASSAGES.name: max_passages}
    values = knob_values(technique, {**budget, **(knobs or {})})
    check_reader(reader)
    searched = engine_for(technique, engine) or "dense"
    named = [judge] if isinstance(judge, str | Path | SavedJudge) else judge
    judges = [one if isinstance(one, SavedJudge) else resolve_judge(one) for one in named]
    asked, splits = _split(questions, sizes, settings.seed, needing, {"labels": labels, **(reading or {})})
    if "auto" in settings.objectives:
        auto = _auto(splits, judges, judge_lm is not None, tell)
        settings = replace(settings, objective=tuple(auto if one == "auto" else one for one in settings.objectives))
    aims = [metric for one in objectives_of(settings.objectives) for metric in one.metrics]
    check_judges(aims, judges, asks=judge_lm is not None)
    read_by = reader_for(asked, reader)
    for line in of_mixed(asked, reader):
        tell(line)
    if isinstance(reader_check, int):
        reader_check = further_questions(reader_check, asked, splits, read_by, settings.seed)
    with shown(progress, "opening retriever and models") as update:
        place = _workspace(home, lm, settings.threads)(True)
        writer, index = place.writer(writer_lm), opened(place, retriever, embedder, searched, where)
        rewriter = rewriter_of(writer)
        tell_unlearnt(rewriter, [technique], tell)
        # Its folder is what runs, for its base may lie beside it; the copy is for the program that is saved.
        if rewriter is not None and keep_rewriter(rewriter.path, place.home) is None:
            tell(f"the rewriter {rewriter.name!r} is too large to be copied; give writer_lm= with what is saved here")
        tell_searched(asked, index, tell)
        asks: Any = judge_lm
        if asks is not None:
            asks = asks(place) if _opens(asks) else place.another_lm(asks)
        ranker = open_reranker(reranker)
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
    return Tuned(found, splits, place, writer, given)


def _split(
    questions: Any, sizes: tuple[int, int, int] | None, seed: int, needing: str, reading: Mapping[str, Any]
) -> tuple[list[Question], Splits]:
    """All questions, and their splits: those that were given, or made here; ``needing`` is what compares options."""
    if isinstance(questions, Splits):
        questions = questions._asdict()
    if not isinstance(questions, Mapping):
        asked = read_questions(questions, **reading, multiple_choice=needing)
        return asked, split_questions(asked, seed=seed, sizes=sizes)
    dev = "dev" if "dev" in questions else "validation"
    missing = [name for name in ("train", dev, "test") if name not in questions]
    if missing:
        raise InputError(
            f"questions as splits need train, dev (or validation) and test, but {', '.join(missing)} is missing among "
            f"{', '.join(map(str, questions))}; give all three, or one list of questions"
        )
    parts = [read_questions(questions[name], multiple_choice=needing) for name in ("train", dev, "test")]
    asked = [question for part in parts for question in part]
    if reading.get("labels") is not None:
        asked = with_labels(asked, read_labels(reading["labels"]))
    left = iter(asked)
    return asked, Splits(*([next(left) for _ in part] for part in parts))


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


def _opens(lm: Any) -> bool:
    return callable(lm) and not isinstance(lm, dspy.BaseLM)


def _workspace(home: str | Path | None, lm: Any, threads: int | None) -> Callable[[bool], Workspace]:
    """What opens the working folder, given whether the LM is asked."""
    if _opens(lm):
        return lambda _: cast("Workspace", lm())
    limits = Limits(at_once=threads) if isinstance(lm, str) else None  # one that is there has its own
    return lambda asks: Workspace.open(home, cast("Any", lm), limits=limits, asks=asks)


def _judging(judge: str | Path | Sequence[str | Path], lm: LM | None) -> dict[str, Any]:
    """Judges and what opens their LM, as ``prepare`` takes them."""
    judges = [judge] if isinstance(judge, str | Path) else judge
    return {"judges": judges, "judge_lm": None if lm is None else lambda place: place.another_lm(lm)}


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=4)
