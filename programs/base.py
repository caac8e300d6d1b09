"""What every technique has in common: knobs, one search, fusion, a cut; and the gate and the selection around it."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import dspy
import numpy as np
from dspy.utils.exceptions import LMError

from querywright.data.types import History, Passage, turns_of
from querywright.errors import InputError, PromptTooLongError, QuerywrightError, TechniqueError
from querywright.models.circuit_breaker import INCURABLE
from querywright.programs.hyperparameters import Knob, Knobs
from querywright.programs.query_cleaning import LONGEST_QUERY, query_texts
from querywright.programs.selection import SELECT, SELECT_MOST, SELECT_POOL, PassagesToSelection, select
from querywright.programs.signatures import tuned_signature
from querywright.programs.steps import Predict, Threaded, current_technique, record, recording
from querywright.retrieval.callable import as_retriever
from querywright.retrieval.fusion import fuse
from querywright.retrieval.types import Hit, Query, kind_of

if TYPE_CHECKING:
    from querywright.retrieval.rerank import Reranker

MAX_PASSAGES = Knob("max_passages", 5, "passages given to the reader at most", low=1, high=50, search=False)
FUSION_CHOICES = ("interleave", "rrf", "union", "best_score")
FUSION = Knob("fusion", "interleave", "how the lists become one", choices=FUSION_CHOICES)
TOP_K = Knob("top_k", 5, "passages taken from each query", low=1, high=50)
N_WRITTEN = Knob(
    "n_written",
    0,
    "queries asked for, of which the first n_queries are searched; 0: n_queries",
    low=0,
    high=8,
    search=False,
)
"""Lets the numbers of queries that are tried share one answer of the LM: that to the largest of them."""
RRF_K = Knob("rrf_k", 60, "constant of reciprocal rank fusion", low=1, high=200, when={"fusion": ("rrf",)})
QUESTION_WEIGHT = Knob(
    "question_weight",
    1.0,
    "weight of the question, where it is searched, beside 1 for each query",
    low=0.25,
    high=4,
    when={"search_question": (True,)},
)
SHARED_KNOBS = (
    Knob("use_history", True, "whether the LM sees the conversation before the question, where there is one",
         search=False),
    Knob(
        "gate",
        "off",
        "when the question is translated: always (off), or only if the best passage scores low or leads by little",
        choices=("off", "score", "margin"),
        search=False,
    ),
    Knob("gate_score", 0.55, "score from which the first search counts as certain", low=0, high=1,
         when={"gate": ("score",)}),
    Knob("gate_margin", 0.1, "lead of the best score over the mean of the first ten that counts as certain",
         low=0, high=1, when={"gate": ("margin",)}),
    SELECT,
    SELECT_POOL,
    SELECT_MOST,
)  # fmt: skip
"""Knobs of every technique that asks an LM. A study searches a threshold where the gate is given: to search the gate as
well would only find plain retrieval by another name."""

GATE_DEPTH = 10
"""Passages of the first search that the gate looks at."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A sub-question and what was read in answer to it: the only words of an LM that a reader may be shown.

    Args:
        question: The sub-question.
        answer: Its answer.
    """

    question: str
    answer: str


class Technique(Threaded):
    """A way from a question to passages: a ``dspy.Module`` whose ``forward`` returns a prediction with ``passages``.

    A technique declares ``NAME``, ``TITLE``, ``PAPER``, ``LM_STAGES``, ``SEARCHES`` and ``KNOBS``, makes its predictors
    in ``__init__`` and writes ``forward``. There it calls its predictors, ``search``, ``fuse`` (or ``retrieve``, which
    is both) and, for calls side by side, ``parallel``.

    What all techniques share happens around ``forward``: the question and its options are checked; a gate may pass the
    question through as it is (``gate``); the LM may select from all that was found (``select``); and the result has
    ``passages``, ``queries``, ``fallbacks``, ``findings`` and ``steps``, the last three empty if ``forward`` leaves
    them out. ``aforward`` and ``acall`` are the same program in a thread.

    ``max_passages`` must be among the knobs of a technique that searches; ``pool`` (else ``top_k``, else
    ``max_passages``), ``fusion`` (else ``FUSION_RULE``) and ``rrf_k`` (else 60) are read if they are declared. A
    technique that asks an LM has ``SHARED_KNOBS`` as well.

    Args:
        retriever: A querywright retriever, or anything that ``as_retriever`` understands. Copies share it.
        reranker: Scores passages, for a technique that reranks (``USES_RERANKER``). Copies share it.
        knobs: Values of knobs that differ from their defaults.

    Raises:
        TechniqueError: A knob is unknown or has a value that is not allowed, or the retriever cannot do what the
            technique needs.
    """

    NAME: ClassVar[str]
    TITLE: ClassVar[str]
    PAPER: ClassVar[str]
    LM_STAGES: ClassVar[int] = 0
    """LM calls one after another, at most, with the knobs at their defaults; calls side by side count once."""
    SEARCHES: ClassVar[str] = "1"
    KNOBS: ClassVar[tuple[Knob, ...]] = (MAX_PASSAGES,)
    NEEDS_OPTIONS: ClassVar[bool] = False
    NEEDS_VECTORS: ClassVar[bool] = False
    """Whether it searches with vectors that it makes, which only a dense retriever can."""
    USES_RERANKER: ClassVar[bool] = False
    FUSION_RULE: ClassVar[str] = "interleave"
    """How lists become one, for a technique without a knob for it."""
    ITERATIVE: ClassVar[bool] = False
    """Whether what is searched depends on what was found."""
    ENGINE: ClassVar[str | None] = None
    """The only engine that it can search with; None for a technique that searches with any."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = {knob.name: knob for knob in cls.KNOBS}
        shared = tuple(_own_default(own.get(knob.name), knob) for knob in SHARED_KNOBS)
        rest = tuple(knob for knob in cls.KNOBS if knob not in shared)
        _check_knobs(cls.__name__, rest)
        cls.KNOBS = (*rest, *shared) if cls.LM_STAGES else rest
        if "forward" in vars(cls):
            cls.forward = _shared_steps(cls.forward)  # type: ignore[method-assign]

    def __init__(self, retriever: Any = None, *, reranker: Reranker | None = None, **knobs: Any) -> None:
        super().__init__()
        self.retriever: Any = None if retriever is None else as_retriever(retriever)
        if (
            retriever is not None
            and self.NEEDS_VECTORS
            and not all(hasattr(self.retriever, name) for name in ("embed", "search_vectors"))
        ):
            raise TechniqueError(
                f"{self.NAME} searches with vectors, which a {kind_of(self.retriever)} retriever cannot; give a dense "
                "one, or use query2doc, which searches with text"
            )
        if reranker is not None and not self.USES_RERANKER:
            raise TechniqueError(f"{self.NAME} does not rerank; leave the reranker out, or use rerank")
        if reranker is not None:
            _check_reranker(reranker)
        self.reranker = reranker
        self.writer_lm: Any = None
        """The LM that is asked instead of that of the DSPy settings, or None; ``use_writer`` sets it."""
        self.knobs = Knobs(self.KNOBS, knobs)
        self._set_up_selection()
        self._check_values()

    def deepcopy(self) -> Self:
        """A copy with its own predictors and knobs; retriever, reranker and writer are shared."""
        return copy.deepcopy(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        memo |= {id(shared): shared for shared in (self.retriever, self.reranker, self.writer_lm)}
        other = type(self).__new__(type(self))
        for name, value in vars(self).items():
            setattr(other, name, copy.deepcopy(value, memo))
        return other

    def __getstate__(self) -> Any:
        if self.writer_lm is not None:  # it may hold a key, which no file may
            raise TechniqueError(
                "a program with a writer LM cannot be pickled; set its technique.writer_lm to None first"
            )
        return super().__getstate__()

    def with_knobs(self, **values: Any) -> Self:
        """A copy with other knob values; prompts are copied, the retriever is shared."""
        other = copy.deepcopy(self)
        other.knobs.update(values)
        other._set_up_selection()
        other._check_values()
        return other

    def forward(self, question: str, options: Sequence[str] | None = None, history: History = None) -> dspy.Prediction:
        """Find passages for a question; written by each technique.

        Args:
            question: The question as it was asked.
            options: Option texts of a multiple-choice question; None or empty if it has none.
            history: The conversation before the question, see ``turns_of``; a technique's own ``forward`` is given it
                as turns. The LM steps are shown it, unless ``use_history`` is off; if the question itself is searched,
                it is searched alone. Default none.

        Returns:
            A prediction with ``passages`` (list of Passage, unique, best first, at most ``max_passages``),
            ``queries`` (list of Query), ``fallbacks`` (list of names), ``findings`` (list of Finding) and ``steps``
            (list of Record: all that was asked and searched; for traces, never for a reader).

        Raises:
            TechniqueError: The question is blank, its options are not two or more distinct texts, or it has
                none and the technique compares options.
            DataError: The history has another form.
        """
        raise NotImplementedError(f"{type(self).__name__} must write forward()")

    # What a technique calls.

    @property
    def max_passages(self) -> int:
        """Passages given to the reader at most."""
        return int(self.knobs["max_passages"])

    @property
    def limit(self) -> int:
        """Passages that ``forward`` returns at most: ``max_passages``, or ``select_pool`` if the LM then selects."""
        return int(self.knobs["select_pool"]) if self.knobs.get("select", False) else self.max_passages

    @property
    def depth(self) -> int:
        """Hits asked for each query: ``pool``, else ``top_k``, else ``limit``."""
        return int(next((self.knobs[name] for name in ("pool", "top_k") if name in self.knobs), self.limit))

    @property
    def searched(self) -> Any:
        """The retriever.

        Raises:
            TechniqueError: There is none.
        """
        if self.retriever is None:
            raise TechniqueError(f"{self.NAME} searches, but was made without a retriever; give one")
        return self.retriever

    @property
    def searched_knobs(self) -> list[Knob]:
        """The knobs that a study searches, with the values that can be had with this retriever."""
        return [knob for knob in self.KNOBS if knob.search]

    def lm_of(self, predictor: dspy.Predict) -> Any:
        """Return the LM that a predictor asks in ``forward``: the writer, else its own, else that of the settings."""
        return dspy.settings.lm if self.writer_lm is not None else predictor.lm or dspy.settings.lm

    def written(self, knob: str = "n_queries") -> int:
        """Texts that the prompt asks for: as many as ``n_written`` says, and never fewer than are kept.

        Args:
            knob: The knob that says how many are kept.
        """
        return max(int(self.knobs[knob]), int(self.knobs.get("n_written", 0)))

    def write_texts(
        self, predictor: dspy.Predict, field: str, desc: str, *, question: str, knob: str = "n_queries", **inputs: Any
    ) -> list[str]:
        """Ask for a list of texts to search with, as many as ``written`` says.

        Args:
            predictor: Is asked.
            field: The list among its outputs.
            desc: What the prompt says of the list; ``{}`` stands for the number of texts.
            question: The question; a text that only repeats it is dropped.
            knob: The knob that says how many are kept, the first ones. Default ``n_queries``.
            inputs: Other inputs.

        Returns:
            Each text once, on one line; none when the answer could not be read.
        """
        count = self.written(knob)
        signature = tuned_signature(predictor, field, desc=desc.format(count), count=count, max_chars=LONGEST_QUERY)
        made: Any = predictor(signature=signature, question=question, **inputs)
        return [] if made is None else query_texts(made[field], self.knobs[knob], besides=[question])

    def search(self, texts: Sequence[str], k: int | None = None) -> list[list[Hit]]:
        """Search texts in one call of the retriever.

        Args:
            texts: One or more.
            k: Hits a text at most. Default: ``depth``.

        Returns:
            A list of hits a text, in their order, best first.

        Raises:
            InputError: The retriever gave another number of lists.
            TechniqueError: There is no retriever.
        """
        retriever, asked = self.searched, list(texts)
        lists: list[list[Hit]] = retriever.search(asked, self.depth if k is None else k)
        if len(lists) != len(asked):
            raise InputError(
                f"the retriever {retriever!r} gave {len(lists)} lists for {len(asked)} queries; search must give "
                "one a query, in their order"
            )
        record_search(asked, lists, {"queries": asked})
        return lists

    def fuse(self, queries: Sequence[Query], lists: Sequence[Sequence[Hit]]) -> list[Passage]:
        """Return the lists of hits as one list of unique passages, cut to ``limit``."""
        rule = "union" if len(lists) == 1 else self.knobs.get("fusion", self.FUSION_RULE)
        weights, k = [query.weight for query in queries], self.knobs.get("rrf_k", 60)
        return [hit.passage for hit in fuse(rule, lists, weights=weights, k=k, limit=self.limit)]

    def retrieve(self, queries: Sequence[Query], fallbacks: Sequence[str] = ()) -> dspy.Prediction:
        """Search queries, fuse their lists and return the result of ``forward``.

        Args:
            queries: In the order in which fusion sees them. Empty: nothing is searched.
            fallbacks: Names of the steps that fell back to something plainer.
        """
        passages = self.fuse(queries, self.search([query.text for query in queries])) if queries else []
        return dspy.Prediction(passages=passages, queries=queries, fallbacks=fallbacks)

    # What happens around forward.

    def _answer(self, forward: Callable[..., Any], question: str, options: Any, history: History) -> dspy.Prediction:
        choices, turns = checked_options(question, options), turns_of(history)
        if self.NEEDS_OPTIONS and not choices:
            raise TechniqueError(
                f"{self.NAME} compares options, but the question has none: {question[:80]!r}; "
                "give options, or use another technique"
            )
        self._check_values()
        given = {"question": question, "options": choices} | ({"history": turns} if turns else {})
        with recording(self) as steps, self._asking_writer():
            found = self._gated(forward, given) if self._is_gated else self._found(forward, given)
        answer = found.get("answer")  # of a custom program
        return dspy.Prediction(
            passages=list(found.passages),
            **({} if answer is None else {"answer": answer}),
            queries=list(found.get("queries") or ()),
            fallbacks=list(found.get("fallbacks") or ()),
            findings=list(found.get("findings") or ()),
            steps=steps,
        )

    def _found(self, forward: Callable[..., Any], given: Mapping[str, Any]) -> Any:
        """What the technique finds, or what the LM selects from a larger pool of it."""
        asks: Any = self
        found = forward(asks, **given)
        return select(asks, found, **given) if self.knobs.get("select", False) else found

    def _gated(self, forward: Callable[..., Any], given: Mapping[str, Any]) -> Any:
        """What plain retrieval finds if it looks certain or the LM fails, else what the technique finds."""
        question, rule = given["question"], self.knobs["gate"]
        (hits,) = self.search([question], max(GATE_DEPTH, self.max_passages))
        plain = [hit.passage for hit in fuse("union", [hits[: self.max_passages]])]
        scores, least = [hit.score for hit in hits[:GATE_DEPTH]], self.knobs[f"gate_{rule}"]
        mean = 0.0 if rule == "score" else sum(scores) / max(1, len(scores))
        value = scores[0] - mean if scores else -1.0
        certain = value >= least
        shown = {rule: round(value, 4), "at least": least}
        record("gate", rule, shown, "pass the question through" if certain else "translate")
        if certain:
            return dspy.Prediction(passages=plain, queries=[Query(question)])
        try:
            return self._found(forward, given)
        except LMError as error:
            ours = isinstance(error, QuerywrightError) and not isinstance(error, PromptTooLongError)
            if ours or isinstance(error, INCURABLE):  # an outage, a spent budget, a wrong key: no question goes better
                raise
            record("gate", "the LM failed", {}, f"{type(error).__name__}: {error}")
            return dspy.Prediction(passages=plain, queries=[Query(question)], fallbacks=["lm"])

    def _asking_writer(self) -> Any:
        """Inside the ``with`` block the LM of the DSPy settings is the writer, if there is one."""
        if self.writer_lm is None:
            return nullcontext()
        # An optimizer that draws from an LM again and again draws from the writer as often.
        drawn_alike = getattr(dspy.settings.lm, "drawn_alike", None)
        return dspy.context(lm=self.writer_lm if drawn_alike is None else drawn_alike(self.writer_lm))

    @property
    def _is_gated(self) -> bool:
        return bool(self.knobs.get("gate", "off") != "off")

    def _set_up_selection(self) -> None:
        """The predictor that selects is there where it is asked, so that no optimizer tunes one that is not."""
        wanted, there = bool(self.knobs.get("select", False)), hasattr(self, "select_passages")
        if wanted and not there:
            self.select_passages = Predict(PassagesToSelection)
        elif there and not wanted:
            del self.select_passages

    def named_parameters(self) -> list[tuple[str, Any]]:
        """Return the predictors and the knobs by name; the predictor that selects is asked last, and comes last."""
        return sorted(super().named_parameters(), key=lambda named: named[0] == "select_passages")

    def load_state(self, state: Any, **options: Any) -> None:
        """Take what ``dump_state`` gave."""
        for one in (self.deepcopy(), self):  # what cannot be loaded fails in the copy, and changes nothing
            one.take_knobs(state["knobs"])
            dspy.Module.load_state(one, state, **options)

    def take_knobs(self, state: Mapping[str, Any]) -> None:
        """Take the values of all knobs, and the predictors that go with them.

        Raises:
            TechniqueError: A knob is missing or unknown, or a value is not allowed.
        """
        self.knobs.load_state(state)
        self._set_up_selection()

    def _check_values(self) -> None:
        """Whether the values of the knobs go with the retriever and with the predictors."""
        if self.knobs.get("select", False) and not hasattr(self, "select_passages"):
            raise TechniqueError(
                f"{self.NAME} was made with select=False, and its knobs were changed since; make it with select=True, "
                "or use with_knobs"
            )
        if self._is_gated and self.retriever is not None and kind_of(self.retriever) != "dense":
            raise TechniqueError(
                f"the gate={self.knobs['gate']} of {self.NAME} looks at cosine similarities, which a "
                f"{kind_of(self.retriever)} retriever does not give; set gate=off, or give a dense retriever (one of "
                'your own says so by an attribute kind = "dense")'
            )


def _shared_steps(forward: Callable[..., Any]) -> Callable[..., dspy.Prediction]:
    """A technique's ``forward`` with what all techniques share around it, once: not around ``super().forward()``."""

    @functools.wraps(forward)
    def answered(
        self: Technique, question: str, options: Sequence[str] | None = None, history: History = None
    ) -> dspy.Prediction:
        if current_technique() is self:
            inner: dspy.Prediction = forward(self, question, options, *((history,) if history else ()))
            return inner
        return self._answer(forward, question, options, history)

    return answered


def _own_default(own: Knob | None, shared: Knob) -> Knob:
    """A knob of every technique, with the default that a technique has of its own for it."""
    return own if own is not None and own.help == shared.help else shared


def _check_knobs(name: str, knobs: Sequence[Knob]) -> None:
    before = {knob.name for knob in SHARED_KNOBS}
    for knob in knobs:
        if knob.name in before:
            raise TechniqueError(
                f"{name} has two knobs {knob.name!r}, those of every technique counted; give one another name"
            )
        missing = [other for other in knob.when if other not in before]
        if missing:
            raise TechniqueError(
                f"the knob {knob.name!r} of {name} acts only beside {missing[0]!r}, which is not declared before it; "
                f"declare {missing[0]!r} first, or {knob.name!r} without when="
            )
        before.add(knob.name)


def _check_reranker(reranker: Any) -> None:
    name, kind = getattr(reranker, "id", None), type(reranker).__name__
    if not isinstance(name, str) or not name.strip() or name.startswith(("/", "~")) or "\\" in name:
        raise TechniqueError(
            f"a reranker needs an id that names it wherever it runs, and no path, but {kind} has {name!r}"
        )
    if not callable(getattr(reranker, "score", None)):
        raise TechniqueError(f"a reranker needs score(query, passages), which {kind} has not")


def search_sum(
    technique: Technique, queries: Sequence[Query], weights: Sequence[float], *, name: str
) -> list[list[Hit]]:
    """Search with the weighted sum of the vectors of queries, each made of length 1; return one list of hits.

    Args:
        technique: Searches, to its ``depth``.
        queries: One or more. The original question is embedded as a query, other texts as the passages are.
        weights: The weight of each query, in the order of ``queries``.
        name: What a trace calls the vector.
    """
    retriever = technique.searched
    embed_documents = getattr(retriever, "embed_documents", retriever.embed)
    total: Any = 0.0
    for embed, is_original in ((embed_documents, False), (retriever.embed, True)):
        side = [(one, by) for one, by in zip(queries, weights, strict=True) if (one.role == "original") == is_original]
        if side:
            vectors = np.asarray(embed([one.text for one, _ in side]), dtype=np.float32)
            vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
            total = total + np.array([[by for _, by in side]], dtype=np.float32) @ vectors
    lists: list[list[Hit]] = retriever.search_vectors(total, technique.depth)
    record_search([name], lists[:1], {"vectors": len(queries)})
    return lists


def record_search(
    texts: Sequence[str], lists: Sequence[Sequence[Hit]], given: Mapping[str, Any], *, name: str = "passages"
) -> None:
    """Record a search.

    Args:
        texts: What was searched for, as a trace names it.
        lists: The hits of each.
        given: What went in.
        name: What was searched. Default: passages.
    """
    pairs = list(zip(texts, lists, strict=True))
    found = {text: [hit.passage.id for hit in hits] for text, hits in pairs}
    record("search", name, given, found, scores={text: tuple(hit.score for hit in hits) for text, hits in pairs})


def checked_options(question: Any, options: Any) -> list[str]:
    """The options without space around them; empty when there are none.

    Args:
        question: The question; looked at, because it comes from outside.
        options: A sequence of texts, or None.

    Raises:
        TechniqueError: The question is blank, or the options are not two or more distinct texts.
    """
    if not isinstance(question, str) or not question.strip():
        raise TechniqueError(f"a question must be a text that is not empty, but got {question!r}")
    if options is None:
        return []
    listed = isinstance(options, Sequence) and not isinstance(options, str)
    if not listed or not all(isinstance(option, str) and option.strip() for option in options):
        raise TechniqueError(
            f"options must be a list of texts that are not empty, but got {options!r} for {question[:80]!r}"
        )
    texts = [option.strip() for option in options]
    if len(texts) == 1 or len(set(texts)) < len(texts):
        raise TechniqueError(
            f"options must be two or more distinct texts, but got {texts!r} for {question[:80]!r}; "
            "leave them out for a question without options"
        )
    return texts
