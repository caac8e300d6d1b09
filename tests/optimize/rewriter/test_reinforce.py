"""Recipes, the change of the weights and the loop, with a policy of a few numbers; values worked out by hand."""

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
from querywright.optimize.rewriter.recipes import OURS, PAPER, SEED, Recipe, advantages_of, recipe_named
from querywright.optimize.rewriter.reinforce import LOG, Reinforced, learn, make_optimizer, reinforce
from querywright.optimize.rewriter.rewards import Scored
from querywright.optimize.rewriter.settings import TrainSettings

torch: Any = pytest.importorskip("torch")
TRAIN = [Question(f"q{n}", f"Question {n}?") for n in range(6)]
DEV = [Question(f"d{n}", f"Dev question {n}?") for n in range(3)]
RECIPES = {
    "ours": replace(OURS, lr=0.2, steps=12, batch=4, group=4, room=3, top_k=0, unreadable=0.0),
    "seed": replace(SEED, lr=0.2, steps=12, batch=16, room=3, top_k=0, length_penalty=0.0),
    "paper": replace(PAPER, lr=0.2, steps=12, batch=16, room=3, top_k=0),
}
FREE = replace(OURS, max_grad_norm=100.0)
REWARDED = replace(FREE, kl=0.0, kl_place="reward")


WORDS = ("end", "good", "bad", "plain", "other")


class Bandit:
    """A logit a word, the same at every place; the first word ends a completion."""

    kind = "causal"
    size = 8

    def __init__(self, start: float = 0.0, words: int = len(WORDS)) -> None:
        self.logits = torch.nn.Parameter(torch.full((words,), start))
        self.set_reference()

    def write(
        self, prompts: Sequence[Messages], *, room: int, seed: int | None = None, temperature: float = 1.0, **cuts: Any
    ) -> list[Completion]:
        made = []
        for place in range(len(prompts)):
            generator = torch.Generator().manual_seed(0 if seed is None else seed + place)
            scores = torch.log_softmax(self.logits.detach() / temperature, 0)
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


def test_a_reward_is_held_against_the_others_of_its_group_the_batch_or_the_last_steps() -> None:
    found = advantages_of(OURS, [1.0, 0.0, 0.5, 0.3, 7.0], ["a", "a", "a", "b", "c"], 0.0)
    assert found == pytest.approx([1 - 0.25, 0 - 0.75, 0.5 - 0.5, 0, 0])
    assert advantages_of(OURS, [1.0, math.nan, 0.0], "aaa", 0.0) == [1.0, 0.0, -1.0]  # a NaN counts for nobody
    assert advantages_of(PAPER, [1.0, math.nan, 3.0], "abc", 0.0) == pytest.approx([-1, 0, 1])
    assert advantages_of(PAPER, [math.nan], "a", 0.0) == [0.0]
    assert advantages_of(SEED, [1.0, math.nan], "ab", 0.25) == [0.75, 0.0]


def test_a_recipe_has_a_name_and_numbers_in_their_range() -> None:
    assert recipe_named("seed") == SEED
    with pytest.raises(InputError, match="there are: ours, seed, paper"):
        recipe_named("ppo")
    for changes, said in (
        ({"group": 1}, "2 or more samples a question"),
        ({"batch": 0}, "batch of a recipe must be more than 0, but got 0"),
        ({"temperature": math.inf}, "temperature"),
        ({"unreadable": -1.0}, "0 or more"),
        ({"kl_target": 0.0}, "kl_target"),
    ):
        with pytest.raises(InputError, match=said):
            replace(OURS, **changes)  # type: ignore[arg-type]


def written(*tokens: int) -> Completion:
    return Completion("", (1,), tokens, ended=True)


def learnt(recipe: Recipe, start: Sequence[float], *pairs: tuple[Completion, float], **given: Any) -> Any:
    """The logits after a step of size 1 from a start, and what is told of it; the reference is uniform."""
    policy = Bandit()
    policy.size = given.pop("size", 8)
    policy.logits.data.copy_(torch.tensor(start))
    optimizer = torch.optim.SGD(list(policy.parameters().values()), lr=1.0)
    told = learn(policy, optimizer, pairs, recipe, **{"beta": 0.0, **given})
    return policy.logits.detach(), told


UNIFORM, START = [0.0] * 5, [0.0, 1.0, 0.0, 0.0, 0.0]


