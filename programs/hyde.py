"""HyDE: write passages that would answer the question, and search with the mean of their vectors.

Gao et al. 2022, arXiv 2212.10496. As in the authors' code, eight documents are sampled at temperature 0.7 and the
question's own vector is in the mean. Where we differ: the vectors have length 1 before they are averaged, because the
search is by cosine (the paper's encoder was made for inner products). The documents are hidden from the reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dspy
import numpy as np

from querywright.data.types import Passage
from querywright.programs.base import MAX_PASSAGES, Plan, Technique, search_record
from querywright.programs.hyperparameters import Knob
from querywright.programs.query_cleaning import plain_line
from querywright.programs.steps import Call, Record
from querywright.retrieval.types import Query


class WriteDocument(dspy.Signature):
    """Write a short encyclopedia passage that answers the question. Name the facts."""

    question: str = dspy.InputField()
    passage: str = dspy.OutputField(max_length=400)


class HyDE(Technique):
    """Searches with the mean vector of hypothetical documents; needs a dense retriever.

    A document that cannot be read is left out (fallback ``document:3`` and so on); when none can, the question is the
    only query.
    """

    NAME = "hyde"
    TITLE = "Hypothetical Document Embeddings (HyDE)"
    PAPER = "arXiv 2212.10496"
    LM_STAGES = 1
    SEARCHES = "1 (mean vector)"
    NEEDS_VECTORS = True
    KNOBS = (
        MAX_PASSAGES,
        Knob("n_documents", 8, "documents sampled side by side", low=1, high=16),
        Knob("search_question", True, "whether the question's own vector is in the mean"),
        Knob("temperature", 0.7, "of sampling; the first of several documents may equal another at 0", low=0, high=1.5),
    )

    def __init__(self, retriever: Any = None, **knobs: Any) -> None:
        super().__init__(retriever, **knobs)
        self.write_document = dspy.Predict(WriteDocument)

    async def plan(self, question: str, options: Sequence[str]) -> Plan:
        """The documents, and the question where it is in the mean."""
        asked = [
            self.ask(self.write_document, question=question, config=self._sampling(number))
            for number in range(self.knobs.integer("n_documents"))
        ]
        written = [None if one is None else plain_line(one.passage) for one in await self.together(asked)]
        fallbacks = tuple(f"document:{number}" for number, text in enumerate(written, 1) if not text)
        queries = [Query(text, "hypothetical_document") for text in written if text]
        if self.knobs.flag("search_question") or not queries:
            queries.insert(0, Query(question))
        return Plan(tuple(queries), fallbacks)

    async def retrieve(self, question: str, queries: Sequence[Query]) -> list[Passage]:
        """The passages nearest to the mean of the queries' vectors."""
        retriever = self.searched
        texts = [query.text for query in queries]
        vectors = np.asarray(await Call(lambda: retriever.embed(texts)), dtype=np.float32)
        mean = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).mean(axis=0, keepdims=True)

        def record(lists: Any, stage: int) -> Record:
            return search_record(["mean vector"], lists[:1], stage, {"vectors": len(texts)})

        lists = await Call(lambda: retriever.search_vectors(mean, self.depth), record)
        return self.fused(queries[:1], lists)

    def _sampling(self, number: int) -> dict[str, Any]:
        """Of one document; a seed makes it another draw than its neighbours, and the same one tomorrow."""
        config: dict[str, Any] = {"temperature": self.knobs.number("temperature")}
        own = None if self.own_lm is not None else self.write_document.lm  # a rewriter goes before the predictor's own
        lm = own or self.asked
        if "seed" in getattr(lm, "supported_params", ()):
            config["seed"] = number
        else:
            config["rollout_id"] = number
        return config
