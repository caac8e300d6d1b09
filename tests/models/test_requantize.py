from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, quants

from querywright.models.embedded import packaged_file
from querywright.models.requantize import read_header, reencoded
from querywright.models.vocabulary import read_vocabulary

TOKENS = ["<|im_start|>", "<|im_end|>", "word", "<b>", "한"]
KINDS = [3, 3, 1, 4, 1]


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "tiny.Q4_1.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_uint32("general.number", 7)
    writer.add_bool("general.flag", True)
    writer.add_array("general.numbers", [1.5, 2.5])
    writer.add_token_list(TOKENS)
    writer.add_token_types(KINDS)
    weights = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)
    kind = GGMLQuantizationType.Q4_1
    writer.add_tensor("coarse", quants.quantize(weights, kind), raw_dtype=kind)
    writer.add_tensor("plain", weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def weights_of(path):
    return {t.name: quants.dequantize(t.data, t.tensor_type) for t in GGUFReader(path).tensors}


def test_the_copy_has_the_same_weights_in_another_encoding(source, tmp_path):
    copy = reencoded(source, tmp_path / "models")
    kinds = {tensor.name: tensor.tensor_type.name for tensor in GGUFReader(copy).tensors}
    before, after = weights_of(source), weights_of(copy)

    assert kinds == {"coarse": "Q8_0", "plain": "F32"}
    assert np.array_equal(before["plain"], after["plain"])
    assert np.allclose(before["coarse"], after["coarse"], atol=0.02)
    assert not np.allclose(before["coarse"], 0, atol=0.02)


def test_it_is_written_once_and_leaves_nothing_else(source, tmp_path):
    copy = reencoded(source, tmp_path / "models")
    written = copy.stat().st_mtime_ns
    assert reencoded(source, tmp_path / "models") == copy
    assert copy.stat().st_mtime_ns == written
    assert [path.name for path in copy.parent.iterdir()] == [copy.name]


def test_a_failure_leaves_no_copy(tmp_path):
    source = tmp_path / "broken.gguf"
    source.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises((ValueError, IndexError, KeyError)):
        reencoded(source, tmp_path / "models")
    assert list((tmp_path / "models").iterdir()) == []


@pytest.mark.parametrize("length", [4, 10, 24, 40, 60, 100])
def test_a_header_that_is_cut_off_is_refused(source, length):
    source.write_bytes(source.read_bytes()[:length])
    with pytest.raises(ValueError, match="its header is not whole"):
        read_header(source, {"general.name"})


def test_control_tokens_are_those_of_the_vocabulary(source):
    vocabulary = read_vocabulary(source)
    assert vocabulary.control == ("<|im_start|>", "<|im_end|>")
    assert vocabulary.split is None  # the file does not say how to split


def test_the_embedded_model_splits_texts_as_it_was_trained_to():
    split = read_vocabulary(packaged_file()).split
    assert split is not None
    assert [piece.text for piece in split("sit upright for 15 minutes")] == [
        "sit", " upright", " for", " ", "1", "5", " minutes"
    ]  # fmt: skip
    assert all(piece.token is not None for piece in split("café"))
    for text in ("한국어로 말한다", "👩‍⚕️ ok", 'a "b"\\n', " ", ""):
        pieces = split(text)
        assert "".join(piece.text for piece in pieces) == text
    assert [piece.token is None for piece in split("a한b")] == [False, True, False]
