"""A policy of a few numbers: it writes one to three of a handful of words, and learns which are worth it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from querywright.optimize.rewriter.types import Completion, Episode, Messages, Scored, Turn

WORDS = ("end", "good", "bad", "plain", "other")


class Bandit:
    """A logit a word, the same at every place; the first word ends a completion."""

    width = 1

    def __init__(self, start: float = 0.0) -> None:
        import torch

        self.logits = torch.nn.Parameter(torch.full((len(WORDS),), start))
        self._reference: Any = None
        self.set_reference()

    def write(
        self,
        prompts: Sequence[Messages],
        *,
        seeds: Sequence[int] | None = None,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        room: int = 3,
    ) -> list[Completion]:
        import torch

        made = []
        for place in range(len(prompts)):
            generator = torch.Generator()
            if seeds is not None:
                generator.manual_seed(seeds[place])
            scores = torch.log_softmax(self.logits.detach() / temperature, 0)
            tokens: list[int] = []
            while len(tokens) < room and (not tokens or tokens[-1] != 0):
                drawn = scores.argmax() if seeds is None else torch.multinomial(scores.exp(), 1, generator=generator)
                tokens.append(int(drawn))
            text = " ".join(WORDS[one] for one in tokens if one)
            log_probs = tuple(float(scores[one]) for one in tokens)
            made.append(Completion(text, (1,), tuple(tokens), log_probs, tokens[-1] == 0))
        return made

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

    def score(self, episodes: Sequence[Episode], tokens: Sequence[Sequence[int]] | None = None) -> list[Scored]:
        values = [0.5 * (one.texts[0].count("good") - one.texts[0].count("bad")) for one in episodes]
        return [Scored(value, value, 0.0) for value in values]


class Constant:
    """The same for everything; None for what cannot be scored."""

    def __init__(self, value: float = 0.25) -> None:
        self.value = value

    def score(self, episodes: Sequence[Episode], tokens: Sequence[Sequence[int]] | None = None) -> list[Scored]:
        return [Scored(self.value, 0.0 if math.isnan(self.value) else self.value, 0.0) for _ in episodes]
