"""What the parts of a training hand each other.

An *episode* is one question answered by a technique whose LM is the policy in training. Each time the technique asks
the LM there is a *turn*; what the policy wrote in it is a *completion*. All completions of an episode share its reward.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from querywright.data.types import Question

Messages = tuple[tuple[str, str], ...]
"""A prompt as the adapter framed it: (role, content), the roles ``system``, ``user`` and ``assistant``."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The policy is asked.

    Args:
        place: Which episode, from 0.
        number: Which of its turns, from 0.
        messages: The prompt.
    """

    place: int
    number: int
    messages: Messages


@dataclass(frozen=True, slots=True)
class Completion:
    """What a model wrote.

    Args:
        text: Without its end token.
        prompt: Token ids of the prompt, of the encoder's input for a sequence-to-sequence model.
        tokens: Token ids of the completion, the end token last where it was written.
        ended: Whether it ended by itself, and not because there was no more room.
    """

    text: str
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    ended: bool


@dataclass(frozen=True, slots=True)
class Episode:
    """One question, gone through.

    Args:
        question: The question.
        turns: Each time the LM was asked, in order.
        texts: What it answered, one a turn.
        prediction: What the technique (or the technique and its reader) gave; None where it failed.
        error: The kind of failure, or None.
        read: What was read of each text, as the embedded LM would have written it: JSON, the fields in order, each
            value within its limits. None for a text that could not be read.
        completions: What the policy wrote, one a turn; none where somebody else wrote.
    """

    question: Question
    turns: tuple[Turn, ...]
    texts: tuple[str, ...]
    prediction: Any
    error: str | None = None
    read: tuple[str | None, ...] = ()
    completions: tuple[Completion, ...] = ()

    @property
    def queries(self) -> tuple[str, ...]:
        """The texts that were searched for; none where it failed."""
        found = [] if self.prediction is None else self.prediction.queries
        return tuple(query.text for query in found)


@dataclass(frozen=True, slots=True)
class Scored:
    """An episode's reward.

    Args:
        reward: What is learnt from; NaN where it cannot be worked out, and then left out and counted.
        value: The measure itself, such as nDCG@10, for the episode.
        plain: The same for the question as it was written.
        parts: What the reward is made of, by name.
    """

    reward: float
    value: float
    plain: float
    parts: Mapping[str, float] = field(default_factory=dict)
