"""What a study is about, settled once: a folder and a storage hold one study, and it stays what it is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from querywright.data.splits import data_hash
from querywright.errors import InputError, QuerywrightError
from querywright.optimize.artifacts.rewriters import ref_of
from querywright.optimize.study.building import late_trials_of
from querywright.optimize.study.objectives import objectives_of
from querywright.optimize.study.reading import read_spec, spec_differences
from querywright.optimize.study.resources import Bench
from querywright.optimize.study.spec import StudySpec
from querywright.optimize.study.storage import StudyStorage, storage_kind

SPEC_FILE = "study.yaml"
SPEC, DATA, TEST, OUTCOME = "spec", "data", "test", "outcome"
"""Attributes of the study in its storage."""

FINISH = "finish"
"""What is claimed to meet test."""

ELSEWHERE = "postgresql://"
"""The storage in the file of a study whose database is named on the command line, which is where a password goes."""

_LIBPQ = ("PGHOST", "PGHOSTADDR", "PGSERVICE")
"""Variables that tell PostgreSQL's library where its server is."""

TAKE_SECONDS = 120.0
"""How long a worker waits for the others to take their trials, or to settle what the study is about."""


def check_folder(spec: StudySpec, folder: Path) -> None:
    """See that a folder is this study's, or free.

    Raises:
        InputError: It holds something else.
    """
    file = folder / SPEC_FILE
    if file.is_file():
        before = read_spec(file)
        _same_study(before, spec, f"the folder {str(folder)!r}")
        if storage_kind(before.storage) != storage_kind(spec.storage):
            raise InputError(
                f"the study in the folder {str(folder)!r} is kept in the storage {storage_kind(before.storage)}, not "
                f"in {storage_kind(spec.storage)}, where it would begin anew; give the same with --storage, or another "
                "--out"
            )
    elif folder.exists() and (not folder.is_dir() or not all(map(_is_ours, list(folder.iterdir())))):
        raise InputError(f"{str(folder)!r} is there and holds no study; give another --out")


def _is_ours(path: Path) -> bool:
    """Whether a file is what another run writes, or ended over, before the study's file is there."""
    return path.name.startswith((f".{SPEC_FILE}.", "journal.", "study.sqlite", "spend.sqlite", "claims"))


def spec_in(folder: Path) -> StudySpec:
    """The study that a folder holds.

    Raises:
        InputError: It holds none.
    """
    if not (folder / SPEC_FILE).is_file():
        raise InputError(f"the folder {str(folder)!r} holds no study; name one that `querywright study run` made")
    return read_spec(folder / SPEC_FILE)


def storage_of(spec: StudySpec, storage: str | None) -> str:
    """The storage of a study.

    Raises:
        InputError: Its address was given on the command line, and is not there.
    """
    if storage is None and spec.storage == ELSEWHERE and not any(name in os.environ for name in _LIBPQ):
        raise InputError(
            "this study is in a PostgreSQL database, whose address is not kept in its folder; give it with --storage"
        )
    return storage or spec.storage


def as_kept(spec: StudySpec, where: str) -> StudySpec:
    """The study as its folder keeps it: with the kind of its storage, and no address but the one in its own file."""
    if storage_kind(where) == storage_kind(spec.storage):
        return spec
    return spec.model_copy(update={"storage": ELSEWHERE if storage_kind(where) == "postgresql" else where})


def settle_spec(store: StudyStorage, spec: StudySpec) -> None:
    """Note what a storage's study is about, or see that it is this one.

    Raises:
        InputError: It is another.
    """
    study = store.study([one.direction for one in objectives_of(spec.objectives)])
    with store.claims.wait("spec", TAKE_SECONDS):
        known = store.attribute(SPEC)
        if known is not None:
            before = read_spec(known)
            _same_study(before, spec, "the storage")
            if before.trials != spec.trials:
                _see_test(store)
                _see_late(study, before)
        store.set_attribute(SPEC, {**spec.to_json(), "storage": "journal"})


def _see_test(store: StudyStorage) -> None:
    """Refuse more trials for a study that meets its test questions, or has met them.

    Raises:
        InputError: It does, or has.
    """
    claim = store.claims.take(FINISH)
    if claim is not None:
        claim.release()
    if claim is None or store.attribute(TEST) is not None:
        raise InputError(
            "this study has met its test questions, which is done once; for more trials give another name and "
            "another --out: what was answered is kept and costs nothing again"
        )


def _see_late(study: Any, spec: StudySpec) -> None:
    """Refuse more trials once techniques were chosen for the late ones.

    Raises:
        InputError: They were.
    """
    late = late_trials_of(spec)
    if late and len(study.get_trials(deepcopy=False)) > spec.trials - late:
        raise InputError(
            f"the late trials of this study have begun, for techniques that survived {spec.trials - late} trials; for "
            "more trials give another name and another --out: what was answered is kept and costs nothing again"
        )


def settle_data(store: StudyStorage, bench: Bench) -> None:
    """Note what questions and collections a study is about, or see that they are the same.

    Raises:
        InputError: They changed since it was begun.
    """
    now = {name: data_hash(part) for name, part in bench.splits._asdict().items()}
    now |= {"reader_check": data_hash(bench.reader_check)} if bench.reader_check else {}
    now |= {f"the collection, by {engine}": bench.retriever(engine).fingerprint for engine in bench.space.engines}
    now |= {} if bench.rewriter is None else {"the rewriter": str(ref_of(bench.rewriter))}
    with store.claims.wait("data", TAKE_SECONDS):
        before = store.attribute(DATA)
        if before is None:
            store.set_attribute(DATA, now)
            return
    changed = [name for name in now if before.get(name) != now[name]]
    if changed:
        raise InputError(
            f"{', '.join(changed)} changed since this study was begun, so its trials cannot be compared with new ones; "
            "undo that, or give another name and another --out: what was answered is kept"
        )


def see_trials(store: StudyStorage, spec: StudySpec) -> None:
    """End this run when another was given more trials: who is late and what is tested follows from their number.

    Raises:
        QuerywrightError: Another was.
    """
    trials = store.attribute(SPEC, {}).get("trials", spec.trials)
    if trials != spec.trials:
        raise QuerywrightError(
            f"another run gave this study {trials} trials, and goes on with them; this one knew of {spec.trials}"
        )


def _same_study(before: StudySpec, now: StudySpec, where: str) -> None:
    differences = spec_differences(before, now)
    if differences:
        raise InputError(
            f"{where} holds a study of the name {before.name!r} that differs: {'; '.join(differences)}. "
            "Undo that, or give another name and another --out"
        )
