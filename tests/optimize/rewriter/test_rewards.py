"""Rewards against values worked out by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from querywright.data.types import Label, Passage, Question
from querywright.errors import BudgetError, InputError
from querywright.models.engine_errors import LMBudgetError
from querywright.optimize.rewriter.episodes import run_episodes
from querywright.optimize.rewriter.recipes import OURS, PAPER, SEED
from querywright.optimize.rewriter.rewards import Reward
from querywright.optimize.rewriter.types import Completion, Episode

EIFFEL = Question("q", "Where?", answer="Eiffel Tower in Paris", evidence={"b": Label.ENTAILED})


def predicted(answer: str | None, *texts: str) -> Any:
    return SimpleNamespace(answer=answer, passages=[Passage(f"p{n}", text) for n, text in enumerate(texts)])


def sized(episode: Episode, *counts: int) -> Episode:
    """The episode as if its completions had so many tokens."""
    return replace(episode, completions=tuple(Completion("", (1,), (0,) * count, True) for count in counts))


def written(*queries: str) -> str:
    return json.dumps({"thought": "t", "queries": list(queries)})


@pytest.fixture
def paper(world: Any, make_lm: Any) -> Any:
    return Reward(PAPER, world.program("rrr"), lm=make_lm())


@pytest.mark.parametrize(
    ("question", "answer", "texts", "parts"),
    [
        (EIFFEL, "the Eiffel Tower", ["It is in Paris."], {"em": 0, "f1": 2 / 3, "hit": -1}),
        (EIFFEL, "Eiffel tower, in Paris!", ["See the EIFFEL TOWER (in Paris)."], {"em": 1, "f1": 1, "hit": 1}),
        (EIFFEL, "", [], {"em": 0, "f1": 0, "hit": -1}),
        # of multiple choice exact match alone
        (Question("q", "Which?", ("Paris", "Rome"), "Paris"), "A", ["Paris"], {"em": 1}),
        (Question("q", "Which?", ("Paris", "Rome"), "Paris"), "B", ["Paris"], {"em": 0}),
        # a hit is a substring of the joined text
        (replace(EIFFEL, answer="no"), "no", ["I know."], {"em": 1, "f1": 1, "hit": 1}),
        (replace(EIFFEL, answer="no"), "no", ["I knew."], {"em": 1, "f1": 1, "hit": -1}),
        (replace(EIFFEL, answer="The Eiffel Tower"), "x", ["the Eiffel", "Tower"], {"em": 0, "f1": 0, "hit": 1}),
        # SQuAD's normalisation makes "A" nothing, and so equal to no answer and in no text
        (replace(EIFFEL, answer="A"), "", ["x"], {"em": 0, "f1": 0}),
    ],
)
def test_the_papers_reward_is_exact_match_f1_and_hit(
    paper: Any, question: Question, answer: str, texts: list[str], parts: dict[str, float]
) -> None:
    assert paper.parts(question, predicted(answer, *texts)) == pytest.approx(parts)


@pytest.mark.parametrize(("counts", "taken"), [([30], 0.06), ([18], 0.06), ([20, 30], 0.05), ([24], 0.0)])
def test_the_length_penalty_is_the_mean_distance_from_the_length_aimed_at(
    world: Any, counts: list[int], taken: float
) -> None:
    program = world.program("rrr", None)
    (episode,) = run_episodes(program, world.questions[:1], lambda turns: [written("key of 0")])
    recipe = replace(OURS, length_penalty=0.01)
    (scored,) = Reward(recipe, program, metric="recall@5", target=24).score([sized(episode, *counts)])
    assert scored.reward == pytest.approx(1 - taken)
    with pytest.raises(InputError, match="length aimed at"):
        Reward(recipe, program)


def test_retrieval_gain_is_the_gain_over_the_plain_question(world: Any) -> None:
    program = world.program("rrr", None, max_passages=5)
    questions = [world.questions[0], world.questions[0], world.questions[1]]
    texts = [written("key of 0"), written("nothing of 0"), "unreadable"]
    episodes = run_episodes(program, questions, lambda turns: texts)
    scored = Reward(OURS, program, metric="recall@5").score(episodes)
    assert [one.value for one in scored] == [1.0, 0.0, 0.0]
    assert [one.plain for one in scored] == [0.0] * 3
    assert [one.reward for one in scored] == pytest.approx([1.0, 0.0, -0.1])
    assert scored[2].parts == {"recall@5": 0.0, "unreadable": -0.1}


def test_where_the_plain_question_finds_it_a_miss_costs(make_world: Any) -> None:
    world = make_world("both")
    program = world.program("rrr", None)
    episodes = run_episodes(program, world.questions[:2], lambda turns: [written("key of 0"), written("none of 1")])
    scored = Reward(OURS, program, metric="ndcg@10").score(episodes)
    assert [(one.value, one.plain, one.reward) for one in scored] == [(1.0, 1.0, 0.0), (0.0, 1.0, -1.0)]


def test_the_plain_question_is_searched_once(world: Any) -> None:
    program = world.program("rrr", None)
    reward = Reward(OURS, program)
    episodes = run_episodes(program, world.questions[:1] * 3, lambda turns: [written("key of 0")] * len(turns))
    for _ in range(2):
        reward.score(episodes)
    assert [query for query, _ in world.searches].count("What of number 0?") == 1


def test_answer_gain_is_f1_less_that_of_the_answer_without_rewriting(
    world: Any, make_engine: Any, make_lm: Any
) -> None:
    engine = make_engine()
    lm = make_lm(engine)
    program = world.program("rrr")
    texts = [written("key of 0"), written("nothing of 0")]
    episodes = run_episodes(program, world.questions[:1] * 2, lambda turns: texts, lm=lm)
    reward = Reward(SEED, program, lm=lm, target=20)
    asked = len(engine.asked)
    episodes = [sized(episodes[0], 20), sized(episodes[1], 30)]
    scored = reward.score(episodes)
    # "right 0" against "right 0" is 1; "wrong 0" against it shares one token of two: .5, as without rewriting
    assert [one.value for one in scored] == [1.0, 0.5]
    assert [one.plain for one in scored] == [0.5, 0.5]
    assert [one.reward for one in scored] == pytest.approx([0.5, -0.1])
    reward.score(episodes)
    assert len(engine.asked) == asked + 1


def test_the_papers_reward_is_the_value_itself(world: Any, make_lm: Any) -> None:
    program, lm = world.program("rrr"), make_lm()
    episodes = run_episodes(program, world.questions[:1], lambda turns: [written("key of 0")], lm=lm)
    (scored,) = Reward(PAPER, program, lm=lm).score(episodes)
    assert (scored.reward, scored.value, scored.plain) == (1.0, 1.0, 0.0)


def test_what_failed_or_is_not_labelled_is_nan(world: Any) -> None:
    program = world.program("rrr", None)
    failed = Episode(world.questions[0], (), (), None, "bug")
    (bare,) = run_episodes(
        program, [replace(world.questions[1], evidence={})], lambda turns: [written("key of 1")] * len(turns)
    )
    scored = Reward(OURS, program).score([failed, bare])
    assert [math.isnan(one.reward) for one in scored] == [True, True]
    assert scored[0].plain == 0.0


def test_an_outage_of_the_reader_stops_everything(world: Any, make_engine: Any, make_lm: Any) -> None:
    def before(n: int, asked: Any) -> None:
        raise LMBudgetError("spent")

    lm = make_lm(make_engine(before=before))
    program = world.program("rrr")
    with pytest.raises(BudgetError, match="spent"):
        Reward(SEED, program, lm=lm, target=20).plain_values(world.questions[:2])


def test_what_is_missing_is_said(world: Any, make_lm: Any) -> None:
    bare, read = world.program("rrr", None), world.program("rrr")
    for recipe, program, given, said in (
        (SEED, bare, {"lm": make_lm(), "target": 9}, "there is no reader, or no LM"),
        (PAPER, read, {}, "there is no reader, or no LM"),
        (OURS, bare, {"metric": "ndgc@10"}, "unknown metric"),
    ):
        with pytest.raises(InputError, match=said):
            Reward(recipe, program, **given)  # type: ignore[arg-type]
