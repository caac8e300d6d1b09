"""What the parts of a training hand each other.

An *episode* is one question answered by a technique whose LM is the policy in training. Each time the technique asks
the LM there is a *turn*; what the policy wrote in it is a *completion*. All completions of an episode share its reward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

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
        log_probs: Natural log-probability of each token when it was drawn, under the temperature and cuts it was
            drawn with.
        ended: Whether it ended by itself, and not because there was no more room.
    """

    text: str
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
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
    """

    question: Question
    turns: tuple[Turn, ...]
    texts: tuple[str, ...]
    prediction: Any
    error: str | None = None
    read: tuple[str | None, ...] = ()

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


class Policy(Protocol):
    """The model in training.

    Attributes:
        width: Devices that share what one call is given, so that it can be given so many times as much.
    """

    width: int

    def write(
        self,
        prompts: Sequence[Messages],
        *,
        seeds: Sequence[int] | None = None,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        room: int = 64,
    ) -> list[Completion]:
        """A completion a prompt, in order.

        Args:
            prompts: What is asked.
            seeds: One a prompt, for drawing. None writes the likeliest token each time.
            temperature: More than 0.
            top_k: The likeliest tokens that are drawn from; 0 for all.
            top_p: Tokens are drawn from the likeliest whose probabilities sum up to this.
            room: Tokens of a completion at most.
        """
        ...

    def refused(self, messages: Messages, room: int) -> Exception | None:
        """Why a prompt cannot be answered; None where it can.

        Args:
            messages: The prompt.
            room: Tokens of a completion at most.
        """
        ...

    def log_probs(self, completions: Sequence[Completion], *, reference: bool = False) -> list[Any]:
        """A tensor a completion: the log-probability of each of its tokens, at temperature 1 and without cuts.

        Args:
            completions: What ``write`` gave, or tokens of someone else.
            reference: Under the warmed-up policy, without gradients, instead of the one in training.
        """
        ...

    def parameters(self) -> Mapping[str, Any]:
        """The tensors in training, by name."""
        ...

    def set_parameters(self, tensors: Mapping[str, Any]) -> None:
        """Other values for the tensors in training, by the same names."""
        ...

    def set_reference(self) -> None:
        """What the policy is now becomes the reference."""
        ...


@dataclass(frozen=True, slots=True)
class Pair:
    """A prompt and a completion to learn from.

    Args:
        question: Id of the question it came from.
        technique: Whose prompt it is.
        number: Which turn of the episode.
        messages: The prompt.
        text: The completion.
        reward: Of its episode.
        source: Who wrote it: a model's name, or ``study:NAME``.
        data: The collection that was searched, whose questions have ids of their own; empty where it is not known.
        asked: What ``asked_of`` gives for the question, whatever its id; empty where it is not known. A pair of a
            passage has that of each of its questions, with spaces between, and the passage's id as ``question``.
    """

    question: str
    technique: str
    number: int
    messages: Messages
    text: str
    reward: float
    source: str
    data: str = ""
    asked: str = ""
