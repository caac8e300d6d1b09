"""QA-RAG: search with the question and with a hypothetical answer, and rerank the results of each track.

Kim and Min 2024, arXiv 2402.01717. As in the authors' code, each track retrieves twelve passages, and the reader gets
six, half of them from each track.

Where we differ: any LM can write the answer, not only a fine-tuned one. The passages of the two tracks alternate, so
that a smaller budget contains the best passages of both tracks. If both find the same passage, the next best passage
takes the free place. ``track=answer`` is the weaker version that the QB-RAG paper compares its technique with: the
answer is the only query, and nothing is reranked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import dspy

from querywright.data.types import History
from querywright.programs.base import MAX_PASSAGES
from querywright.programs.hyperparameters import Knob
from querywright.programs.query_cleaning import written_in
from querywright.programs.rerank import Reranking
from querywright.programs.steps import Predict
from querywright.retrieval.types import Query

if TYPE_CHECKING:
    from querywright.retrieval.rerank import Reranker


class QuestionToHypotheticalAnswer(dspy.Signature):
    """Answer the question from what you know, as an expert would, in one or two full sentences.
    Name the specific facts. Where you are not sure, give the most likely answer.
    """

    question: str = dspy.InputField()
    answer: str = dspy.OutputField(desc="1 or 2 sentences", max_length=300)


class QARAG(Reranking):
    """Searches with the question and with a hypothetical answer, and takes half of the passages from each search.

    If no answer can be read, all passages come from the search with the question (fallback ``answer``). Passages are
    reranked by how well they fit the question. The answer is hidden from the reader.
    """

    NAME = "qa_rag"
    TITLE = "QA-RAG"
    PAPER = "arXiv 2402.01717"
    LM_STAGES = 2
    SEARCHES = "2"
    KNOBS = (
        replace(MAX_PASSAGES, default=6),
        Knob("top_k", 12, "number of passages from each track", low=1, high=50),
        Knob("track", "both", "texts to search: the question and the hypothetical answer (both), or only the answer",
             choices=("both", "answer")),
        Knob("rerank", True, "whether the passages from each track are reranked", when={"track": ("both",)}),
    )  # fmt: skip

    def __init__(self, retriever: Any = None, *, reranker: Reranker | None = None, **knobs: Any) -> None:
        super().__init__(retriever, reranker=reranker, **knobs)
        self.answer_from_memory = Predict(QuestionToHypotheticalAnswer)

    def forward(self, question: str, options: Sequence[str] | None = None, history: History = None) -> dspy.Prediction:
        """Search with the question and the answer, rerank each list, and fuse them."""
        both = self.knobs["track"] == "both"
        answer = written_in(self.answer_from_memory(question=question, history=history), "answer")
        queries = [Query(question)] if both or not answer else []
        if answer:
            queries.append(Query(answer, "hypothetical_answer"))
        fallbacks = [] if answer else ["answer"]
        tracks = self.search([query.text for query in queries])
        if both and self.knobs["rerank"]:
            pool = list(
                {hit.passage.id: hit for track in tracks for hit in track}.values()
            )  # so that a passage in both tracks is graded once
            ranked, more = self.rerank(question, pool, history)
            scores = {hit.passage.id: hit.score for hit in ranked}
            tracks = [sorted(track, key=lambda hit: -scores[hit.passage.id]) for track in tracks]
            fallbacks += more
        return dspy.Prediction(passages=self.fuse(queries, tracks), queries=queries, fallbacks=fallbacks)
