"""The arms of a comparison, from what was named to programs that can be asked: all is checked before anything is spent.

An arm is the name of a technique, ``NAME[@ENGINE][:KNOB=VALUE,...]`` (``rewriter=FOLDER`` or ``none`` may stand among
the knobs), the folder of an artifact, a loaded one, a technique, or a technique with its reader.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import dspy

from querywright.errors import InputError
from querywright.named import (
    check_rewriter,
    engine_for,
    knob_values,
    pairs,
)
from querywright.optimize.artifacts.files import ArtifactManifest, read_artifact
from querywright.optimize.artifacts.load import load
from querywright.optimize.artifacts.loaded import LoadedProgram
from querywright.optimize.artifacts.rewriters import find_rewriter
from querywright.programs import (
    RAG,
    Technique,
    make_program,
    make_reader,
    takes_rewriter,
    technique_class,
)
from querywright.retrieval.rerank import Reranker
from querywright.workspace import Workspace


@dataclass(slots=True, kw_only=True)
class Opened:
    """What is open for all arms.

    Args:
        workspace: Working folder and LM.
        reader: The reader of the arms that bring none.
        notes: What is said below the table.
        reranker: Scores passages, for techniques that rerank.
        retrievers: Open retrievers by engine.
    """

    workspace: Workspace
    reader: str | None
    notes: list[str]
    reranker: Reranker | None = None
    retrievers: dict[str, Any] = field(default_factory=dict)
    _rewriters: dict[Path, Any] = field(default_factory=dict)

    def rewriter(self, folder: Path | None) -> Any:
        """The LM of a rewriter, the same one for all arms that have it."""
        if folder is not None and folder not in self._rewriters:
            self._rewriters[folder] = self.workspace.rewriter(folder)
        return None if folder is None else self._rewriters[folder]


@dataclass(frozen=True, slots=True)
class Arm:
    """What can be asked, once all is open.

    Args:
        kind: Its technique.
        reader: The name of a reader of its own; None where it takes that of all arms, or has none.
    """

    kind: type[Technique]
    reader: str | None = None
    asks_rewriter: ClassVar[bool] = False

    @property
    def searches(self) -> bool:
        """Whether a retriever is opened for it."""
        return False

    @property
    def needs_options(self) -> bool:
        """Whether every question must have options."""
        return self.kind.NEEDS_OPTIONS or self.reader == "multiple_choice"

    def program(self, name: str, given: Opened) -> RAG:
        """The program.

        Args:
            name: Of the arm.
            given: What is open.
        """
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class NamedArm(Arm):
    """A technique as it was named.

    Args:
        engine: What it searches with.
        knobs: Values of its knobs.
        rewriter: Folder of its rewriter, or None.
    """

    engine: str = "dense"
    knobs: Mapping[str, Any] = field(default_factory=dict)
    rewriter: Path | None = None

    @property
    def searches(self) -> bool:
        """Whether it searches a collection."""
        return self.kind.SEARCHES != "0"

    def program(self, name: str, given: Opened) -> RAG:
        """The technique with the reader of all arms."""
        return make_program(
            self.kind.NAME,
            given.retrievers[self.engine] if self.searches else None,
            reader=given.reader,
            reranker=given.reranker if self.kind.USES_RERANKER else None,
            rewriter=given.rewriter(self.rewriter),
            **self.knobs,
        )


@dataclass(frozen=True, slots=True)
class SavedArm(Arm):
    """An artifact.

    Args:
        path: Its folder.
        manifest: Its manifest.
        instead: Folder of a rewriter that is asked in place of its own.
    """

    path: Path = Path()
    manifest: ArtifactManifest = None  # type: ignore[assignment]
    instead: Path | None = None

    @classmethod
    def read(cls, path: Path, instead: Path | None) -> SavedArm:
        """The artifact of that folder."""
        found = read_artifact(path).manifest
        return cls(technique_class(found.technique), found.reader, path, found, instead)

    def program(self, name: str, given: Opened) -> RAG:
        """What was saved; its own rewriter and reranker where none is given."""
        own = self.manifest
        opened = next((one for one in given.retrievers.values() if one.fingerprint == own.fingerprint), None)
        asked = None if own.rewriter is None else self.instead or find_rewriter(own.rewriter, given.workspace.home)
        if own.lm != given.workspace.lm.model:
            given.notes.append(f"{name} was compiled for the LM {own.lm}")
        return load(
            self.path,
            home=given.workspace.home,
            lm=given.workspace.lm,
            retriever=opened,
            reranker=given.reranker if self.kind.USES_RERANKER else None,
            rewriter=given.rewriter(asked),
        ).program


@dataclass(frozen=True, slots=True)
class GivenArm(Arm):
    """A program that is there already.

    Args:
        given: A technique, or one with its reader.
    """

    given: Technique | RAG = None  # type: ignore[assignment]

    def program(self, name: str, given: Opened) -> RAG:
        """The program; a technique without a reader has that of all arms."""
        if isinstance(self.given, RAG):
            return self.given
        return RAG(self.given, None if given.reader is None else make_reader(given.reader))


def named_arms(
    arms: Iterable[Any] | Mapping[str, Any], engine: str, knobs: Mapping[str, Any], rewriter: Path | None
) -> dict[str, Arm]:
    """The arms by name.

    Args:
        arms: What is compared, see the head of this module.
        engine: What techniques search with that name none.
        knobs: Values for every technique that has the knob.
        rewriter: Folder of a rewriter, for techniques that write.

    Raises:
        InputError: One of them is nothing that can be compared.
    """
    if isinstance(arms, str | os.PathLike | dspy.Module | LoadedProgram):
        arms = [arms]
    if isinstance(arms, Mapping):
        return {str(name): _arm(one, engine, knobs, rewriter) for name, one in arms.items()}
    found: dict[str, Arm] = {}
    for one in arms:
        arm = _arm(one, engine, knobs, rewriter)
        if isinstance(one, str) and isinstance(arm, NamedArm):
            name = one
        else:
            whole = str(arm.path) if isinstance(arm, SavedArm) else arm.kind.NAME
            name = Path(whole).name
            if name in found and isinstance(arm, SavedArm):
                name = whole
            number = 2
            while name in found and not isinstance(arm, SavedArm):
                name, number = f"{arm.kind.NAME} {number}", number + 1
        found[name] = arm
    return found


def _arm(one: Any, engine: str, knobs: Mapping[str, Any], rewriter: Path | None) -> Arm:
    if isinstance(one, LoadedProgram):
        one = one.program
    if isinstance(one, Technique):
        return GivenArm(type(one), None, one)
    if isinstance(one, RAG):
        return GivenArm(type(one.technique), None if one.reader is None else one.reader.NAME, one)
    if isinstance(one, os.PathLike) or (isinstance(one, str) and is_folder(one)):
        return SavedArm.read(Path(one), rewriter)
    if isinstance(one, str):
        return _technique_arm(one, engine, knobs, rewriter)
    raise InputError(
        "an arm is the name of a technique, the folder of an artifact, what load or make_program gives, or a technique "
        f"such as HCQR(retriever), but got {one!r:.80}"
    )


def is_folder(name: str) -> bool:
    """Whether an arm is the folder of an artifact, not a technique."""
    return os.sep in name.partition(":")[0] or (Path(name) / "manifest.json").is_file()


def _technique_arm(text: str, engine: str, knobs: Mapping[str, Any], rewriter: Path | None) -> NamedArm:
    """The arm that a text names; knobs of its own, and a rewriter, go before those of all arms."""
    head, _, own = text.partition(":")
    technique, at, named = head.partition("@")
    kind = technique_class(technique)
    engine = engine_for(technique, named if at else None) or engine
    values = knob_values(technique, knobs, strict=False)
    given = pairs([one for one in own.split(",") if one], f"the arm {text!r}:")
    if "rewriter" in given:
        folder = given.pop("rewriter")
        rewriter = None if folder == "none" else Path(folder)
        check_rewriter(technique, rewriter)
    elif not takes_rewriter(kind):
        rewriter = None
    check_rewriter(technique, rewriter)
    arm = NamedArm(kind, None, engine, {**values, **knob_values(technique, given)}, rewriter)
    if at and not arm.searches:
        raise InputError(f"{technique} does not search, so it has no engine; write {technique} for {text!r}")
    return arm
