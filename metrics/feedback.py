"""What a measure says of a run, in words: for GEPA, which writes instructions from them.

A predictor of the technique is told only of what was found, the reader only of how it answered. Texts out of passages,
questions and answers are data: they are cut, on one line, in quotation marks, and hold nothing that could pass for the
frame of a prompt.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from querywright.data.declined import DECLINED
from querywright.data.types import Label
from querywright.metrics import answers
from querywright.metrics.usefulness import helpful_ids

PIECE = 160
"""Characters of a text that are quoted at most."""

_SHOWN = 3
_FRAME = re.compile(r"\[\[|\]\]|<\||\|>|```")


def feedback_metric(score: Callable[..., float]) -> Callable[..., Any]:
    """A metric with feedback, as GEPA takes it.

    Args:
        score: A DSPy metric; a NaN, which cannot be scored, counts as 0.

    Returns:
        A function of ``(gold, pred, trace=None, pred_name=None, pred_trace=None)`` that gives DSPy's
        ``ScoreWithFeedback``; the score is the program's, whichever predictor is asked about.
    """

    def metric(gold: Any, pred: Any, trace: Any = None, pred_name: str | None = None, pred_trace: Any = None) -> Any:
        from dspy.teleprompt.gepa.gepa_utils import ScoreWithFeedback

        value = float(score(gold, pred))
        return ScoreWithFeedback(score=0.0 if math.isnan(value) else value, feedback=feedback(gold, pred, pred_name))

    return metric


def feedback(example: Any, prediction: Any, predictor: str | None = None) -> str:
    """What went well and what did not, in a few plain sentences.

    Args:
        example: As ``Question.to_example`` makes it.
        prediction: What the program made of it.
        predictor: A predictor's name: one of the technique is told of the finding, the reader's of the reading. Default
            None: both.
    """
    sentences = []
    if predictor is None or not predictor.startswith("reader"):
        sentences += _finding(example, prediction)
    if predictor is None or predictor.startswith("reader"):
        sentences += _reading(example, prediction)
    return " ".join(sentences) or "Nothing is known of how well this went."


def _finding(example: Any, prediction: Any) -> list[str]:
    evidence = getattr(example, "evidence", None) or {}
    helpful = set(helpful_ids(evidence))
    passages = list(prediction.passages)
    sentences = []
    found = [(rank, passage) for rank, passage in enumerate(passages, 1) if passage.id in helpful]
    for rank, passage in found[:_SHOWN]:
        what = "decides the question" if evidence[passage.id] == Label.ENTAILED else "helps with the question"
        sentences.append(f"The passage {_name(passage)} {what} and was found at rank {rank}: {_quoted(passage.text)}.")
    missing = sorted(helpful - {passage.id for _, passage in found})
    if missing:
        one = len(missing) == 1
        sentences.append(
            f"The labelled passage{'' if one else 's'} {_listed(missing)} {'was' if one else 'were'} missing from the "
            f"{len(passages)} found."
        )
    if not helpful and getattr(example, "answer", None):
        accepted = [example.answer, *(getattr(example, "aliases", None) or ())]
        stands = answers.hit([passage.content for passage in passages], accepted)
        sentences.append(
            f"The right answer {_quoted(example.answer)} stands in {'a' if stands else 'no'} passage that was found."
        )
    if missing or not sentences or not found:
        queries = [query.text for query in prediction.queries]
        sentences.append(f"The queries were {_listed(queries)}." if queries else "Nothing was searched for.")
    if prediction.fallbacks:
        names = ", ".join(prediction.fallbacks)
        sentences.append(f"These steps gave nothing that could be read and fell back: {names}.")
    return sentences


def _reading(example: Any, prediction: Any) -> list[str]:
    right, options = getattr(example, "answer", None), list(getattr(example, "options", None) or ())
    answer = getattr(prediction, "answer", None)  # a technique alone gives none
    if answer is None:
        return []
    given = str(answer).strip()
    if not given:
        said = "No answer was given."
    elif given == DECLINED:
        said = "The reader declined to answer."
    else:
        said = f"The answer given was {_quoted(given)}."
    if right is None:
        return [said]
    sentences = []
    if options:
        sentences.append(f"The options were {_listed(options, len(options))}.")
    sentences += [said, f"The right answer is {_quoted(right)}."]
    if options and given and given != DECLINED and answers.extract_option(given, options) is None:
        sentences.append("What was given names none of the options.")
    helpful = set(helpful_ids(getattr(example, "evidence", None) or {}))
    if helpful:
        shown = [(rank, one) for rank, one in enumerate(prediction.passages, 1) if one.id in helpful]
        if shown:
            rank, one = shown[0]
            sentences.append(f"Passage [{rank}], which helps, says {_quoted(one.text)}.")
        else:
            sentences.append("No passage that helps was shown.")
    return sentences


def _name(passage: Any) -> str:
    return f"{_quoted(passage.title)} ({_plain(passage.id)})" if passage.title else _plain(passage.id)


def _listed(texts: Sequence[str], most: int = _SHOWN) -> str:
    quoted = [_quoted(text) for text in texts[:most]]
    return ", ".join(quoted) + (f" and {len(texts) - most} more" if len(texts) > most else "")


def _quoted(text: str) -> str:
    return f'"{_plain(text)}"'


def _plain(text: Any) -> str:
    """A text as a piece of a sentence."""
    line = " ".join(str(text).split()).replace('"', "'")
    line = _FRAME.sub(lambda match: " ".join(match.group()), line)
    return line if len(line) <= PIECE else line[:PIECE].rstrip() + "..."
