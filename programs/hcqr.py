"""Hypothesis-Conditioned Query Rewriting (HCQR, arXiv 2603.19008).

Weigh the options, commit to a provisional guess, and search three times: for what supports the guess, for
what tells it from its rivals, and for what verifies the clues of the question. The reader sees only what was
found.

Where we differ from the paper's sketch: the rewriter sees the options by default, because the second query
must name the rivals (``rewriter_sees_options``); lists are interleaved, so that a small budget does not drop
the third query (``fusion=union`` is the paper's order); the question itself may join the queries
(``search_question``). The paper's hypothesis reasons option by option before it is written down: ``deliberate`` asks
for that as a field of its own, which stays with the hypothesis; it is off because small LMs lose the thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import dspy

from querywright.data.types import History
from querywright.programs.base import FUSION, MAX_PASSAGES, QUESTION_WEIGHT, RRF_K, TOP_K, Technique
from querywright.programs.hyperparameters import Knob
from querywright.programs.query_cleaning import query_in
from querywright.programs.signatures import tuned_signature
from querywright.programs.steps import Predict
from querywright.retrieval.types import Query

ROLES = ("support", "distinguish", "verify")


class QuestionToHypothesis(dspy.Signature):
    """Weigh the options against each other and commit to a provisional guess.
    It will be checked against sources, so say what would prove it. Be brief.
    """

    question: str = dspy.InputField()
    options: list[str] = dspy.InputField()
    discriminating_features: list[str] = dspy.OutputField(desc="2 or 3 features that tell the options apart")
    reasoning: str = dspy.OutputField(desc="which option they point to and why, in one short sentence")
    confirming_evidence: list[str] = dspy.OutputField(desc="1 to 3 facts that would confirm that option")
    best_guess: str = dspy.OutputField(desc="the text of that option")


class HypothesisToQueries(dspy.Signature):
    """Write three short search queries whose results would settle the question.
    Name the specific terms that a source would use, not the wording of the question.
    """

    question: str = dspy.InputField()
    options: list[str] = dspy.InputField()
    best_guess: str = dspy.InputField()
    reasoning: str = dspy.InputField()
    confirming_evidence: list[str] = dspy.InputField()
    discriminating_features: list[str] = dspy.InputField()
    support: str = dspy.OutputField(desc="query for evidence that the best guess is right")
    distinguish: str = dspy.OutputField(desc="query for what separates the best guess from the other options")
    verify: str = dspy.OutputField(desc="query for a fact that checks the key clue of the question")


class HCQR(Technique):
    """Searches for evidence that supports, distinguishes and verifies a provisional answer.

    When no hypothesis can be read, the question is the only query (fallback ``hypothesis``); a query that
    cannot be read is built from the hypothesis (fallback ``query:support`` and so on).
    """

    NAME = "hcqr"
    TITLE = "Hypothesis-Conditioned Query Rewriting"
    PAPER = "arXiv 2603.19008"
    SHOWS_OPTIONS = True
    LM_STAGES = 2
    SEARCHES = "3 (+1)"
    NEEDS_OPTIONS = True
    KNOBS = (
        replace(MAX_PASSAGES, default=15),
        Knob("n_queries", 3, "queries searched, in the order support, distinguish, verify", low=1, high=3),
        TOP_K,
        FUSION,
        RRF_K,
        Knob("search_question", False, "whether the question itself is searched, before the queries"),
        replace(QUESTION_WEIGHT, when={"fusion": ("rrf",), "search_question": (True,)}),
        Knob("rewriter_sees_options", True, "whether the query writer sees the options"),
        Knob(
            "deliberate",
            False,
            "whether the LM weighs each option in turn before it guesses; for an LM that can",
            search=False,
        ),
    )

    def __init__(self, retriever: Any = None, **knobs: Any) -> None:
        super().__init__(retriever, **knobs)
        self.form_hypothesis = Predict(QuestionToHypothesis, call_fields=("weighing",))
        self.write_queries = Predict(HypothesisToQueries)

    def forward(self, question: str, options: Sequence[str] | None = None, history: History = None) -> dspy.Prediction:
        """Form a hypothesis, write queries from it and search them; a step that cannot be read falls back."""
        options = list(options or ())
        signature = tuned_signature(self.form_hypothesis, "best_guess", choices=options)
        if self.knobs["deliberate"]:
            signature = _weighing(signature, len(options))
        made = self.form_hypothesis(signature=signature, question=question, options=options, history=history)
        if made is None:
            return self.retrieve([Query(question)], ["hypothesis"])
        hypothesis = {key: made[key] for key in QuestionToHypothesis.output_fields}
        shown = options if self.knobs["rewriter_sees_options"] else []
        written = self.write_queries(question=question, options=shown, history=history, **hypothesis)
        queries, fallbacks = [], []
        for role in ROLES[: self.knobs["n_queries"]]:
            text = query_in(written, role)
            if not text:
                fallbacks.append(f"query:{role}")
                text = _template(role, question, shown, hypothesis)
            queries.append(Query(text, role))
        if self.knobs["search_question"]:
            queries.insert(0, Query(question, weight=self.knobs["question_weight"]))
        return self.retrieve(queries, fallbacks)


@lru_cache(maxsize=256)
def _weighing(signature: Any, count: int) -> Any:
    """The hypothesis with the options weighed first; ``reasoning`` stays what the query writer sees of it."""
    desc = "each option in turn: what speaks for it and what against it, in one short sentence"
    asked = signature.prepend("weighing", dspy.OutputField(desc=desc), list[str])
    return asked.with_updated_fields("weighing", count=count, max_chars=200)


def _template(role: str, question: str, shown: Sequence[str], hypothesis: Mapping[str, Any]) -> str:
    """The query that stands in for one that was not written; it names only options that the writer saw."""
    guess, features = hypothesis["best_guess"], " ".join(hypothesis["discriminating_features"])
    rivals = [option for option in shown if option != guess]
    if role == "support":
        words = " ".join([guess, *hypothesis["confirming_evidence"][:1]])
    elif role == "distinguish":
        words = " versus ".join([guess, *rivals]) if rivals else f"{guess} {features}"
    else:
        words = features
    return " ".join(words.split()) or question
