"""Hypothesis-Conditioned Query Rewriting (HCQR, arXiv 2603.19008).

The LM weighs the options and commits to a provisional guess. The technique then runs three searches: for evidence that
supports the guess, for evidence that separates it from its rivals, and for evidence that verifies the clues in the
question. The reader sees only the passages.

Where we differ from the paper's sketch: the rewriter sees the options by default, because the second query must name
the rivals (``rewriter_sees_options``). Lists are interleaved, so that a small budget still includes passages for the
third query (``fusion=union`` is the paper's order). The question itself can be an additional query
(``search_question``). In the paper, the LM reasons about one option after another before it writes the hypothesis;
``deliberate`` requests this reasoning as a separate field, which the query writer does not see. It is off by default
because small LMs lose the thread. ``form=published`` follows the paper in the points that ``deliberate``,
``rewriter_sees_options``, and ``fusion`` control, and overrides these three knobs; the paper shows 15 passages
(``max_passages=15``).

The paper requires options. For a question without options, the call that forms the hypothesis first proposes two to
four candidate answers, which the technique then uses as options. This extension is ours, so results that use it are not
results for the paper's HCQR.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import dspy

from querywright.data.types import History
from querywright.programs.base import FUSION, MAX_PASSAGES, QUESTION_WEIGHT, RRF_K, TOP_K, Technique
from querywright.programs.hyperparameters import Knob, Value
from querywright.programs.query_cleaning import LONGEST_QUERY, query_in, query_texts, written_in
from querywright.programs.signatures import tuned_signature
from querywright.programs.steps import Predict
from querywright.retrieval.types import Query

ROLES = ("support", "distinguish", "verify")
MOST_CANDIDATES = 4
"""Maximum number of candidate answers that the LM proposes if a question has no options."""
PUBLISHED = {"deliberate": True, "rewriter_sees_options": False, "fusion": "union"}
"""The knob values that match the paper."""
_OURS: dict[str, tuple[Value, ...]] = {"form": ("ours",)}


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
    """Searches for evidence that supports a provisional answer, separates it from its rivals, and verifies it.

    If no hypothesis can be read, the question is the only query (fallback ``hypothesis``). If a query cannot be read,
    it is built from the hypothesis instead (fallback ``query:support`` and so on). If a question has no options and no
    candidate answer can be read, the guess is the only candidate (fallback ``candidates``).
    """

    NAME = "hcqr"
    TITLE = "Hypothesis-Conditioned Query Rewriting"
    PAPER = "arXiv 2603.19008"
    SHOWS_OPTIONS = True
    LM_STAGES = 2
    SEARCHES = "3 (+1)"
    KNOBS = (
        replace(MAX_PASSAGES, default=15),
        Knob("n_queries", 3, "number of queries searched, in the order support, distinguish, verify", low=1, high=3),
        TOP_K,
        Knob(
            "form",
            "ours",
            "ours: this project's version; published: the paper's version, in which the LM weighs the options first, "
            "the query writer does not see them, and fusion is by union",
            choices=("ours", "published"),
            search=False,
        ),
        replace(FUSION, when=_OURS),
        replace(RRF_K, when={**RRF_K.when, **_OURS}),
        Knob("search_question", False, "whether the question itself is also searched, before the queries"),
        replace(QUESTION_WEIGHT, when={"fusion": ("rrf",), "search_question": (True,), **_OURS}),
        Knob("rewriter_sees_options", True, "whether the query writer sees the options", when=_OURS),
        Knob(
            "deliberate",
            False,
            "whether the LM weighs each option in turn before it guesses; only for capable LMs",
            when=_OURS,
            search=False,
        ),
    )

    def __init__(self, retriever: Any = None, **knobs: Any) -> None:
        super().__init__(retriever, **knobs)
        self.form_hypothesis = Predict(QuestionToHypothesis, call_fields=("weighing", "candidates"))
        self.write_queries = Predict(HypothesisToQueries)

    def setting(self, name: str) -> Any:
        """Return the value of a knob; with ``form=published``, return the paper's value if ``PUBLISHED`` has one."""
        return PUBLISHED.get(name, self.knobs[name]) if self.knobs["form"] == "published" else self.knobs[name]

    @property
    def fusion_rule(self) -> str:
        """The rule for fusing lists."""
        return str(self.setting("fusion"))

    def forward(self, question: str, options: Sequence[str] | None = None, history: History = None) -> dspy.Prediction:
        """Form a hypothesis, write queries from it, and search with them."""
        options, fallbacks = list(options or ()), list[str]()
        signature = tuned_signature(self.form_hypothesis, "best_guess", choices=options)
        if self.setting("deliberate"):
            signature = _weighing(signature, len(options))
        if not options:
            signature = _proposing(signature)
        made = self.form_hypothesis(signature=signature, question=question, options=options, history=history)
        if made is None or not written_in(made, "best_guess"):
            return self.retrieve([Query(question)], ["hypothesis"])
        hypothesis = {key: made[key] for key in QuestionToHypothesis.output_fields}
        if not options:
            proposed = query_texts(made.candidates, MOST_CANDIDATES)
            fallbacks += [] if proposed else ["candidates"]
            options = proposed or [hypothesis["best_guess"]]
        shown = options if self.setting("rewriter_sees_options") else []
        written = self.write_queries(question=question, options=shown, history=history, **hypothesis)
        queries = []
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
    """Return the hypothesis signature with a first field that weighs the options; the query writer does not see it.

    A ``count`` of 0 means that the LM has yet to propose the candidates.
    """
    desc = "each option in turn: what speaks for it and what against it, in one short sentence"
    asked = signature.prepend("weighing", dspy.OutputField(desc=desc), list[str])
    limit = {"count": count} if count else {"most": MOST_CANDIDATES}
    return asked.with_updated_fields("weighing", max_chars=200, **limit)


@lru_cache(maxsize=256)
def _proposing(signature: Any) -> Any:
    """Return the hypothesis signature for a question without options: the LM first proposes candidates."""
    line = (
        "The question has no options. First propose two to four different answers that may be right; they are the "
        "options."
    )
    field: Any = dspy.OutputField(desc="2 to 4 possible answers, a few words each")
    asked = signature.with_instructions(f"{signature.instructions}\n{line}").prepend("candidates", field, list[str])
    return asked.with_updated_fields("candidates", most=MOST_CANDIDATES, max_chars=LONGEST_QUERY)


def _template(role: str, question: str, shown: Sequence[str], hypothesis: Mapping[str, Any]) -> str:
    """Return a query for a role for which the LM wrote none; it names only options that the query writer saw."""
    guess, features = hypothesis["best_guess"], " ".join(hypothesis["discriminating_features"])
    rivals = [option for option in shown if option != guess]
    if role == "support":
        words = " ".join([guess, *hypothesis["confirming_evidence"][:1]])
    elif role == "distinguish":
        words = " versus ".join([guess, *rivals]) if rivals else f"{guess} {features}"
    else:
        words = features
    return " ".join(words.split()) or question
