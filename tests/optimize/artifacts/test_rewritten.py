"""Artifacts whose technique asks a rewriter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from querywright.errors import ArtifactError, InputError
from querywright.optimize.artifacts.card import card
from querywright.optimize.artifacts.load import load
from querywright.optimize.artifacts.rewriters import RewriterRef, find_rewriter, ref_of
from querywright.optimize.artifacts.save import save_program
from querywright.optimize.artifacts.verify import verify
from querywright.programs import make_program

MARK = "rewriter:mine@0123456789ab"


def rewriter_of(make_lm: Any, model: str = MARK) -> Any:
    lm = make_lm()
    lm.model = model
    return lm


@pytest.fixture
def rewritten(tmp_path: Path, world: Any, make_lm: Any) -> tuple[Path, Any]:
    """An artifact whose technique asked a rewriter, and that rewriter."""
    rewriter = rewriter_of(make_lm)
    program = make_program("hcqr", world, reader="multiple_choice", rewriter=rewriter)
    save_program(
        tmp_path / "own", program, lm=make_lm(), asked=world.splits.dev[:2], threads=1, made={}, card="# own\n"
    )  # fmt: skip
    return tmp_path / "own", rewriter


def test_the_manifest_names_the_rewriter_and_nothing_more_of_it(rewritten: tuple[Path, Any]) -> None:
    folder, _ = rewritten
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["rewriter"] == {"name": "mine", "checksum": "0123456789ab"}
    assert not [path for path in folder.iterdir() if MARK in path.read_text()]
    assert card(folder)["rewriter"] == "mine@0123456789ab"


def test_a_rewriter_that_is_nowhere_is_named_with_the_way_out(
    rewritten: tuple[Path, Any], world: Any, make_lm: Any, tmp_path: Path
) -> None:
    with pytest.raises(ArtifactError, match=r"compiled with the rewriter mine@0123456789ab.*--rewriter"):
        load(rewritten[0], lm=make_lm(), retriever=world, home=tmp_path / "home")
    with pytest.raises(InputError, match="must be a rewriter's folder or an LM, but got 7"):
        load(rewritten[0], lm=make_lm(), retriever=world, rewriter=7)  # type: ignore[arg-type]


def test_an_artifact_that_was_compiled_without_takes_none(artifact: Path, make_lm: Any, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"compiled without a rewriter.*leave the rewriter out.*or compile with it"):
        load(artifact, lm=make_lm(), rewriter=rewriter_of(make_lm))
    said = {one.name: one for one in verify(artifact, lm=make_lm(), rewriter=tmp_path / "not looked at")}
    assert said["rewriter"].state == "not possible"
    assert "compiled without a rewriter" in str(said["rewriter"])


def test_verifying_tells_another_rewriter_and_one_that_is_missing(
    rewritten: tuple[Path, Any], make_lm: Any, tmp_path: Path
) -> None:
    folder, rewriter = rewritten

    def states(**given: Any) -> dict[str, str]:
        return {one.name: one.state for one in verify(folder, lm=make_lm(), home=tmp_path / "home", **given)}

    assert states()["rewriter"] == "not possible"
    assert states(rewriter=rewriter)["rewriter"] == "ok"
    assert states(rewriter=rewriter_of(make_lm, "rewriter:other@ba9876543210"))["rewriter"] == "warning"


def test_another_lm_as_a_rewriter_is_named_by_its_model_and_cannot_be_found(make_lm: Any, tmp_path: Path) -> None:
    ref = ref_of(rewriter_of(make_lm, "openai/small@0123456789ab"))
    assert ref == RewriterRef(name="openai/small@0123456789ab", checksum="")
    with pytest.raises(ArtifactError, match="which the working folder does not have"):
        find_rewriter(ref, tmp_path)
