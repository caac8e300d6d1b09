"""HyDE: write passages that would answer the question, and search with the mean of their vectors.

Gao et al. 2022, arXiv 2212.10496. As in the authors' code, eight documents are sampled at temperature 0.7, embedded as
the passages are, and the vector of the question, embedded as a query, is in the mean. Where we differ: the vectors have
length 1 before they are averaged, because the search is by cosine (the paper's encoder was made for inner products).
The documents are hidden from the reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import dspy
import numpy as np

from querywright.data.types import Passage
from querywright.programs.base import MAX_PASSAGES, Plan, Technique, search_record
from querywright.programs.hyperparameters import Knob
from querywright.programs.query_cleaning import written_in
from querywright.programs.steps import Call
from querywright.retrieval.types import Query

WRITTEN = "hypothetical_document"
"""Role of what is embedded as the passages are; the question is embedded as a query."""


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
    PROMPTS: ClassVar = {"write_document": WriteDocument}
    LM_STAGES = 1
    SEARCHES = "1 (mean vector)"
    NEEDS_VECTORS = True
    KNOBS = (
        MAX_PASSAGES,
        Knob("n_documents", 8, "documents sampled side by side", low=1, high=16),
        Knob("search_question", True, "whether the question's own vector is in the mean"),
        Knob("temperature", 0.7, "of sampling; the first of several documents may equal another at 0", low=0, high=1.5),
    )

    async def plan(self, question: str, options: Sequence[str]) -> Plan:
        """The documents, and the question where it is in the mean."""
        seeded = "seed" in getattr(self.lm_of("write_document"), "supported_params", ())
        draw = "seed" if seeded else "rollout_id"  # each another draw than its neighbours, and the same one tomorrow
        configs = [{"temperature": self.knobs["temperature"], draw: n} for n in range(self.knobs["n_documents"])]
        asked = [self.ask("write_document", question=question, config=config) for config in configs]
        written = [written_in(one, "passage") for one in await self.together(asked)]
        fallbacks = tuple(f"document:{number}" for number, text in enumerate(written, 1) if not text)
        queries = [Query(text, WRITTEN) for text in written if text]
        if self.knobs["search_question"] or not queries:
            queries.insert(0, Query(question))
        return Plan(tuple(queries), fallbacks)

    async def retrieve(self, question: str, queries: Sequence[Query]) -> list[Passage]:
        """The passages nearest to the mean of the queries' vectors."""
        retriever = self.searched
        written, asked = ([one.text for one in queries if (one.role == WRITTEN) is so] for so in (True, False))
        sides = [(getattr(retriever, "embed_documents", retriever.embed), written), (retriever.embed, asked)]
        made = await Call(lambda: [np.asarray(embed(texts), dtype=np.float32) for embed, texts in sides if texts])
        vectors = np.concatenate(made)
        mean = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).mean(axis=0, keepdims=True)
        lists = await Call(
            lambda: retriever.search_vectors(mean, self.depth),
            lambda found, stage: search_record(["mean vector"], found[:1], stage, {"vectors": len(queries)}),
        )
        return self.fused(queries[:1], lists)