def test_the_gradient_is_the_one_of_reinforce() -> None:
    logits, told = learnt(FREE, UNIFORM, (written(1, 0), 2.0), (written(2), -1.0))
    # d/dlogit of sum over tokens of A * log softmax, a token of three: A * (1[token] - 1/5)
    torch.testing.assert_close(logits, torch.tensor([2 - 3 / 5, 2 - 3 / 5, -1 - 3 / 5, -3 / 5, -3 / 5]) / 3)
    assert (told["kl"], told["loss"]) == (0.0, pytest.approx(-(2 * 2 - 1) / 3))
    assert learnt(FREE, UNIFORM)[1] == {}


def test_the_cost_of_drifting_is_on_each_token_and_those_before_it_and_scaled_with_the_rest() -> None:
    shares = torch.softmax(torch.tensor(START), 0)
    end, good, *_ = (shares.log() + math.log(5)).tolist()
    logits, told = learnt(REWARDED, START, (written(1, 0), 1.0), beta=0.5)
    earned = [1 - 0.5 * (good + end), 1 - 0.5 * end]
    expected = (earned[0] * (torch.eye(5)[1] - shares) + earned[1] * (torch.eye(5)[0] - shares)) / 2
    torch.testing.assert_close(logits, torch.tensor(START) + expected)
    assert told["kl"] == pytest.approx((good + end) / 2)
    logits, _ = learnt(REWARDED, START, (written(1, 0), 1.0), (written(2), 3.0), beta=0.5, scaled=True)
    each = torch.tensor([1 - 0.5 * (good + end), 1 - 0.5 * end, 3 - 0.5 * end])
    scaled = (each - each.mean()) / each.std(correction=0)
    tokens = torch.eye(5)[torch.tensor([1, 0, 2])] - shares
    torch.testing.assert_close(logits, torch.tensor(START) + (scaled[:, None] * tokens).sum(0) / 3)


def test_k3_pulls_back_and_a_ratio_that_left_its_bounds_gives_no_gradient() -> None:
    logits, told = learnt(FREE, [0.0, 2.0, 0.0, 0.0, 0.0], (written(1), 0.0), beta=0.5)
    assert told["loss"] > 0
    assert logits[1] < 2.0
    bound, free = (
        torch.softmax(learnt(replace(FREE, clip=clip, epochs=50), UNIFORM, (written(1), 1.0))[0], 0)[1] * 5
        for clip in (0.01, 1e9)
    )
    assert 1.01 < bound < free


@pytest.mark.parametrize("recipe", [OURS, SEED])
def test_a_loss_that_is_no_number_changes_no_weight(recipe: Recipe) -> None:
    policy = Bandit()
    optimizer = make_optimizer(replace(recipe, lr=0.1), list(policy.parameters().values()))
    learn(policy, optimizer, [(written(1), 1.0)], recipe, beta=0.0)
    before = policy.logits.detach().clone()
    with pytest.raises(TrainingError, match=r"step 7 is nan.*--lr"):
        learn(policy, optimizer, [(written(1), math.nan)], recipe, beta=0.0, step=7)
    assert torch.equal(policy.logits.detach(), before)
    assert before[1] > 0


def test_a_prompt_that_is_too_long_fails_its_episode_alone(world: Any) -> None:
    class Short(Bandit):
        def refused(self, prompt: Any, room: int) -> Exception | None:
            return LMPromptTooLongError(9, 8, room) if "number 1?" in prompt[-1][1] else None

    found = roll_out(Short(), partial(run_episodes, world.program("rrr", None)), world.questions[:3], OURS)
    assert [one.error for one in found] == [None, "prompt_too_long", None]
    assert [len(one.completions) for one in found] == [1, 0, 1]
    arm = evaluation_of("one", found, judged_metrics(["hit"]))
    assert [row.failure for row in arm.rows] == [None, "prompt_too_long", None]


def run(policy: Any, folder: Path, recipe: Recipe = RECIPES["ours"], **given: Any) -> Reinforced:
    ends = {name: given.pop(name, default) for name, default in (("look_each", 4), ("patience", 9))}
    given = {"run": one_turn, "reward": Words()} | given
    return reinforce(policy, TRAIN, DEV, folder, TrainSettings("rrr", recipe=recipe, **ends), **given)


def steps_of(folder: Path) -> list[dict[str, Any]]:
    return [line for line in read_lines(folder / LOG) if line["kind"] == "step"]


