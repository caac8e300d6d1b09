"""Open studies, from names in a file or from objects in Python, and return the results of finished studies."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from html import escape
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import dspy
import pandas

from querywright.api import LM, check_lm, keep_writer, read_parts, split_parts, warn_caller
from querywright.arms import Arm, ArmDefaults, check_defaults, knob_space, named_arms
from querywright.data import read_questions
from querywright.data.splits import Splits
from querywright.data.types import Passage, Question
from querywright.errors import InputError, TechniqueError, unknown
from querywright.models.budget import Budget
from querywright.models.embedder import resolve_embedder
from querywright.models.lm import resolve_lm
from querywright.models.rewriters import rewriter_of
from querywright.models.store import open_store
from querywright.opening import open_reranker, tell_unlearnt
from querywright.optimize.artifacts.files import ArtifactManifest, copy_artifact
from querywright.optimize.artifacts.load import load
from querywright.optimize.artifacts.loaded import LoadedProgram
from querywright.optimize.comparison import RIGHT, Comparison
from querywright.optimize.contexts import quiet_optuna
from querywright.optimize.evaluate import Progress
from querywright.optimize.judge_files import SavedJudge, resolve_judges
from querywright.optimize.objectives import check_judges, check_objectives, objective_named
from querywright.optimize.program_state import predictor_states
from querywright.optimize.search.core import Search, further_questions
from querywright.optimize.search.spec import SearchSpec
from querywright.optimize.search.trials import ArmConfig, TrialRecord, best, cheapest, front
from querywright.optimize.slices import check_known, columns_of
from querywright.optimize.study.engine import RECOMMENDED, run_study, storage_of
from querywright.optimize.study.results import Snapshot, trial_rows, write_report
from querywright.optimize.study.spec import StudySpec, read_spec
from querywright.optimize.study.storage import open_storage
from querywright.programs import RAG, Technique, register_technique, technique_class
from querywright.programs.readers import reader_for
from querywright.progress import shown
from querywright.retrieval.checks import about, check_passes, tell_all_searched, tell_passages, tell_rebuilt
from querywright.retrieval.edits import former_passages, labeled_passages, settle_labels, within
from querywright.retrieval.engines import passages_in, passing_in, split_engine
from querywright.technique_names import technique_named
from querywright.workspace import Tell, Workspace

Techniques: TypeAlias = "str | type[Technique] | Any | Iterable[Any] | Mapping[Any, Mapping[str, Any]]"
"""Techniques, as classes or in any form that ``compare`` accepts for arms; or a mapping from these to the knobs to
search."""

OBJECTS = "given in Python"
"""The value in a specification for any questions or retriever that were passed as objects."""

_FILE_FORM = frozenset({"engines", "knobs", "search", "prompts"})
"""Keys for a technique in a study file; no knob has these names."""

_logger = logging.getLogger(__name__)

_CHANGES = sorted({*SearchSpec.model_fields, "reader_check", "timeout", "max_tokens", "max_unreadable", "structured"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyObjects:
    """Objects that replace the names in a study's file. If a field is None or empty, the name in the file is used.

    Args:
        questions: Questions, or train, dev, and test.
        labels: Passage labels.
        retrievers: Retrievers, keyed by name; the baseline uses the first.
        lm: The LM, or an open workspace.
        writer_lm: The LM that techniques call before the reader.
        embedder: The embedder for collections given by name.
        reranker: A cross-encoder.
        judges: Saved judges.
        judge_lm: The judges' LM.
    """

    questions: Any = None
    labels: Any = None
    retrievers: Mapping[str, Any] = field(default_factory=dict)
    lm: Any = None
    writer_lm: Any = None
    embedder: Any = None
    reranker: Any = None
    judges: Sequence[SavedJudge] = ()
    judge_lm: Any = None


class StudyData(NamedTuple):
    """A study and its questions, checked before any LM call.

    Args:
        spec: The study.
        splits: The questions in train, dev, and test.
        reader: The name of the reader; None if no reader runs.
        further: Questions on which only closed book and oracle evidence are evaluated.
        objects: The objects used instead of names.
        hints: The warnings about labels, which the report shows.
    """

    spec: StudySpec
    splits: Splits
    reader: str | None
    further: Sequence[Question] = ()
    objects: StudyObjects = StudyObjects()
    hints: tuple[str, ...] = ()

    @property
    def judges(self) -> list[SavedJudge]:
        """The saved judges."""
        return resolve_judges(self.objects.judges or self.spec.judges)

    def with_hints(self, hints: Iterable[str], tell: Tell) -> StudyData:
        """Return a copy with additional warnings, and call ``tell`` with each of these."""
        found = dict.fromkeys(hints)
        for line in found:
            tell(line)
        return self._replace(hints=(*self.hints, *found))


def read_data(
    spec: StudySpec,
    objects: StudyObjects = StudyObjects(),
    home: str | Path | None = None,
    *,
    tell: Tell = _logger.debug,
) -> StudyData:
    """Read and check a study's questions. If a labeled passage moved or changed a little, its label moves with it.

    Args:
        spec: The study.
        objects: The objects to use instead of names. Default none.
        home: The workspace. Default ``$QUERYWRIGHT_HOME`` or ``.querywright``.
        tell: A function that is called with the number of labels that were moved, and with each label that could not be
            moved. Default: the log.

    Raises:
        DataError: A question is invalid, or lacks the options that a technique or reader needs.
        InputError: The questions or the reader do not fit an objective, or there are too few questions.
    """
    needing = [name for name in spec.techniques if technique_class(name).NEEDS_OPTIONS]
    needing += ["the 'multiple_choice' reader"] if spec.reader == "multiple_choice" else []
    columns = columns_of(spec.slices)
    parts = read_parts(objects.questions, columns)
    given = spec.questions if objects.questions is None else objects.questions
    whole: dict[str, Any] = {"columns": spec.columns or None, "limit": spec.limit, "split": spec.split}
    asked = read_questions(
        given if parts is None else [one for part in parts for one in part],
        labels=spec.labels if objects.labels is None else objects.labels, multiple_choice=" and ".join(needing),
        slices=columns, **(whole if parts is None else {}),
    )  # fmt: skip
    place = None if home is None else Path(home)
    hints, rest, former = list[str](), list[str](), _former(spec, objects, place)
    searched = dict.fromkeys(_collections(spec, objects).values())
    opened = [partial(passages_in, one, place) for one in searched if _lists_passages(one)]
    asked = settle_labels(asked, opened, former, hints.append, rest.append)
    splits, reader = split_parts(asked, parts, spec.seed, spec.sizes), reader_for(asked, spec.reader)
    check_objectives(spec.objectives, splits, reader)
    check_known(spec.slices, RIGHT, has_closed_book=reader is not None)
    further = further_questions(spec.reader_check, asked, splits, reader, spec.seed)
    data = StudyData(spec, splits, reader, further, objects)
    measured = [*(one.metric for one in spec.prompts.values() if one.metric), *spec.objectives]
    asks = spec.judge_lm is not None or objects.judge_lm is not None
    check_judges(measured, data.judges, asks=asks)
    return data.with_hints(hints, tell).with_hints(rest, _logger.debug)


def _collections(spec: StudySpec, objects: StudyObjects) -> Mapping[str, Any]:
    """Return the open retrievers and the names of collections, by name; only ``retrievers`` may name an engine."""
    given: Mapping[str, Any] = objects.retrievers or spec.retrievers or {"dense": spec.collection}
    named = {name: split_engine(one)[0] for name, one in spec.retrievers.items()}
    return {name: named.get(name, one) if isinstance(one, str) else one for name, one in given.items()}


def _lists_passages(searched: Any) -> bool:
    return isinstance(searched, str) or callable(getattr(searched, "passages", None))


def _former(spec: StudySpec, objects: StudyObjects, home: Path | None) -> dict[str, Passage]:
    found = labeled_passages(spec.labels if objects.labels is None else objects.labels)
    for one in _collections(spec, objects).values():
        found |= former_passages(one, home)
    return found


def check_study(
    source: StudySpec | Path | str | Mapping[str, Any], home: Path | None = None, *, tell: Tell
) -> StudyData:
    """Read and check a study, its questions, and its labels without loading any models.

    Args:
        source: The study, its file, or a mapping with the file's content.
        home: The workspace. Default ``$QUERYWRIGHT_HOME`` or ``.querywright``.
        tell: A function that is called with each label whose passage the search cannot find.

    Raises:
        InputError: The study, its questions, or its collection is invalid.
    """
    data = read_data(source if isinstance(source, StudySpec) else read_spec(source), home=home, tell=tell)
    spec, hints = data.spec, list[str]()
    asked, former = [one for part in data.splits for one in part], _former(spec, data.objects, home)
    collections: dict[str, str] = {}
    for name, collection in _collections(spec, data.objects).items():
        collections.setdefault(collection, name)
    for collection, name in collections.items():
        held = passages_in(collection, home)
        passed = check_passes(spec.where, partial(passing_in, collection, home=home), held.values)
        told = about(name, len(collections), hints.append)
        tell_passages([within(one, held) for one in asked], held.values(), spec.where, passed, told, former)
    return data.with_hints(hints, tell)


def run_named(data: StudyData, folder: Path, *, home: Path | None = None, tell: Tell, **options: Any) -> Snapshot:
    """Run or resume a study in which everything is given by name; for other arguments and errors, see ``run_study``."""
    return _run_and_tell(data, folder, partial(open_search, data, home), tell, home=home, **options)


def _run_and_tell(
    data: StudyData, folder: Path, open_it: Callable[..., Search], tell: Tell, **options: Any
) -> Snapshot:
    """Run or resume a study; also call ``tell`` with the warnings of an earlier run or of another process."""
    told = [*data.hints]

    def report(line: str) -> None:
        told.append(line)
        tell(line)

    found = run_study(data.spec, folder, partial(open_it, report), tell=report, **options)
    for line in () if found.compared is None else found.compared.hints:
        if line not in told:
            tell(line)
    return found


def open_search(
    data: StudyData, home: str | Path | None, tell: Tell, url: str | None = None, budget: str | None = None
) -> Search:
    """Open everything that a study's trials need.

    Args:
        data: The study and its questions.
        home: The workspace.
        tell: A function that is called with each warning.
        url: The address of a PostgreSQL database in which several hosts share answers and the budget. Default None: the
            workspace's store.
        budget: The name of the budget that all of the study's workers and runs share. Default None: no limit.

    Raises:
        InputError: The environment variable for an API key is empty, or a collection or model cannot be opened.
    """
    spec, objects = data.spec, data.objects
    place = _workspace(spec, objects.lm, home, url, budget)
    place.check_key()
    retrievers = _collections(spec, objects)
    embedder, local = objects.embedder or spec.embedder, open_store(place.home)
    if isinstance(embedder, str):
        embedder = resolve_embedder(embedder, store=local)  # vectors stay on the host
    defaults = ArmDefaults(
        retriever=next(iter(retrievers.values())), writer_lm=objects.writer_lm, reranker=objects.reranker
    )
    check_defaults(named_arms([*spec.techniques], defaults), defaults)

    @cache
    def open_retriever(engine: str) -> Any:
        return place.retriever(retrievers.get(engine, defaults.retriever), embedder, spec.engine_of(engine), spec.where)

    if objects.retrievers:
        hints = list[str]()
        tell_rebuilt(retrievers.values(), hints.append)
        former = _former(spec, objects, None if home is None else Path(home))
        asked = [one for part in data.splits for one in part]
        tell_all_searched(asked, {name: open_retriever(name) for name in retrievers}, former, hints.append)
        data = data.with_hints(hints, tell)
    kinds = {name: technique_class(name) for name in spec.techniques}
    writers: dict[str, dspy.LM | None] = {}
    for one in spec.writers:
        named: Any = one.lm if objects.writer_lm is None else objects.writer_lm
        if one.api_base or one.api_key_env:
            named = resolve_lm(one.lm, api_base=one.api_base, api_key=_key(one.api_key_env), limits=spec.limits)
        writers[one.name] = writer = place.writer(named)
        keep_writer(writer, place, tell)
        tell_unlearnt(rewriter_of(writer), [kind.NAME for kind in kinds.values() if kind.LM_STAGES], tell)
    judge_lm: Any = objects.judge_lm or spec.judge_lm
    if isinstance(judge_lm, str):
        judge_lm = place.another_lm(judge_lm, api_base=spec.judge_api_base, api_key=_key(spec.judge_api_key_env))
    elif judge_lm is not None:
        judge_lm = place.another_lm(judge_lm)
    return Search(
        spec,
        data.splits,
        data.reader,
        place.lm,
        open_retriever,
        store=place.store,
        local=local,
        reader_check=data.further,
        reranker=open_reranker(objects.reranker),
        writers=writers,
        knobs={name: kind(open_retriever(kind.ENGINE)).searched_knobs for name, kind in kinds.items() if kind.ENGINE},
        judges=data.judges,
        judge_lm=judge_lm,
        budget=place.budget,
        hints=data.hints,
    )


def _workspace(
    spec: StudySpec, lm: LM | Workspace | None, home: str | Path | None, url: str | None, budget: str | None
) -> Workspace:
    """Return a study's workspace, with its store, LM, and budget."""
    limits = spec.budget.model_dump(include={"calls", "tokens", "dollars"})
    if isinstance(lm, Workspace):
        if url is not None or any(one is not None for one in limits.values()):
            raise InputError(
                "an open workspace already has a cache and a limit on LM calls; pass the LM instead of the workspace, "
                "or omit storage= and budget="
            )
        return lm
    store = open_store(None if home is None else Path(home)) if url is None else open_store(url=url)
    remedy = "Raise the budget in the study file, and rerun the command"
    return Workspace.open(
        home,
        spec.lm if lm is None else lm,
        api_base=spec.api_base,
        api_key=_key(spec.api_key_env),
        limits=spec.limits if lm is None or isinstance(lm, str) else None,
        store=store,
        budget=None if budget is None else Budget(store, budget, **limits, remedy=remedy),
        asks=False,
    )


