from __future__ import annotations

import math
import runpy
from pathlib import Path
from typing import Any

import pytest

from querywright.optimize.rewriter.gradient import TrainingError, Update, learn, make_optimizer
from querywright.optimize.rewriter.types import Completion

torch: Any = pytest.importorskip("torch")
BANDIT = runpy.run_path(str(Path(__file__).with_name("bandit.py")))


def written(*tokens: int) -> Completion:
    return Completion("", (1,), tokens, (0.0,) * len(tokens), ended=True)


def sgd(policy: Any) -> Any:
    return torch.optim.SGD(list(policy.parameters().values()), lr=1.0)


def test_the_gradient_is_the_one_of_reinforce() -> None:
    policy = BANDIT["Bandit"]()
    completions, advantages = [written(1, 0), written(2)], [2.0, -1.0]
    learnt = learn(policy, sgd(policy), completions, advantages, Update(beta=0.0, norm=100.0), step=1)
    # d/dlogit of sum over tokens of A * log softmax, a token of three: A * (1[token] - 1/5)
    expected = torch.tensor([2 - 3 / 5, 2 - 3 / 5, -1 - 3 / 5, -3 / 5, -3 / 5]) / 3
    torch.testing.assert_close(policy.logits.detach(), expected)
    assert learnt.tokens == 3
    assert learnt.kl == 0.0
    assert learnt.loss == pytest.approx(-(2 * 2 - 1) / 3)


def test_the_cost_of_drifting_is_on_each_token_and_those_before_it() -> None:
    policy = BANDIT["Bandit"]()
    with torch.no_grad():
        policy.logits.copy_(torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0]))
    before = torch.log_softmax(policy.logits.detach(), 0)
    ratio = (before + math.log(5)).tolist()  # the reference is uniform
    update = Update(beta=0.5, kl="reward", norm=100.0)
    learnt = learn(policy, sgd(policy), [written(1, 0)], [1.0], update, step=1)
    earned = [1 - 0.5 * (ratio[1] + ratio[0]), 1 - 0.5 * ratio[0]]
    shares = before.exp()
    expected = (earned[0] * (torch.eye(5)[1] - shares) + earned[1] * (torch.eye(5)[0] - shares)) / 2
    torch.testing.assert_close(policy.logits.detach(), torch.tensor([0.0, 1.0, 0, 0, 0]) + expected)
    assert learnt.kl == pytest.approx((ratio[1] + ratio[0]) / 2)


def test_what_tokens_earn_is_scaled_with_the_cost_of_drifting() -> None:
    policy = BANDIT["Bandit"]()
    start = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0])
    with torch.no_grad():
        policy.logits.copy_(start)
    before = torch.log_softmax(policy.logits.detach(), 0)
    end, good, *_ = (before + math.log(5)).tolist()
    update = Update(beta=0.5, kl="reward", scaled=True, norm=100.0)
    learn(policy, sgd(policy), [written(1, 0), written(2)], [1.0, 3.0], update, step=1)
    earned = torch.tensor([1 - 0.5 * (good + end), 1 - 0.5 * end, 3 - 0.5 * end])
    scaled = (earned - earned.mean()) / earned.std(correction=0)
    tokens = torch.eye(5)[torch.tensor([1, 0, 2])] - before.exp()
    torch.testing.assert_close(policy.logits.detach(), start + (scaled[:, None] * tokens).sum(0) / 3)


def test_k3_pulls_back_to_the_reference() -> None:
    policy = BANDIT["Bandit"]()
    with torch.no_grad():
        policy.logits.copy_(torch.tensor([0.0, 2.0, 0.0, 0.0, 0.0]))
    learnt = learn(policy, sgd(policy), [written(1)], [0.0], Update(beta=0.5, norm=100.0), step=1)
    assert learnt.loss > 0
    assert policy.logits[1] < 2.0


def test_a_ratio_that_left_its_bounds_gives_no_gradient() -> None:
    policy = BANDIT["Bandit"]()
    update = Update(beta=0.0, clip=0.01, epochs=50, norm=100.0)
    learn(policy, sgd(policy), [written(1)], [1.0], update, step=1)
    ratio = torch.log_softmax(policy.logits.detach(), 0)[1].exp() * 5
    free = BANDIT["Bandit"]()
    learn(free, sgd(free), [written(1)], [1.0], Update(beta=0.0, clip=1e9, epochs=50, norm=100.0), step=1)
    assert 1.01 < ratio < torch.log_softmax(free.logits.detach(), 0)[1].exp() * 5


def test_chunks_change_nothing() -> None:
    made = [written(1, 2, 0), written(3), written(), written(4, 4)]
    found = []
    for chunk in (1, 3, 8):
        policy = BANDIT["Bandit"]()
        learn(policy, sgd(policy), made, [1.0, -0.5, 9.0, 0.25], Update(beta=0.1, chunk=chunk), step=1)
        found.append(policy.logits.detach().clone())
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[0], found[2])


@pytest.mark.parametrize("kind", ["adamw", "adafactor"])
def test_a_loss_that_is_no_number_changes_no_weight(kind: str) -> None:
    policy = BANDIT["Bandit"]()
    optimizer = make_optimizer(kind, list(policy.parameters().values()), 0.1)
    learn(policy, optimizer, [written(1)], [1.0], Update(beta=0.0), step=1)
    before = policy.logits.detach().clone()
    with pytest.raises(TrainingError, match=r"step 7 is nan.*--lr"):
        learn(policy, optimizer, [written(1)], [math.nan], Update(beta=0.0), step=7)
    assert torch.equal(policy.logits.detach(), before)
    assert before[1] > 0


def test_nothing_written_teaches_nothing() -> None:
    policy = BANDIT["Bandit"]()
    assert learn(policy, sgd(policy), [written()], [1.0], Update(beta=0.0), step=1).tokens == 0
    assert torch.equal(policy.logits.detach(), torch.zeros(5))
