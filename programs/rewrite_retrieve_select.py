"""Rewrite-Retrieve-Select: search broadly for evidence that would settle the question, then keep only that evidence.

This technique is ours. It combines parts of others and makes as many LM calls as HCQR (arXiv 2603.19008). The first
call does the work of HCQR's two calls: it commits to a likely answer and writes queries that support it, separate it
from its rivals, and verify the key clue. It also writes a sentence from a hypothetical passage that would settle the
question, which is used as another query (as in HyDE, arXiv 2212.10496, and Query2Doc, arXiv 2303.07678). The lists are
fused into one pool, larger than what a reader sees. The second call selects passages from the pool (see
``querywright.programs.selection``).

Prior work: RankGPT (arXiv 2304.09542) has an LM order a list of passages. SetR (arXiv 2507.06838) trains an LM to name
what a question needs and to choose a set. OptiSet (arXiv 2601.05027) expands queries and selects a set that helps the
generator. In utility-focused annotation, an LM labels which passages help to answer. The combination (one planning call
and one selection call) is ours, and so is the criterion: a passage is kept only if it helps to decide the question, and
the selection may be empty.

The technique is designed for hybrid search (``rrs@hybrid``) and a large LM; a small LM cannot read twenty passages at
once. Most of the tokens are spent on the pool. To spend fewer, lower ``select_pool``, truncate passages to
``select_words`` words, or omit passages with a low fused score (``select_least``). A study with
``objectives: [decision_useful, tokens]`` and lists of values for these knobs shows the Pareto front.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import dspy

from querywright.data.types import History
from querywright.programs.base import FUSION, MAX_PASSAGES, N_WRITTEN, RRF_K, TOP_K, Technique
from querywright.programs.hyperparameters import Knob
from querywright.programs.query_cleaning import query_texts, written_in
from querywright.programs.selection import SELECT
from querywright.programs.signatures import tuned_signature
from querywright.programs.steps import Predict
from querywright.retrieval.types import Query


class QuestionToSearches(dspy.Signature):
    """Decide which answer is most likely and what fact would settle it. Then write what finds that fact in a source.
    Short queries, each for one thing: evidence for the likely answer, what tells it from its nearest rivals, and what
    the key clue of the question means. Name the terms that a source would use, not the wording of the question.
    """

    question: str = dspy.InputField()
    options: list[str] = dspy.InputField()
    reasoning: str = dspy.OutputField(desc="the likely answer and what settles it, in one or two short sentences")
    queries: list[str] = dspy.OutputField(desc="names and key words")
    passage: str = dspy.OutputField(desc="the sentence of a source that would settle the question")


class RewriteRetrieveSelect(Technique):
    """Searches with several queries and a hypothetical sentence, and keeps the passages that the LM selects.

    If no query can be read, the question is the only query (fallback ``plan``).
    """

    NAME = "rrs"
    TITLE = "Rewrite-Retrieve-Select"
    PAPER = "ours"
    SHOWS_OPTIONS = True
    LM_STAGES = 2
    SEARCHES = "5"
    KNOBS = (
        MAX_PASSAGES,
        Knob("n_queries", 4, "number of queries searched", low=1, high=8),
        N_WRITTEN,
        replace(TOP_K, default=10),
        replace(FUSION, default="rrf"),
        RRF_K,
        Knob("select_least", 0.0, "minimum score of a pool passage, as a share of the best fused score; 0: no minimum",
             low=0, high=1, when={"fusion": ("rrf", "best_score")}, search=False),
        Knob("search_passage", True, "whether the hypothetical sentence is also searched"),
        replace(SELECT, default=True),
    )  # fmt: skip

    def __init__(self, retriever: Any = None, **knobs: Any) -> None:
        super().__init__(retriever, **knobs)
        self.plan_searches = Predict(QuestionToSearches)

    def forward(self, question: str, options: Sequence[str] | None = None, history: History = None) -> dspy.Prediction:
        """Search with the queries and the hypothetical sentence; the base class then runs the selection."""
        count = self.written()
        line = f"Write {count} queries." if count > 1 else "Write one query."
        signature = tuned_signature(self.plan_searches, line=line)
        made = self.plan_searches(signature=signature, question=question, options=list(options or ()), history=history)
        texts = [] if made is None else query_texts(made.queries, self.knobs["n_queries"])
        queries = [Query(text, "rewrite") for text in texts]
        sentence = written_in(made, "passage") if self.knobs["search_passage"] else ""
        if sentence:
            queries.append(Query(sentence, "hypothetical_document"))
        return self.retrieve(queries) if queries else self.retrieve([Query(question)], ["plan"])
