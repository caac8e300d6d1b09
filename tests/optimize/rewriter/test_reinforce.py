from __future__ import annotations

import math
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from querywright.data.types import Question
from querywright.errors import InputError
from querywright.optimize.rewriter.gradient import TrainingError
from querywright.optimize.rewriter.keeping import read_lines
from querywright.optimize.rewriter.recipes import OURS, PAPER, SEED, Recipe
from querywright.optimize.rewriter.reinforce import LOG, Reinforced, ReinforceSettings, reinforce

torch: Any = pytest.importorskip("torch")
BANDIT = runpy.run_path(str(Path(__file__).with_name("bandit.py")))
TRAIN = [Question(f"q{n}", f"Question {n}?") for n in range(6)]
DEV = [Question(f"d{n}", f"Dev question {n}?") for n in range(3)]
RECIPES = {
    "ours": replace(OURS, lr=0.2, steps=12, batch=4, group=4, room=3, top_k=0, unreadable=0.0),
    "seed": replace(SEED, lr=0.2, steps=12, batch=16, room=3, top_k=0, length_penalty=0.0),
    "paper": replace(PAPER, lr=0.2, steps=12, batch=16, room=3, top_k=0),
}
SETTINGS = ReinforceSettings(keep_each=2, look_each=4, patience=9)


class StopError(Exception):
    pass


def run(
    policy: Any, folder: Path, recipe: Recipe = RECIPES["ours"], settings: ReinforceSettings = SETTINGS, **given: Any
) -> Reinforced:
    given = {"run": BANDIT["one_turn"], "reward": BANDIT["Words"](), "train": TRAIN, "dev": DEV} | given
    train, dev = given.pop("train"), given.pop("dev")
    return reinforce(policy, train, dev, recipe=recipe, settings=settings, folder=folder, **given)


@pytest.mark.parametrize("name", list(RECIPES))
def test_what_is_rewarded_is_written_more(tmp_path: Path, name: str) -> None:
    policy = BANDIT["Bandit"](1.0)
    done = run(policy, tmp_path, RECIPES[name])
    lines = [line for line in read_lines(tmp_path / LOG) if line["kind"] == "step"]
    shares = torch.softmax(policy.logits.detach(), 0)
    assert [line["step"] for line in lines] == list(range(1, 13))
    assert lines[-1]["reward"] > lines[0]["reward"] + 0.5
    assert shares[1] == shares.max() > 0.3 > shares[2]
    assert done.first == 0.0
    assert done.best == 1.5
    assert done.steps == 12
    assert 0 < done.best_step <= 12
    assert lines[-1]["kl"] > 0
    assert (lines[-1]["beta"] == recipe_beta(name)) == (name != "paper")


def recipe_beta(name: str) -> float:
    return RECIPES[name].kl.beta


@pytest.mark.parametrize(("name", "stop"), [("ours", 1), ("ours", 4), ("ours", 11), ("seed", 3), ("paper", 5)])
def test_a_run_that_was_ended_goes_on_to_the_same_result(tmp_path: Path, name: str, stop: int) -> None:
    whole = BANDIT["Bandit"](1.0)
    expected = run(whole, tmp_path / "whole", RECIPES[name])

    def ended(what: str, done: int, total: int) -> None:
        if done == stop:
            raise StopError

    with pytest.raises(StopError):
        run(BANDIT["Bandit"](1.0), tmp_path / "ended", RECIPES[name], progress=ended)
    policy = BANDIT["Bandit"](1.0)
    assert run(policy, tmp_path / "ended", RECIPES[name]) == expected
    assert torch.equal(policy.logits, whole.logits)
    logs = [[{**line, "seconds": 0} for line in read_lines(tmp_path / folder / LOG)] for folder in ("whole", "ended")]
    assert logs[0] == logs[1]


def test_a_run_that_is_done_only_gives_its_result(tmp_path: Path) -> None:
    policy, again = BANDIT["Bandit"](1.0), BANDIT["Bandit"](1.0)
    expected = run(policy, tmp_path)
    steps: list[int] = []
    assert run(again, tmp_path, progress=lambda what, done, total: steps.append(done)) == expected
    assert torch.equal(policy.logits, again.logits)
    assert steps == []


