"""Advantages, the change of the weights and the loop, with a policy of a few numbers; values worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from querywright.data.types import Question
from querywright.errors import InputError
from querywright.models.engine_errors import LMPromptTooLongError
from querywright.optimize.judging import judged_metrics
from querywright.optimize.rewriter.checkpoints import read_lines
from querywright.optimize.rewriter.episodes import Episode, Turn, roll_out, run_episodes
from querywright.optimize.rewriter.evaluation import evaluation_of
from querywright.optimize.rewriter.policy import Completion, Messages, TrainingError
from querywright.optimize.rewriter.reinforce import LOG, Reinforced, advantages_of, learn, reinforce
from querywright.optimize.rewriter.rewards import Scored
from querywright.optimize.rewriter.settings import TrainSettings

torch: Any = pytest.importorskip("torch")
TRAIN = [Question(f"q{n}", f"Question {n}?") for n in range(6)]
DEV = [Question(f"d{n}", f"Dev question {n}?") for n in range(3)]
SETTINGS = TrainSettings("rrr", lr=0.2, steps=12, batch=4, group=4, room=3, top_k=0, look_each=4, patience=9)

WORDS = ("end", "good", "bad", "plain", "other")


class Bandit:
    """A logit a word, the same at every place; the first word ends a completion."""

    size = 8

    def __init__(self, start: float = 0.0, words: int = len(WORDS)) -> None:
        self.logits = torch.nn.Parameter(torch.full((words,), start))
        self.set_reference()

    def write(
        self, prompts: Sequence[Messages], *, room: int, seed: int | None = None, **cuts: Any
    ) -> list[Completion]:
        made = []
        for place in range(len(prompts)):
            generator = torch.Generator().manual_seed(0 if seed is None else seed + place)
            scores = torch.log_softmax(self.logits.detach(), 0)
            tokens: list[int] = []
            while len(tokens) < room and (not tokens or tokens[-1] != 0):
                drawn = scores.argmax() if seed is None else torch.multinomial(scores.exp(), 1, generator=generator)
                tokens.append(int(drawn))
            text = " ".join(WORDS[one] for one in tokens if one)
            made.append(Completion(text, (1,), tuple(tokens), tokens[-1] == 0))
        return made

    def parts(self, completions: Sequence[Completion]) -> list[list[int]]:
        places = list(range(len(completions)))
        return [places[start : start + self.size] for start in range(0, len(places), self.size)]

    def prompt(self, messages: Messages) -> Any:
        return messages

    def refused(self, prompt: Any, room: int) -> Exception | None:
        return None

    def log_probs(self, completions: Sequence[Completion], *, reference: bool = False) -> list[Any]:
        scores = torch.log_softmax(self._reference if reference else self.logits, 0)
        return [scores[torch.tensor(one.tokens)] for one in completions]

    def parameters(self) -> Mapping[str, Any]:
        return {"logits": self.logits}

    def set_parameters(self, tensors: Mapping[str, Any]) -> None:
        self.logits.data.copy_(tensors["logits"])

    def set_reference(self) -> None:
        self._reference = self.logits.detach().clone()


def one_turn(questions: Sequence[Any], answer: Any) -> list[Episode]:
    """Each question is one turn, whose text is all that comes of it."""
    turns = [Turn(place, 0, (("user", one.question),)) for place, one in enumerate(questions)]
    each = zip(questions, turns, answer(turns), strict=True)
    return [Episode(question, (turn,), (text,), None) for question, turn, text in each]


class Words:
    """Half a point for each good word, off for each bad one; changed by a function of the score and its episode."""

    def __init__(self, change: Any = lambda scored, episode: scored) -> None:
        self.change = change

    def score(self, episodes: Sequence[Episode]) -> list[Scored]:
        values = [0.5 * (one.texts[0].count("good") - one.texts[0].count("bad")) for one in episodes]
        return [self.change(Scored(value, value, 0.0), one) for value, one in zip(values, episodes, strict=True)]


def test_a_reward_is_compared_with_the_others_of_its_group() -> None:
    found = advantages_of([1.0, 0.0, 0.5, 0.3, 7.0], ["a", "a", "a", "b", "c"])
    assert found == pytest.approx([1 - 0.25, 0 - 0.75, 0.5 - 0.5, 0, 0])
    assert advantages_of([1.0, math.nan, 0.0], "aaa") == [1.0, 0.0, -1.0]  # a NaN is ignored


def written(*tokens: int) -> Completion:
    return Completion("", (1,), tokens, ended=True)


def learned(start: Sequence[float], *pairs: tuple[Completion, float], kl: float = 0.0) -> Any:
    """The logits after a step of size 1 from a start, and its report; the reference is uniform."""
    policy = Bandit()
    policy.logits.data.copy_(torch.tensor(start))
    optimizer = torch.optim.SGD(list(policy.parameters().values()), lr=1.0)
    report = learn(policy, optimizer, pairs, kl=kl)  # type: ignore[arg-type]
    return policy.logits.detach(), report


UNIFORM, START = [0.0] * 5, [0.0, 1.0, 0.0, 0.0, 0.0]


def test_the_gradient_is_the_one_of_reinforce() -> None:
    logits, report = learned(UNIFORM, (written(1, 0), 1.0), (written(2), -0.5))
    # d/dlogit of sum over tokens of A * log softmax, a token of three: A * (1[token] - 1/5)
    torch.testing.assert_close(logits, torch.tensor([1 - 0.3, 1 - 0.3, -0.5 - 0.3, -0.3, -0.3]) / 3)
    assert (report["kl"], report["loss"]) == (0.0, pytest.approx((2 * 1 - 0.5) * math.log(5) / 3))
    assert learned(UNIFORM)[1] == {}


def test_the_cost_of_drifting_pulls_back() -> None:
    shares = torch.softmax(torch.tensor(START), 0)
    ratio = 0.2 / float(shares[1])  # of the reference to the policy
    logits, report = learned(START, (written(1), 0.0), kl=0.5)
    assert report["kl"] == pytest.approx(-math.log(ratio))
    assert report["loss"] == pytest.approx(0.5 * (ratio - math.log(ratio) - 1))
    # d/dlogp of k3 is 1 - r
    torch.testing.assert_close(logits, torch.tensor(START) - 0.5 * (1 - ratio) * (torch.eye(5)[1] - shares))


def test_a_loss_that_is_no_number_changes_no_weight() -> None:
    policy = Bandit()
    optimizer = torch.optim.AdamW(list(policy.parameters().values()), lr=0.1)
    learn(policy, optimizer, [(written(1), 1.0)], kl=0.0)  # type: ignore[arg-type]
    before = policy.logits.detach().clone()
    with pytest.raises(TrainingError, match=r"step 7 is nan.*--lr"):
        learn(policy, optimizer, [(written(1), math.nan)], kl=0.0, step=7)  # type: ignore[arg-type]
    assert torch.equal(policy.logits.detach(), before)
    assert before[1] > 0


def test_a_prompt_that_is_too_long_fails_its_episode_alone(world: Any) -> None:
    class Short(Bandit):
        def refused(self, prompt: Any, room: int) -> Exception | None:
            return LMPromptTooLongError(9, 8, room) if "number 1?" in prompt[-1][1] else None

    found = roll_out(Short(), partial(run_episodes, world.program("rrr", None)), world.questions[:3], room=9)
    assert [one.error for one in found] == [None, "prompt_too_long", None]
    assert [len(one.completions) for one in found] == [1, 0, 1]
    arm = evaluation_of("one", found, judged_metrics(["hit"]))
    assert [row.failure for row in arm.rows] == [None, "prompt_too_long", None]


def run(policy: Any, folder: Path, settings: TrainSettings = SETTINGS, **given: Any) -> Reinforced:
    given = {"run": one_turn, "reward": Words()} | given
    return reinforce(policy, TRAIN, DEV, folder, settings, **given)


def steps_of(folder: Path) -> list[dict[str, Any]]:
    return [line for line in read_lines(folder / LOG) if line["kind"] == "step"]


def test_what_is_rewarded_is_written_more_also_after_an_interruption(tmp_path: Path) -> None:
    steps: list[int] = []

    def interrupted(what: str, done: int, total: int) -> None:
        steps.append(done)
        if len(steps) == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(Bandit(1.0), tmp_path, progress=interrupted)
    policy, again, whole = Bandit(1.0), Bandit(1.0), Bandit(1.0)
    done = run(policy, tmp_path, progress=interrupted)
    assert steps == [*range(1, 7), *range(5, 13)]  # from the measurement after step 4
    lines, shares = steps_of(tmp_path), torch.softmax(policy.logits.detach(), 0)
    assert [line["step"] for line in lines] == list(range(1, 13))
    assert lines[-1]["reward"] > lines[0]["reward"] + 0.5
    assert shares[1] == shares.max() > 0.3 > shares[2]
    assert (done.first, done.best, done.steps) == (0.0, 1.5, 12)
    assert 0 < done.best_step <= 12
    assert lines[-1]["kl"] > 0
    assert run(again, tmp_path, progress=interrupted) == done  # a finished stage only returns its report
    assert len(steps) == 14
    assert torch.equal(policy.logits, again.logits)
    assert run(whole, tmp_path / "whole") == done
    assert torch.allclose(policy.logits, whole.logits, atol=1e-5)


def test_it_ends_early_and_keeps_the_best(tmp_path: Path) -> None:
    looks: list[float] = []

    def worse(scored: Any, episode: Any) -> Any:
        if not episode.question.id.startswith("d"):
            return scored
        looks.append(1.0 / (1 + len(looks) // len(DEV)))
        return scored._replace(value=looks[-1])

    policy = Bandit(1.0)
    done = run(policy, tmp_path, replace(SETTINGS, look_each=2, patience=2), reward=Words(worse))
    assert (done.steps, done.best_step, done.first, done.best) == (4, 0, 1.0, 1.0)
    assert torch.equal(policy.logits.detach(), torch.ones(5))


@pytest.mark.parametrize("value", [0.25, math.nan])
def test_a_constant_reward_is_reported_and_moves_nothing(tmp_path: Path, value: float) -> None:
    reward = Words(lambda scored, episode: scored._replace(reward=value))
    with pytest.raises(TrainingError, match=rf"in 10 steps .*mean {value}.*--metric"):
        run(Bandit(1.0), tmp_path, reward=reward)
    done = run(Bandit(1.0), tmp_path / "two", replace(SETTINGS, steps=2), reward=reward)
    assert (done.steps, done.flat) == (2, 2)


def test_rewards_that_differ_between_questions_alone_teach_nothing(tmp_path: Path) -> None:
    reward = Words(lambda scored, episode: scored._replace(reward=float(episode.question.id[1:])))
    done = run(Bandit(1.0), tmp_path, replace(SETTINGS, steps=2), reward=reward)
    assert done.flat == 2


def test_a_failure_never_looks_better_than_the_question_as_it_is_written(tmp_path: Path) -> None:
    def failing(questions: Any, answer: Any) -> Any:
        made = one_turn(questions, answer)
        return [replace(one, error="bug") if one.question.id == "d0" else one for one in made]

    def unlike(scored: Any, episode: Any) -> Any:
        failed = episode.error is not None
        return scored._replace(value=math.nan if failed else 0.3, plain=-0.6, reward=math.nan if failed else 1.0)

    done = run(Bandit(1.0), tmp_path, replace(SETTINGS, steps=1), run=failing, reward=Words(unlike))
    assert done.first == pytest.approx((0.3 + 0.3 - 0.6) / 3)
    assert [line["failed"] for line in read_lines(tmp_path / LOG)] == [1, 0, 1]
    reward = Words(lambda scored, _: scored._replace(value=math.nan))
    with pytest.raises(InputError, match="none of the 3 dev questions could be scored"):
        run(Bandit(1.0), tmp_path / "unscored", reward=reward)
