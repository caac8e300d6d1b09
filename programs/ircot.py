"""IRCoT: retrieval interleaved with chain-of-thought (Trivedi et al., arXiv 2212.10509).

The technique searches with the question. The LM then writes one sentence of reasoning from the passages so far, the
technique searches with that sentence, and so on until a sentence gives the answer. The reader answers from the
collected passages and never sees the reasoning.

Where we differ: there are no demonstrations by default (``demos=15`` shows fifteen of ours, as many as the paper);
rules, not spaCy, split sentences; the loop also ends if a sentence repeats an earlier one or the limit of collected
passages is reached; and no words are removed from a question before the search. There are at most 8 steps, as in the
paper (10 in its code). ``top_k`` is 4; the paper tries 2, 4, 6, and 8.

An LM that already knows the answer stops at its first sentence, after one search for 4 passages, although 15 are
allowed. Two knobs that are not in the paper change this: ``min_steps`` asks for further facts first, and ``fill`` fills
the budget with further hits from the same searches. For a language other than English, subclass ``IRCoT`` and replace
the patterns ``STOP``, ``CONCLUDES``, and ``CALCULATES``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import dspy

from querywright.data.types import History, Passage
from querywright.models.adapter import show_passages
from querywright.programs.base import MAX_PASSAGES, Technique, demos_knob
from querywright.programs.hyperparameters import Knob
from querywright.programs.query_cleaning import folded, listed
from querywright.programs.signatures import tuned_signature
from querywright.programs.steps import Predict
from querywright.retrieval.fusion import fuse
from querywright.retrieval.types import Hit, Query

_TOO_EARLY = "It is too early for the answer: write another fact."
_PARAGRAPH_WORDS = 350
"""Maximum number of words per passage in the reasoning prompt; the reader sees the whole passage."""
_CLOSING = "\"'\u2019\u201d\u00bb)\\]\u300d\u300f\uff09"
_SENTENCE_END = re.compile(rf"[.!?]+[{_CLOSING}]*(?=\s|$)|[\u3002\uff01\uff1f\uff61](?![{_CLOSING}])")
_LETTER = re.compile(r"[^\W\d_]")
_ABBREVIATED = re.compile(
    r"^\d{1,2}$|"
    r"(?:^|[\s(\[\"'\u2018\u201c])(?:(?:[^\W\d_]\.)*[^\W\d_]|mr|mrs|ms|dr|prof|st|mt|gen|col|lt|sgt|capt|adm|rev|hon|"
    r"gov|sen|rep|vs|cf|al|ca|approx|no|nos|vol|fig|pp|jan|feb|aug|sept?|oct|nov|dec)$",
    re.IGNORECASE,
)
"""Matches an ordinal at the beginning, an initial, or an abbreviation; a period after these seldom ends a sentence."""


class PassagesToNextSentence(dspy.Signature):
    """Reason towards the answer one sentence at a time.
    Write the sentence that comes next: one new fact from the passages, by name.
    When the facts are enough, write "So the answer is" and the answer.
    """

    # Passages come first: new ones are only appended, so the next step can reuse the prefix cache.
    passages: str = dspy.InputField()
    question: str = dspy.InputField()
    sentences_so_far: list[str] = dspy.InputField()
    next_sentence: str = dspy.OutputField(desc="one short sentence", max_length=200)


class IRCoT(Technique):
    """Searches with the question, then with each sentence of the reasoning, and collects the passages.

    A sentence that is empty or cannot be read ends the loop (fallback ``sentence:2`` for the second). Passages are in
    the order in which they were collected. If the reader gets fewer passages than were collected, the result lists of
    the searches are interleaved.
    """

    STOP: ClassVar[re.Pattern[str]] = re.compile(r"\banswer is\b", re.IGNORECASE)
    """Matches a sentence that ends the reasoning."""
    CONCLUDES: ClassVar[re.Pattern[str]] = re.compile(r"(?:thus|so|therefore|hence)\b", re.IGNORECASE)
    """Matches the start of a sentence that draws a conclusion and states no fact; it is never used as a query."""
    CALCULATES: ClassVar[re.Pattern[str]] = re.compile(
        r"\d[\d.,]*\s*[-+*/x\u00d7\u00f7\u2212]\s*\d[\d.,]*\s*(?:=|equals\b)"
    )
    """Matches a sentence that contains a calculation; it is never used as a query."""

    NAME = "ircot"
    TITLE = "Interleaved retrieval and chain-of-thought"
    PAPER = "arXiv 2212.10509"
    LM_STAGES = 8
    SEARCHES = "1 to max_steps + 1"
    ITERATIVE = True
    KNOBS = (
        replace(MAX_PASSAGES, default=15),
        Knob("collect", 15, "number of collected passages at which the loop ends", low=1, high=50),
        Knob("top_k", 4, "number of passages from each search", low=1, high=50),
        Knob("max_steps", 8, "maximum number of reasoning sentences", low=1, high=10),
        Knob("min_steps", 1, "minimum number of reasoning sentences before an answer", low=1, high=10),
        Knob("fill", False, "whether more hits from the same searches fill up max_passages"),
        demos_knob(15),
    )

    def __init__(self, retriever: Any = None, **knobs: Any) -> None:
        super().__init__(retriever, **knobs)
        self.write_next_sentence = Predict(PassagesToNextSentence)

    def forward(self, question: str, options: Sequence[str] | None = None, history: History = None) -> dspy.Prediction:
        """Search, write a sentence, search with the latest sentence that states a fact, and repeat."""
        queries = [Query(question)]
        lists = self.search([question])
        sentences: list[str] = []
        fallbacks: list[str] = []
        for number in range(1, self.knobs["max_steps"] + 1):
            collected = fuse("union", lists, limit=self.knobs["collect"])
            if len(collected) >= self.knobs["collect"]:
                break
            early = number < self.knobs["min_steps"]
            made = self.write_next_sentence(
                signature=tuned_signature(self.write_next_sentence, line=_TOO_EARLY if early else ""),
                passages=show_passages(_shortened(collected)),
                question=question,
                sentences_so_far=list(sentences),
                history=history,
            )
            sentence = "" if made is None else first_sentence(made.next_sentence)
            if not sentence:
                fallbacks.append(f"sentence:{number}")
            ends = not early and self.STOP.search(sentence)
            if not sentence or ends or folded(sentence) in map(folded, sentences):
                break
            sentences.append(sentence)
            text = next(filter(self._is_fact, reversed(sentences)), question)
            if text not in [query.text for query in queries]:
                queries.append(Query(text, "sentence"))
                lists += self.search([text])
        hits = fuse("union", lists, limit=self.knobs["collect"])
        if len(hits) > self.limit:  # a budget too small for all passages is shared among the searches
            hits = fuse("interleave", lists, limit=self.limit)
        elif len(hits) < self.limit and self.knobs["fill"]:
            deeper = fuse("interleave", self.search([query.text for query in queries], self.limit))
            hits = fuse("union", [hits, deeper], limit=self.limit)
        return dspy.Prediction(passages=[hit.passage for hit in hits], queries=queries, fallbacks=fallbacks)

    def _is_fact(self, sentence: str) -> bool:
        """Return whether a sentence states a fact: not a conclusion, not a calculation, and not a bare number."""
        concludes = self.CONCLUDES.match(sentence) or self.CALCULATES.search(sentence)
        return not concludes and _LETTER.search(sentence) is not None


def _shortened(hits: Sequence[Hit]) -> list[Passage]:
    """Return the passages, each truncated to the words that the reasoning prompt shows."""
    return [replace(hit.passage, text=" ".join(hit.passage.text.split()[:_PARAGRAPH_WORDS])) for hit in hits]


def first_sentence(text: str | None) -> str:
    """Return the first sentence in the first line of an LM's text.

    A period does not end a sentence if it follows an initial or a title, precedes a lowercase letter, or is inside a
    number. A full-width period ends a sentence unless a closing quotation mark follows.

    Args:
        text: Any string; if it is empty or None, the result is empty.
    """
    line = next(iter(listed((text or "").splitlines())), "")
    for end in _SENTENCE_END.finditer(line):
        before, after = line[: end.start()], line[end.end() :].lstrip()
        if end.group()[0] != "." or not after or not (after[0].islower() or _ABBREVIATED.search(before)):
            return line[: end.end()]
    return line
