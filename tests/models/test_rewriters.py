"""A rewriter's folder: written whole, checked to the last byte, and run by its name."""

from __future__ import annotations

import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import dspy
import pytest
import torch
from dspy import lm15

from querywright import files
from querywright.data import load_sample, split_questions
from querywright.data.types import Passage
from querywright.errors import ArtifactError, ModelError
from querywright.models import rewriters
from querywright.models.hf import Base, load_base
from querywright.models.lm import resolve_lm
from querywright.models.rewriters import (
    RewriterBase,
    check_target,
    describe_base,
    find_base,
    read_rewriter,
    save_weights,
    write_rewriter,
)
from querywright.models.transformers_engine import load_rewriter, rewriter_engine
from querywright.optimize.dspy_context import asking
from querywright.programs import make_program
from querywright.retrieval.types import Hit

HERE = Path(__file__).parent
random_adapter = runpy.run_path(str(HERE / "tiny_gguf.py"))["random_adapter"]
TINY = runpy.run_path(str(HERE.parent / "optimize" / "rewriter" / "tiny.py"))


def write(folder: Path, weights: Path, base: RewriterBase, **changes: Any) -> rewriters.Rewriter:
    options: dict[str, Any] = {
        "techniques": ["rrr", "hcqr"],
        "recipe": "ours",
        "created": "2026-11-22",
        "card": {"dev": {"ndcg@10": 0.5}},
        "readme": "# A rewriter\n",
        "curve": [{"step": 1, "reward": 0.1}],
        **changes,
    }
    return write_rewriter(folder, weights, base=base, **options)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a base, the weights of an adapter for it, and the rewriter."""
    folder = tmp_path_factory.mktemp("made")
    loaded = load_base(str(TINY["save_tiny"](folder / "tiny")))
    adapted = loaded._replace(model=random_adapter(loaded.model, 0.5))
    save_weights(adapted, folder / "weights")
    write(folder / "mine", folder / "weights", describe_base(str(folder / "tiny")))
    return folder


@pytest.fixture
def place(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "copy"))


def test_it_says_what_it_is(made):
    rewriter = read_rewriter(made / "mine")
    assert (rewriter.name, rewriter.techniques) == ("mine", ("hcqr", "rrr"))
    assert rewriter.identity == f"rewriter:mine@{rewriter.checksum[:12]}"
    assert rewriter.base == RewriterBase(kind="folder", name="tiny", digest=rewriter.base.digest)
    assert rewriter.card == {"dev": {"ndcg@10": 0.5}}
    assert rewriter.adapter_gguf is None
    assert rewriter.versions["peft"]
    assert json.loads((made / "mine" / "curve.jsonl").read_text()) == {"step": 1, "reward": 0.1}
    for file in (made / "mine").iterdir():
        assert b"/tmp/" not in file.read_bytes(), "no path of this machine is written"


def test_it_writes_what_the_trained_model_writes(made):
    rewriter = read_rewriter(made / "mine")
    loaded = load_base(str(made / "tiny"))
    trained = random_adapter(loaded.model, 0.5)
    ids = torch.tensor([[1, 30, 40, 50]])
    with torch.no_grad():
        expected = trained(ids).logits
        found = load_rewriter(rewriter).model(ids).logits
        plain = load_base(str(made / "tiny")).model(ids).logits
    assert torch.allclose(found, expected, atol=0.02)  # an adapter is kept in half precision
    assert not torch.allclose(found, plain, atol=0.1)


class Rewrite(dspy.Signature):
    """Rewrite the question."""

    question: str = dspy.InputField()
    query: str = dspy.OutputField()


def ask(engine, text="why?", **config):
    config = {"max_tokens": 8, **config}
    return engine.complete(lm15.Request(model="m", messages=(lm15.Message.user(text),), config=lm15.Config(**config)))


def test_a_sampled_answer_depends_on_its_seed_alone(made):
    engine = rewriter_engine(read_rewriter(made / "mine"))
    state = torch.random.get_rng_state()
    drawn = [ask(engine, temperature=1.0, seed=seed).text for seed in (1, 1, 2, 3, 4)]
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) > 1
    assert ask(engine, seed=1).text == ask(engine, seed=2).text
    assert torch.equal(state, torch.random.get_rng_state())


def test_a_prompt_that_does_not_fit_is_an_error_and_a_stop_cuts(made):
    engine = rewriter_engine(read_rewriter(made / "mine"))
    with pytest.raises(dspy.ContextWindowExceededError, match="context is 4096"):
        ask(engine, "why? " * 3000)
    whole = ask(engine).text
    cut = ask(engine, stop=(whole[3],))
    assert (cut.text, cut.finish_reason) == (whole[: whole.index(whole[3])], "stop")


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
    "a strange file": (lambda f: (f / "weights.bin").write_bytes(b""), r"weights.bin .* is none of its files"),
    "the manifest": (lambda f: edit(f / "rewriter.json", recipe="paper"), r"rewriter.json.*was changed"),
    "a checked later format": (lambda f: forge(f / "rewriter.json", format=9), r"field format.*version of querywright"),
    "a checked key": (lambda f: forge(f / "rewriter.json", url="http://x"), r"rewriter.json.*field url"),
    "a way out": (lambda f: forge(f / "rewriter.json", files={"../x": "0"}), r"'../x' is no file of a rewriter"),
    "no weights": (lambda f: forge(f / "rewriter.json", files={"card.json": "0"}), r"'README.md' is missing; a"),
    "nothing": (lambda f: shutil.rmtree(f), r"no rewriter at 'mine'.*rewriter train"),
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
    base = read_rewriter(place / "mine").base
    before = read_rewriter(place / "mine").checksum
    newer = write(place / "mine", place / "weights", base, recipe="seed")
    assert newer.recipe == "seed"

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "sync", full)
    with pytest.raises(ArtifactError, match=r"'mine' could not be written: No space left on device"):
        write(place / "mine", place / "weights", base, recipe="paper")
    assert read_rewriter(place / "mine") == newer
    assert newer.checksum != before
    (place / "mine" / "notes.txt").write_text("mine")
    for check in (check_target, lambda path: write(path, place / "weights", base)):
        with pytest.raises(ArtifactError, match=r"'notes.txt'; they would be lost"):
            check(place / "mine")
        with pytest.raises(ArtifactError, match="is a file or a link"):
            check(place / "mine" / "notes.txt")
    assert sorted(path.name for path in place.iterdir()) == ["mine", "tiny", "weights"]


def test_a_base_is_found_beside_or_in_a_working_folder_and_another_is_refused(made, place, working_folder):
    rewriter = read_rewriter(place / "mine")
    assert find_base(rewriter.base, rewriter.path) == str(place / "tiny")
    with (place / "tiny" / "config.json").open("a") as file:
        file.write(" ")
    with pytest.raises(ModelError, match=r"'tiny' of the rewriter 'mine' is another one here; put its folder beside"):
        find_base(rewriter.base, rewriter.path)
    shutil.rmtree(place / "tiny")
    with pytest.raises(ModelError, match="is not here"):
        rewriter_engine(rewriter)
    home = place / "home"
    shutil.copytree(made / "tiny", home / "models" / "tiny")
    assert find_base(rewriter.base, home / "rewriters" / "CHECKSUM" / "mine") == str(home / "models" / "tiny")
    elsewhere = RewriterBase(kind="embedded", name="embedded", digest="0" * 12)
    with pytest.raises(ModelError, match="another embedded model"):
        find_base(elsewhere, rewriter.path)


def test_an_adapter_for_another_base_is_refused(place):
    other = Base(*TINY["tiny_causal"](layers=2))
    other.model.save_pretrained(place / "tiny")
    write(place / "mine", place / "weights", describe_base(str(place / "tiny")))
    with pytest.raises(ArtifactError, match=r"not for its base 'tiny'.*layers.2"):
        load_rewriter(read_rewriter(place / "mine"))


SHIPPED = HERE.parents[1] / "artifacts" / "embedded-rewriter"


def test_the_shipped_one_is_whole_and_small_and_names_what_it_learnt():
    assert sum(file.stat().st_size for file in SHIPPED.iterdir()) < 20 * 10**6
    assert set(read_rewriter(SHIPPED).techniques) == {"decomposition", "hcqr", "multi_query", "qb_rag", "rrr"}


class Anything:
    """Finds one passage, whatever is asked."""

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
