"""HyDE: write passages that would answer the question, and search with the mean of their vectors.

Gao et al. 2022, arXiv 2212.10496. As in the authors' code, eight documents are sampled at temperature 0.7 and embedded
as passages, and the mean includes the question's vector, embedded as a query. The documents are hidden from the reader.

Where we differ: the vectors are normalized before they are averaged, because the search uses cosine similarity (the
paper's encoder was made for inner products).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import dspy

from querywright.data.types import History
from querywright.programs.base import MAX_PASSAGES, Technique, search_sum
from querywright.programs.hyperparameters import Knob
from querywright.programs.query_cleaning import written_in
from querywright.programs.steps import Predict, parallel
from querywright.retrieval.types import Query


class QuestionToHypotheticalDocument(dspy.Signature):
    """Write a short encyclopedia passage that answers the question. Name the facts."""

    question: str = dspy.InputField()
    passage: str = dspy.OutputField(max_length=400)


class HyDE(Technique):
    """Searches with the mean vector of hypothetical documents; needs a dense retriever.

    A document that cannot be read is omitted (fallback ``document:3`` for the third). If none can be read, the question
    is the only query.
    """

    NAME = "hyde"
    TITLE = "Hypothetical Document Embeddings (HyDE)"
    PAPER = "arXiv 2212.10496"
    LM_STAGES = 1
    SEARCHES = "1 (mean vector)"
    NEEDS_VECTORS = True
    KNOBS = (
        MAX_PASSAGES,
        Knob("n_documents", 8, "number of documents sampled in parallel", low=1, high=16),
        Knob("search_question", True, "whether the mean includes the vector of the question"),
        Knob("temperature", 0.7, "sampling temperature; at 0, the documents may be identical", low=0, high=1.5),
    )

    def __init__(self, retriever: Any = None, **knobs: Any) -> None:
        super().__init__(retriever, **knobs)
        self.write_document = Predict(QuestionToHypotheticalDocument)

    def forward(self, question: str, options: Sequence[str] | None = None, history: History = None) -> dspy.Prediction:
        """Write documents in parallel and search with the mean of their vectors."""
        write: Any = partial(self.write_document, question=question, history=history)
        seeded = "seed" in getattr(self.lm_of(self.write_document), "supported_params", ())
        draw = "seed" if seeded else "rollout_id"  # each document is a different sample, the same in every run
        configs = [{"temperature": self.knobs["temperature"], draw: n} for n in range(self.knobs["n_documents"])]
        made = parallel([partial(write, config=config) for config in configs])
        documents = [written_in(one, "passage") for one in made]
        fallbacks = [f"document:{number}" for number, text in enumerate(documents, 1) if not text]
        queries = [Query(text, "hypothetical_document") for text in documents if text]
        if self.knobs["search_question"] or not queries:
            queries.insert(0, Query(question))
        lists = search_sum(self, queries, [1 / len(queries)] * len(queries), name="mean vector")
        return dspy.Prediction(passages=self.fuse(queries[:1], lists), queries=queries, fallbacks=fallbacks)
