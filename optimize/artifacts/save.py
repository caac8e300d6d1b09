"""Save a program, or a compilation's recommended program, as an artifact with golden answers and a card."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from querywright.data.splits import Splits, data_hash
from querywright.data.types import Question
from querywright.errors import ArtifactError
from querywright.optimize.artifacts.files import ArtifactManifest, Golden, read_artifact, write_artifact
from querywright.optimize.evaluate import evaluate
from querywright.optimize.objectives import objective_named
from querywright.optimize.report import render
from querywright.optimize.results import CompileResult, CompileSettings, by_judges, today
from querywright.programs import RAG
from querywright.retrieval.edits import PASSAGES_SAMPLE, sample_passages
from querywright.retrieval.engines import opened

CARD_METRICS = ("accuracy", "decision_useful")
"""Metrics on a card in addition to the metrics in the objective."""
N_GOLDEN = 3
"""Number of golden questions in a compilation's artifact, taken from dev."""


_SHOWN = ("technique", "reader", "lm", "collection", "seed", "trials", "sizes")
"""Inputs whose values are shown in a message if they differ; the others are digests and lists."""

_OF_A_RUN = ("threads", "max_failures")
"""Settings that affect how persistently a compilation calls LMs, but not what it requests."""


def given_to(splits: Splits, settings: CompileSettings, retriever: Any, **more: Any) -> dict[str, Any]:
    """Return a compilation's inputs as plain data; equal inputs produce equal data.

    Args:
        splits: The compilation's questions.
        settings: The compilation's settings.
        retriever: The retriever.
        more: Further inputs by name.
    """
    searched = {**opened(retriever), "fingerprint": getattr(retriever, "fingerprint", None)}
    tried = {name: value for name, value in asdict(settings).items() if name not in _OF_A_RUN}
    if not settings.allow_copies:
        del tried["allow_copies"]  # programs compiled before this setting existed do not have it
    tried["objective"] = settings.objectives
    given = {**more, **tried, **searched, "questions": [*map(data_hash, splits)]}
    return cast("dict[str, Any]", json.loads(json.dumps(given, default=lambda one: getattr(one, "__name__", "?"))))


def check_same(path: str | Path, given: Mapping[str, Any]) -> None:
    """Raise if a folder has a program compiled from inputs other than these (see ``given_to``).

    A damaged artifact may be replaced, because compiling again repairs it.
    """
    try:
        before = read_artifact(path).manifest.made.get("given")
    except ArtifactError:
        return
    known = before if isinstance(before, dict) else {}
    other = [name for name, value in given.items() if name not in known or known[name] != value]
    told = [
        f"{name} was {known[name]}, but is now {given[name]}"
        if name in _SHOWN and name in known
        else name.replace("_", " ")
        for name in other
    ]
    if other:
        raise ArtifactError(
            f"the folder {os.fspath(path)!r} contains a program that was compiled with different inputs "
            f"({'; '.join(told) if known else 'the program does not list its inputs'}); use a different folder, or "
            "replace the program with replace=..."
        )


def save_compiled(
    path: str | Path, compiled: CompileResult, splits: Splits, *, lm: Any, threads: int,
    given: Mapping[str, Any] | None = None,
) -> ArtifactManifest:  # fmt: skip
    """Write a compilation's recommended program as an artifact.

    Args:
        path: Folder of the artifact.
        compiled: The compilation.
        splits: The questions of the compilation.
        lm: The LM that the program was compiled with.
        threads: Number of questions to run at a time for the golden answers.
        given: The compilation's inputs, from ``given_to``. Default: they are not saved.
    """
    made = {**compiled.to_json(), **({} if given is None else {"given": given})}
    made["notes"] = [*compiled.hints, *compiled.notes]  # the remarks describe a table that the artifact does not have
    made["data"] = {
        name: {"n": len(part), "sha256": data_hash(part)}
        for name, part in {**splits._asdict(), "reader_check": compiled.reader_check}.items()
        if part
    }
    created = today()
    text = card(Path(path).resolve().name, compiled, lm.model, created, made["data"])
    asked = splits.dev[:N_GOLDEN]
    return save_program(path, compiled.program, lm=lm, asked=asked, threads=threads, made=made, card=text)


def save_program(
    path: str | Path, program: RAG, *, lm: Any, asked: Sequence[Question], threads: int, made: Mapping[str, Any],
    card: str,
) -> ArtifactManifest:  # fmt: skip
    """Write a program as an artifact, with its current answers to some questions.

    Args:
        path: Folder of the artifact.
        program: The program.
        lm: The LM of the program.
        asked: Golden questions.
        threads: Number of questions to run at a time for their answers.
        made: How the program was made, as plain data.
        card: Text of its README.md.
    """
    answered = evaluate(program, asked, lm=lm, name="golden answers", threads=threads)
    golden = [
        Golden(**one.inputs, answer=row.answer, passages=list(row.passages), evidence=dict(one.evidence))
        for one, row in zip(asked, answered.rows, strict=True)
        if row.failure is None
    ]
    searched, reranker = program.technique.searched, program.technique.reranker
    if opened(searched)["collection"] is not None:
        made = {**made, PASSAGES_SAMPLE: sample_passages(searched.passages())}
    return write_artifact(
        path, program, lm=lm.model, **opened(searched), reranker=None if reranker is None else reranker.id,
        fingerprint=searched.fingerprint, created=today(), made=made, golden=golden, card=card,
    )  # fmt: skip


def copied_lines(copied: Mapping[str, Sequence[str]], *, allowed: bool) -> list[str]:
    """Return a line for the card about each set of prompts that copies training text."""
    what = "were tried" if allowed else "were excluded"
    return [
        f"The prompts {name} copy training text and {what}: {'; '.join(texts[:3])}." for name, texts in copied.items()
    ]


def card(name: str, compiled: CompileResult, lm: str, created: str, data: Mapping[str, Any]) -> str:
    """Return the README.md of an artifact."""
    sizes = ", ".join(f"{part.replace('_', ' ')} {of['n']}" for part, of in data.items())
    first = compiled.settings.objectives[0]
    arms = f"{len(compiled.arms)} arm{'s' * (len(compiled.arms) != 1)} by {first}{by_judges(compiled.judges)}"
    own = [metric for metric in objective_named(first).metrics if metric not in CARD_METRICS]
    reader = "chosen" if compiled.reader_demos else "none"
    return render(
        "program.md",
        name=name,
        program=compiled.program,
        made=f", compiled by querywright on {created} for the LM `{lm}`.",
        sentence=compiled.sentence,
        said=[
            f"Chosen on dev from {arms}: **{compiled.recommended}**.",
            f"Questions: {sizes}. Reader demonstrations: {reader}.",
            *(f"Labels: {one['standing']}." for one in compiled.judges),
            *copied_lines(compiled.copied, allowed=compiled.settings.allow_copies),
        ],
        tested=compiled.test,
        note=". All arms have the same reader unless their names say otherwise",
        metrics=[*own, *CARD_METRICS],
        sentences=[one.sentence for one in compiled.comparisons],
    )