def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path: Path) -> None:
    expected = run(BANDIT["Bandit"](1.0), tmp_path / "whole")

    def ended(what: str, done: int, total: int) -> None:
        if done == 7:
            raise StopError

    with pytest.raises(StopError):
        run(BANDIT["Bandit"](1.0), tmp_path / "ended", progress=ended)
    newest = max(tmp_path.glob("ended/step-*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-3])
    found = run(BANDIT["Bandit"](1.0), tmp_path / "ended")
    assert replace(found, notes=()) == expected
    assert "the checkpoint of step 6 is damaged" in found.notes[0]


def test_damaged_best_weights_are_not_taken_for_older_ones(tmp_path: Path) -> None:
    run(BANDIT["Bandit"](1.0), tmp_path)
    newest = max((tmp_path / "best").glob("step-*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-3])
    with pytest.raises(InputError, match=r"the best weights, those of step \d+, are missing .* or damaged"):
        run(BANDIT["Bandit"](1.0), tmp_path)


def test_it_ends_early_and_keeps_the_best(tmp_path: Path) -> None:
    class Worse:
        calls = 0

        def score(self, episodes: Any, tokens: Any = None) -> Any:
            scored = BANDIT["Words"]().score(episodes, tokens)
            if episodes[0].question.id.startswith("d"):
                Worse.calls += 1
                scored = [replace(one, value=1.0 / Worse.calls) for one in scored]
            return scored

    policy = BANDIT["Bandit"](1.0)
    done = run(policy, tmp_path, settings=replace(SETTINGS, look_each=2, patience=2), reward=Worse())
    assert (done.steps, done.best_step, done.early, done.first, done.best) == (4, 0, True, 1.0, 1.0)
    assert torch.equal(policy.logits.detach(), torch.ones(5))


@pytest.mark.parametrize(("value", "said"), [(0.25, r"0\.25 each time"), (math.nan, "could not be worked out for any")])
def test_a_constant_reward_is_said(tmp_path: Path, value: float, said: str) -> None:
    with pytest.raises(TrainingError, match=f"last 3 steps the reward of all 48 episodes.*{said}.*--metric"):
        run(BANDIT["Bandit"](1.0), tmp_path, settings=replace(SETTINGS, constant=3), reward=BANDIT["Constant"](value))


def test_steps_that_taught_nothing_are_counted(tmp_path: Path) -> None:
    done = run(BANDIT["Bandit"](1.0), tmp_path, replace(RECIPES["ours"], steps=2), reward=BANDIT["Constant"]())
    assert (done.steps, done.flat) == (2, 2)


class ByQuestion:
    """Each question has its own reward; after some calls nothing else counts."""

    def __init__(self, calls: int) -> None:
        self.calls = calls

    def score(self, episodes: Any, tokens: Any = None) -> Any:
        self.calls -= 1
        scored = BANDIT["Words"]().score(episodes, tokens)
        if self.calls >= 0:
            return scored
        return [replace(one, reward=float(e.question.id[1:])) for one, e in zip(scored, episodes, strict=True)]


def test_rewards_that_differ_between_questions_alone_teach_nothing(tmp_path: Path) -> None:
    settings = replace(SETTINGS, constant=3)
    with pytest.raises(TrainingError, match="was that of the other samples each time"):
        run(BANDIT["Bandit"](1.0), tmp_path / "never", settings=settings, reward=ByQuestion(0))
    done = run(BANDIT["Bandit"](1.0), tmp_path / "later", settings=settings, reward=ByQuestion(3))
    assert (done.steps, done.flat, done.early) == (5, 3, True)
    assert done.notes[0].startswith("it ended after step 5: the last 3 steps taught nothing")


def test_a_failure_never_looks_better_than_the_question_as_it_is_written(tmp_path: Path) -> None:
    def failing(questions: Any, answer: Any) -> Any:
        made = BANDIT["one_turn"](questions, answer)
        return [replace(one, error="bug") if one.question.id == "d0" else one for one in made]

    class Unlike:
        def score(self, episodes: Any, tokens: Any = None) -> Any:
            scored = BANDIT["Words"]().score(episodes, tokens)
            return [
                replace(s, value=math.nan if e.error else 0.3, reward=math.nan if e.error else s.reward, plain=-0.6)
                for s, e in zip(scored, episodes, strict=True)
            ]

    done = run(BANDIT["Bandit"](1.0), tmp_path, replace(RECIPES["ours"], steps=1), run=failing, reward=Unlike())
    assert done.first == pytest.approx((0.3 + 0.3 - 0.6) / 3)
    assert [line["failed"] for line in read_lines(tmp_path / LOG)] == [1, 0, 1]


def test_a_loss_that_is_no_number_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    class Broken(BANDIT["Bandit"]):  # type: ignore[misc]
        asked = 0

        def log_probs(self, completions: Any, *, reference: bool = False) -> Any:
            found = super().log_probs(completions, reference=reference)
            Broken.asked += not reference
            return [one * math.nan for one in found] if Broken.asked > 20 else found

    with pytest.raises(TrainingError, match=r"the loss of step \d+ is nan"):
        run(Broken(1.0), tmp_path)
    expected = run(BANDIT["Bandit"](1.0), tmp_path / "whole")
    assert run(BANDIT["Bandit"](1.0), tmp_path) == expected


def test_a_step_without_rewards_leaves_the_weight_of_the_kl_alone(tmp_path: Path) -> None:
    settings, reward = replace(SETTINGS, constant=3), BANDIT["Constant"](math.nan)
    with pytest.raises(TrainingError, match="could not be worked out for any"):
        run(BANDIT["Bandit"](1.0), tmp_path, RECIPES["paper"], settings, reward=reward)
    betas = {line["beta"] for line in read_lines(tmp_path / LOG) if line["kind"] == "step"}
    assert betas == {PAPER.kl.beta}


@pytest.mark.parametrize("name", ["keep_each", "look_each", "patience", "constant", "chunk"])
def test_settings_out_of_range(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} of the reinforcement must be 1 or more, but got 0"):
        ReinforceSettings(**{name: 0})


def test_without_questions_it_says_how_many_are_missing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="1 question in dev or more, but has 0: 1 more"):
        run(BANDIT["Bandit"](1.0), tmp_path, dev=[])
    with pytest.raises(InputError, match="none of the 3 dev questions could be scored"):
        run(BANDIT["Bandit"](1.0), tmp_path, reward=Unscored())


class Unscored:
    def score(self, episodes: Any, tokens: Any = None) -> Any:
        return [replace(one, value=math.nan) for one in BANDIT["Words"]().score(episodes, tokens)]
