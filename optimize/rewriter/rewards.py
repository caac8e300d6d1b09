"""The reward of a rewrite: how much more it finds than the question as it was written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import dspy

from querywright.data.types import Question
from querywright.metrics.dspy_metrics import metric_named
from querywright.optimize.rewriter.episodes import Episode
from querywright.programs.rag import RAG
from querywright.retrieval.replay import searched_by

UNREADABLE = 0.1
"""Taken off the reward in proportion to the completions that could not be read. The technique then searches for the
question alone, which would make nonsense as good as leaving the question alone."""


class Score(NamedTuple):
    """An episode's reward (NaN if it failed or has no labels), its metric, and the metric of the question as it was
    written.
    """

    reward: float
    value: float
    plain: float


class Reward:
    """Scores whole episodes; all completions of an episode share its reward.

    The reward is the gain of the metric over the question as it was written, searched for as many passages.

    Args:
        program: The technique to train.
        metric: A metric of retrieval. Default ``ndcg@10``.
    """

    def __init__(self, program: RAG, metric: str = "ndcg@10") -> None:
        self._retriever: Any = searched_by(program.technique.retriever)
        self._passages = program.technique.max_passages
        self._measured = metric_named(metric)
        self._known: dict[str, float] = {}

    def score(self, episodes: Sequence[Episode]) -> list[Score]:
        """Return the score of each episode, in order."""
        plains = self.plain_values([episode.question for episode in episodes])
        return [self._scored(*one) for one in zip(episodes, plains, strict=True)]

    def plain_values(self, questions: Sequence[Question]) -> list[float]:
        """Return the metric of each question as it was written; each is searched once. NaN if it has no labels."""
        new = list({one.id: one for one in questions if one.id not in self._known}.values())
        values = self.found(new, [one.question for one in new]) if new else []
        self._known |= {one.id: value for one, value in zip(new, values, strict=True)}
        return [self._known[question.id] for question in questions]

    def found(self, questions: Sequence[Question], texts: Sequence[str]) -> list[float]:
        """Return the metric of each question if a text is searched in its place; all are searched at once."""
        rankings = self._retriever.search(texts, self._passages)
        predictions = (dspy.Prediction(passages=[hit.passage for hit in hits]) for hits in rankings)
        return [self._value(*one) for one in zip(questions, predictions, strict=True)]

    def _value(self, question: Question, prediction: Any) -> float:
        return float(self._measured(question.to_example(), prediction))

    def _scored(self, episode: Episode, plain: float) -> Score:
        if episode.prediction is None:
            return Score(math.nan, math.nan, plain)
        value = self._value(episode.question, episode.prediction)
        unreadable = episode.read.count(None) / len(episode.read) if episode.read else 0.0
        return Score(value - plain - UNREADABLE * unreadable, value, plain)
