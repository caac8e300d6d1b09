"""Rewriters in the working folder and in packed artifacts."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from querywright.errors import ArtifactError, InputError
from querywright.models import rewriters as stored
from querywright.models.embedder import resolve_embedder
from querywright.models.store import open_store
from querywright.optimize.artifacts.files import read_artifact
from querywright.optimize.artifacts.load import load
from querywright.optimize.artifacts.pack import pack, unpack
from querywright.optimize.artifacts.rewriters import (
    RewriterRef,
    find_rewriter,
    keep_rewriter,
    open_rewriter,
    ref_of,
    rewriter_files,
)
from querywright.optimize.artifacts.save import save_program
from querywright.optimize.artifacts.verify import verify
from querywright.programs import make_program
from querywright.retrieval.engines import open_retriever


@pytest.fixture
def trained(tmp_path: Path, small_rewriter: Callable[..., Any]) -> Any:
    return small_rewriter(tmp_path / "trained" / "mine")


@pytest.fixture
def rewritten(saved: tuple[Path, Path], tmp_path: Path, trained: Any, world: Any, make_lm: Any) -> tuple[Path, Path]:
    """A working folder of its own, and an artifact that was compiled with a rewriter; its golden questions are none."""
    home = Path(shutil.copytree(saved[0], tmp_path / "home"))
    retriever = open_retriever("cards", engine="bm25", embedder=resolve_embedder("words"), home=home)
    program = make_program("hcqr", retriever, rewriter=open_rewriter(trained.path), max_passages=2)
    save_program(tmp_path / "own", program, lm=make_lm(), asked=[], threads=1, made={}, card="# own\n")
    yield home, tmp_path / "own"
    open_store(home).close()


def test_a_rewriter_that_is_kept_is_found_by_its_checksum(trained: Any, tmp_path: Path) -> None:
    home = tmp_path / "home"
    kept = keep_rewriter(trained.path, home)
    ref = ref_of(open_rewriter(trained.path))
    assert ref == RewriterRef(name="mine", checksum=trained.checksum)
    assert find_rewriter(ref, home) == kept
    assert rewriter_files(stored.read_rewriter(kept)) == rewriter_files(trained)
    assert open_rewriter(kept).engine.identity == open_rewriter(trained.path).engine.identity, "answers are the same"
    inode = (kept / "rewriter.json").stat().st_ino
    assert keep_rewriter(trained.path, home) == kept
    assert (kept / "rewriter.json").stat().st_ino == inode
    assert [path.name for path in (home / "rewriters").iterdir()] == [trained.checksum], "nothing else is left"


def test_a_copy_that_was_damaged_is_refused_and_put_right(trained: Any, tmp_path: Path) -> None:
    kept = keep_rewriter(trained.path, tmp_path)
    ref = ref_of(open_rewriter(trained.path))
    (kept / "card.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"card\.json of the rewriter 'mine' was changed"):
        find_rewriter(ref, tmp_path)
    keep_rewriter(trained.path, tmp_path)
    assert find_rewriter(ref, tmp_path) == kept


def test_one_that_is_replaced_while_it_is_in_use_is_not_taken_for_the_first(
    trained: Any, small_rewriter: Callable[..., Any]
) -> None:
    lm = open_rewriter(trained.path)
    small_rewriter(trained.path, seed=1)
    with pytest.raises(ArtifactError, match=r"was replaced by rewriter:mine@.* since it was opened"):
        ref_of(lm)


def test_an_artifact_finds_its_rewriter_in_the_working_folder(
    rewritten: tuple[Path, Path], trained: Any, make_lm: Any, small_rewriter: Callable[..., Any], tmp_path: Path
) -> None:
    home, artifact = rewritten
    with pytest.raises(ArtifactError, match="which the working folder does not have"):
        load(artifact, lm=make_lm(), home=home)
    keep_rewriter(trained.path, home)
    shutil.rmtree(trained.path)
    loaded = load(artifact, lm=make_lm(), home=home)
    assert loaded.program.technique.own_lm.model == trained.identity
    assert loaded.program.technique.own_lm.engine.store is open_store(home)
    states = {one.name: one.state for one in verify(artifact, lm=make_lm(), home=home)}
    assert states["rewriter"] == "ok"
    other = small_rewriter(tmp_path / "other", seed=1)
    loaded = load(artifact, lm=make_lm(), home=home, rewriter=other.path)
    assert loaded.program.technique.own_lm.model == other.identity


def test_a_packed_artifact_brings_its_rewriter_along(
    rewritten: tuple[Path, Path], saved: tuple[Path, Path], trained: Any, make_lm: Any, tmp_path: Path
) -> None:
    home, artifact = rewritten
    first = pack(artifact, tmp_path / "own.qw", home=home, rewriter=trained.path)
    keep_rewriter(trained.path, home)
    pack(artifact, tmp_path / "again.qw", home=home)
    assert first.rewriter == str(read_artifact(artifact).manifest.rewriter)
    assert (tmp_path / "own.qw").read_bytes() == (tmp_path / "again.qw").read_bytes()
    report = unpack(tmp_path / "own.qw", tmp_path / "there", home=tmp_path / "elsewhere")
    assert report.rewriter == first.rewriter
    loaded = load(tmp_path / "there", lm=make_lm(), home=tmp_path / "elsewhere")
    assert loaded.program.technique.own_lm.model == trained.identity
    open_store(tmp_path / "elsewhere").close()
    with pytest.raises(InputError, match="names no rewriter; leave --rewriter out"):
        pack(saved[1], tmp_path / "plain.qw", home=saved[0], rewriter=tmp_path)


def test_another_rewriter_than_the_artifacts_is_not_packed(
    rewritten: tuple[Path, Path], small_rewriter: Callable[..., Any], tmp_path: Path
) -> None:
    other = small_rewriter(tmp_path / "other", seed=1)
    with pytest.raises(ArtifactError, match=r"is other@.*, but mine@.* was named"):
        pack(rewritten[1], tmp_path / "own.qw", home=rewritten[0], rewriter=other.path)
    assert not (tmp_path / "own.qw").exists()