def _key(variable: str | None) -> str | None:
    """Return the API key from an environment variable; None if no variable is named."""
    key = None if variable is None else os.environ.get(variable)
    if variable is not None and not key:
        raise InputError(
            f"the environment variable {variable!r} must contain an API key, but is not set; set the "
            "variable, or choose a different variable in the study file"
        )
    return key


@dataclass(frozen=True, repr=False)
class Study:
    """A finished study: its trials on dev, its results on test, and the program that it recommends.

    Args:
        snapshot: Everything in the study's storage.
        folder: The study's folder, which is also read by commands such as ``querywright study report``.
        search: The open search.
        storage: The address of the PostgreSQL database that stores the trials. If None, the journal in the folder
            stores them.
    """

    snapshot: Snapshot
    folder: Path
    search: Search
    storage: str | None = None

    @cached_property
    def trials(self) -> pandas.DataFrame:
        """One row per trial, with the columns of ``querywright study export``."""
        return pandas.DataFrame(trial_rows(self.snapshot))

    @property
    def front(self) -> pandas.DataFrame:
        """The rows of the trials that no other trial beats in every objective."""
        kept = front(self.snapshot.trials, self.snapshot.spec.aims)
        return self.trials[self.trials["number"].isin(kept)]

    @property
    def best(self) -> TrialRecord | None:
        """The best trial on dev by the first objective; None if no trial has a value.

        If two trials have scores for different questions, they are compared on the questions for which both have one.
        """
        return best(self.snapshot.trials, self.snapshot.spec.aims[0])

    def cheapest(self, within: float = 0.01, cost: str | None = None) -> TrialRecord | None:
        """Return the cheapest of the trials that are almost as good as the best on dev.

        Args:
            within: How far the first objective may be below the best trial's. Default 0.01, one point.
            cost: ``lm_calls``, ``tokens``, ``seconds`` or ``dollars``. Default: the first cost among the objectives, or
                else ``tokens``.

        Returns:
            The trial, whose ``arm`` names the technique and its knobs; None if no trial has a value.
        """
        aims = self.snapshot.spec.aims
        return cheapest(self.snapshot.trials, aims, within, None if cost is None else objective_named(cost))

    def program(self, trial: TrialRecord | int) -> RAG:
        """Return a trial's program, a ``dspy.Module`` with the trial's prompts and knobs.

        Args:
            trial: The trial, such as ``best``, or its number in ``trials``.

        Raises:
            InputError: No trial has this number.
        """
        if not isinstance(trial, TrialRecord):
            found = {one.number: one for one in self.snapshot.trials}
            if trial not in found:
                raise InputError(f"trial must be an integer between 0 and {len(found) - 1}, but got {trial!r:.80}")
            trial = found[trial]
        return self.search.program(trial.arm, reads=True)

    @cached_property
    def recommended(self) -> LoadedProgram:
        """The recommended program. Call it with a question to get an answer; ``.program`` is the DSPy module."""
        outcome, search = self._outcome, self.search
        arm = ArmConfig.from_json(outcome["arms"][outcome["recommended"]])
        return load(
            self._artifact,
            lm=search.lm,
            retriever=search.open_retriever(arm.engine),
            reranker=search.reranker if technique_class(arm.technique).USES_RERANKER else None,
            writer_lm=None if arm.writer is None else search.writers[arm.writer],
        )

    @property
    def compared(self) -> Comparison:
        """The test results, compared with the baseline."""
        found = self.snapshot.compared
        assert found is not None
        return found

    @property
    def verdict(self) -> str:
        """The test result in a word, such as ``gain``."""
        return str(self._outcome["verdict"])

    @property
    def sentence(self) -> str:
        """The test result as a sentence with figures."""
        return str(self._outcome["sentence"])

    @cached_property
    def optuna(self) -> Any:
        """An in-memory copy of the study as an ``optuna.Study``, for Optuna's plots and dashboard."""
        import optuna

        memory, name = optuna.storages.InMemoryStorage(), self.snapshot.spec.name
        with open_storage(storage_of(self.snapshot.spec, self.storage), self.folder, name) as kept:
            optuna.copy_study(from_study_name=name, from_storage=kept.trials, to_storage=memory)
        with quiet_optuna():
            return optuna.load_study(study_name=name, storage=memory)

    def report(self, path: str | Path) -> Path:
        """Write the study as one HTML page, and return its path."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_report(self.snapshot, path)
        return path

    def save(self, path: str | Path, *, replace: bool = False) -> ArtifactManifest:
        """Copy the recommended program's artifact to a folder.

        Args:
            path: The folder.
            replace: Whether to replace a different artifact in the folder. Default False.

        Raises:
            ArtifactError: The folder contains something else.
        """
        return copy_artifact(self._artifact, path, replace=replace)

    def __repr__(self) -> str:
        spec = self.snapshot.spec
        return f"Study({spec.name!r}, {len(self.snapshot.trials)} trials, {self.verdict}: {self.sentence}.)"

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.sentence)}.</p>{self.compared._repr_html_()}"

    @property
    def _outcome(self) -> Mapping[str, Any]:
        assert self.snapshot.outcome is not None
        return self.snapshot.outcome

    @property
    def _artifact(self) -> Path:
        return self.folder / "artifacts" / RECOMMENDED


def study(
    techniques: Techniques,
    questions: Any,
    *,
    retriever: Any = None,
    where: Mapping[str, Any] | None = None,
    lm: LM | Workspace = "embedded",
    reader: str | None = "auto",
    objectives: str | Sequence[str] = "decision_useful",
    prompts: Mapping[str, Mapping[str, Any]] | Sequence[str] = (),
    trials: int = 50,
    seed: int = 0,
    max_passages: int = 5,
    knobs: Mapping[str, Any] | None = None,
    sizes: tuple[int, int, int] | None = None,
    embedder: Any = "embedded",
    reranker: Any = None,
    writer_lm: LM | Path | None = None,
    judge: str | Path | SavedJudge | Sequence[str | Path | SavedJudge] = (),
    judge_lm: LM | None = None,
    labels: Any = None,
    reading: Mapping[str, Any] | None = None,
    name: str = "study",
    home: str | Path | None = None,
    out: str | Path | None = None,
    storage: str | None = None,
    progress: Progress | bool | None = None,
    tell: Tell | None = None,
    **changes: Any,
) -> Study:
    """Search techniques, knobs, and prompts on dev, then compare the best program with the baseline on test.

    This is ``querywright study run`` with objects instead of names. The baseline, ``plain``, is always among the
    techniques.

    Args:
        techniques: Techniques, as classes (including your own) or in the forms that ``compare`` accepts for arms
            (``NAME``, ``NAME@ENGINE``, ``NAME:KNOB=VALUE``, instances); or a mapping from these to the knobs to search,
            each with a list of values, a range ``(low, high)``, or a single value. Other knobs are searched over their
            full range. A mapping may also contain ``engines``, ``knobs``, ``search``, and ``prompts``, as in a study
            file. Knobs that are set in an instance are fixed.
        questions: Questions, or train, dev, and test, as in ``compile``.
        retriever: The retriever, as in ``compile``; or retrievers by name, such as ``{"small": index, "large":
            other}``, from which the study chooses. The baseline uses the first. In the mapping, ``"COLLECTION@ENGINE"``
            is a collection with an engine other than ``dense``. Default: the retriever of the first instance.
        where: A filter, as in ``compare``.
        lm: The LM, its name, or an open ``Workspace``. Default ``embedded``.
        reader: The reader, as in ``compare``.
        objectives: Names of metrics and costs, such as ``decision_useful``, ``judged_useful``, and ``lm_calls``. The
            first objective selects the program. Default ``decision_useful``.
        prompts: Names of DSPy optimizers, or a mapping from these names to arguments; or prompts by name, as in a study
            file.
        trials: Number of trials, 1 or more. Default 50.
        seed: Seed for the split, the prompts, and the search. Default 0.
        max_passages: Maximum number of passages shown to the reader, 1 to 50. Default 5.
        knobs: Fixed values by knob name, for every technique that has the knob.
        sizes: Number of questions in train, dev, and test. Default: all, about 30%, 30%, and 40% (``split_questions``).
        embedder: The embedder for a collection given by name. Default ``embedded``.
        reranker: A cross-encoder, as in ``compare``.
        writer_lm: The LM that techniques (but not the reader) use instead of ``lm``, as in ``compare``.
        judge: Judges, or their names or paths, for ``judged_`` objectives.
        judge_lm: The judges' LM, or its name. Default: ``lm``.
        labels: Passage labels, as in ``compare``.
        reading: Arguments for ``read_questions``: ``columns``, ``limit``, and ``split``.
        name: Name of the study. Default ``study``.
        home: The workspace folder. Default ``$QUERYWRIGHT_HOME`` or ``.querywright``.
        out: The study's folder. Repeating the call resumes the study or returns its results; the same call in a
            different process adds a worker. Default: a temporary folder.
        storage: The address of a PostgreSQL database, ``postgresql://user:password@host/database``, which stores
            trials, answers, and the budget for several hosts. The study's artifacts are written to the folder of the
            worker that finishes it. Default: the study's folder and the workspace.
        progress: True to show a bar (also in notebooks), or a function that is called with the step, the amount done,
            and the total.
        tell: A function that is called with each warning. Default: ``warnings.warn``.
        changes: Other keys of a study file, such as ``sampler``, ``pruner``, and ``threads``.

    Returns:
        The study, with ``trials``, ``best``, ``front``, ``cheapest()``, ``program(trial)``, ``recommended``,
        ``verdict``, ``sentence``, ``report(path)``, ``save(path)``, and ``optuna``.

    Raises:
        InputError: An argument is invalid; all problems with the search are reported at once.
        OutageError: The LM cannot be reached; answers so far are cached.
        QuerywrightError: Most trials failed.
    """
    tell = tell or warn_caller
    for key in changes:
        if key not in _CHANGES:
            raise InputError(unknown("study setting", key, _CHANGES))
    searched, retriever = _techniques(techniques, retriever)
    retrievers: dict[str, Any] = dict(retriever) if isinstance(retriever, Mapping) else {"dense": retriever}
    names = {key: one if isinstance(one, str) else OBJECTS for key, one in retrievers.items()}
    judges = resolve_judges(judge)
    spec = read_spec(
        {
            "name": name,
            "questions": str(questions) if isinstance(questions, str | Path) else OBJECTS,
            **({"retrievers": names} if isinstance(retriever, Mapping) else {"collection": names["dense"]}),
            "where": where,
            "lm": _model(lm.lm if isinstance(lm, Workspace) else lm),
            "writers": [] if writer_lm is None else [_model(writer_lm)],
            "judges": [one.judge.NAME for one in judges],
            "judge_lm": None if judge_lm is None else _model(judge_lm),
            "reader": reader or "none",
            "objectives": [objectives] if isinstance(objectives, str) else [*objectives],
            "techniques": searched,
            "prompts": _prompts(prompts),
            "fixed": {"max_passages": max_passages, **(knobs or {})},
            "trials": trials,
            "seed": seed,
            "sizes": sizes,
            **(reading or {}),
            **changes,
        }
    )
    objects = StudyObjects(
        questions=questions, labels=labels, retrievers=retrievers, lm=lm, writer_lm=writer_lm, embedder=embedder,
        reranker=reranker, judges=judges, judge_lm=judge_lm,
    )  # fmt: skip
    folder = Path(tempfile.mkdtemp(prefix="querywright-study-")) if out is None else Path(out)
    opened: list[Search] = []

    def open_it(tell: Tell, *where: str | None) -> Search:
        opened.append(open_search(data, home, tell, *where))
        return opened[0]

    try:
        with shown(progress, "opening questions, retriever, and models") as update:
            data = read_data(spec, objects, home, tell=tell)
            found = _run_and_tell(
                data, folder, open_it, tell, reopen=True, storage=storage, progress=update,
                command=f"querywright.study(..., name={spec.name!r})",
            )  # fmt: skip
    except BaseException:
        if out is None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    result = Study(found, folder, opened[0], storage)
    if out is None:
        weakref.finalize(result, shutil.rmtree, folder, ignore_errors=True)
    return result


def _techniques(given: Techniques, retriever: Any) -> tuple[dict[str, dict[str, Any]], Any]:
    """Return the techniques in the form of a study file, and the retriever, by default the first instance's."""
    several: Any = [given] if isinstance(given, str | type | dspy.Module) else given
    items = several.items() if isinstance(several, Mapping) else [(one, {}) for one in several]
    found: dict[str, dict[str, Any]] = {}
    for one, asked in items:
        own: dict[str, Any] = {}
        engines: list[str] = []
        if isinstance(one, type):
            name = technique_named(one).NAME
        else:
            arm = Arm.of(one, ArmDefaults())
            if arm.artifact is not None:
                raise InputError(f"a study cannot tune an artifact, but got {one!r}; use {arm.technique.NAME}")
            technique: Any = getattr(arm.program, "technique", arm.program)
            name, own = register_technique(arm.technique), dict(arm.knobs)
            engines = [arm.engine] if isinstance(one, str) and "@" in one else []
            if technique is not None:
                own = _own_knobs(technique)
                retriever = technique.retriever if retriever is None else retriever
        if name in found:
            raise InputError(f"the technique {name!r} was passed twice; remove one")
        if not isinstance(asked, Mapping):
            raise InputError(f"techniques.{name} must be a mapping of knobs to their values, but got {asked!r:.80}")
        data: dict[str, Any] = {**asked} if set(asked) & _FILE_FORM else {"knobs": asked}
        if engines:
            data.setdefault("engines", engines)
        data["knobs"] = {**own, **{key: knob_space(value) for key, value in data.get("knobs", {}).items()}}
        found[name] = data
    return found, retriever


