"""A cross-encoder: its scores are the model's, in whatever order the passages come."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from querywright.data.types import Passage
from querywright.errors import ModelError
from querywright.retrieval.rerank import CrossEncoderReranker, Reranker, resolve_reranker

WORDS = [
    "salt", "water", "cuff", "arm", "sugar", "foot", "clinic", "retina", "bread", "what", "helps", "against", "the",
    "of",
]  # fmt: skip
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


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Saves a small cross-encoder that was never trained."""

    def save(labels=1, positions=64):
        import torch
        from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

        folder = tmp_path_factory.mktemp("models") / "tiny"
        folder.mkdir()
        (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]) + "\n")
        torch.manual_seed(3)
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
        config = BertConfig(
            **sizes,
            vocab_size=5 + len(WORDS),
            max_position_embeddings=positions,
            num_labels=labels,
            initializer_range=0.6,
        )
        BertForSequenceClassification(config).save_pretrained(folder)
        BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
        return folder

    return save


@pytest.fixture(scope="module")
def folder(saved):
    return saved()


@pytest.fixture(scope="module")
def reranker(folder):
    return CrossEncoderReranker(str(folder))


def test_scores_are_those_of_the_model(folder, reranker):
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


def test_one_finite_number_a_passage_whatever_their_order(folder, reranker):
    scores = reranker.score(QUERY, PASSAGES)
    assert len(scores) == len(PASSAGES)
    assert np.isfinite(scores).all()
    assert len(set(scores)) > 5
    assert scores[1] == scores[4]
    assert CrossEncoderReranker(str(folder)).score(QUERY, PASSAGES[::-1]) == scores[::-1]
    assert reranker.score("the foot", PASSAGES) != scores
    assert reranker.score(QUERY, []) == []


def test_what_a_reranker_tells_about_itself(folder, reranker, saved):
    assert isinstance(reranker, Reranker)
    assert reranker.id.startswith("path:tiny@")
    assert str(folder.parent) not in reranker.id
    assert copy.deepcopy([reranker])[0] is copy.copy(reranker) is reranker
    other = CrossEncoderReranker(str(saved(positions=96)))
    assert other.id.startswith("path:tiny@")
    assert other.id != reranker.id
    hub = resolve_reranker("cross-encoder/ms-marco-MiniLM-L6-v2")
    assert hub.id == resolve_reranker(hub.id).id == "ce:cross-encoder/ms-marco-MiniLM-L6-v2"


@pytest.mark.parametrize("name", ["", "  ", "/no/such/folder", "./none", "a/b/c", "../x"])
def test_a_folder_that_there_is_not(name):
    with pytest.raises(ModelError, match=r"no cross-encoder folder at .*use the path of a cross-encoder folder"):
        resolve_reranker(name)


def test_what_is_no_model_for_ranking_is_refused(tmp_path, saved, folder, monkeypatch):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="cannot be loaded"):
        CrossEncoderReranker(str(tmp_path)).load()
    several, broken = CrossEncoderReranker(str(saved(labels=3))), CrossEncoderReranker(str(folder))
    for passages in (PASSAGES[:3], PASSAGES[:1]):
        with pytest.raises(ModelError, match="returns 3 numbers per pair"):
            several.score(QUERY, passages)
    broken.load()
    monkeypatch.setattr(broken._model, "predict", lambda pairs, **_: np.full(len(pairs), np.nan))
    with pytest.raises(ModelError, match="scores that are not finite"):
        broken.score(QUERY, PASSAGES[:2])
