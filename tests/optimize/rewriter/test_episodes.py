"""Episodes with a function in the place of the LM: prompts, what is read, failures, and rewards computed by hand."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from querywright.optimize.contexts import asking
from querywright.optimize.rewriter.episodes import Episode, Reward, Turn, run_episodes

BOTH = {"discriminating_features": ["d"], "reasoning": "r", "confirming_evidence": ["c"]}


def number(turn: Turn) -> int:
    return int(re.findall(r"number (\d+)", turn.messages[-1][1])[0])


def rrr(*queries: str) -> str:
    return json.dumps({"thought": "t", "queries": list(queries)})


def rewrite(turn: Turn) -> str:
    return rrr(f"key of {number(turn)}")


def hcqr(turn: Turn) -> str:
    n = number(turn)
    if turn.number == 0:
        return json.dumps({**BOTH, "best_guess": f"right {n}"})
    return json.dumps({"support": f"key of {n}", "distinguish": f"other of {n}", "verify": f"another of {n}"})


def queries(episode: Episode) -> tuple[str, ...]:
    return tuple(query.text for query in episode.prediction.queries)


def test_prompts_and_results_are_those_of_an_lm_in_use(world: Any, make_engine: Any, make_lm: Any) -> None:
    def write(asked: Any) -> str:
        return hcqr(Turn(0, 0 if "best_guess" in asked.properties else 1, (("user", "number 1"),)))

    engine = make_engine(write=write)
    engine.decides_by_likelihood = True
    seen, lm = list[Any](), make_lm(engine)
    complete = lm.engine.complete
    lm.engine.complete = lambda request: seen.append(request) or complete(request)
    question, program = world.questions[1], world.program("hcqr", None)
    with asking(lm):
        program(question=question.question, options=list(question.options))
    first, episode = run_episodes(program, world.questions[:2], hcqr, threads=2)
    used = []
    for one in seen:
        system = one.system if isinstance(one.system, str) else "".join(part.text for part in one.system)
        used.append((("system", system), *((message.role, message.text) for message in one.messages)))
    assert [turn.messages for turn in episode.turns] == used
    assert [turn[:2] for turn in episode.turns] == [(1, 0), (1, 1)]
    assert queries(episode) == ("key of 1", "other of 1", "another of 1")
    assert first.prediction.passages[0].id == "decides-0"
    assert program.technique.writer_lm is None  # a copy of it ran


def test_an_unreadable_answer_falls_back_and_is_requested_once(world: Any) -> None:
    asked = list[int]()

    def answer(turn: Turn) -> str:
        asked.append(turn.place)
        return ("no JSON", "", rewrite(turn))[turn.place]

    bad, empty, good = run_episodes(world.program("rrr", None), world.questions[:3], answer)
    assert sorted(asked) == [0, 1, 2]
    assert (bad.read, empty.read) == ((None,), (None,))
    assert bad.prediction.fallbacks == ["rewrite"]
    assert queries(bad) == ("What of number 0?",)
    assert good.read == (rrr("key of 2"),)


def test_an_answer_is_limited_to_what_a_rewriter_can_write(world: Any) -> None:
    written = [f'the "key" of 0 {"x" * 5} {"word " * 90}', "second 0", "third 0", "fourth 0"]
    text = json.dumps({"queries": written, "thought": "t\n\\u"})
    (held,) = run_episodes(world.program("rrr", None), world.questions[:1], lambda turn: text)
    read = json.loads(held.read[0] or "")
    assert list(read) == ["thought", "queries"]
    assert len(read["queries"]) == 3
    assert re.fullmatch("the 'key' of 0 .{,305}word", read["queries"][0])
    assert queries(held) == tuple(read["queries"])
    (free,) = run_episodes(world.program("rrr", None), world.questions[:1], lambda turn: text, limits=None)
    assert queries(free)[0].startswith('the "key" of 0')


def test_a_question_that_fails_has_no_prediction(world: Any) -> None:
    def search(texts: Sequence[str], k: int) -> Any:
        if "key of 1" in texts:
            raise RuntimeError("broken")
        return type(world).search(world, texts, k)

    world.search = search
    found = run_episodes(world.program("rrr", None), world.questions[:3], rewrite)
    assert [one.error for one in found] == [None, "bug", None]
    assert (found[1].prediction, len(found[1].turns)) == (None, 1)


def played(world: Any, texts: Sequence[str], questions: Any = None) -> Any:
    program = world.program("rrr", None)
    answer: Callable[[Turn], str] = lambda turn: texts[turn.place]  # noqa: E731
    return program, run_episodes(program, questions or world.questions[:1] * len(texts), answer)


def test_a_reward_is_the_gain_over_the_plain_question_which_is_searched_once(world: Any, make_world: Any) -> None:
    texts = [rrr("key of 0"), rrr("nothing of 0"), "unreadable"]
    program, episodes = played(world, texts)
    reward = Reward(program, metric="recall@5")
    scored = reward.score(episodes)
    assert [(one.value, one.plain) for one in scored] == [(1.0, 0.0), (0.0, 0.0), (0.0, 0.0)]
    assert [one.reward for one in scored] == pytest.approx([1.0, 0.0, -0.1])
    reward.score(episodes)
    assert [query for query, _ in world.searches].count("What of number 0?") == 2  # the unreadable one's, and plain
    program, episodes = played(make_world("both"), [rrr("key of 0"), rrr("none of 0")])
    scored = Reward(program).score(episodes)  # where the plain question finds it a miss costs
    assert [(one.value, one.plain, one.reward) for one in scored] == [(1.0, 1.0, 0.0), (0.0, 1.0, -1.0)]


def test_a_failed_episode_or_a_question_without_labels_has_no_reward(world: Any) -> None:
    program, (bare,) = played(world, [rrr("key of 1")], [replace(world.questions[1], evidence={})])
    failed = Episode(world.questions[0], (), (), None, "bug")
    scored = Reward(program).score([failed, bare])
    assert [math.isnan(one.reward) for one in scored] == [True, True]
    assert scored[0].plain == 0.0