def _own_knobs(technique: Technique) -> dict[str, Any]:
    """Return the knobs set in an instance. Raise an error if it has settings that these knobs do not reproduce."""
    own = {knob.name: technique.knobs[knob.name] for knob in technique.KNOBS}
    own = {knob.name: own[knob.name] for knob in technique.KNOBS if own[knob.name] != knob.default}
    if technique.writer_lm is not None or technique.reranker is not None:
        raise TechniqueError(
            f"this {technique.NAME} instance has a writer LM or a reranker, but all techniques in a study share these; "
            "pass writer_lm= or reranker= instead"
        )
    if predictor_states(technique) != predictor_states(type(technique)(None, **own)):
        raise TechniqueError(
            f"this {technique.NAME} instance has custom prompts, but a study starts from its class's prompts; pass a "
            "subclass that has these prompts and a different NAME, or pass "
            "prompts={NAME: {'instructions': {PREDICTOR: TEXT}}}"
        )
    return own


def _prompts(given: Mapping[str, Mapping[str, Any]] | Sequence[str]) -> dict[str, Any]:
    """Return prompts in the form of a study file. Optimizer names, with or without arguments, are converted."""
    if isinstance(given, str):
        given = [given]
    items = given.items() if isinstance(given, Mapping) else [(one, {}) for one in given]
    return {
        name: {**asked} if {"optimizer", "instructions"} & set(asked) else {"optimizer": name, "arguments": {**asked}}
        for name, asked in items
    }


def _model(lm: Any) -> str:
    check_lm(lm)
    return str(getattr(lm, "model", lm))
