"""Episodes under a scripted policy: rounds, prompts, what is read, what fails."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import dspy
import pytest

from querywright.errors import InputError
from querywright.optimize.dspy_context import asking
from querywright.optimize.rewriter.episodes import run_episodes
from querywright.optimize.rewriter.types import Turn


def number(turn: Turn) -> int:
    return int(re.findall(r"number (\d+)", turn.messages[-1][1])[0])


class Script:
    """Writes by a function of the turn, and keeps the rounds."""

    def __init__(self, write: Callable[[Turn], str]) -> None:
        self.write = write
        self.rounds: list[list[Turn]] = []

    def __call__(self, turns: Sequence[Turn]) -> list[str]:
        self.rounds.append(list(turns))
        return [self.write(turn) for turn in turns]


def rewrite(turn: Turn) -> str:
    return json.dumps({"thought": "t", "queries": [f"key of {number(turn)}"]})


def hcqr(turn: Turn) -> str:
    n = number(turn)
    if turn.number == 0:
        guess = f"right {n}"
        return json.dumps(
            {
                "discriminating_features": ["d"],
                "reasoning": "r",
                "confirming_evidence": ["c"],
                "best_guess": guess,
            }
        )
    return json.dumps({"support": f"key of {n}", "distinguish": f"other of {n}", "verify": f"another of {n}"})


def test_one_turn_an_episode_and_one_round(world: Any) -> None:
    script = Script(rewrite)
    program = world.program("rrr", None)
    episodes = run_episodes(program, world.questions[:4], script)
    assert program.technique.rewriter.lm is None  # it is left as it was
    assert [[(turn.place, turn.number) for turn in turns] for turns in script.rounds] == [[(n, 0) for n in range(4)]]
    assert [one.queries for one in episodes] == [(f"key of {n}",) for n in range(4)]
    assert [one.prediction.passages[0].id for one in episodes] == [f"decides-{n}" for n in range(4)]
    assert [one.read for one in episodes] == [one.texts for one in episodes]
    assert [record.kind for record in episodes[0].prediction.steps] == ["lm", "search"]


def test_two_stages_are_two_rounds_of_all_episodes(world: Any) -> None:
    script = Script(hcqr)
    episodes = run_episodes(world.program("hcqr", None), world.questions[:3], script, threads=2)
    assert [[(turn.place, turn.number) for turn in turns] for turns in script.rounds] == [
        [(0, 0), (1, 0), (2, 0)],
        [(0, 1), (1, 1), (2, 1)],
    ]
    assert episodes[1].queries == ("key of 1", "other of 1", "another of 1")
    assert [turn.number for turn in episodes[1].turns] == [0, 1]
    assert "best_guess" in script.rounds[1][0].messages[-1][1]


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
    seen: list[Any] = []
    engine = make_engine(write=lambda asked: "{}")
    engine.decides_by_likelihood = True
    lm = make_lm(engine)
    complete = lm.engine.complete

    def recording(request: Any) -> Any:
        seen.append(request)
        return complete(request)

    lm.engine.complete = recording
    engine.write = lambda asked: json.dumps(
        {"discriminating_features": ["d"], "reasoning": "r", "confirming_evidence": ["c"], "best_guess": "right 1"}
        if "best_guess" in asked.properties
        else {"support": "key of 1", "distinguish": "other of 1", "verify": "another of 1"}
    )
    question = world.questions[1]
    program = world.program("hcqr", None)
    with asking(lm):
        program(question=question.question, options=list(question.options))
    (episode,) = run_episodes(program, [question], Script(hcqr))
    used = []
    for request in seen:
        system = request.system if isinstance(request.system, str) else "".join(part.text for part in request.system)
        used.append((("system", system), *((m.role, m.text) for m in request.messages)))
    assert [turn.messages for turn in episode.turns] == used


def test_an_unreadable_text_falls_back_and_is_asked_for_once(world: Any) -> None:
    script = Script(lambda turn: "no JSON" if turn.place == 0 else rewrite(turn))
    bad, good = run_episodes(world.program("rrr", None), world.questions[:2], script)
    assert len(script.rounds) == 1
    assert bad.read == (None,)
    assert bad.texts == ("no JSON",)
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
    assert read["queries"][0].startswith("the 'key' of 0")
    assert len(read["queries"][0]) <= 320
    assert read["queries"][0].endswith("word")
    assert held.queries == tuple(read["queries"])
    (free,) = run_episodes(world.program("rrr", None), world.questions[:1], lambda turns: [text], settings=None)
    assert len(free.queries) == 3


def test_the_reader_answers_with_its_own_lm(world: Any, make_engine: Any, make_lm: Any) -> None:
    engine = make_engine()
    episodes = run_episodes(world.program("rrr"), world.questions[:3], Script(rewrite), lm=make_lm(engine))
    assert [one.prediction.answer for one in episodes] == ["right 0", "right 1", "right 2"]
    assert [asked.step for asked in engine.asked] == ["reader"] * 3


def test_a_question_that_fails_has_no_prediction(world: Any) -> None:
    def search(queries: Sequence[str], k: int) -> Any:
        if "key of 1" in queries:
            raise RuntimeError("broken")
        return type(world).search(world, queries, k)

    world.search = search
    one, two = run_episodes(world.program("rrr", None), world.questions[:2], Script(rewrite))
    assert (one.error, two.error) == (None, "bug")
    assert two.prediction is None
    assert two.queries == ()
    assert two.texts


def test_two_things_in_one_step_are_refused(world: Any) -> None:
    from querywright.programs.base import MAX_PASSAGES, Plan, Technique
    from querywright.programs.rag import RAG
    from querywright.programs.steps import Use

    class Inner(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = dspy.Predict("question -> thought")
            self.two = dspy.Predict("thought -> query")

        def forward(self, question: str) -> Any:
            return self.two(thought=self.one(question=question).thought)

    class Odd(Technique):
        NAME, TITLE, PAPER, LM_STAGES, KNOBS = "odd", "Odd", "none", 2, (MAX_PASSAGES,)

        def __init__(self, retriever: Any = None, **knobs: Any) -> None:
            super().__init__(retriever, **knobs)
            self.inner = Inner()

        async def plan(self, question: str, options: Sequence[str]) -> Plan:
            await Use(self.inner, question=question)
            return Plan(())

    answer = json.dumps({"thought": "t", "query": "q"})
    with pytest.raises(InputError, match="one thing a step"):
        run_episodes(RAG(Odd(world), None), world.questions[:1], lambda turns: [answer] * len(turns))
