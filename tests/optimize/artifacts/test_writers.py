"""LMs that write: named by artifacts; rewriters kept in the working folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from querywright.errors import ArtifactError, ModelError, TechniqueError
from querywright.models.budget import Budget
from querywright.models.embedder import resolve_embedder
from querywright.models.lm import resolve_lm
from querywright.models.store import open_store
from querywright.optimize.artifacts.card import card
from querywright.optimize.artifacts.files import read_artifact
from querywright.optimize.artifacts.load import load
from querywright.optimize.artifacts.save import save_program
from querywright.optimize.artifacts.verify import verify
from querywright.optimize.artifacts.writers import WriterRef, find_rewriter, keep_rewriter, ref_of
from querywright.programs import make_program
from querywright.retrieval.engines import open_retriever


@pytest.fixture
def trained(tmp_path: Path, small_rewriter: Callable[..., Any]) -> Any:
    return small_rewriter(tmp_path / "trained" / "mine")


@pytest.fixture
def rewritten(saved: tuple[Path, Path], tmp_path: Path, trained: Any, make_lm: Any) -> tuple[Path, Path]:
    """A working folder of its own, and an artifact that was compiled with a rewriter, without golden questions."""
    home = Path(shutil.copytree(saved[0], tmp_path / "home"))
    retriever = open_retriever("cards", engine="bm25", embedder=resolve_embedder("words"), home=home)
    program = make_program("hcqr", retriever, writer_lm=resolve_lm(str(trained.path)), max_passages=2)
    save_program(tmp_path / "own", program, lm=make_lm(), asked=[], threads=1, made={}, card="# own\n")
    yield home, tmp_path / "own"
    open_store(home).close()


def test_a_rewriter_that_is_kept_is_found_by_its_checksum_and_damage_is_put_right(trained: Any, tmp_path: Path) -> None:
    home = tmp_path / "home"
    kept = keep_rewriter(trained.path, home)
    ref = ref_of(resolve_lm(str(trained.path)))
    assert ref == WriterRef(name="mine", checksum=trained.checksum)
    assert find_rewriter(ref, home) == kept
    assert {one.name: one.read_bytes() for one in kept.iterdir()} == {
        one.name: one.read_bytes() for one in trained.path.iterdir()
    }
    assert resolve_lm(str(kept)).engine.identity == resolve_lm(str(trained.path)).engine.identity, (
        "answers are the same"
    )
    assert [path.name for path in (home / "rewriters").iterdir()] == [trained.checksum], "nothing else is left"
    (kept / "card.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"card\.json in the rewriter 'mine' was changed"):
        find_rewriter(ref, home)
    keep_rewriter(trained.path, home)
    assert find_rewriter(ref, home) == kept


def test_one_that_is_replaced_while_it_is_in_use_is_not_taken_for_the_first(
    trained: Any, small_rewriter: Callable[..., Any]
) -> None:
    lm = resolve_lm(str(trained.path))
    other = small_rewriter(trained.path, seed=1)
    assert ref_of(lm).checksum == trained.checksum != other.checksum == ref_of(resolve_lm(str(trained.path))).checksum


def test_an_artifact_names_its_rewriter_and_finds_it_in_the_working_folder(
    rewritten: tuple[Path, Path], trained: Any, make_lm: Any, small_rewriter: Callable[..., Any], tmp_path: Path
) -> None:
    home, artifact = rewritten

    def states(**given: Any) -> dict[str, str]:
        return {one.name: one.state for one in verify(artifact, lm=make_lm(), home=home, **given)}

    named = json.loads((artifact / "manifest.json").read_text())["writer"]
    assert named == {"name": "mine", "checksum": trained.checksum}
    assert card(artifact)["writer"] == f"mine@{trained.checksum[:12]}"
    assert not [path for path in artifact.iterdir() if str(tmp_path) in path.read_text()]
    with pytest.raises(
        ArtifactError, match=r"compiled with the rewriter mine@.* is not in this workspace; pass .*writer_lm="
    ):
        load(artifact, lm=make_lm(), home=home)
    with pytest.raises(ModelError, match=r"must be a dspy\.LM or a name such as .* but got 7"):
        load(artifact, lm=make_lm(), home=home, writer_lm=7)  # type: ignore[arg-type]
    assert states()["writer"] == "not possible"
    keep_rewriter(trained.path, home)
    shutil.rmtree(trained.path)
    loaded = load(artifact, lm=make_lm(), home=home)
    assert loaded.program.technique.writer_lm.model == trained.identity
    assert loaded.program.technique.writer_lm.engine.store is open_store(home)
    assert states()["writer"] == "ok"
    other = small_rewriter(tmp_path / "other", seed=1)
    loaded = load(artifact, lm=make_lm(), home=home, writer_lm=other.path)
    assert loaded.program.technique.writer_lm.model == other.identity
    assert states(writer_lm=other.path)["writer"] == "warning"


def test_any_lm_writes_for_an_artifact_by_name_and_is_counted_and_limited_with_the_one_that_reads(
    saved: tuple[Path, Path], make_lm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, artifact = saved
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-a-test-1234567890")
    reads, other = make_lm(budget=Budget(None, "both", calls=9)), resolve_lm("openai/small")
    loaded = load(artifact, lm=reads, writer_lm=other, home=home)
    writes = loaded.program.technique.writer_lm.engine
    assert (writes.inner, writes.ledger, writes.budget) == (
        other.engine.inner,
        reads.engine.ledger,
        reads.engine.budget,
    )
    assert load(artifact, lm=reads, writer_lm=reads.copy(), home=home).program.technique.writer_lm is None
    searched = loaded.program.technique.retriever
    program = make_program("hcqr", searched, writer_lm=other, max_passages=2)
    save_program(tmp_path / "named", program, lm=reads, asked=[], threads=1, made={}, card="# named\n")
    assert read_artifact(tmp_path / "named").manifest.writer == WriterRef(name="openai/small", checksum="")
    with pytest.raises(ArtifactError, match=r"writer_lm='openai/small' \(--writer-lm openai/small\)"):
        load(tmp_path / "named", lm=reads, home=home)
    monkeypatch.setenv("QUERYWRIGHT_ALLOW_LM", "openai/*")
    assert load(tmp_path / "named", lm=reads, home=home).program.technique.writer_lm.model == "openai/small"
    same = make_lm()
    same.model = "openai/small"
    assert load(tmp_path / "named", lm=same, home=home).program.technique.writer_lm is None, "it reads as well"
    plain = make_program("plain", searched, max_passages=2)
    save_program(tmp_path / "plain", plain, lm=reads, asked=[], threads=1, made={}, card="# plain\n")
    with pytest.raises(TechniqueError, match="plain calls no LM before the reader"):
        load(tmp_path / "plain", lm=reads, writer_lm=other, home=home)
