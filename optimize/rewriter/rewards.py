"""What a rewrite is worth: what it finds beside the plain question, or what a reader makes of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from statistics import fmean
from typing import Any, NamedTuple

import dspy

from querywright.answer_text import squad_form
from querywright.data.types import Question
from querywright.metrics.dspy_metrics import METRICS, metric_named
from querywright.optimize.dspy_context import asking
from querywright.optimize.failures import failure_kind
from querywright.optimize.rewriter.episodes import Episode
from querywright.optimize.rewriter.recipes import Recipe
from querywright.pool import bounded_map
from querywright.programs.base import MAX_PASSAGES
from querywright.programs.plain import PlainRetrieval
from querywright.programs.rag import RAG
from querywright.retrieval.replay import searched_by


class Scored(NamedTuple):
    """An episode's reward, which is learnt from (NaN where it cannot be worked out, and then left out and counted), and
    the measure itself, such as nDCG@10, of the episode and of the question as it was written.
    """

    reward: float
    value: float
    plain: float


class Reward:
    """Scores whole episodes; all completions of an episode share its reward.

    What the question as it was written is worth does not depend on the policy, so it is worked out once a question.

    Args:
        recipe: Says what is rewarded (``retrieval``: the gain of a metric over the plain question with as many
            passages; ``answer``: the gain of the answer's token F1; ``paper``: EM + F1 + Hit, whatever the plain
            question is worth, and of multiple choice EM alone), and what is taken off.
        program: What is trained; the plain question is searched, and read, as it does.
        metric: What ``retrieval`` measures: any that reads no answer. Default ``ndcg@10``.
        lm: What the reader asks, for a reward that reads answers.
        target: Tokens aimed at, for a length penalty.
        threads: Plain questions under way at a time. Default 4.

    Source: ``paper``, Ma et al. 2023, arXiv:2305.14283.
    """

    def __init__(
        self,
        recipe: Recipe,
        program: RAG,
        *,
        metric: str = "ndcg@10",
        lm: dspy.LM | None = None,
        target: float | None = None,
        threads: int = 4,
    ) -> None:
        self.name, self.needs_reader, self.metric = recipe.reward, recipe.needs_reader, metric
        technique = program.technique
        knobs: dict[str, Any] = (
            {MAX_PASSAGES.name: technique.max_passages} if MAX_PASSAGES.name in technique.knobs else {}
        )
        self._plain = RAG(PlainRetrieval(technique.retriever, **knobs), program.reader if self.needs_reader else None)
        self._measured, self._lm = metric_named(metric), lm if self.needs_reader else None
        self._recipe, self._target, self._threads = recipe, target, threads
        self._known: dict[str, float] = {}

    def score(self, episodes: Sequence[Episode]) -> list[Scored]:
        """One score an episode, in order; NaN for one that failed or cannot be scored."""
        plains = self.plain_values([episode.question for episode in episodes])
        return [self._scored(*one) for one in zip(episodes, plains, strict=True)]

    def plain_values(self, questions: Sequence[Question]) -> list[float]:
        """What each question as it was written is worth; NaN where it cannot be worked out."""
        new = list({one.id: one for one in questions if one.id not in self._known}.values())

        def work(question: Question) -> float:
            return self.value(question, self._plain(**question.inputs))

        def on_done(place: int, result: float | Exception) -> None:
            if isinstance(result, Exception) and failure_kind(result) is None:
                raise result
            self._known[new[place].id] = math.nan if isinstance(result, Exception) else result

        with nullcontext() if self._lm is None else asking(self._lm):
            bounded_map(work, new, threads=self._threads, on_done=on_done)
        return [self._known[question.id] for question in questions]

    def found(self, questions: Sequence[Question], texts: Sequence[str]) -> list[float]:
        """The measure of each question where a text is searched in its place; all are searched at once."""
        technique = self._plain.technique
        rankings = searched_by(technique.retriever).search(texts, technique.max_passages)
        predictions = (dspy.Prediction(passages=[hit.passage for hit in hits]) for hits in rankings)
        return [self.value(*one) for one in zip(questions, predictions, strict=True)]

    def parts(self, question: Question, prediction: Any) -> dict[str, float]:
        """What the value of a prediction is made of. NaN where it cannot be worked out."""
        example = question.to_example()
        if self.name == "retrieval":
            return {self.metric: float(self._measured(example, prediction))}
        if self.name == "answer":
            return {"f1": METRICS["token_f1"](example, prediction)}
        if question.options:
            return {"em": METRICS["accuracy"](example, prediction)}
        parts = {"em": METRICS["exact_match"](example, prediction), "f1": METRICS["token_f1"](example, prediction)}
        hit = _substring_hit([passage.content for passage in prediction.passages], question.answers)
        return parts | ({} if math.isnan(hit) and question.answers else {"hit": hit})

    def value(self, question: Question, prediction: Any) -> float:
        """The sum of its ``parts``."""
        return math.fsum(self.parts(question, prediction).values())

    def _scored(self, episode: Episode, plain: float) -> Scored:
        if episode.prediction is None:
            return Scored(math.nan, math.nan, plain)
        value, off = self.value(episode.question, episode.prediction), 0.0
        if self._target is not None and episode.completions:
            apart = fmean(abs(len(one.tokens) - self._target) for one in episode.completions)
            off += self._recipe.length_penalty * apart
        if episode.read:
            off += self._recipe.unreadable * episode.read.count(None) / len(episode.read)
        gain = value if self.name == "paper" else value - plain
        return Scored(gain - off, value, plain)


def _substring_hit(passages: Sequence[str], answers: Sequence[str]) -> float:
    """1.0 if any accepted answer stands in the text of the passages, else -1.0; NaN if none could be looked for.

    Both are compared as SQuAD normalises them, and any run of letters counts ("no" in "know"), as in the code of Ma et
    al. 2023. An answer that normalises to nothing, which would stand everywhere, is left out.
    """
    wanted = [text for text in map(squad_form, answers) if text]
    if not wanted:
        return math.nan
    text = squad_form(" ".join(passages))
    return 1.0 if any(answer in text for answer in wanted) else -1.0
