"""The syntax of arms (the programs that a comparison runs), and checks of the names in an arm.

An arm is the name of a technique, ``NAME[@ENGINE][:KNOB=VALUE,...]`` (a knob may be ``writer=LM``, or ``writer=none``
for the reader's LM), an artifact folder, a loaded program, a technique, a technique with its reader, or a custom
program: a ``dspy.Module`` or a function that returns passages or an answer. NAME may also be the location of a
technique class or a custom program in the user's code, ``module:NAME`` or ``path/file.py:NAME``. Code is imported only
from locations that the user names in a call, on the command line, or in a study file, never from a location that an
artifact names.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import dspy

from querywright.errors import InputError, unknown
from querywright.optimize.artifacts.files import Artifact, read_artifact
from querywright.optimize.program_state import technique_of
from querywright.programs import (
    RAG,
    READERS,
    TECHNIQUES,
    CustomProgram,
    Technique,
    check_takes_writer,
    register_technique,
    technique_class,
    technique_from,
)
from querywright.programs.base import MAX_PASSAGES
from querywright.programs.hyperparameters import Knobs
from querywright.retrieval.engines import check_engine, opened
from querywright.retrieval.rerank import Reranker
from querywright.technique_names import code_at, name_at, names_code, split_code, technique_named

Arms: TypeAlias = "Iterable[Any] | Mapping[str, Any]"
"""Arms as the user passes them: a sequence of arms, or a mapping from names to arms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmDefaults:
    """Defaults for arms.

    Args:
        retriever: The retriever for named techniques: a collection's name, a Chroma collection or its address, or any
            retriever.
        where: A Chroma filter on a collection's metadata. Default: every passage.
        embedder: The embedder for a named collection, or its name. Default ``embedded``.
        engine: The engine for named techniques. Default ``dense``.
        max_passages: Maximum number of passages shown to the reader. Default None: each technique's default.
        knobs: Knob values, for the techniques that have these knobs.
        reader: The reader, by name. Default ``auto``.
        writer_lm: The LM that techniques and artifacts call before the reader. Default None: the reader's LM.
        reranker: A cross-encoder, or its name or path, for techniques that rerank.
    """

    retriever: Any = None
    where: Mapping[str, Any] | None = None
    embedder: Any = "embedded"
    engine: str = "dense"
    max_passages: int | None = None
    knobs: Mapping[str, Any] = field(default_factory=dict)
    reader: str | None = "auto"
    writer_lm: Any = None
    reranker: Reranker | str | None = None

    @property
    def values(self) -> dict[str, Any]:
        """The values of all knobs, including the number of passages."""
        budget = {} if self.max_passages is None else {MAX_PASSAGES.name: self.max_passages}
        return {**budget, **self.knobs}

    @property
    def reads(self) -> bool:
        """Whether readers may run."""
        return self.reader not in (None, "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A program that can be opened: a technique by name, an artifact, or a program in memory.

    Args:
        technique: The class of the arm's technique.
        text: The string that the user passed; for an artifact, its folder as a normalized path. None for a program in
            memory.
        engine: The engine of a named technique, or of a program in memory.
        knobs: The knobs of a named technique.
        writer: The LM that a named technique or an artifact calls before the reader, if it differs from the reader's
            LM.
        reader: The name of the program's reader; None if the program has no reader, or uses the reader that all arms
            share.
        artifact: The content of the artifact.
        program: The program in memory: a technique, or a technique with its reader.
    """

    technique: type[Technique]
    text: str | None = None
    engine: str = "dense"
    knobs: Mapping[str, Any] = field(default_factory=dict)
    writer: Any = None
    reader: str | None = None
    artifact: Artifact | None = None
    program: Technique | RAG | None = None

    @classmethod
    def of(cls, given: Any, defaults: ArmDefaults) -> Arm:
        """Return the arm for a name, a folder, or a program.

        Raises:
            InputError: The value is none of these, or contains an unknown name.
            ArtifactError: The artifact is missing, damaged, or edited.
        """
        if not isinstance(given, (str, os.PathLike, dspy.Module)):
            given = getattr(given, "program", given)  # a loaded artifact or a compilation
        if isinstance(given, Technique | RAG):
            own = given.technique if isinstance(given, RAG) else given
            reader = given.reader.NAME if isinstance(given, RAG) and given.reader is not None else None
            engine = opened(own.retriever)["engine"] or defaults.engine
            return cls(technique=type(own), reader=reader, engine=engine, program=given)
        if isinstance(given, str) and names_code(given):
            return cls._of_code(given, defaults)
        if isinstance(given, os.PathLike) or (isinstance(given, str) and is_folder(given)):
            artifact = read_artifact(Path(given))
            technique, reader = technique_of(artifact.manifest.technique), artifact.manifest.reader
            writer = defaults.writer_lm if technique.LM_STAGES else None
            return cls(
                technique=technique, text=spelled(os.fspath(given)), writer=writer, reader=reader, artifact=artifact
            )
        if isinstance(given, str):
            return cls.parse(given, defaults)
        if not callable(given):
            raise InputError(
                f"not a valid arm: {given!r:.80}; pass a technique name or instance, an artifact folder, the return "
                "value of load, make_program, or compile, or any dspy.Module or function that returns passages or an "
                "answer"
            )
        technique = technique_from(given)
        if not issubclass(technique, CustomProgram):
            return cls.parse(register_technique(technique), defaults)
        return cls(technique=technique, engine=defaults.engine, program=technique(**_budget(defaults)))

    @classmethod
    def _of_code(cls, text: str, defaults: ArmDefaults) -> Arm:
        """Return the arm for a technique class or a program in the user's code."""
        code, rest = split_code(text)
        found = code_at(code)
        if isinstance(found, type) and issubclass(found, Technique):
            return replace(cls.parse(register_technique(found) + rest, defaults), text=text)
        if rest:
            raise InputError(f"only a technique accepts an engine and knobs, but {code} is a program; use {code}")
        if isinstance(found, Technique | RAG):
            return replace(cls.of(found, defaults), text=text)
        technique = technique_from(found, name_at(code))
        register_technique(technique)  # a later arm may be an artifact of this technique
        return cls(technique=technique, text=text, engine=defaults.engine, program=technique(**_budget(defaults)))

    @classmethod
    def parse(cls, text: str, defaults: ArmDefaults) -> Arm:
        """Return the arm for ``NAME[@ENGINE][:KNOB=VALUE,...]``; the values in it take precedence over the defaults.

        Raises:
            InputError: A name in it is unknown, or does not apply to the technique.
        """
        head, _, own = text.partition(":")
        name, at, engine = head.partition("@")
        technique = technique_class(name)
        engine = engine_for(name, engine if at else None) or defaults.engine
        values = pairs([one for one in own.split(",") if one], f"the arm {text!r}")
        writer = defaults.writer_lm
        if "writer" in values:
            named = values.pop("writer")
            if named != getattr(writer, "model", None):
                writer = None if named == "none" else named
            check_takes_writer(technique, writer)
        elif not technique.LM_STAGES:
            writer = None
        knobs = {**knob_values(name, defaults.values, strict=False), **knob_values(name, values)}
        if at and technique.SEARCHES == "0":
            raise InputError(
                f"{name} does not search, so the arm cannot have an engine; use {name} instead of {text!r}"
            )
        return cls(technique=technique, text=text, engine=engine, knobs=knobs, writer=writer)

    @property
    def is_named(self) -> bool:
        """Whether the arm is a technique given by name."""
        return self.artifact is None and self.program is None

    @property
    def searches(self) -> bool:
        """Whether the arm needs an open retriever."""
        return self.is_named and self.technique.SEARCHES != "0"

    @property
    def needs_options(self) -> bool:
        """Whether every question must have options."""
        return self.technique.NEEDS_OPTIONS or self.reader == "multiple_choice"


def named_arms(arms: Arms, defaults: ArmDefaults, *, earlier: Mapping[str, str] | None = None) -> dict[str, Arm]:
    """Return arms, keyed by name: the string that the user passed, an artifact folder's name, or a program's class.

    The name of a program that searches with an engine other than the default contains the engine. Programs of the same
    class are distinguished by the knobs that differ from their defaults, or else by a number.

    Args:
        arms: The arms as the user passed them.
        defaults: The defaults of arms.
        earlier: The texts of saved arms by name. They come first, and an arm with the same text is not added again.

    Raises:
        InputError: An arm cannot be used, or two arms have the same name.
    """
    earlier = earlier or {}
    arms = arms if isinstance(arms, Mapping) else _listed(arms)
    given = [*arms.values()] if isinstance(arms, Mapping) else arms
    if strange := [text for text in earlier.values() if names_code(text) and text not in given]:
        raise InputError(
            f"the comparison in this folder includes your program {strange[0]!r}, but the arms do not; add the program "
            "to the arms, or choose a different folder"
        )
    found = {name: Arm.of(text, defaults) for name, text in earlier.items()}
    if isinstance(arms, Mapping):
        return {**found, **{str(name): Arm.of(one, defaults) for name, one in arms.items()}}
    new = [arm for arm in (Arm.of(one, defaults) for one in arms) if arm.text not in earlier.values() or not arm.text]
    classes = Counter(arm.technique for arm in new if arm.text is None)
    for arm in new:
        base = _class_name(arm.technique) + f"@{arm.engine}" * (arm.engine != defaults.engine)
        name = arm.text or base
        if arm.artifact is not None and os.path.basename(name) not in found:
            name = os.path.basename(name)
        if arm.text is None and (classes[arm.technique] > 1 or name in found):
            name, number = _with_knobs(arm, name), 2
            while name in found:
                name, number = f"{_with_knobs(arm, base)} ({number})", number + 1
        if name in found or (arm.text is not None and any(arm.text == other.text for other in found.values())):
            raise InputError(
                f"the arm {name!r} was passed twice; remove one, or pass a dict that gives each arm a unique name"
            )
        found[name] = arm
    return found


def _listed(arms: Any) -> list[Any]:
    """Return one or more arms as a list."""
    if isinstance(arms, str | os.PathLike | dspy.Module) or hasattr(arms, "program"):
        return [arms]
    return list(arms) if isinstance(arms, Iterable) or not callable(arms) else [arms]


def _class_name(technique: type[Technique]) -> str:
    """Return a technique's name; for a subclass that inherits ``NAME``, return the name of the class."""
    is_own = "NAME" in vars(technique) or TECHNIQUES.get(technique.NAME) is technique
    return technique.NAME if is_own else technique.__name__


def _with_knobs(arm: Arm, name: str) -> str:
    """Return the name for a program in memory, including the knobs that differ from their defaults."""
    technique = arm.program.technique if isinstance(arm.program, RAG) else arm.program
    values = {} if technique is None else dict(technique.knobs)
    own = [f"{knob.name}={values[knob.name]}" for knob in arm.technique.KNOBS
           if values.get(knob.name, knob.default) != knob.default]  # fmt: skip
    return name + (f":{','.join(own)}" if own else "")


def _budget(defaults: ArmDefaults) -> dict[str, Any]:
    """Return the maximum number of passages shown to the reader as a keyword argument; empty if it is not set."""
    return {name: value for name, value in defaults.values.items() if name == MAX_PASSAGES.name}


def is_folder(name: str) -> bool:
    """Return whether an arm is an artifact folder and not a technique."""
    if names_code(name) or name.endswith(".py"):
        return False
    return os.sep in name.partition(":")[0] or os.path.isfile(os.path.join(name, "manifest.json"))


def spelled(name: str) -> str:
    """Return an arm unchanged or, if it is an artifact folder, as a normalized path."""
    return os.path.normpath(name) if is_folder(name) else name


def check_arm(name: str) -> None:
    """Raise an error if an arm's technique, engine, or knob is unknown. Folders and programs are opened later."""
    if not names_code(name) and not is_folder(name):
        Arm.parse(name, ArmDefaults())


def check_defaults(arms: Mapping[str, Arm], defaults: ArmDefaults) -> None:
    """Raise an error if no arm uses a given knob, writer, or reranker, or if an arm searches without a retriever."""
    named = [arm.technique for arm in arms.values() if arm.is_named]
    known = {technique.NAME: [knob.name for knob in technique.KNOBS] for technique in named}
    for key in defaults.knobs:
        if not any(key in own for own in known.values()):
            said = "; ".join(f"{name}: {', '.join(own) or 'none'}" for name, own in known.items())
            raise InputError(
                f"none of these techniques has the knob {key!r}; available knobs: "
                f"{said or 'none (artifacts have fixed knobs)'}"
            )
    if defaults.writer_lm is not None and not any(arm.writer == defaults.writer_lm for arm in arms.values()):
        raise InputError(
            "no technique here calls an LM before the reader, so writer_lm= would have no effect; omit writer_lm=, or "
            "add a technique that rewrites, such as rrr"
        )
    if defaults.reranker is not None and not any(arm.technique.USES_RERANKER for arm in arms.values()):
        raise InputError("none of these techniques uses a reranker; omit reranker=, or add the technique rerank")
    searching = [name for name, arm in arms.items() if arm.searches]
    if searching and defaults.retriever is None:
        raise InputError(f"{searching[0]} needs a retriever; pass retriever=...")


def engine_for(technique: str, named: str | None) -> str | None:
    """Return the engine for a technique: the technique's own engine, else the named engine, else None."""
    own = technique_named(technique).ENGINE
    named = None if named is None else check_engine(named)
    if own is not None and named not in (None, own):
        raise InputError(f"the engine of {technique} must be {own!r}, but got {named!r}; omit the engine")
    return own or named


def pairs(values: Iterable[str], option: str) -> dict[str, str]:
    """Return ``NAME=VALUE`` strings as a mapping. ``option`` is the option's name for error messages."""
    found: dict[str, str] = {}
    for value in values:
        name, separator, rest = value.partition("=")
        name = name.strip()
        if not separator or not name or not rest.strip():
            raise InputError(f"{option}: expected NAME=VALUE, but got {value!r}")
        if name in found:
            raise InputError(f"{option}: {name!r} has two values, {found[name]!r} and {rest.strip()!r}; remove one")
        found[name] = rest.strip()
    return found


def knob_values(technique: str, given: Mapping[str, Any], *, strict: bool = True) -> dict[str, Any]:
    """Return knob values converted to the technique's types. Unless ``strict`` is true, omit unknown knobs."""
    knobs = Knobs(technique_named(technique).KNOBS)
    return {
        name: knobs.knob(name).parse(value) if isinstance(value, str) else value
        for name, value in given.items()
        if strict or name in knobs
    }


def split_knobs(technique: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fixed knobs, and the searched knobs with their values in the form of a study file.

    Args:
        technique: The technique that has the knobs.
        given: A value, a list of values, or a range ``(low, high)`` for each knob; or a string such as ``5``,
            ``3,5,10`` or ``1..10``.
    """
    knobs = Knobs(technique_class(technique).KNOBS)
    fixed: dict[str, Any] = {}
    searched: dict[str, Any] = {}
    for name, value in given.items():
        several: Any = knob_space(value)
        if isinstance(value, str) and "," in value:
            several = [knobs.knob(name).parse(one) for one in value.split(",")]
        elif isinstance(value, str) and ".." in value:
            low, _, high = value.partition("..")
            several = {"low": knobs.knob(name).parse(low), "high": knobs.knob(name).parse(high)}
        (searched if isinstance(several, list | Mapping) else fixed)[name] = several
    return fixed, searched


def knob_space(value: Any) -> Any:
    """Return a knob's values in the form of a study file, where a range is a mapping."""
    if isinstance(value, tuple) and len(value) == 2:
        return {"low": value[0], "high": value[1]}
    return [*value] if isinstance(value, tuple | range) else value


def check_knob(text: str) -> None:
    """Raise an error if no technique has the knob named in ``NAME=VALUE``."""
    known = dict.fromkeys(knob.name for one in TECHNIQUES.values() for knob in one.KNOBS)
    for name in pairs([text], "--knob"):
        if name not in known:
            raise InputError(unknown("knob", name, known))


def check_reader(reader: str | None) -> None:
    """Raise an error if there is no reader with this name."""
    known = [*READERS, "none"]
    if reader is not None and reader not in known:
        raise InputError(unknown("reader", reader, known))
