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
from querywright.optimize.rewriter.rewards import (
    AnswerGain,
    PaperReward,
    Penalties,
    RetrievalGain,
    length_penalty,
    make_reward,
    paper_parts,
    plain_program,
    substring_hit,
)
from querywright.optimize.rewriter.types import Episode

EIFFEL = Question("q", "Where?", answer="Eiffel Tower in Paris", evidence={"b": Label.ENTAILED})


def predicted(answer: str | None, *texts: str) -> Any:
    return SimpleNamespace(answer=answer, passages=[Passage(f"p{n}", text) for n, text in enumerate(texts)])


def written(*queries: str) -> str:
    return json.dumps({"thought": "t", "queries": list(queries)})


@pytest.mark.parametrize(
    ("answer", "texts", "parts"),
    [
        ("the Eiffel Tower", ["It is in Paris."], {"em": 0, "f1": 2 / 3, "hit": -1}),
        ("Eiffel tower, in Paris!", ["See the EIFFEL TOWER (in Paris)."], {"em": 1, "f1": 1, "hit": 1}),
        ("", [], {"em": 0, "f1": 0, "hit": -1}),
    ],
)
def test_the_papers_reward_is_exact_match_f1_and_hit(answer: str, texts: list[str], parts: dict[str, float]) -> None:
    assert paper_parts(EIFFEL, predicted(answer, *texts)) == pytest.approx(parts)


def test_of_multiple_choice_the_papers_reward_is_exact_match_alone() -> None:
    question = Question("q", "Which?", ("Paris", "Rome"), "Paris")
    assert paper_parts(question, predicted("A", "Paris")) == {"em": 1.0}
    assert paper_parts(question, predicted("B", "Paris")) == {"em": 0.0}


def test_hit_is_a_substring_of_the_joined_text_and_an_empty_answer_is_no_hit() -> None:
    assert substring_hit(["I know."], ["no"]) == 1.0
    assert substring_hit(["I knew."], ["no"]) == -1.0
    assert substring_hit(["ends in the Eiffel", "Tower begins"], ["The Eiffel Tower"]) == 1.0
    assert math.isnan(substring_hit(["anything"], ["A"]))
    assert substring_hit(["anything"], ["A", "thing"]) == 1.0
    # SQuAD's normalisation makes "A" nothing, and so equal to no answer; an answer that was not given is still wrong
    assert paper_parts(replace(EIFFEL, answer="A"), predicted("", "x")) == {"em": 0.0, "f1": 0.0}


def test_the_length_penalty() -> None:
    assert length_penalty([30], 24, 0.01) == pytest.approx(0.06)
    assert length_penalty([18], 24, 0.01) == pytest.approx(0.06)
    assert length_penalty([20, 30], 24, 0.01) == pytest.approx(0.05)
    assert length_penalty([], 24, 0.01) == 0


def test_retrieval_gain_is_the_gain_over_the_plain_question(world: Any) -> None:
    program = world.program("rrr", None, max_passages=5)
    questions = [world.questions[0], world.questions[0], world.questions[1]]
    texts = [written("key of 0"), written("nothing of 0"), "unreadable"]
    episodes = run_episodes(program, questions, lambda turns: texts)
    scored = make_reward(OURS, program, metric="recall@5").score(episodes)
    assert [one.value for one in scored] == [1.0, 0.0, 0.0]
    assert [one.plain for one in scored] == [0.0] * 3
    assert [one.reward for one in scored] == pytest.approx([1.0, 0.0, -0.1])
    assert scored[2].parts == {"recall@5": 0.0, "unreadable": -0.1}


def test_where_the_plain_question_finds_it_a_miss_costs(make_world: Any) -> None:
    world = make_world("both")
    program = world.program("rrr", None)
    episodes = run_episodes(program, world.questions[:2], lambda turns: [written("key of 0"), written("none of 1")])
    scored = RetrievalGain(plain_program(program), metric="ndcg@10").score(episodes)
    assert [(one.value, one.plain, one.reward) for one in scored] == [(1.0, 1.0, 0.0), (0.0, 1.0, -1.0)]


def test_the_plain_question_is_searched_once(world: Any) -> None:
    program = world.program("rrr", None)
    reward = RetrievalGain(plain_program(program))
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
    reward = make_reward(SEED, program, lm=lm, target=20)
    asked = len(engine.asked)
    scored = reward.score(episodes, [[20], [30]])
    # "right 0" against "right 0" is 1; "wrong 0" against it shares one token of two: .5, as without rewriting
    assert [one.value for one in scored] == [1.0, 0.5]
    assert [one.plain for one in scored] == [0.5, 0.5]
    assert [one.reward for one in scored] == pytest.approx([0.5, -0.1])
    reward.score(episodes, [[20], [30]])
    assert len(engine.asked) == asked + 1


def test_the_papers_reward_is_the_value_itself(world: Any, make_lm: Any) -> None:
    program, lm = world.program("rrr"), make_lm()
    episodes = run_episodes(program, world.questions[:1], lambda turns: [written("key of 0")], lm=lm)
    (scored,) = make_reward(PAPER, program, lm=lm).score(episodes)
    assert (scored.reward, scored.value, scored.plain) == (1.0, 1.0, 0.0)
    assert isinstance(make_reward(PAPER, program, lm=lm), PaperReward)


def test_what_failed_or_is_not_labelled_is_nan(world: Any) -> None:
    program = world.program("rrr", None)
    failed = Episode(world.questions[0], (), (), None, "bug")
    (bare,) = run_episodes(
        program, [replace(world.questions[1], evidence={})], lambda turns: [written("key of 1")] * len(turns)
    )
    scored = RetrievalGain(plain_program(program)).score([failed, bare])
    assert [math.isnan(one.reward) for one in scored] == [True, True]
    assert scored[0].plain == 0.0


def test_an_outage_of_the_reader_stops_everything(world: Any, make_engine: Any, make_lm: Any) -> None:
    def before(n: int, asked: Any) -> None:
        raise LMBudgetError("spent")

    lm = make_lm(make_engine(before=before))
    program = world.program("rrr")
    with pytest.raises(BudgetError, match="spent"):
        AnswerGain(plain_program(program), lm=lm).plain_values(world.questions[:2])


def test_what_is_missing_is_said(world: Any, make_lm: Any) -> None:
    bare, read = plain_program(world.program("rrr", None)), plain_program(world.program("rrr"))
    with pytest.raises(InputError, match="no reader"):
        AnswerGain(bare, lm=make_lm())
    with pytest.raises(InputError, match="no LM is given"):
        PaperReward(read)
    with pytest.raises(InputError, match="reads an answer"):
        RetrievalGain(bare, metric="accuracy")
    with pytest.raises(InputError, match="unknown metric"):
        RetrievalGain(bare, metric="ndgc@10")
    with pytest.raises(InputError, match="length aimed at"):
        Penalties(length=0.1)
    with pytest.raises(InputError, match="give tokens"):
        Penalties(length=0.1, target=3).of(Episode(EIFFEL, (), (), None), None)
    with pytest.raises(InputError, match="token counts of 1 episodes for 0"):
        RetrievalGain(bare).score([], [[1]])