@pytest.mark.parametrize(("name", "stop"), [("ours", 3), ("seed", 6), ("paper", 9)])
def test_what_is_rewarded_is_written_more_also_after_an_end(tmp_path: Path, name: str, stop: int) -> None:
    steps: list[int] = []

    def ended(what: str, done: int, total: int) -> None:
        steps.append(done)
        if len(steps) == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(Bandit(1.0), tmp_path, RECIPES[name], progress=ended)
    policy, again = Bandit(1.0), Bandit(1.0)
    done = run(policy, tmp_path, RECIPES[name], progress=ended)
    kept = max(one for one in (0, 4, 5, 8, 10) if one <= stop)  # each 5 steps, and after each look at dev
    assert steps == [*range(1, stop + 1), *range(kept + 1, 13)]
    lines, shares = steps_of(tmp_path), torch.softmax(policy.logits.detach(), 0)
    assert [line["step"] for line in lines] == list(range(1, 13))
    assert lines[-1]["reward"] > lines[0]["reward"] + 0.5
    assert shares[1] == shares.max() > 0.3 > shares[2]
    assert (done.first, done.best, done.steps) == (0.0, 1.5, 12)
    assert 0 < done.best_step <= 12
    assert lines[-1]["kl"] > 0
    assert (lines[-1]["beta"] == RECIPES[name].kl) == (name != "paper")
    assert run(again, tmp_path, RECIPES[name], progress=ended) == done  # it is done, and only gives its result
    assert steps[-1] == 12 == len(set(steps))
    assert torch.equal(policy.logits, again.logits)


def test_it_ends_early_and_keeps_the_best(tmp_path: Path) -> None:
    looks: list[float] = []

    def worse(scored: Any, episode: Any) -> Any:
        if not episode.question.id.startswith("d"):
            return scored
        looks.append(1.0 / (1 + len(looks) // len(DEV)))
        return scored._replace(value=looks[-1])

    policy = Bandit(1.0)
    done = run(policy, tmp_path, look_each=2, patience=2, reward=Words(worse))
    assert (done.steps, done.best_step, done.early, done.first, done.best) == (4, 0, True, 1.0, 1.0)
    assert torch.equal(policy.logits.detach(), torch.ones(5))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [("ours", 0.25, r"between 0\.25 and 0\.25"), ("paper", math.nan, "could not be worked out")],
)
def test_a_constant_reward_is_said_and_moves_nothing(tmp_path: Path, name: str, value: float, said: str) -> None:
    reward = Words(lambda scored, episode: scored._replace(reward=value))
    with pytest.raises(TrainingError, match=f"in 10 steps .* {said}.*--metric"):
        run(Bandit(1.0), tmp_path, RECIPES[name], reward=reward)
    done = run(Bandit(1.0), tmp_path / "two", replace(RECIPES[name], steps=2), reward=reward)
    assert (done.steps, done.flat) == (2, 2)
    first, second = steps_of(tmp_path / "two")
    assert first["beta"] == RECIPES[name].kl
    assert (second["beta"] == first["beta"]) == (name == "ours" or math.isnan(value))


def test_rewards_that_differ_between_questions_alone_teach_nothing(tmp_path: Path) -> None:
    calls = [0]

    def by_question(scored: Any, episode: Any) -> Any:
        calls[0] += 1
        return scored if calls[0] <= 3 + 2 * 16 else scored._replace(reward=float(episode.question.id[1:]))

    recipe = replace(RECIPES["ours"], steps=20)
    done = run(Bandit(1.0), tmp_path, recipe, reward=Words(by_question))
    assert (done.steps, done.flat, done.early) == (12, 10, True)
    assert done.notes[0].startswith("it ended after step 12: the last 10 steps taught nothing")


def test_a_failure_never_looks_better_than_the_question_as_it_is_written(tmp_path: Path) -> None:
    def failing(questions: Any, answer: Any) -> Any:
        made = one_turn(questions, answer)
        return [replace(one, error="bug") if one.question.id == "d0" else one for one in made]

    def unlike(scored: Any, episode: Any) -> Any:
        failed = episode.error is not None
        return scored._replace(value=math.nan if failed else 0.3, plain=-0.6, reward=math.nan if failed else 1.0)

    recipe, reward = replace(RECIPES["ours"], steps=1), Words(unlike)
    done = run(Bandit(1.0), tmp_path, recipe, run=failing, reward=reward)
    assert done.first == pytest.approx((0.3 + 0.3 - 0.6) / 3)
    assert [line["failed"] for line in read_lines(tmp_path / LOG)] == [1, 0, 1]
    reward = Words(lambda scored, _: scored._replace(value=math.nan))
    with pytest.raises(InputError, match="none of the 3 dev questions could be scored"):
        run(Bandit(1.0), tmp_path / "unscored", reward=reward)
