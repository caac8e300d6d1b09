"""What people asked of passages, to learn from: for the writer of the questions that QB-RAG searches.

No LM writes here and nothing is scored. A train question whose labelled evidence is a passage is what somebody asked of
it, and the pair is the writer's own prompt for that passage with such questions as its answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from querywright.data.splits import asked_of
from querywright.data.types import Label, Passage, Question
from querywright.errors import InputError
from querywright.models.embedded import EmbeddedSettings
from querywright.optimize.rewriter.canonical import as_written, json_text
from querywright.optimize.rewriter.episodes import REWRITER_LIMITS, first_asked
from querywright.optimize.rewriter.pairs import Pair
from querywright.programs.qb_rag import QBRAG
from querywright.programs.query_cleaning import LONGEST_QUERY, one_line
from querywright.programs.question_rules import repeats, unfit
from querywright.programs.question_writer import BATCH_SIZE, QuestionWriter
from querywright.retrieval.held import HeldPassages

LONGEST_PASSAGE = 1500
"""Characters of a passage that is learnt from at most: the time of a training is its prompts."""


def passage_pairs(
    questions: Sequence[Question],
    passages: HeldPassages,
    *,
    data: str = "",
    limits: EmbeddedSettings | None = REWRITER_LIMITS,
) -> list[Pair]:
    """A pair a passage: the prompt that asks for as many questions as are known, and those.

    Left out are questions of several passages together, those that a set with answers has none for (they cannot be
    answered from the passage), those that nobody could be asked (``unfit``) or that are longer than the writer's, and
    near-repetitions; and passages of more than ``LONGEST_PASSAGE`` characters. A passage has ``BATCH_SIZE`` questions
    at most, the first ones.

    Args:
        questions: Train questions, with labelled evidence.
        passages: What they were asked of; evidence that is not there is passed over.
        data: The collection's name, for the pairs.
        limits: What the LM that the writer will run in can write; None: anything. Default: a rewriter's.

    Returns:
        Pairs whose question is the passage's id, in the order of the questions.

    Raises:
        InputError: No question says which passage answers it, or nothing is left of what they say.
    """
    asked = _asked(questions, passages)
    if not asked:
        raise InputError(
            f"none of the {len(questions)} train questions has evidence that is a passage of the collection, so "
            "nothing is known that was asked of one; give questions with evidence, or another collection"
        )
    short = [passage for passage in passages.get(list(asked)) if len(passage.text) <= LONGEST_PASSAGE]
    kept = [(passage, _kept(asked[passage.id], passage)) for passage in short]
    found = [_pair(passage, texts, data, limits) for passage, texts in kept if texts]
    if not found:
        raise InputError(
            f"of {len(asked)} passages that train questions are answered by, {len(asked) - len(short)} have more than "
            f"{LONGEST_PASSAGE} characters, and the others' questions cannot be written as they are (more than "
            f"{LONGEST_QUERY - 1} characters, or no question); give more questions, or shorter passages"
        )
    return found


def _asked(questions: Sequence[Question], passages: HeldPassages) -> Mapping[str, list[Question]]:
    """The questions that each passage answers."""
    answered = any(one.answer for one in questions)
    asked: dict[str, list[Question]] = {}
    for question in questions:
        if question.jointly or (answered and not question.answer):
            continue
        for id, label in question.evidence.items():
            if label is Label.ENTAILED and id in passages:
                asked.setdefault(id, []).append(question)
    return asked


def _kept(asked: Sequence[Question], passage: Passage) -> dict[str, Question]:
    """Questions as the writer writes them. One at the limit would be taken for one that was cut off by it."""
    kept: dict[str, Question] = {}
    for question in asked:
        text = one_line(question.question)
        if len(kept) < BATCH_SIZE and len(text) < LONGEST_QUERY and not (unfit(text, passage) or repeats(text, kept)):
            kept[text] = question
    return kept


def _pair(passage: Passage, asked: Mapping[str, Question], data: str, limits: EmbeddedSettings | None) -> Pair:
    texts = list(asked)
    writer = QuestionWriter(len(texts), len(texts))
    messages, schema = first_asked(lambda: writer(passage))
    return Pair(
        question=passage.id,
        technique=QBRAG.NAME,
        number=0,
        messages=messages,
        text=json_text(as_written({"questions": texts}, schema, limits)),
        reward=None,
        source="evidence",
        data=data,
        asked=" ".join(asked_of(question) for question in asked.values()),
    )
