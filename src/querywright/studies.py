"""A study from Python: what its file names is given as objects, and its folder is the same."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, TypeAlias

import dspy
import pandas

from querywright.api import LM, keep_writer, open_workspace, read_parts, split_parts, warn_caller
from querywright.arms import ArmDefaults
from querywright.errors import InputError, TechniqueError, unknown
from querywright.opening import of_mixed, open_experiment
from querywright.optimize.artifacts.files import ArtifactManifest, copy_artifact
from querywright.optimize.artifacts.load import load
from querywright.optimize.artifacts.loaded import LoadedProgram
from querywright.optimize.comparison import Comparison
from querywright.optimize.evaluate import Progress
from querywright.optimize.judge_files import SavedJudge, resolve_judges
from querywright.optimize.objectives import check_judges, check_objectives
from querywright.optimize.program_state import predictor_states
from querywright.optimize.quiet import quiet_optuna
from querywright.optimize.search.core import Search
from querywright.optimize.search.spec import SearchSpec
from querywright.optimize.search.trials import ArmConfig, TrialRecord, best, front
from querywright.optimize.study.engine import run_study
from querywright.optimize.study.finish import RECOMMENDED
from querywright.optimize.study.opening import further_questions
from querywright.optimize.study.reading import read_spec
from querywright.optimize.study.results import Snapshot, trial_rows, write_report
from querywright.optimize.study.spec import StudySpec
from querywright.optimize.study.storage import open_storage
from querywright.programs import Technique, register_technique, technique_class
from querywright.progress import shown
from querywright.workspace import Tell, Workspace

Techniques: TypeAlias = "str | type[Technique] | Technique | Iterable[Any] | Mapping[Any, Mapping[str, Any]]"
"""Techniques by name, class or instance; or a mapping of these to the knobs that are searched."""

_OBJECTS = "given in Python"
"""The name of questions and retrievers that have none."""

_FILE_FORM = frozenset({"engines", "knobs", "search", "prompts"})
"""Keys of a technique in a study's file, none of which is a knob."""

_CHANGES = sorted({*SearchSpec.model_fields, "reader_check"} - {"budget"})


