from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from querywright.data.types import Passage
from querywright.errors import InputError, ModelError
from querywright.retrieval import rerank
from querywright.retrieval.rerank import CrossEncoderReranker, Reranker, resolve_reranker

WORDS = [
    "salt",
    "water",
    "cuff",
    "arm",
    "sugar",
    "blood",
    "foot",
    "clinic",
    "retina",
    "walk",
    "bread",
    "juice",
    "what",
    "helps",
    "against",
    "the",
    "a",
    "of",
]
PASSAGES = [
    Passage("a", "salt water helps against the foot of bread"),
    Passage("b", "sugar", "Juice"),
    Passage("c", " ".join(WORDS * 20)),
    Passage("d", "the retina clinic"),
    Passage("e", "sugar", "Juice"),
    Passage("f", "unknown words 당뇨병 \ud800"),
    *(Passage(f"g{number}", " ".join(WORDS[number % 7 :: 3])) for number in range(40)),
]
QUERY = "what helps against sugar"


def _save(folder: Path, labels: int = 1, positions: int = 64) -> Path:
    """A small cross-encoder that was never trained."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    folder.mkdir(parents=True)
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]) + "\n")
    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=5 + len(WORDS),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=positions,
        num_labels=labels,
        initializer_range=0.6,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    BertTokenizer(str(vocabulary)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")  # the hub's library reads it once, when it is imported
        return _save(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def reranker(folder: Path) -> CrossEncoderReranker:
    return CrossEncoderReranker(str(folder))


def test_scores_are_those_of_the_model(folder: Path, reranker: CrossEncoderReranker) -> None:
    import torch
    from transformers import BertForSequenceClassification, BertTokenizer

    model = BertForSequenceClassification.from_pretrained(folder).eval()
    tokeniser = BertTokenizer.from_pretrained(folder)
    exact = []
    for passage in PASSAGES[:5]:
        given = tokeniser(QUERY, passage.content, truncation="longest_first", max_length=64, return_tensors="pt")
        with torch.no_grad():
            exact.append(torch.sigmoid(model(**given).logits).item())
    assert reranker.score(QUERY, PASSAGES[:5]) == pytest.approx(exact, abs=1e-5)
    assert max(exact) - min(exact) > 0.01


def test_one_finite_number_a_passage_and_the_same_again(folder: Path, reranker: CrossEncoderReranker) -> None:
    scores = reranker.score(QUERY, PASSAGES)
    assert len(scores) == len(PASSAGES)
    assert all(isinstance(score, float) and np.isfinite(score) for score in scores)
    assert len(set(scores)) > 5
    assert scores[1] == scores[4]
    assert reranker.score(QUERY, PASSAGES) == scores
    assert CrossEncoderReranker(str(folder)).score(QUERY, PASSAGES) == scores
    assert reranker.score("the foot", PASSAGES) != scores


def test_what_a_reranker_tells_about_itself(folder: Path, reranker: CrossEncoderReranker, tmp_path: Path) -> None:
    assert isinstance(reranker, Reranker)
    assert reranker.id.startswith("path:tiny@")
    assert str(folder.parent) not in reranker.id
    assert copy.copy(reranker) is reranker
    assert copy.deepcopy([reranker])[0] is reranker
    other = CrossEncoderReranker(str(_save(tmp_path / "tiny", positions=96)))
    assert other.id.startswith("path:tiny@")
    assert other.id != reranker.id
    hub = resolve_reranker("cross-encoder/ms-marco-MiniLM-L6-v2")
    assert hub.id == "ce:cross-encoder/ms-marco-MiniLM-L6-v2"
    assert resolve_reranker(hub.id).id == hub.id
    assert repr(hub) == "CrossEncoderReranker('cross-encoder/ms-marco-MiniLM-L6-v2')"


@pytest.mark.parametrize("name", ["", "  ", "/no/such/folder", "./none", "~/none", "a/b/c", "../x"])
def test_a_folder_that_there_is_not(name: str) -> None:
    with pytest.raises(ModelError, match=r"no folder of a cross-encoder at .*give the path of one"):
        resolve_reranker(name)


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="cannot be loaded"):
        CrossEncoderReranker(str(tmp_path)).load()


def test_a_classifier_of_several_labels_is_refused(tmp_path: Path) -> None:
    several = CrossEncoderReranker(str(_save(tmp_path / "several", labels=3)))
    for passages in (PASSAGES[:2], PASSAGES[:3], PASSAGES[:1]):
        with pytest.raises(ModelError, match="gives 3 numbers a pair"):
            several.score(QUERY, passages)


def test_scores_that_are_no_numbers_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def predict(self, pairs: list[Any], **options: object) -> Any:
            return np.full(len(pairs), np.nan, dtype=np.float32)

    monkeypatch.setattr(rerank, "_load", lambda *_: Broken())
    with pytest.raises(ModelError, match="scores that are no numbers"):
        CrossEncoderReranker(str(folder)).score(QUERY, PASSAGES[:2])


@pytest.mark.parametrize("settings", [{"batch_size": 0}, {"max_length": 7}])
def test_settings_out_of_range(folder: Path, settings: dict[str, int]) -> None:
    with pytest.raises(InputError, match="batch_size of 1 or more and max_length of 8"):
        CrossEncoderReranker(str(folder), **settings)
