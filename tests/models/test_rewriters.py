"""A rewriter's folder: written completely, verified, and run by its name."""

from __future__ import annotations

import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest

from querywright import files
from querywright.data import load_sample, split_questions
from querywright.data.types import Passage
from querywright.errors import ArtifactError, ModelError
from querywright.models.lm import resolve_lm
from querywright.models.rewriters import Rewriter, check_target, read_rewriter, write_rewriter
from querywright.optimize.contexts import asking
from querywright.programs import make_program
from querywright.retrieval.types import Hit

HERE = Path(__file__).parent
small_rewriter = runpy.run_path(str(HERE.parent / "small_rewriter.py"))["small_rewriter"]
SHIPPED = HERE.parents[1] / "artifacts" / "embedded-rewriter"


def write(folder: Path, weights: Path, **changes: Any) -> Rewriter:
    options: dict[str, Any] = {
        "techniques": ["rrr", "hcqr"], "recipe": "reinforce", "created": "2026-11-22",
        "card": {"dev": {"ndcg@10": 0.5}}, "readme": "# A rewriter\n", "curve": [{"step": 1, "reward": 0.1}],
    }  # fmt: skip
    return write_rewriter(folder, weights, **options | changes)


@pytest.fixture
def place(tmp_path):
    """A folder with the rewriter ``mine``, and with weights for more rewriters."""
    small_rewriter(tmp_path / "weights")
    write(tmp_path / "mine", tmp_path / "weights")
    return tmp_path


def test_it_says_what_it_is(place):
    rewriter = read_rewriter(place / "mine")
    assert (rewriter.name, rewriter.techniques) == ("mine", ("hcqr", "rrr"))
    assert rewriter.identity == f"rewriter:mine@{rewriter.checksum[:12]}"
    assert (rewriter.base.kind, rewriter.card) == ("embedded", {"dev": {"ndcg@10": 0.5}})
    assert rewriter.versions["peft"]
    assert json.loads((place / "mine" / "curve.jsonl").read_text()) == {"step": 1, "reward": 0.1}
    for file in (place / "mine").iterdir():
        assert str(place).encode() not in file.read_bytes(), "no path of this machine is written"


def forge(file: Path, **changes: Any) -> None:
    content = {**json.loads(file.read_text()), **changes}
    del content["sha256"]
    file.write_text(json.dumps(content | {"sha256": files.json_digest(content)}))


def edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


DAMAGES = {
    "a byte": (lambda f: flip(f / "adapter.safetensors"), r"adapter.safetensors.*was changed"),
    "the card": (lambda f: (f / "card.json").write_text("{}"), r"card.json.*was changed"),
    "a missing file": (lambda f: (f / "adapter_config.json").unlink(), r"adapter_config.json .*is missing"),
    "a strange file": (lambda f: (f / "weights.bin").write_bytes(b""), r"weights.bin .* does not belong"),
    "the manifest": (lambda f: edit(f / "rewriter.json", recipe="paper"), r"rewriter.json.*was changed"),
    "a checked later format": (lambda f: forge(f / "rewriter.json", format=9), r"field format.*querywright version"),
    "a checked key": (lambda f: forge(f / "rewriter.json", url="http://x"), r"rewriter.json.*field url"),
    "a way out": (lambda f: forge(f / "rewriter.json", files={"../x": "0"}), r"'../x' is not a rewriter file"),
    "no weights": (lambda f: forge(f / "rewriter.json", files={"card.json": "0"}), r"'README.md' is missing;"),
    "nothing": (lambda f: shutil.rmtree(f), r"no rewriter found at 'mine'.*rewriter train"),
}  # fmt: skip


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize(("damage", "said"), DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_one_is_refused(place, damage, said):
    damage(place / "mine")
    with pytest.raises(ArtifactError, match=said):
        resolve_lm(f"rewriter:{place / 'mine'}")


def test_an_older_one_is_replaced_whole_or_stays(place, monkeypatch):
    before = read_rewriter(place / "mine").checksum
    newer = write(place / "mine", place / "weights", recipe="warm-up")
    assert newer.recipe == "warm-up"

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "sync", full)
    with pytest.raises(ArtifactError, match=r"could not write .*'mine': No space left on device"):
        write(place / "mine", place / "weights")
    assert read_rewriter(place / "mine") == newer
    assert newer.checksum != before
    (place / "mine" / "notes.txt").write_text("mine")
    for check in (check_target, lambda path: write(path, place / "weights")):
        with pytest.raises(ArtifactError, match=r"'notes.txt'. They would be lost"):
            check(place / "mine")
        with pytest.raises(ArtifactError, match="is a file or a link"):
            check(place / "mine" / "notes.txt")
    assert sorted(path.name for path in place.iterdir()) == ["mine", "weights"]


def test_a_rewriter_of_another_base_is_refused(place):
    manifest = place / "mine" / "rewriter.json"
    forge(manifest, base={"kind": "embedded", "name": "embedded", "digest": "0" * 12})
    with pytest.raises(ModelError, match="a different embedded model"):
        resolve_lm(f"rewriter:{place / 'mine'}")
    forge(manifest, base={"kind": "folder", "name": "other", "digest": "0" * 12})
    with pytest.raises(ArtifactError, match=r"field base.kind"):
        read_rewriter(place / "mine")


def test_the_shipped_one_is_whole_and_small_and_names_what_it_learnt():
    assert sum(file.stat().st_size for file in SHIPPED.iterdir()) < 20 * 10**6
    assert set(read_rewriter(SHIPPED).techniques) == {"decomposition", "hcqr", "multi_query", "qb_rag", "rrr"}


class Anything:
    """Finds one passage for every query."""

    fingerprint = "anything"

    def search(self, queries, k):
        return [[Hit(Passage("p", "text"), 1.0, 1)] for _ in queries]


@pytest.mark.slow
def test_the_shipped_one_writes_an_unseen_question_and_its_options_without_falling_back():
    program = make_program("rrr", Anything())
    with asking(resolve_lm(f"rewriter:{SHIPPED}")):
        for question in split_questions(load_sample().questions).test[:2]:
            made = program(question=question.question, options=list(question.options))
            assert made.fallbacks == []
            first = made.queries[0].text.casefold()
            assert first.startswith(question.question.casefold().rstrip("?"))
            said = sum(option.casefold() in first for option in question.options)
            assert said >= len(question.options) / 2, first