@dataclass(frozen=True, repr=False)
class Study:
    """A finished study: its trials on dev, its results on test, and the program that it recommends.

    Args:
        snapshot: All that the study's storage holds.
        folder: The study's folder, which commands such as ``querywright study report`` read too.
        search: What was searched, open.
    """

    snapshot: Snapshot
    folder: Path
    search: Search

    @cached_property
    def trials(self) -> pandas.DataFrame:
        """A row for each trial, with the columns of ``querywright study export``."""
        return pandas.DataFrame(trial_rows(self.snapshot))

    @property
    def front(self) -> pandas.DataFrame:
        """The rows of the trials that no other trial beats in every objective."""
        kept = front(self.snapshot.trials, self.snapshot.spec.aims)
        return self.trials[self.trials["number"].isin(kept)]

    @property
    def best(self) -> TrialRecord | None:
        """The trial with the best first objective on dev; None if no trial has a value."""
        return best(self.snapshot.trials, self.snapshot.spec.aims[0])

    @cached_property
    def recommended(self) -> LoadedProgram:
        """The recommended program, which answers a question when it is called; ``.program`` is the DSPy module."""
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
        """The results on test, compared with the baseline."""
        found = self.snapshot.compared
        assert found is not None
        return found

    @property
    def verdict(self) -> str:
        """The result on test in a word, such as ``gain``."""
        return str(self._outcome["verdict"])

    @property
    def sentence(self) -> str:
        """The result on test as a sentence with figures."""
        return str(self._outcome["sentence"])

    @cached_property
    def optuna(self) -> Any:
        """A copy of Optuna's study in memory, an ``optuna.Study``, for Optuna's plots and its dashboard."""
        import optuna

        memory, name = optuna.storages.InMemoryStorage(), self.snapshot.spec.name
        with open_storage("journal", self.folder, name) as kept:
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
        """Copy the artifact of the recommended program to a folder.

        Args:
            path: The folder.
            replace: Whether to replace another artifact there. Default False.

        Raises:
            ArtifactError: The folder holds something else.
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
    progress: Progress | bool | None = None,
    tell: Tell | None = None,
    **changes: Any,
) -> Study:
    """Search techniques, knobs and prompts on dev, and compare the best program with the baseline on test.

    This is ``querywright study run`` with objects in place of names. The baseline, ``plain``, is always among the
    techniques.

    Args:
        techniques: Names, classes or instances of techniques, those of your own among them; or a mapping of these to
            the knobs to search: a list of values, a range ``(low, high)`` or one value. Other knobs are searched over
            their own range. A mapping may also hold ``engines``, ``knobs``, ``search`` and ``prompts``, as in a
            study's file. Knobs that an instance sets are fixed.
        questions: Questions, or train, dev and test, as ``compile`` takes them.
        retriever: What is searched, as ``compile`` takes it; or retrievers by engine, such as ``{"dense": index,
            "hybrid": both}``, which techniques choose from. Default: the retriever of the first instance.
        where: A filter, as ``compare`` takes it.
        lm: The LM, its name or an open ``Workspace``. Default ``embedded``.
        reader: As ``compare`` takes it.
        objectives: Names of metrics and costs, such as ``decision_useful``, ``judged_useful``, ``lm_calls``. The first
            one decides. Default ``decision_useful``.
        prompts: Names of DSPy optimizers with their arguments; or prompts by name, as in a study's file.
        trials: Number of trials, 1 or more. Default 50.
        seed: Seed of the split, the prompts and the search. Default 0.
        max_passages: Passages shown to the reader at most, 1 to 50. Default 5.
        knobs: Fixed values, for every technique that has the knob.
        sizes: Questions in train, dev and test. Default 30 %, 30 % and 40 % of all.
        embedder: The embedder of a collection that is named. Default ``embedded``.
        reranker: A cross-encoder, as ``compare`` takes it.
        writer_lm: What techniques ask, and the reader does not, as ``compare`` takes it.
        judge: Judges, or their names or paths, that give ``judged_`` objectives.
        judge_lm: The LM of the judges, or its name. Default: ``lm``.
        labels: Labels of passages, as ``compare`` takes them.
        reading: ``columns``, ``limit`` and ``split`` of the questions, as ``read_questions`` takes them.
        name: Name of the study. Default ``study``.
        home: The workspace folder. Default ``$QUERYWRIGHT_HOME`` or ``.querywright``.
        out: The study's folder: the same call resumes it, or returns its results. Default: a temporary folder.
        progress: True for a bar (in a notebook too), or called with what, done and total as work proceeds.
        tell: Called with each warning. Default: ``warnings.warn``.
        changes: Further keys of a study's file, such as ``sampler``, ``pruner`` and ``threads``.

    Returns:
        ``trials``, ``best``, ``front``, ``recommended``, ``verdict``, ``sentence``, ``report(path)``, ``save(path)``
        and ``optuna``.

    Raises:
        InputError: Something cannot be used; all problems of the search are named at once.
        OutageError: The LM is out of reach; answers so far are kept.
        QuerywrightError: Most trials failed.
    """
    tell = tell or warn_caller
    for key in changes:
        if key not in _CHANGES:
            raise InputError(unknown("key of a study", key, _CHANGES))
    searched, retriever = _techniques(techniques, retriever)
    retrievers: dict[str, Any] = dict(retriever) if isinstance(retriever, Mapping) else {"dense": retriever}
    if "dense" not in retrievers:
        raise InputError(f"retriever= needs dense, which the baseline searches, among {', '.join(retrievers)}; add it")
    for technique, own in searched.items():
        kind = technique_class(technique)
        if len(retrievers) > 1 and kind.ENGINE is None and not kind.NEEDS_VECTORS:
            own.setdefault("engines", [*retrievers])
    judges = resolve_judges(judge)
    spec = read_spec(
        {
            "name": name,
            "questions": str(questions) if isinstance(questions, str | Path) else _OBJECTS,
            "collection": retrievers["dense"] if isinstance(retrievers["dense"], str) else _OBJECTS,
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
            **changes,
        }
    )
    parts = read_parts(questions)
    with shown(progress, "opening retriever and models") as update:
        place = open_workspace(lm, home, spec.threads)
        place.check_key()
        experiment = open_experiment(
            [*spec.techniques], questions if parts is None else [one for part in parts for one in part], place,
            reading={"labels": labels} if parts else {"labels": labels, **(reading or {})}, tell=tell,
            defaults=ArmDefaults(
                retriever=retrievers["dense"], where=where, embedder=embedder, reader=reader, writer_lm=writer_lm,
                reranker=reranker,
            ),
        )  # fmt: skip
        asked = experiment.questions
        splits = split_parts(asked, parts, seed, sizes)
        check_objectives(spec.objectives, splits, experiment.reader)
        measured = [*(one.metric for one in spec.prompts.values() if one.metric), *spec.objectives]
        check_judges(measured, judges, asks=judge_lm is not None)
        for line in of_mixed(asked, reader):
            tell(line)
        writers = {one.technique.writer_lm for one in experiment.programs.values()} - {None}
        for one in writers:
            keep_writer(one, place, tell)

        def open_retriever(engine: str) -> Any:
            if engine in retrievers:
                return place.retriever(retrievers[engine], embedder, engine, where)
            return experiment.open_retriever(engine)

        search = Search(
            spec,
            splits,
            experiment.reader,
            place.lm,
            open_retriever,
            store=place.store,
            local=place.store,
            reader_check=further_questions(spec.reader_check, asked, splits, experiment.reader, seed),
            reranker=experiment.reranker,
            writers={one.model: one for one in writers},
            knobs={one: program.technique.searched_knobs for one, program in experiment.programs.items()},
            judges=judges,
            judge_lm=None if judge_lm is None else place.another_lm(judge_lm),
        )
        return _run(spec, search, place, out, update, tell)


def _run(spec: StudySpec, search: Search, place: Workspace, out: str | Path | None, progress: Any, tell: Tell) -> Study:
    """Run a study in its folder, or in a temporary one that goes with its result."""
    folder = Path(tempfile.mkdtemp(prefix="querywright-study-")) if out is None else Path(out)
    command = f"querywright.study(..., name={spec.name!r})"
    try:
        found = run_study(spec, folder, home=place.home, command=command, opened=search, progress=progress, tell=tell)
    except BaseException:
        if out is None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    result = Study(found, folder, search)
    if out is None:
        weakref.finalize(result, shutil.rmtree, folder, ignore_errors=True)
    return result


def _techniques(given: Techniques, retriever: Any) -> tuple[dict[str, dict[str, Any]], Any]:
    """Return what a study's file says of the techniques, and the retriever, which may be that of an instance."""
    several: Any = [given] if isinstance(given, str | type | dspy.Module) else given
    items = several.items() if isinstance(several, Mapping) else [(one, {}) for one in several]
    found: dict[str, dict[str, Any]] = {}
    for one, asked in items:
        own: dict[str, Any] = {}
        if isinstance(one, str):
            name = technique_class(one).NAME
        elif isinstance(one, Technique):
            name, own = register_technique(type(one)), _own_knobs(one)
            retriever = one.retriever if retriever is None else retriever
        else:
            name = register_technique(one)
        if name in found:
            raise InputError(f"the technique {name!r} is given twice; give it once")
        if not isinstance(asked, Mapping):
            raise InputError(f"techniques.{name} must be a mapping of knobs to their values, but got {asked!r:.80}")
        data = {**asked} if set(asked) & _FILE_FORM else {"knobs": asked}
        data["knobs"] = {**own, **{key: _values(value) for key, value in data.get("knobs", {}).items()}}
        found[name] = data
    return found, retriever


