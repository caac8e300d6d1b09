"""Describe in words how a run went, as feedback from which GEPA writes instructions.

A predictor in the technique gets feedback only on the passages, and the reader only on the answer. Text from passages,
questions, and answers is data: it is truncated, put on one line in quotation marks, and contains nothing that could be
mistaken for the structure of a prompt.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from querywright.data.declined import DECLINED
from querywright.data.types import PERSON, Label
from querywright.metrics import answers
from querywright.metrics.judge import JudgedMetric, Judgement
from querywright.metrics.retrieval import groups_of
from querywright.metrics.usefulness import helpful_ids

PIECE = 160
"""Maximum number of characters to quote from a text."""

_SHOWN, _JUDGED = 3, 10
_FRAME = re.compile(r"\[\[|\]\]|<\||\|>|```")


def feedback_metric(score: Callable[..., float], judges: Sequence[JudgedMetric] = ()) -> Callable[..., Any]:
    """Return a metric with feedback, in the form that GEPA calls.

    Args:
        score: A DSPy metric. NaN (the question cannot be scored) counts as 0.
        judges: Judges whose labels and reasons are part of the feedback. Default: the metric itself, if it is a
            judge's metric.

    Returns:
        A function of ``(gold, pred, trace=None, pred_name=None, pred_trace=None)`` that returns DSPy's
        ``ScoreWithFeedback``; every predictor gets the program's score.
    """
    heard = judges or ([score] if isinstance(score, JudgedMetric) else [])

    def metric(gold: Any, pred: Any, trace: Any = None, pred_name: str | None = None, pred_trace: Any = None) -> Any:
        from dspy.teleprompt.gepa.gepa_utils import ScoreWithFeedback

        value = float(score(gold, pred))
        said = [one for judge in heard for one in judge.judgements(gold, pred)]
        return ScoreWithFeedback(
            score=0.0 if math.isnan(value) else value, feedback=feedback(gold, pred, pred_name, said)
        )

    return metric


def feedback(example: Any, prediction: Any, predictor: str | None = None, judgements: Sequence[Judgement] = ()) -> str:
    """Return what went well and what did not, in a few plain sentences.

    Args:
        example: The question, as created by ``Question.to_example``.
        prediction: The program's prediction.
        predictor: Name of a predictor. A predictor in the technique gets feedback on the passages, and one in the
            reader on the answer. Default None: feedback on both.
        judgements: Judgments of the passages and the answer. Default none.
    """
    sentences = []
    if predictor is None or not predictor.startswith("reader"):
        sentences += _finding(example, prediction)
        sentences += _judged(prediction, [one for one in judgements if one.passage])
    if predictor is None or predictor.startswith("reader"):
        sentences += _reading(example, prediction)
        sentences += _judged(prediction, [one for one in judgements if not one.passage])
    return " ".join(sentences) or "Nothing is known of how well this went."


def _finding(example: Any, prediction: Any) -> list[str]:
    evidence, passages, sentences = getattr(example, "evidence", None) or {}, list(prediction.passages), []
    helpful = set(helpful_ids(evidence))
    found = [(rank, passage) for rank, passage in enumerate(passages, 1) if passage.id in helpful]
    for rank, one in found[:_SHOWN]:
        name = f"{_quoted(one.title)} ({_plain(one.id)})" if one.title else _plain(one.id)
        what = "decides the question" if evidence[one.id] == Label.ENTAILED else "helps with the question"
        sentences.append(f"The passage {name} {what} and was found at rank {rank}: {_quoted(one.text)}.")
    shown = {passage.id for _, passage in found}
    groups = groups_of(sorted(helpful), getattr(example, "alternatives", None) or ())
    missing = sorted(" or ".join(sorted(group)) for group in groups if group.isdisjoint(shown))
    if missing:
        are = " {} was" if len(missing) == 1 else "s {} were"
        sentences.append(f"The labelled passage{are.format(_listed(missing))} missing from the {len(passages)} found.")
    if not helpful and getattr(example, "answer", None):
        accepted = [example.answer, *(getattr(example, "aliases", None) or ())]
        one = "a" if answers.hit([passage.content for passage in passages], accepted) else "no"
        sentences.append(f"The right answer {_quoted(example.answer)} stands in {one} passage that was found.")
    if missing or not found:
        queries = [query.text for query in prediction.queries]
        sentences.append(f"The queries were {_listed(queries)}." if queries else "Nothing was searched for.")
    if prediction.fallbacks:
        names = ", ".join(prediction.fallbacks)
        sentences.append(f"These steps gave nothing that could be read and fell back: {names}.")
    return sentences


def _judged(prediction: Any, judgements: Sequence[Judgement]) -> list[str]:
    """Return the judges' labels and reasons, except labels that are already in the evidence."""
    titles = {one.id: (rank, one.title) for rank, one in enumerate(prediction.passages, 1)}
    sentences = []
    for one in judgements[:_JUDGED]:
        if one.label is None or one.by == PERSON:
            continue
        rank, title = titles.get(one.passage, (0, ""))
        what = f"the passage {_quoted(title or one.passage)} at rank {rank}" if rank else "the answer"
        sentences.append(
            f"The judge {one.by} calls {what} {one.label}" + (f": {_quoted(one.reason)}." if one.reason else ".")
        )
    return sentences


def _reading(example: Any, prediction: Any) -> list[str]:
    right, options = getattr(example, "answer", None), list(getattr(example, "options", None) or ())
    answer = getattr(prediction, "answer", None)  # None without a reader
    if answer is None:
        return []
    given = str(answer).strip()
    said = {"": "No answer was given.", DECLINED: "The reader declined to answer."}
    sentences = [said.get(given, f"The answer given was {_quoted(given)}.")]
    if right is None:
        return sentences
    if options:
        sentences.insert(0, f"The options were {_listed(options, len(options))}.")
    sentences.append(f"The right answer is {_quoted(right)}.")
    if options and given not in said and answers.extract_option(given, options) is None:
        sentences.append("What was given names none of the options.")
    helpful = set(helpful_ids(getattr(example, "evidence", None) or {}))
    shown = [(rank, one) for rank, one in enumerate(prediction.passages, 1) if one.id in helpful]
    if shown:
        rank, one = shown[0]
        sentences.append(f"Passage [{rank}], which helps, says {_quoted(one.text)}.")
    elif helpful:
        sentences.append("No passage that helps was shown.")
    return sentences


def _listed(texts: Sequence[str], most: int = _SHOWN) -> str:
    quoted = [_quoted(text) for text in texts[:most]]
    return ", ".join(quoted) + (f" and {len(texts) - most} more" if len(texts) > most else "")


def _quoted(text: str) -> str:
    return f'"{_plain(text)}"'


def _plain(text: Any) -> str:
    """Return a text in a form that fits into a sentence."""
    line = " ".join(str(text).split()).replace('"', "'")
    line = _FRAME.sub(lambda match: " ".join(match.group()), line)
    return line if len(line) <= PIECE else line[:PIECE].rstrip() + "..."
