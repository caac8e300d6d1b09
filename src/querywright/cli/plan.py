"""What ``querywright evaluate`` and ``compare`` run: arms, reader and metrics, settled before anything is spent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from querywright.cli.checks import (
    check_engine,
    check_reader,
    check_rewriter,
    engine_for,
    knob_values,
    note_unlearnt,
    of_grounded,
    reader_for,
)
from querywright.cli.options import ArmOptions, DataOptions, pairs
from querywright.cli.workspace import Workspace
from querywright.errors import InputError

if TYPE_CHECKING:
    from querywright.data.types import Question
    from querywright.optimize.artifacts.files import ArtifactManifest
    from querywright.programs import RAG
    from querywright.retrieval.engines import CollectionRetriever
    from querywright.retrieval.rerank import Reranker

REWRITER = "rewriter"
"""Stands among the knobs of an arm for a rewriter of its own, or ``none``."""

DEFAULT_TECHNIQUES = ("closed_book", "plain", "hcqr")
LACKING = {
    "support": "a reader that names its support (--reader grounded)",
}
"""What a metric needs, in words, where its name alone does not tell."""


@dataclass(frozen=True, slots=True)
class TechniqueArm:
    """A technique as it was named, ``NAME[@ENGINE][:KNOB=VALUE,...]``; ``rewriter=FOLDER`` may stand among the knobs.

    Args:
        technique: Its name.
        engine: What it searches with.
        knobs: Values of its knobs.
        rewriter: Folder of its rewriter, or None.
    """

    technique: str
    engine: str
    knobs: Mapping[str, Any]
    rewriter: Path | None = None

    @property
    def searches(self) -> bool:
        """Whether it searches a collection."""
        from querywright.programs import technique_class

        return technique_class(self.technique).SEARCHES != "0"

    @property
    def needs_options(self) -> bool:
        """Whether every question must have options."""
        from querywright.programs import technique_class

        return technique_class(self.technique).NEEDS_OPTIONS


@dataclass(slots=True)
class Plan:
    """What is evaluated, as far as it is known before the questions are read.

    Args:
        techniques: The techniques by the names of their arms.
        given: Whether the user named them.
        artifacts: Folder and manifest of each artifact, by the name of its arm.
        asked_reader: The reader that was asked for; it may be ``auto`` or ``none``.
        metrics: Metrics by name; empty until the questions tell which can be scored.
        reader: The techniques' reader, once the questions are known.
        lacks: What the metrics that cannot be scored do without, by their names.
        notes: What is said below the table.
    """

    techniques: dict[str, TechniqueArm]
    given: bool
    artifacts: dict[str, tuple[Path, ArtifactManifest]]
    asked_reader: str
    metrics: Mapping[str, Any]
    reader: str | None = None
    lacks: Mapping[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def searching(self) -> list[str]:
        """The arms of techniques that search."""
        return [name for name, arm in self.techniques.items() if arm.searches]

    @property
    def engines(self) -> list[str]:
        """The engines that the techniques search with."""
        return list(dict.fromkeys(self.techniques[name].engine for name in self.searching))

    @property
    def readers(self) -> list[str]:
        """The readers of all arms by name, once the questions are known."""
        names = [manifest.reader for _, manifest in self.artifacts.values()]
        return list(dict.fromkeys(name for name in (self.reader if self.techniques else None, *names) if name))

    @property
    def reranks(self) -> bool:
        """Whether some arm takes a reranker."""
        from querywright.programs import technique_class

        techniques = [arm.technique for arm in self.techniques.values()]
        techniques += [manifest.technique for _, manifest in self.artifacts.values()]
        return any(technique_class(name).USES_RERANKER for name in techniques)

    @property
    def needs_options(self) -> list[str]:
        """The arms that were asked for and cannot do without options."""
        from querywright.programs import technique_class

        needing = [name for name, arm in self.techniques.items() if self.given and arm.needs_options]
        for name, (_, manifest) in self.artifacts.items():
            if manifest.reader == "multiple_choice" or technique_class(manifest.technique).NEEDS_OPTIONS:
                needing.append(name)
        return needing + (["the reader multiple_choice"] if self.asked_reader == "multiple_choice" else [])


def make_plan(
    technique: Sequence[str], artifact: Sequence[Path], arms: ArmOptions, rewriter: Path | None = None
) -> Plan:
    """Check everything that was named."""
    from querywright.optimize.artifacts.files import read_artifact
    from querywright.optimize.evaluate import metrics_by_name
    from querywright.programs import technique_class

    engine, reader, knobs = arms.engine, arms.reader, arms.knobs
    check_engine(engine)
    check_reader(reader)
    names = list(dict.fromkeys(technique or (() if artifact else DEFAULT_TECHNIQUES)))
    if reader == "none" and not technique:
        names = [name for name in names if name != "closed_book"]
    by_name = {name: _technique_arm(name, engine, knobs, rewriter) for name in names}
    declared = {arm.technique: [knob.name for knob in technique_class(arm.technique).KNOBS] for arm in by_name.values()}
    for key in knobs:
        if not any(key in known for known in declared.values()):
            known = "; ".join(f"{name}: {', '.join(own) or 'none'}" for name, own in declared.items())
            raise InputError(
                f"no technique here has the knob {key!r}; the knobs are: {known or 'none, in an artifact'}"
            )
    compiled: dict[str, tuple[Path, ArtifactManifest]] = {}
    for path in artifact:
        name = path.name if path.name not in {*names, *compiled, ""} else str(path)
        compiled[name] = (path, read_artifact(path).manifest)
    _check_rewriter(rewriter, by_name, [manifest for _, manifest in compiled.values()])
    for folder in dict.fromkeys(arm.rewriter for arm in by_name.values()):
        note_unlearnt(folder, [arm.technique for arm in by_name.values() if arm.rewriter == folder])
    return Plan(
        techniques=by_name,
        given=bool(technique),
        artifacts=compiled,
        asked_reader=reader,
        metrics=metrics_by_name([*arms.metric]),
    )


def _check_rewriter(
    rewriter: Path | None, arms: Mapping[str, TechniqueArm], artifacts: Sequence[ArtifactManifest]
) -> None:
    """Raise when a rewriter was named for all arms, and none of them would ask it."""
    if rewriter is None:
        return
    if not any(arm.rewriter == rewriter for arm in arms.values()) and not any(one.rewriter for one in artifacts):
        raise InputError(
            "no technique here writes what is searched for, and no artifact was compiled with a rewriter; leave "
            "--rewriter out, or name a technique that writes, such as rrr"
        )


def _technique_arm(text: str, engine: str, knobs: Mapping[str, str], rewriter: Path | None) -> TechniqueArm:
    """The arm that a text names; knobs of its own, and a rewriter, go before those of all arms."""
    head, _, own = text.partition(":")
    from querywright.programs import takes_rewriter, technique_class

    technique, at, named = head.partition("@")
    engine = engine_for(technique, check_engine(named) if at else None) or engine
    values = knob_values(technique, knobs, strict=False)
    given = pairs(tuple(one for one in own.split(",") if one), f"the arm {text!r}:")
    named_for_it = given.pop(REWRITER, None)
    if named_for_it is not None:
        rewriter = None if named_for_it == "none" else Path(named_for_it)
        check_rewriter(technique, rewriter)
    elif not takes_rewriter(technique_class(technique)):
        rewriter = None
    else:
        check_rewriter(technique, rewriter)
    values |= knob_values(technique, given)
    arm = TechniqueArm(technique, engine, values, rewriter)
    if at and not arm.searches:
        raise InputError(f"{technique} does not search, so it has no engine; write {technique} for {text!r}")
    return arm


def planned_questions(plan: Plan, source: str, data: DataOptions) -> list[Question]:
    """Read the questions; where an arm that was named compares options, every one must have some."""
    from querywright.errors import DataError

    needing = plan.needs_options
    try:
        return data.questions(source, options=bool(needing))
    except DataError as error:
        if not any("multiple_choice=True" in problem for problem in error.problems):
            raise
        raise DataError([f"{', '.join(needing)}: every question needs options", *error.problems]) from error


def settle(plan: Plan, asked: Sequence[Question], *, judged: bool) -> None:
    """Reader, techniques and metrics that follow from the questions."""
    from querywright.metrics.dspy_metrics import needs
    from querywright.optimize.evaluate import metrics_by_name
    from querywright.programs import READERS

    if not plan.given and not all(question.options for question in asked):
        left_out = [name for name, arm in plan.techniques.items() if arm.needs_options]
        for name in left_out:
            del plan.techniques[name]
        if left_out:
            plan.notes.append(f"left out: {', '.join(left_out)}, because not every question has options")
    plan.reader = reader_for(asked, plan.asked_reader)
    labelled = any(question.evidence for question in asked)
    if not plan.metrics:
        names = ["accuracy"] if plan.reader is not None or plan.artifacts else []
        plan.metrics = metrics_by_name([*names, *(["decision_useful", "recall"] if labelled else [])])
    given = {
        "answer": any(question.answer for question in asked),
        "options": any(question.options for question in asked),
        "evidence": labelled,
        "reader": bool(plan.reader or plan.artifacts),
        "support": any(READERS[name].GROUNDED for name in plan.readers),
    }
    missing = {name: [need for need in sorted(needs(name)) if not given.get(need)] for name in plan.metrics}
    plan.lacks = {
        name: " and ".join(LACKING.get(need, need) for need in lacking) for name, lacking in missing.items() if lacking
    }
    if len(plan.lacks) == len(plan.metrics) and not judged:
        wanting = "; ".join(f"{name} needs {lacking}" for name, lacking in plan.lacks.items())
        raise InputError(
            f"nothing can be scored: {wanting or 'no metric'}; give questions with an answer (and a reader) or with "
            "labelled evidence, or --judge-lm"
        )
    for reader in plan.readers:
        plan.notes.extend(of_grounded(reader))
    if given["support"] and "accuracy" in plan.metrics and not all(question.options for question in asked):
        plan.notes.append("accuracy is contains_answer where a reader names its support, else exact_match")
    plan.notes.append("usefulness from labelled evidence" if labelled else "no labelled evidence")


def planned_programs(
    plan: Plan,
    retrievers: Mapping[str, CollectionRetriever],
    workspace: Workspace,
    home: Path | None,
    reranker: Reranker | None = None,
    rewriter: Path | None = None,
) -> dict[str, RAG]:
    """The programs by the names of their arms; an artifact brings its own reranker and rewriter where none is given."""
    from querywright.optimize.artifacts.load import load
    from querywright.optimize.artifacts.rewriters import find_rewriter
    from querywright.programs import make_program, technique_class

    def own(technique: str) -> Reranker | None:
        return reranker if technique_class(technique).USES_RERANKER else None

    whose = {name: arm.rewriter for name, arm in plan.techniques.items()}
    for name, (_, manifest) in plan.artifacts.items():
        whose[name] = None if manifest.rewriter is None else rewriter or find_rewriter(manifest.rewriter, home)
    rewriters = {folder: workspace.rewriter(folder) for folder in whose.values()}
    programs = {
        name: make_program(
            arm.technique,
            retrievers[arm.engine] if arm.searches else None,
            reader=plan.reader,
            reranker=own(arm.technique),
            rewriter=rewriters[whose[name]],
            **arm.knobs,
        )
        for name, arm in plan.techniques.items()
    }
    for metric in plan.metrics:
        depth = metric.partition("@")[2]
        short = [
            f"{name} ({program.technique.max_passages})"
            for name, program in programs.items()
            if depth and program.technique.KNOBS and program.technique.max_passages < int(depth)
        ]
        if short:
            plan.notes.append(f"{metric}: fewer are found by {', '.join(short)}; see --knob max_passages={depth}")
    for name, (path, manifest) in plan.artifacts.items():
        open_already = [one for one in retrievers.values() if one.fingerprint == manifest.fingerprint]
        found = open_already[0] if open_already else None
        loaded = load(
            path, home=home, lm=workspace.lm, retriever=found, reranker=own(manifest.technique),
            rewriter=rewriters[whose[name]],
        )  # fmt: skip
        programs[name] = loaded.program
        if manifest.lm != workspace.lm.model:
            plan.notes.append(f"{name} was compiled for the LM {manifest.lm}")
    return programs
