"""The next token from numbers that are given."""

from __future__ import annotations

import math

import pytest
import torch

from querywright.errors import InputError
from querywright.optimize.rewriter.drawing import check_drawing, draw, likeliest, numbers_of

SHARES = [0.1, 0.4, 0.2, 0.3]
LOGITS = torch.log(torch.tensor([SHARES]))


def drawn(numbers, *, temperature=1.0, top_k=0, top_p=1.0):
    rows = LOGITS.expand(len(numbers), -1)
    return draw(rows, torch.tensor(numbers, dtype=torch.float64), temperature=temperature, top_k=top_k, top_p=top_p)


def test_a_number_lies_in_the_share_of_its_token():
    tokens, scores = drawn([0.0, 0.099, 0.101, 0.499, 0.501, 0.699, 0.701, 0.9999999])
    assert tokens.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert scores.exp().tolist() == pytest.approx([SHARES[token] for token in tokens.tolist()], abs=1e-6)


def test_temperature_sharpens():
    squares = [share**2 for share in SHARES]
    tokens, scores = drawn([0.6], temperature=0.5)
    assert tokens.tolist() == [2]  # .01 + .16 of .30 lie before it
    assert scores.exp().item() == pytest.approx(squares[2] / sum(squares))


def test_top_k_leaves_the_likeliest():
    tokens, scores = drawn([0.0, 0.57, 0.58, 0.999], top_k=2)
    assert tokens.tolist() == [1, 1, 3, 3]
    assert scores.exp().tolist() == pytest.approx([4 / 7, 4 / 7, 3 / 7, 3 / 7])


@pytest.mark.parametrize(
    ("top_p", "left"), [(0.01, {1}), (0.39, {1}), (0.41, {1, 3}), (0.71, {1, 2, 3}), (1.0, {0, 1, 2, 3})]
)
def test_top_p_leaves_as_many_as_are_needed(top_p, left):
    tokens, scores = drawn([number / 97 for number in range(97)], top_p=top_p)
    assert set(tokens.tolist()) == left
    whole = sum(SHARES[token] for token in left)
    assert scores.exp().tolist() == pytest.approx([SHARES[token] / whole for token in tokens.tolist()], abs=1e-6)


def test_top_k_and_top_p_together():
    tokens, _ = drawn([number / 50 for number in range(50)], top_k=3, top_p=0.5)
    assert set(tokens.tolist()) == {1, 3}  # 4/9 alone are less than half


def test_a_token_that_cannot_be_is_never_drawn():
    logits = torch.tensor([[-math.inf, 0.0, -math.inf]])
    for number in (0.0, 0.5, 1 - 2**-53):
        tokens, scores = draw(logits, torch.tensor([number], dtype=torch.float64), temperature=1.0, top_k=0, top_p=1.0)
        assert (tokens.item(), scores.item()) == (1, 0.0)


def test_shares_of_many_draws():
    tokens, _ = drawn(numbers_of([7], 20_000)[0].tolist())
    counts = torch.bincount(tokens, minlength=4) / 20_000
    assert counts.tolist() == pytest.approx(SHARES, abs=0.015)


def test_the_likeliest():
    tokens, scores = likeliest(LOGITS)
    assert (tokens.item(), scores.exp().item()) == (1, pytest.approx(0.4))


def test_numbers_hang_on_their_seed_alone():
    torch.manual_seed(1)
    first = numbers_of([5, 6, 2**63 + 5, -1], 40)
    torch.manual_seed(2)
    assert torch.equal(numbers_of([6], 40)[0], first[1])
    assert torch.equal(first[2], first[0])
    assert len({tuple(row) for row in first[[0, 1, 3]].tolist()}) == 3
    assert first.min() >= 0
    assert first.max() < 1


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ((2, [1], 1.0, 0, 1.0, 8), "1 seeds for 2 prompts"),
        ((1, [1], 0.0, 0, 1.0, 8), "temperature must be more than 0"),
        ((1, [1], math.nan, 0, 1.0, 8), "temperature must be more than 0"),
        ((1, [1], 1.0, -1, 1.0, 8), "top_k must be 0 or more"),
        ((1, [1], 1.0, 0, 0.0, 8), "top_p must be"),
        ((1, [1], 1.0, 0, 1.1, 8), "top_p must be"),
        ((1, None, 1.0, 0, 1.0, 0), "room must be 1"),
    ],
)
def test_what_cannot_be_drawn_by_is_refused(given, told):
    with pytest.raises(InputError, match=told):
        check_drawing(*given)
