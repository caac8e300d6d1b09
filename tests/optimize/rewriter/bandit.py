"""A policy of a few numbers: it writes one to three of a handful of words, and learns which are worth it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from querywright.optimize.rewriter.episodes import Episode, Turn
from querywright.optimize.rewriter.policy import Completion, Messages
from querywright.optimize.rewriter.rewards import Scored

WORDS = ("end", "good", "bad", "plain", "other")


class Bandit:
    """A logit a word, the same at every place; the first word ends a completion."""

    kind = "causal"
    size = 8

    def __init__(self, start: float = 0.0, words: int = len(WORDS)) -> None:
        import torch

        self.logits = torch.nn.Parameter(torch.full((words,), start))
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
        places = list(range(len(completions)))
        return [places[start : start + self.size] for start in range(0, len(places), self.size)]

    def prompt(self, messages: Messages) -> Any:
        return messages

    def refused(self, prompt: Any, room: int) -> Exception | None:
        return None

    def log_probs(self, completions: Sequence[Completion], *, reference: bool = False) -> list[Any]:
        import torch

        scores = torch.log_softmax(self._reference if reference else self.logits, 0)
        return [scores[torch.tensor(one.tokens)] for one in completions]

    def parameters(self) -> Mapping[str, Any]:
        return {"logits": self.logits}

    def set_parameters(self, tensors: Mapping[str, Any]) -> None:
        self.logits.data.copy_(tensors["logits"])

    def set_reference(self) -> None:
        self._reference = self.logits.detach().clone()


def one_turn(questions: Sequence[Any], answer: Any) -> list[Episode]:
    """Each question is one turn, whose text is all that comes of it."""
    turns = [Turn(place, 0, (("user", one.question),)) for place, one in enumerate(questions)]
    each = zip(questions, turns, answer(turns), strict=True)
    return [Episode(question, (turn,), (text,), None) for question, turn, text in each]


class Words:
    """Half a point for each good word, off for each bad one; changed by a function of the score and its episode."""

    def __init__(self, change: Any = lambda scored, episode: scored) -> None:
        self.change = change

    def score(self, episodes: Sequence[Episode]) -> list[Scored]:
        values = [0.5 * (one.texts[0].count("good") - one.texts[0].count("bad")) for one in episodes]
        return [self.change(Scored(value, value, 0.0), one) for value, one in zip(values, episodes, strict=True)]
