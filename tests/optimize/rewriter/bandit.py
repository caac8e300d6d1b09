"""A policy of a few numbers: it writes one to three of a handful of words, and learns which are worth it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from querywright.errors import InputError
from querywright.optimize.rewriter.types import Completion, Episode, Messages, Scored, Turn

WORDS = ("end", "good", "bad", "plain", "other")


class Bandit:
    """A logit a word, the same at every place; the first word ends a completion."""

    size = 8

    def __init__(self, start: float = 0.0) -> None:
        import torch

        self.logits = torch.nn.Parameter(torch.full((len(WORDS),), start))
        self._reference: Any = None
        self.set_reference()

    def write(
        self, prompts: Sequence[Messages], *, room: int, seed: int | None = None, temperature: float = 1.0, **cuts: Any
    ) -> list[Completion]:
        import torch

        made = []
        for place in range(len(prompts)):
            generator = torch.Generator().manual_seed(0 if seed is None else seed + place)
            scores = torch.log_softmax(self.logits.detach() / temperature, 0)
            tokens: list[int] = []
            while len(tokens) < room and (not tokens or tokens[-1] != 0):
                drawn = scores.argmax() if seed is None else torch.multinomial(scores.exp(), 1, generator=generator)
                tokens.append(int(drawn))
            text = " ".join(WORDS[one] for one in tokens if one)
            made.append(Completion(text, (1,), tuple(tokens), tokens[-1] == 0))
        return made

    def parts(self, completions: Sequence[Completion]) -> list[list[int]]:
        return [
            list(range(start, min(start + self.size, len(completions))))
            for start in range(0, len(completions), self.size)
        ]

    def refused(self, messages: Messages, room: int) -> Exception | None:
        return None

    def log_probs(self, completions: Sequence[Completion], *, reference: bool = False) -> list[Any]:
        import torch

        scores = torch.log_softmax(self._reference if reference else self.logits, 0)
        return [scores[torch.tensor(one.tokens)] for one in completions]

    def parameters(self) -> Mapping[str, Any]:
        return {"logits": self.logits}

    def set_parameters(self, tensors: Mapping[str, Any]) -> None:
        import torch

        if tensors["logits"].shape != self.logits.shape:
            raise InputError("the tensors are of another base model")
        with torch.no_grad():
            self.logits.copy_(tensors["logits"])

    def set_reference(self) -> None:
        self._reference = self.logits.detach().clone()


def one_turn(questions: Sequence[Any], answer: Any) -> list[Episode]:
    """Each question is one turn, whose text is all that comes of it."""
    turns = [Turn(place, 0, (("user", one.question),)) for place, one in enumerate(questions)]
    texts = answer(turns)
    return [
        Episode(question, (turn,), (text,), None) for question, turn, text in zip(questions, turns, texts, strict=True)
    ]


class Words:
    """Half a point for each good word, off for each bad one."""

    def score(self, episodes: Sequence[Episode]) -> list[Scored]:
        values = [0.5 * (one.texts[0].count("good") - one.texts[0].count("bad")) for one in episodes]
        return [Scored(value, value, 0.0) for value in values]
