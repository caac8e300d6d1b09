"""Collect pairs for the warm-up from the training questions' evidence.

A pair consists of the prompt that the trained model receives in use and an answer that it can write. The rewrites from
``evidence`` are put into that form, run through the technique, and scored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from querywright.data.splits import asked_of
from querywright.errors import InputError
from querywright.optimize.evaluate import Progress
from querywright.optimize.rewriter.episodes import Episode, Reward, Score, Turn, run_episodes
from querywright.optimize.rewriter.evidence import Writer, taught_by_evidence
from querywright.optimize.rewriter.pairs import Pair
from querywright.optimize.rewriter.settings import TrainingInputs, TrainSettings, check_collection


@dataclass(frozen=True, slots=True)
class Collection:
    """Collected pairs, in the order of the questions.

    Args:
        pairs: The pairs.
        questions: Number of training questions.
        answered: Number of training questions with a scored rewrite.
        plain: Mean of the metric over the answered questions if each question is searched unchanged.
        best: Mean of the metric over the answered questions if each rewrite is searched.
    """

    pairs: Sequence[Pair]
    questions: int
    answered: int
    plain: float
    best: float


def collect(settings: TrainSettings, inputs: TrainingInputs, *, progress: Progress | None = None) -> Collection:
    """Collect pairs from the training questions' evidence.

    Raises:
        InputError: The evidence cannot teach the technique, or the training questions have no labels.
    """
    check_collection(settings, inputs)
    train, data = inputs.splits.train, inputs.collection
    program = inputs.program(settings)
    reward = Reward(program, settings.metric)

    def play(write: Writer) -> dict[int, tuple[Episode, Score]]:
        """Return the episode and score of each question that the writer can rewrite, by the question's position."""
        scripts = {place: texts for place, one in enumerate(train) if (texts := write(one)) is not None}
        written = list(scripts.values())

        def answer(turn: Turn) -> str:
            return "".join(written[turn.place][turn.number : turn.number + 1])

        episodes = run_episodes(program, [train[place] for place in scripts], answer, threads=settings.threads)
        return dict(zip(scripts, zip(episodes, reward.score(episodes), strict=True), strict=True))

    def rewards(writers: Sequence[Writer]) -> list[list[float]]:
        found = []
        for number, write in enumerate(writers, 1):
            found.append(play(write))
            if progress is not None:
                progress("collect", number, len(writers))
        return [
            [scores[place][1].reward if place in scores else math.nan for scores in found]
            for place in range(len(train))
        ]

    writer = taught_by_evidence(program.technique, train, rewards, reward.found, progress)
    scored = [(episode, score) for episode, score in play(writer).values() if not math.isnan(score.reward)]
    if not scored:
        raise InputError(
            f"no rewrite of the {len(train)} training questions could be scored, because all searches failed"
        )
    plain, best = (fmean(values) for values in zip(*((one.plain, one.value) for _, one in scored), strict=True))
    pairs = [
        Pair(
            episode.question.id, settings.technique, turn.number, turn.messages, text, score.reward, "evidence", data,
            asked_of(episode.question),
        )
        for episode, score in scored
        for turn, text in zip(episode.turns, episode.read, strict=True)
        if text is not None
    ]  # fmt: skip
    return Collection(pairs, len(train), len(scored), plain, best)
