"""Episodes under a scripted policy: rounds, prompts, what is read, what fails; and what they are worth, by hand."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from querywright.optimize.dspy_context import asking
from querywright.optimize.rewriter.episodes import Episode, Turn, run_episodes
from querywright.optimize.rewriter.rewards import Reward

BOTH = {"discriminating_features": ["d"], "reasoning": "r", "confirming_evidence": ["c"]}


def number(turn: Turn) -> int:
    return int(re.findall(r"number (\d+)", turn.messages[-1][1])[0])


class Script:
    """Writes by a function of the turn, and keeps the rounds."""

    def __init__(self, write: Callable[[Turn], str]) -> None:
        self.write, self.rounds = write, list[list[Turn]]()

    def __call__(self, turns: Sequence[Turn]) -> list[str]:
        self.rounds.append(list(turns))
        return [self.write(turn) for turn in turns]


def rrr(*queries: str) -> str:
    return json.dumps({"thought": "t", "queries": list(queries)})


def rewrite(turn: Turn) -> str:
    return rrr(f"key of {number(turn)}")


def hcqr(turn: Turn) -> str:
    n = number(turn)
    if turn.number == 0:
        return json.dumps({**BOTH, "best_guess": f"right {n}"})
    return json.dumps({"support": f"key of {n}", "distinguish": f"other of {n}", "verify": f"another of {n}"})


def test_stages_are_rounds_of_all_episodes(world: Any) -> None:
    script = Script(rewrite)
    program = world.program("rrr", None)
    episodes = run_episodes(program, world.questions[:4], script)
    assert program.technique.rewriter.lm is None  # it is left as it was
    assert [[(turn.place, turn.number) for turn in turns] for turns in script.rounds] == [[(n, 0) for n in range(4)]]
    assert [one.queries for one in episodes] == [(f"key of {n}",) for n in range(4)]
    assert [one.prediction.passages[0].id for one in episodes] == [f"decides-{n}" for n in range(4)]
    assert [one.read for one in episodes] == [one.texts for one in episodes]
    assert [record.kind for record in episodes[0].prediction.steps] == ["lm", "search"]
    script = Script(hcqr)
    episodes = run_episodes(world.program("hcqr", None), world.questions[:3], script, threads=2)
    rounds = [[turn[:2] for turn in turns] for turns in script.rounds]
    assert rounds == [[(n, stage) for n in range(3)] for stage in (0, 1)]
    assert episodes[1].queries == ("key of 1", "other of 1", "another of 1")
    assert [turn.number for turn in episodes[1].turns] == [0, 1]


def test_an_episode_that_ends_early_leaves_the_rounds_of_the_others(world: Any) -> None:
    def ircot(turn: Turn) -> str:
        n = number(turn)
        done = turn.number > n
        return json.dumps({"next_sentence": "So the answer is x." if done else f"Fact {turn.number} key {n} holds."})

    script = Script(ircot)
    episodes = run_episodes(world.program("ircot", None, max_passages=9), world.questions[:3], script)
    assert [[turn.place for turn in turns] for turns in script.rounds] == [[0, 1, 2], [0, 1, 2], [1, 2], [2]]
    assert [len(one.turns) for one in episodes] == [2, 3, 4]
    assert episodes[2].queries[0] == "What of number 2?"
    assert len(episodes[2].queries) == 4
    assert "Fact 0 key 2 holds." in script.rounds[1][2].messages[-1][1]  # what was searched and read in between


def test_steps_side_by_side_are_one_round(world: Any) -> None:
    def decomposition(turn: Turn) -> str:
        if turn.number == 0:
            return json.dumps({"sub_questions": [f"Who is number {number(turn)}?", f"Where is {number(turn)}?"]})
        return json.dumps({"sub_answer": f"a{turn.number}"})

    script = Script(decomposition)
    program = world.program("decomposition", None, mode="individual", max_passages=9)
    (episode,) = run_episodes(program, world.questions[:1], script)
    assert [len(turns) for turns in script.rounds] == [1, 2]
    assert [finding.answer for finding in episode.prediction.findings] == ["a1", "a2"]


def test_the_prompt_is_the_one_of_an_lm_in_use(world: Any, make_engine: Any, make_lm: Any) -> None:
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
    (episode,) = run_episodes(program, [question], Script(hcqr))
    used = []
    for one in seen:
        system = one.system if isinstance(one.system, str) else "".join(part.text for part in one.system)
        used.append((("system", system), *((message.role, message.text) for message in one.messages)))
    assert [turn.messages for turn in episode.turns] == used


def test_an_unreadable_text_falls_back_and_is_asked_for_once(world: Any) -> None:
    script = Script(lambda turn: ("no JSON", "", rewrite(turn))[turn.place])
    bad, empty, good = run_episodes(world.program("rrr", None), world.questions[:3], script)
    assert len(script.rounds) == 1
    assert (bad.read, bad.texts, empty.read) == ((None,), ("no JSON",), (None,))
    assert bad.prediction.fallbacks == ["rewrite"]
    assert bad.queries == ("What of number 0?",)
    assert good.read == good.texts


def test_a_text_is_held_to_what_a_rewriter_can_write(world: Any) -> None:
    queries = [f'the "key" of 0 {"x" * 5} {"word " * 90}', "second 0", "third 0", "fourth 0"]
    text = json.dumps({"queries": queries, "thought": "t\n\\u"})
    (held,) = run_episodes(world.program("rrr", None), world.questions[:1], lambda turns: [text])
    assert held.texts == (text,)
    read = json.loads(held.read[0] or "")
    assert list(read) == ["thought", "queries"]
    assert len(read["queries"]) == 3
    assert re.fullmatch("the 'key' of 0 .{,305}word", read["queries"][0])
    assert held.queries == tuple(read["queries"])
    (free,) = run_episodes(world.program("rrr", None), world.questions[:1], lambda turns: [text], settings=None)
    assert free.queries[0].startswith('the "key" of 0')


def test_a_question_that_fails_has_no_prediction(world: Any) -> None:
    def search(queries: Sequence[str], k: int) -> Any:
        if "key of 1" in queries:
            raise RuntimeError("broken")
        return type(world).search(world, queries, k)

    world.search = search
    found = run_episodes(world.program("rrr", None), world.questions[:3], Script(rewrite))
    assert [one.error for one in found] == [None, "bug", None]
    assert (found[1].prediction, found[1].queries, len(found[1].texts)) == (None, (), 1)


def played(world: Any, texts: Sequence[str], questions: Any = None) -> Any:
    program = world.program("rrr", None)
    return program, run_episodes(program, questions or world.questions[:1] * len(texts), lambda turns: texts)


def test_retrieval_gain_is_the_gain_over_the_plain_question_which_is_searched_once(world: Any, make_world: Any) -> None:
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


def test_what_failed_or_is_not_labelled_is_nan(world: Any) -> None:
    program, (bare,) = played(world, [rrr("key of 1")], [replace(world.questions[1], evidence={})])
    failed = Episode(world.questions[0], (), (), None, "bug")
    scored = Reward(program).score([failed, bare])
    assert [math.isnan(one.reward) for one in scored] == [True, True]
    assert scored[0].plain == 0.0