def _own_knobs(technique: Technique) -> dict[str, Any]:
    """Return the knobs that an instance sets, if its class makes the same instance from them."""
    own = {knob.name: technique.knobs[knob.name] for knob in technique.KNOBS}
    own = {knob.name: own[knob.name] for knob in technique.KNOBS if own[knob.name] != knob.default}
    if technique.writer_lm is not None or technique.reranker is not None:
        raise TechniqueError(
            f"{technique.NAME} has a writer LM or a reranker, which all techniques of a study share; give writer_lm= "
            "or reranker= instead"
        )
    if predictor_states(technique) != predictor_states(type(technique)(None, **own)):
        raise TechniqueError(
            f"the prompts of this {technique.NAME} differ from those of its class, which a study starts from; give a "
            "subclass with these prompts and another NAME, or prompts={NAME: {'instructions': {PREDICTOR: TEXT}}}"
        )
    return own


def _values(value: Any) -> Any:
    """Return the values of a knob as in a study's file, where a range is a mapping."""
    if isinstance(value, tuple) and len(value) == 2:
        return {"low": value[0], "high": value[1]}
    return [*value] if isinstance(value, tuple | range) else value


def _prompts(given: Mapping[str, Mapping[str, Any]] | Sequence[str]) -> dict[str, Any]:
    """Return prompts as in a study's file; a mapping may hold an optimizer's arguments alone."""
    if isinstance(given, str):
        given = [given]
    items = given.items() if isinstance(given, Mapping) else [(one, {}) for one in given]
    return {
        name: {**asked} if {"optimizer", "instructions"} & set(asked) else {"optimizer": name, "arguments": {**asked}}
        for name, asked in items
    }


def _model(lm: Any) -> str:
    return str(getattr(lm, "model", lm))
