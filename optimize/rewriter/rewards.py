"""What a rewrite is worth: what it finds beside the plain question, or what a reader makes of it.

Each reward scores whole episodes, and all completions of an episode share its reward. What the question as it was
written is worth does not depend on the policy, so it is worked out once a question and kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Protocol

import dspy

from querywright.data.types import Question
from querywright.errors import InputError
from querywright.metrics.dspy_metrics import METRICS, metric_named, needs
from querywright.metrics.tokens import normalize_answer
from querywright.optimize.dspy_context import asking
from querywright.optimize.failures import failure_kind
from querywright.optimize.pool import bounded_map
from querywright.optimize.rewriter.recipes import Recipe
from querywright.optimize.rewriter.types import Episode, Scored
from querywright.programs.base import MAX_PASSAGES, Technique
from querywright.programs.plain import PlainRetrieval
from querywright.programs.rag import RAG
from querywright.retrieval.replay import searched_by

DEFAULT_METRIC = "ndcg@10"


class Reward(Protocol):
    """Scores episodes."""

    name: str
    needs_reader: bool

    def score(self, episodes: Sequence[Episode], tokens: Sequence[Sequence[int]] | None = None) -> list[Scored]:
        """One score an episode, in order.

        Args:
            episodes: From ``run_episodes``.
            tokens: Of each episode, the number of tokens of each completion; needed for a length penalty.
        """
        ...


@dataclass(frozen=True, slots=True)
class Penalties:
    """What is taken off a reward, whatever the reward is.

    Args:
        length: For each token that a completion is away from ``target``; the mean over an episode's completions.
        target: Tokens aimed at, such as the median of the warm-up's completions.
        unreadable: In proportion to an episode's completions that could not be read.
    """

    length: float = 0.0
    target: float | None = None
    unreadable: float = 0.0

    def __post_init__(self) -> None:
        if self.length and self.target is None:
            raise InputError("a length penalty needs the length aimed at; give target, or length_penalty=0")

    def of(self, episode: Episode, tokens: Sequence[int] | None) -> dict[str, float]:
        """What is taken off for an episode, by name; nothing that is 0."""
        parts = {}
        if self.length and self.target is not None:
            if tokens is None:
                raise InputError("a length penalty needs the number of tokens of each completion; give tokens")
            parts["length"] = length_penalty(tokens, self.target, self.length)
        if self.unreadable and episode.read:
            parts["unreadable"] = self.unreadable * sum(text is None for text in episode.read) / len(episode.read)
        return {name: value for name, value in parts.items() if value}


def length_penalty(tokens: Sequence[int], target: float, weight: float) -> float:
    """The weight times the tokens that a completion is away from the target, in the mean over completions."""
    return weight * fmean(abs(count - target) for count in tokens) if tokens else 0.0


def substring_hit(passages: Sequence[str], answers: Sequence[str]) -> float:
    """1.0 if any accepted answer stands in the text of the passages, else -1.0.

    Both are compared as SQuAD normalises them, and any run of letters counts ("no" in "know"), as in the code of Ma et
    al. 2023. An answer that normalises to nothing, which would stand everywhere, is left out.

    Args:
        passages: Title and text of each passage.
        answers: All accepted answers.

    Returns:
        NaN if there is no accepted answer that could be looked for.
    """
    wanted = [text for text in map(normalize_answer, answers) if text]
    if not wanted:
        return math.nan
    text = normalize_answer(" ".join(passages))
    return 1.0 if any(answer in text for answer in wanted) else -1.0


def paper_parts(question: Question, prediction: Any) -> dict[str, float]:
    """The parts of the paper's reward, which is their sum: ``em``, ``f1`` and ``hit``; of multiple choice ``em`` alone.

    Args:
        question: With its right answer, else every part is NaN.
        prediction: With ``answer`` and ``passages``.

    Source: Ma et al. 2023, arXiv:2305.14283.
    """
    example = question.to_example()
    if question.options:
        return {"em": METRICS["accuracy"](example, prediction)}
    parts = {"em": METRICS["exact_match"](example, prediction), "f1": METRICS["token_f1"](example, prediction)}
    hit = substring_hit([passage.content for passage in prediction.passages], question.answers)
    return parts | ({} if math.isnan(hit) and question.answers else {"hit": hit})


def plain_program(program: RAG | Technique) -> RAG:
    """The same search and reader with the question as it was written, for as many passages.

    Raises:
        InputError: The program searches nothing.
    """
    technique = program if isinstance(program, Technique) else program.technique
    if technique.retriever is None:
        raise InputError(f"{technique.NAME} was made without a retriever; give one, since rewards are what is found")
    knobs: dict[str, Any] = {MAX_PASSAGES.name: technique.max_passages} if MAX_PASSAGES.name in technique.knobs else {}
    return RAG(PlainRetrieval(technique.retriever, **knobs), None if isinstance(program, Technique) else program.reader)


class _Scoring:
    """What every reward has in common.

    Args:
        plain: The question as it was written, from ``plain_program``.
        lm: What its reader asks; None where there is no reader.
        penalties: What is taken off. Default nothing.
        threads: Plain questions under way at a time. Default 4.
    """

    name = ""
    needs_reader = False

    def __init__(
        self, plain: RAG, *, lm: dspy.LM | None = None, penalties: Penalties | None = None, threads: int = 4
    ) -> None:
        if self.needs_reader and plain.reader is None:
            raise InputError(f"the reward {self.name} reads answers, but the program has no reader; give a reader")
        if plain.reader is not None and lm is None:
            raise InputError("the program has a reader, but no LM is given for it; give lm=resolve_lm(...)")
        self.penalties = penalties or Penalties()
        self._plain = plain
        self._lm = lm
        self._threads = threads
        self._known: dict[str, float] = {}

    def parts(self, question: Question, prediction: Any) -> dict[str, float]:
        """What the value of a prediction is made of; their sum is the value."""
        raise NotImplementedError

    def reward(self, value: float, plain: float) -> float:
        """The reward of a value, before penalties: the gain over the plain question."""
        return value - plain

    def plain_values(self, questions: Sequence[Question]) -> list[float]:
        """What each question as it was written is worth; worked out once a question, NaN where it cannot be.

        Raises:
            QuerywrightError: The reader's LM is out of reach, or its calls are used up.
        """
        new = list({one.id: one for one in questions if one.id not in self._known}.values())

        def work(question: Question) -> float:
            return self._value(question, self._plain(question=question.question, options=list(question.options)))

        def on_done(place: int, result: float | Exception) -> None:
            if isinstance(result, Exception):
                if failure_kind(result) is None:
                    raise result
                result = math.nan
            self._known[new[place].id] = result

        if new:
            with nullcontext() if self._lm is None else asking(self._lm):
                bounded_map(work, new, threads=self._threads, on_done=on_done)
        return [self._known[question.id] for question in questions]

    def score(self, episodes: Sequence[Episode], tokens: Sequence[Sequence[int]] | None = None) -> list[Scored]:
        """One score an episode; NaN for one that failed or cannot be scored."""
        counts = [None] * len(episodes) if tokens is None else list(tokens)
        if len(counts) != len(episodes):
            raise InputError(f"got token counts of {len(counts)} episodes for {len(episodes)}; give them for each")
        plains = self.plain_values([episode.question for episode in episodes])
        return [self._scored(*one) for one in zip(episodes, plains, counts, strict=True)]

    def _scored(self, episode: Episode, plain: float, tokens: Sequence[int] | None) -> Scored:
        if episode.prediction is None:
            return Scored(math.nan, math.nan, plain)
        parts = self.parts(episode.question, episode.prediction)
        value = math.fsum(parts.values())
        taken = self.penalties.of(episode, tokens)
        reward = self.reward(value, plain) - math.fsum(taken.values())
        return Scored(reward, value, plain, parts | {name: -amount for name, amount in taken.items()})

    def _value(self, question: Question, prediction: Any) -> float:
        return math.fsum(self.parts(question, prediction).values())


class RetrievalGain(_Scoring):
    """Gain of a measure over the plain question with as many passages.

    Args:
        plain: From ``plain_program``.
        metric: Any metric that reads no answer, such as ``ndcg@10``, ``recall@5`` or ``decision_useful``.
        options: As every reward has.

    Raises:
        InputError: There is no such metric, or it reads an answer.
    """

    name = "retrieval"

    def __init__(self, plain: RAG, *, metric: str = DEFAULT_METRIC, **options: Any) -> None:
        self._metric = metric_named(metric)
        if "reader" in needs(metric):
            raise InputError(
                f"{metric} reads an answer; a reward by what is found takes one such as ndcg@10, recall@5, hit or "
                "decision_useful"
            )
        self.metric = metric
        super().__init__(RAG(plain.technique, None), **options)

    def parts(self, question: Question, prediction: Any) -> dict[str, float]:
        """The measure alone."""
        return {self.metric: float(self._metric(question.to_example(), prediction))}

    def found(self, questions: Sequence[Question], texts: Sequence[str]) -> list[float]:
        """The measure of each question where a text is searched in its place; all are searched at once.

        Args:
            questions: Any number; the same one may stand several times.
            texts: One a question.
        """
        technique = self._plain.technique
        rankings = searched_by(technique.retriever).search(texts, technique.max_passages)
        predictions = (dspy.Prediction(passages=[hit.passage for hit in hits]) for hits in rankings)
        return [self._value(*one) for one in zip(questions, predictions, strict=True)]


class AnswerGain(_Scoring):
    """Token F1 of the answer with the rewrite, less that of the answer without one: the reward of ``seed``."""

    name = "answer"
    needs_reader = True

    def parts(self, question: Question, prediction: Any) -> dict[str, float]:
        """Token F1 alone."""
        return {"f1": METRICS["token_f1"](question.to_example(), prediction)}


class PaperReward(_Scoring):
    """EM + F1 + Hit, whatever the plain question is worth; of multiple choice EM alone."""

    name = "paper"
    needs_reader = True

    def parts(self, question: Question, prediction: Any) -> dict[str, float]:
        """Those of ``paper_parts``."""
        return paper_parts(question, prediction)

    def reward(self, value: float, plain: float) -> float:
        """The value itself."""
        return value


def make_reward(
    recipe: Recipe,
    program: RAG | Technique,
    *,
    metric: str = DEFAULT_METRIC,
    lm: dspy.LM | None = None,
    target: float | None = None,
    threads: int = 4,
) -> Reward:
    """The reward of a recipe.

    Args:
        recipe: Says which, and what is taken off.
        program: What is trained; the plain question is searched, and read, as it does.
        metric: What ``retrieval`` measures. Default ``ndcg@10``.
        lm: What the reader asks, for a reward that reads answers.
        target: Tokens aimed at, for a length penalty.
        threads: Plain questions under way at a time. Default 4.

    Raises:
        InputError: Something that the recipe needs is missing.
    """
    plain = plain_program(program)
    penalties = Penalties(recipe.length_penalty, target, recipe.unreadable)
    if recipe.reward == "retrieval":
        return RetrievalGain(plain, metric=metric, penalties=penalties, threads=threads)
    kind = AnswerGain if recipe.reward == "answer" else PaperReward
    return kind(plain, lm=lm, penalties=penalties, threads=threads)
