"""Query2Doc: write a short passage that answers the question, and search with the question and the passage together.

Wang et al. 2023, arXiv 2303.07678. On BM25, the question is repeated five times, because otherwise the passage, which
has many more words, would outweigh it. On other retrievers, the question occurs once. The passage is hidden from the
reader.

Where we differ: a line break, not the [SEP] token of the paper's encoder, separates the question and the passage,
because other encoders read this token as a word. There are no demonstrations by default; ``demos=4`` shows four of
ours, while the paper shows four examples from MS MARCO.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dspy

from querywright.data.types import History
from querywright.programs.base import MAX_PASSAGES, Technique, demos_knob
from querywright.programs.hyperparameters import Knob
from querywright.programs.query_cleaning import written_in
from querywright.programs.steps import Predict
from querywright.retrieval.types import Query, kind_of

LEXICAL_REPEATS = 5


class QuestionToPseudoDocument(dspy.Signature):
    """Write a few sentences, as an encyclopedia would have them, that answer the question.
    State facts and names. Where you are not sure, write what is most likely.
    """

    question: str = dspy.InputField()
    passage: str = dspy.OutputField(desc="the answer with the facts and names around it", max_length=500)


class Query2Doc(Technique):
    """Searches with the question and a pseudo-document as one query.

    If no passage can be read, the question is the query (fallback ``passage``).
    """

    NAME = "query2doc"
    TITLE = "Query2Doc"
    PAPER = "arXiv 2303.07678"
    LM_STAGES = 1
    KNOBS = (
        MAX_PASSAGES,
        demos_knob(4),
        Knob("repeats", 0, "number of copies of the question before the passage; 0 means 5 for BM25 and 1 otherwise",
             low=0, high=10),
    )  # fmt: skip

    def __init__(self, retriever: Any = None, **knobs: Any) -> None:
        super().__init__(retriever, **knobs)
        self.write_passage = Predict(QuestionToPseudoDocument)

    def forward(self, question: str, options: Sequence[str] | None = None, history: History = None) -> dspy.Prediction:
        """Search with the question, repeated if the retriever needs it, followed by the passage."""
        passage = written_in(self.write_passage(question=question, history=history), "passage")
        if not passage:
            return self.retrieve([Query(question)], ["passage"])
        usual = LEXICAL_REPEATS if kind_of(self.retriever) == "lexical" else 1
        asked = " ".join([question] * (self.knobs["repeats"] or usual))
        return self.retrieve([Query(f"{asked}\n{passage}", "pseudo_document")])
