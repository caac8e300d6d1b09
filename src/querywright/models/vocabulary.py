"""The vocabulary of a GGUF model: its control tokens, and the tokens in which it writes a text.

How likely a model finds a text is asked for in the tokens that the model itself would use. Left to choose any tokens
that spell the text, it begins with a letter or two where its own way is a word, which takes more than twice the steps
and measures spelling.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from querywright.models.requantize import read_header

CONTROL = 3
"""The type of a control token."""

_KEYS = ("tokens", "token_type", "merges", "model", "pre")


class Piece(NamedTuple):
    """A part of a text: one token, or characters that the model writes in several (``token`` is None)."""

    text: str
    token: int | None


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a model's file says of its tokens.

    Args:
        control: Control tokens, such as ``<|im_end|>``.
        split: The pieces of a text, or None where the way to split is not known for this model.
    """

    control: tuple[str, ...]
    split: Callable[[str], list[Piece]] | None


def read_vocabulary(path: Path) -> Vocabulary:
    """The vocabulary of a GGUF file.

    Raises:
        ValueError: The file's header is damaged.
    """
    header = read_header(path, {f"tokenizer.ggml.{key}" for key in _KEYS})
    tokens, kinds, merges, model, pre = (header.get(f"tokenizer.ggml.{key}") for key in _KEYS)
    texts = [token.decode(errors="replace") for token in tokens or ()]
    control = tuple(text for text, kind in zip(texts, kinds or (), strict=False) if kind == CONTROL)
    known = (model, pre) == (b"gpt2", b"smollm")
    return Vocabulary(control, _splitter(texts, merges) if known and merges else None)


def byte_pairs(tokens: list[str], merges: list[bytes]) -> Any:
    """Byte-pair encoding after single digits and GPT-2's words, as SmolLM's file asks for (``pre`` is smollm).

    Args:
        tokens: The vocabulary, in order.
        merges: Pairs of tokens with a space between, in order.

    Returns:
        A ``tokenizers.Tokenizer``.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    pairs: list[Any] = [tuple(merge.decode().split(" ")) for merge in merges]
    tokenizer = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=pairs))
    steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _splitter(tokens: list[str], merges: list[bytes]) -> Callable[[str], list[Piece]]:
    tokenizer = byte_pairs(tokens, merges)

    def split(text: str) -> list[Piece]:
        encoded = tokenizer.encode(text)
        return _pieces(text, encoded.ids, encoded.offsets)

    return split


def _pieces(text: str, ids: list[int], offsets: list[tuple[int, int]]) -> list[Piece]:
    """Tokens that hold parts of the same character make one piece; the offsets of such tokens overlap."""
    pieces: list[Piece] = []
    begins = ends = 0
    for token, (start, end) in zip(ids, offsets, strict=True):
        if pieces and start < ends:
            ends = max(ends, end)
            pieces[-1] = Piece(text[begins:ends], None)
        else:
            begins, ends = start, end
            pieces.append(Piece(text[begins:ends], token))
    return pieces
