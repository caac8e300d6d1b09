"""What people asked of passages becomes the writer's own prompt and an answer that its grammar lets through."""

from __future__ import annotations

import json
from typing import Any

import dspy
import pytest

from querywright.data.splits import asked_of
from querywright.data.types import Label, Passage, Question
from querywright.errors import InputError
from querywright.models.adapter import PromptAdapter
from querywright.models.engine import AsyncLMEngine, LMEngine
from querywright.models.response_parsing import text_response
from querywright.optimize.rewriter.evidence import LONGEST_PASSAGE, passage_pairs
from querywright.programs.query_cleaning import LONGEST_QUERY
from querywright.programs.question_writer import BATCH_SIZE, QuestionWriter
from querywright.retrieval.collection import HeldPassages

FROST = Passage("frost", 'Frost forms on clear nights. The "hoar" kind is white.', "Frost")
SNOW = Passage("snow", "Snow melts in spring, at noon.", "Snow")
LONG = Passage("long", "Rain falls. " * (LONGEST_PASSAGE // 12 + 1))


class Held(HeldPassages):
    name = "held"

    def __init__(self, *passages: Passage) -> None:
        self._passages = {one.id: one for one in passages}


HELD = Held(FROST, LONG, SNOW)


def asked(text: str, *ids: str, label: Label = Label.ENTAILED, **values: Any) -> Question:
    return Question(text, text, evidence=dict.fromkeys(ids, label), **values)


def said(*questions: Question) -> dict[str, list[str]]:
    return {pair.question: json.loads(pair.text)["questions"] for pair in passage_pairs(questions, HELD)}


class _Listening:
    """Answers as the embedded LM would, and keeps what it was asked."""

    deterministic = decides_by_likelihood = supports_response_schema = True
    supported_params = frozenset({"temperature", "max_tokens", "response_format", "seed"})

    def __init__(self, text: str) -> None:
        self.text, self.requests = text, list[Any]()

    def complete(self, request: Any) -> Any:
        self.requests.append(request)
        return text_response(self.text, "stop", request.model, 1, 1)


def test_a_pair_is_the_prompt_of_the_writer_in_use_and_an_answer_that_it_reads() -> None:
    questions = [asked("When does frost form?", "frost"), asked('What is the colour of "hoar" frost?', "frost")]
    (pair,) = passage_pairs(questions, HELD, data="weather")
    assert (pair.technique, pair.question, pair.data, pair.source) == ("qb_rag", "frost", "weather", "evidence")
    assert pair.reward is None
    inner = _Listening(pair.text)
    engine = LMEngine(inner, identity="listening")
    lm = dspy.LM("m", engine=engine, async_engine=AsyncLMEngine(engine), cache=False, num_retries=0, temperature=0)
    with dspy.context(lm=lm, adapter=PromptAdapter()):
        written = QuestionWriter(2, 2)(FROST).questions
    assert written == [
        "When does frost form?",
        "What is the colour of 'hoar' frost?",
    ]  # no quotation marks in a grammar
    (request,) = inner.requests
    assert [content for role, content in pair.messages if role != "system"] == [one.text for one in request.messages]
    assert pair.messages[0][1] == request.system


def test_as_many_are_asked_for_as_are_known_and_no_two_alike() -> None:
    many = [
        asked(f"When does {kind} frost form?", "frost") for kind in ("ground", "air", "hoar", "black", "glaze", "rime")
    ]
    again, other = asked("When does the ground frost form?", "frost"), asked("When does snow melt?", "snow")
    found = said(many[0], again, *many[1:], other)
    assert found == {"frost": [one.question for one in many[:BATCH_SIZE]], "snow": ["When does snow melt?"]}
    pair, _ = passage_pairs([*many, other], HELD)
    assert f"{BATCH_SIZE} short questions" in pair.messages[0][1]
    assert pair.asked.split() == [asked_of(one) for one in many[:BATCH_SIZE]]


def test_what_no_passage_alone_answers_is_left_out() -> None:
    fit = asked("When does snow melt?", "snow")
    begins = "Why does frost form in "
    assert said(
        fit,
        asked("Why does frost form before snow?", "frost", "snow", jointly=True),
        asked("What is frost not?", "frost", label=Label.NOT_USEFUL),
        asked("What is near frost?", "frost", label=Label.USEFUL),
        asked("What does the passage say of frost?", "frost"),
        asked(f"{begins:x<{LONGEST_QUERY - 1}}?", "frost"),
        asked("When does rain fall?", "long"),
        asked("When does hail fall?", "gone"),
    ) == {"snow": [fit.question]}


def test_a_question_without_an_answer_among_others_that_have_one_cannot_be_answered() -> None:
    known, unknown = asked("When does snow melt?", "snow", answer="in spring"), asked("Who melts snow?", "snow")
    assert said(known, unknown) == {"snow": [known.question]}
    assert said(unknown) == {"snow": [unknown.question]}


def test_without_any_evidence_there_is_nothing_to_learn() -> None:
    with pytest.raises(InputError, match="none of the 2 train questions has evidence that is a passage"):
        passage_pairs([asked("When?"), asked("Who?", "gone")], HELD)
    with pytest.raises(InputError, match=f"of 2 passages .* 1 have more than {LONGEST_PASSAGE} characters"):
        passage_pairs([asked("When does rain fall?", "long"), asked("What does the passage say?", "snow")], HELD)


def test_a_model_without_a_grammar_learns_the_questions_as_they_were_asked() -> None:
    (pair,) = passage_pairs([asked('What is "hoar" frost?', "frost")], HELD, limits=None)
    assert json.loads(pair.text) == {"questions": ['What is "hoar" frost?']}
