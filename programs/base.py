"""The base class for techniques, with knobs, the gate, search, fusion, and the selection of passages."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import dspy
import numpy as np
from dspy.utils.exceptions import LMError

from querywright.data.types import History, Passage, turns_of
from querywright.errors import InputError, PromptTooLongError, QuerywrightError, TechniqueError
from querywright.programs.hyperparameters import Knob, Knobs
from querywright.programs.query_cleaning import LONGEST_QUERY, query_texts
from querywright.programs.selection import SELECT, SELECT_BY, SELECT_MOST, SELECT_POOL, SELECT_WORDS, SELECTORS, select
from querywright.programs.signatures import tuned_signature
from querywright.programs.steps import Predict, Threaded, current_technique, record, recording
from querywright.retrieval.callable import as_retriever
from querywright.retrieval.fusion import fuse
from querywright.retrieval.types import Hit, Query, kind_of

if TYPE_CHECKING:
    from querywright.retrieval.rerank import Reranker

MAX_PASSAGES = Knob("max_passages", 5, "maximum number of passages for the reader", low=1, high=50, search=False)
FUSION_CHOICES = ("interleave", "rrf", "union", "best_score")


def demos_knob(paper: int) -> Knob:
    """Return the ``demos`` knob for a technique whose paper uses ``paper`` demonstrations."""
    text = f"number of built-in demonstrations in the prompt; the paper uses {paper}"
    return Knob("demos", 0, text, low=0, high=paper, search=False)


FUSION = Knob("fusion", "interleave", "method for merging the ranked lists", choices=FUSION_CHOICES)
TOP_K = Knob("top_k", 5, "number of passages from each query", low=1, high=50)
N_WRITTEN = Knob(
    "n_written",
    0,
    "number of queries that the LM writes, of which the first n_queries are searched; 0: same as n_queries",
    low=0,
    high=8,
    search=False,
)
"""Lets a study try several numbers of queries with a single LM answer: the answer with the largest number."""
RRF_K = Knob("rrf_k", 60, "constant k in reciprocal rank fusion", low=1, high=200, when={"fusion": ("rrf",)})
QUESTION_WEIGHT = Knob(
    "question_weight",
    1.0,
    "weight of the question in fusion, if the question is searched; each query has weight 1",
    low=0.25,
    high=4,
    when={"search_question": (True,)},
)
SEES_OPTIONS = Knob(
    "sees_options", False, "whether the LM sees the question's options, in a technique that does not need them"
)
SHARED_KNOBS = (
    SEES_OPTIONS,
    Knob("use_history", True, "whether the LM sees the conversation before the question",
         search=False),
    Knob(
        "gate",
        "off",
        "when to run the technique: always (off), or only if the best plain search score (score) or its lead (margin) "
        "is low",
        choices=("off", "score", "margin"),
        search=False,
    ),
    Knob("gate_score", 0.55, "the technique is skipped if the best plain search score is at least this value",
         low=0, high=1, when={"gate": ("score",)}),
    Knob("gate_margin", 0.1,
         "the technique is skipped if the best score is at least this much above the mean of the top ten",
         low=0, high=1, when={"gate": ("margin",)}),
    SELECT,
    SELECT_POOL,
    SELECT_MOST,
    SELECT_BY,
    SELECT_WORDS,
)  # fmt: skip
"""Knobs of every technique that calls an LM. If a gate is on, a study tunes its threshold. A study does not tune
``gate`` itself, because it would only rediscover plain search under a different name."""

GATE_DEPTH = 10
"""The number of plain search results that the gate looks at."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A sub-question and its answer: the only text from a technique's LM that a reader may see.

    Args:
        question: The sub-question.
        answer: The answer to the sub-question.
    """

    question: str
    answer: str


class Technique(Threaded):
    """A ``dspy.Module`` that finds passages for a question: ``forward`` returns a prediction with ``passages``.

    A technique declares ``NAME``, ``TITLE``, ``PAPER``, ``LM_STAGES``, ``SEARCHES``, and ``KNOBS``, creates its
    predictors in ``__init__``, and implements ``forward``. That method calls the predictors, then ``search`` and
    ``fuse`` (or ``retrieve``, which does both), and uses ``parallel`` for parallel LM calls.

    The base class does the rest before and after ``forward``. It checks the question and its options, and it completes
    the result with ``passages``, ``queries``, ``fallbacks``, ``findings``, and ``steps``. Depending on the knobs, it
    uses plain search if the plain result looks certain (``gate``) and lets the LM select passages (``select``).
    ``aforward`` and ``acall`` run the same program in a thread.

    A technique that searches must declare ``max_passages``. The base class also reads these knobs if the technique
    declares them: ``pool`` (else ``top_k``, else ``max_passages``), ``fusion`` (else ``FUSION_RULE``), and ``rrf_k``
    (else 60). A technique that calls an LM also has ``SHARED_KNOBS``.

    Args:
        retriever: A querywright retriever, or anything that ``as_retriever`` accepts. Copies of the technique share it.
        reranker: Scores passages for a technique that reranks (``USES_RERANKER``). Copies of the technique share it.
        knobs: Knob values that differ from the defaults.

    Raises:
        TechniqueError: A knob is unknown, a value is not allowed, or the retriever lacks something that the technique
            needs.
    """

    NAME: ClassVar[str]
    TITLE: ClassVar[str]
    PAPER: ClassVar[str]
    LM_STAGES: ClassVar[int] = 0
    """Maximum number of sequential LM calls with default knobs; calls that run in parallel count as one."""
    SEARCHES: ClassVar[str] = "1"
    KNOBS: ClassVar[tuple[Knob, ...]] = (MAX_PASSAGES,)
    NEEDS_OPTIONS: ClassVar[bool] = False
    SHOWS_OPTIONS: ClassVar[bool] = False
    """Whether the technique's prompts show the options. If not, a technique with LM calls has the knob
    ``sees_options``."""
    NEEDS_VECTORS: ClassVar[bool] = False
    """Whether the technique searches with vectors that it computes itself, which requires a dense retriever."""
    USES_RERANKER: ClassVar[bool] = False
    FUSION_RULE: ClassVar[str] = "interleave"
    """The fusion rule of a technique without a ``fusion`` knob."""
    ITERATIVE: ClassVar[bool] = False
    """Whether a search depends on the results of an earlier search."""
    ENGINE: ClassVar[str | None] = None
    """The only engine that the technique can search with; None if it works with every engine."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = {knob.name: knob for knob in cls.KNOBS}
        every = [knob for knob in SHARED_KNOBS if knob is not SEES_OPTIONS or not cls.SHOWS_OPTIONS]
        shared = tuple(_own_default(own.get(knob.name), knob) for knob in every)
        rest = tuple(knob for knob in cls.KNOBS if knob not in shared and knob is not SEES_OPTIONS)
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
                f"{self.NAME} searches with vectors, but got a {kind_of(self.retriever)} retriever; pass a dense "
                "retriever, or use query2doc, which searches with text"
            )
        if reranker is not None and not self.USES_RERANKER:
            raise TechniqueError(f"{self.NAME} does not rerank; remove the reranker, or use the technique 'rerank'")
        if reranker is not None:
            _check_reranker(reranker)
        self.reranker = reranker
        self.writer_lm: Any = None
        """The LM that replaces the one in the DSPy settings, or None; set by ``use_writer``."""
        self.knobs = Knobs(self.KNOBS, knobs)
        self._set_up_selection()
        self._check_values()

    def deepcopy(self) -> Self:
        """Return a copy with separate predictors and knobs but the same retriever, reranker, and writer."""
        return copy.deepcopy(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        memo |= {id(shared): shared for shared in (self.retriever, self.reranker, self.writer_lm)}
        other = type(self).__new__(type(self))
        for name, value in vars(self).items():
            setattr(other, name, copy.deepcopy(value, memo))
        return other

    def __getstate__(self) -> Any:
        if self.writer_lm is not None:  # it may contain an API key, which must not be written to a file
            raise TechniqueError(
                "cannot pickle a program that has a writer LM; set program.technique.writer_lm to None first"
            )
        return super().__getstate__()

    def with_knobs(self, **values: Any) -> Self:
        """Return a copy with different knob values; prompts are copied, and the retriever is shared."""
        other = copy.deepcopy(self)
        other.knobs.update(values)
        other._set_up_selection()
        other._check_values()
        return other

    def forward(self, question: str, options: Sequence[str] | None = None, history: History = None) -> dspy.Prediction:
        """Find passages for a question. Every technique must implement this method.

        Args:
            question: The question.
            options: Option texts of a multiple-choice question; None or empty if it has none.
            history: The conversation before the question; see ``turns_of``. A technique's ``forward`` receives it as
                turns. The LM sees it unless ``use_history`` is off; it is not added to the question as a search query.
                Default none.

        Returns:
            A prediction with ``passages`` (list of Passage, unique, best first, at most ``max_passages``),
            ``queries`` (list of Query), ``fallbacks`` (list of names), ``findings`` (list of Finding) and ``steps``
            (list of Record: every LM call and search, for traces and never for a reader).

        Raises:
            TechniqueError: The question is blank, its options are not two or more distinct strings, or it has no
                options and the technique needs them.
            DataError: The history is not in an accepted form.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement forward()")

    # Methods for techniques to call.

    @property
    def max_passages(self) -> int:
        """Maximum number of passages that the reader gets."""
        return int(self.knobs["max_passages"])

    @property
    def limit(self) -> int:
        """Maximum number of passages from ``forward``: ``select_pool`` with ``select``, else ``max_passages``."""
        return int(self.knobs["select_pool"]) if self.knobs.get("select", False) else self.max_passages

    @property
    def depth(self) -> int:
        """Number of hits requested per query: ``pool``, else ``top_k``, else ``limit``."""
        return int(next((self.knobs[name] for name in ("pool", "top_k") if name in self.knobs), self.limit))

    @property
    def searched(self) -> Any:
        """The retriever.

        Raises:
            TechniqueError: There is no retriever.
        """
        if self.retriever is None:
            raise TechniqueError(f"{self.NAME} needs a retriever, but was created without one; pass retriever=")
        return self.retriever

    @property
    def fusion_rule(self) -> str:
        """The rule for fusing the ranked lists: the ``fusion`` knob, else ``FUSION_RULE``."""
        return str(self.knobs.get("fusion", self.FUSION_RULE))

    @property
    def uses_options(self) -> bool:
        """Whether a question's options affect the search: the LM sees them, or they are in the query."""
        knobs = (SEES_OPTIONS.name, "query_with_options", SELECT.name)
        return self.SHOWS_OPTIONS or any(self.knobs.get(name, False) for name in knobs)

    @property
    def searched_knobs(self) -> list[Knob]:
        """The knobs that a study tunes, limited to the values that the retriever supports."""
        return [knob for knob in self.KNOBS if knob.search]

    def lm_of(self, predictor: dspy.Predict) -> Any:
        """Return the LM that ``forward`` calls: the writer, the predictor's LM, or the LM in the DSPy settings."""
        return dspy.settings.lm if self.writer_lm is not None else predictor.lm or dspy.settings.lm

    def demonstrations(self, predictor: str) -> list[dspy.Example]:
        """Return up to ``demos`` built-in demonstrations for a predictor; an optimizer's demonstrations follow them.

        Args:
            predictor: Name of the attribute that contains the predictor.
        """
        count = self.knobs.get("demos", 0)
        return [dspy.Example(**one) for one in _written_demos().get(predictor, ())[:count]] if count else []

    def written(self, knob: str = "n_queries") -> int:
        """Return the number of texts that the prompt asks for: ``n_written``, but at least as many as are kept.

        Args:
            knob: The knob that sets how many texts are kept.
        """
        return max(int(self.knobs[knob]), int(self.knobs.get("n_written", 0)))

    def write_texts(
        self, predictor: dspy.Predict, field: str, desc: str, *, question: str, knob: str = "n_queries", **inputs: Any
    ) -> list[str]:
        """Ask the LM for the number of search queries that ``written`` returns, and return the queries to use.

        Args:
            predictor: The predictor to call.
            field: The output field that contains the list.
            desc: The description of the list in the prompt; ``{}`` is replaced by the number of texts.
            question: The question; a text that only repeats it is dropped.
            knob: The knob that sets how many texts are kept, starting with the first. Default ``n_queries``.
            inputs: Other inputs of the predictor.

        Returns:
            The distinct texts, each on one line; an empty list if the answer could not be read.
        """
        count = self.written(knob)
        signature = tuned_signature(predictor, field, desc=desc.format(count), count=count, max_chars=LONGEST_QUERY)
        made: Any = predictor(signature=signature, question=question, **inputs)
        return [] if made is None else query_texts(made[field], self.knobs[knob], besides=[question])

    def search(self, texts: Sequence[str], k: int | None = None) -> list[list[Hit]]:
        """Search for one or more texts in a single call to the retriever.

        Args:
            texts: One or more texts.
            k: Maximum number of hits per text. Default: ``depth``.

        Returns:
            One list of hits per text, in the order of the texts; hits are best first.

        Raises:
            InputError: The retriever returned a different number of lists than there were texts.
            TechniqueError: There is no retriever.
        """
        retriever, asked = self.searched, list(texts)
        lists: list[list[Hit]] = retriever.search(asked, self.depth if k is None else k)
        if len(lists) != len(asked):
            raise InputError(
                f"the retriever {retriever!r} returned a different number of lists ({len(lists)}) than there were "
                f"queries ({len(asked)}); search must return one list per query, in the order of the queries"
            )
        record_search(asked, lists, {"queries": asked})
        return lists

    def fuse(self, queries: Sequence[Query], lists: Sequence[Sequence[Hit]]) -> list[Passage]:
        """Fuse the lists of hits into one list of unique passages, at most ``limit``."""
        rule = "union" if len(lists) == 1 else self.fusion_rule
        weights, k = [query.weight for query in queries], self.knobs.get("rrf_k", 60)
        hits = fuse(rule, lists, weights=weights, k=k, limit=self.limit)
        least = self.knobs.get("select_least", 0.0) if self.knobs.get("select", False) else 0.0
        if least and rule in {"rrf", "best_score"}:
            near = [hit for hit in hits if hit.score >= least * hits[0].score]
            hits = hits[: max(len(near), self.max_passages)]
        return [hit.passage for hit in hits]

    def retrieve(self, queries: Sequence[Query], fallbacks: Sequence[str] = ()) -> dspy.Prediction:
        """Search with the queries, fuse the lists, and return the prediction that ``forward`` must return.

        Args:
            queries: The queries, in the order for fusion. If empty, nothing is searched.
            fallbacks: Names of the steps that used a fallback.
        """
        passages = self.fuse(queries, self.search([query.text for query in queries])) if queries else []
        return dspy.Prediction(passages=passages, queries=queries, fallbacks=fallbacks)

    # Steps before and after forward.

    def _answer(self, forward: Callable[..., Any], question: str, options: Any, history: History) -> dspy.Prediction:
        choices, turns = checked_options(question, options), turns_of(history)
        if self.NEEDS_OPTIONS and not choices:
            raise TechniqueError(
                f"{self.NAME} compares options, but the question has none: {question[:80]!r}; "
                "pass options, or use a different technique"
            )
        self._check_values()
        given = {"question": question, "options": choices} | ({"history": turns} if turns else {})
        with recording(self, choices) as steps, self._asking_writer():
            found = self._gated(forward, given) if self._is_gated else self._found(forward, given)
        answer = found.get("answer")  # only a custom program returns one
        return dspy.Prediction(
            passages=list(found.passages),
            **({} if answer is None else {"answer": answer}),
            queries=list(found.get("queries") or ()),
            fallbacks=list(found.get("fallbacks") or ()),
            findings=list(found.get("findings") or ()),
            steps=steps,
        )

    def _found(self, forward: Callable[..., Any], given: Mapping[str, Any]) -> Any:
        """Return the technique's passages or, with ``select``, the LM's selection from a larger pool."""
        asks: Any = self
        found = forward(asks, **given)
        return select(asks, found, **given) if self.knobs.get("select", False) else found

    def _gated(self, forward: Callable[..., Any], given: Mapping[str, Any]) -> Any:
        """Return the plain search result if the gate accepts it or the LM fails; otherwise, the technique's result."""
        question, rule = given["question"], self.knobs["gate"]
        (hits,) = self.search([question], max(GATE_DEPTH, self.max_passages))
        plain = [hit.passage for hit in fuse("union", [hits[: self.max_passages]])]
        scores, least = [hit.score for hit in hits[:GATE_DEPTH]], self.knobs[f"gate_{rule}"]
        mean = 0.0 if rule == "score" else sum(scores) / max(1, len(scores))
        value = scores[0] - mean if scores else -1.0
        certain = value >= least
        shown = {rule: round(value, 4), "at least": least}
        record("gate", rule, shown, "use plain search" if certain else "run the technique")
        if certain:
            return dspy.Prediction(passages=plain, queries=[Query(question)])
        try:
            return self._found(forward, given)
        except LMError as error:
            from querywright.models.circuit_breaker import INCURABLE

            ours = isinstance(error, QuerywrightError) and not isinstance(error, PromptTooLongError)
            if ours or isinstance(error, INCURABLE):  # an outage, a spent budget, or a wrong key affects all questions
                raise
            record("gate", "the LM failed", {}, f"{type(error).__name__}: {error}")
            return dspy.Prediction(passages=plain, queries=[Query(question)], fallbacks=["lm"])

    def _asking_writer(self) -> Any:
        """If there is a writer, make it the LM in the DSPy settings inside the ``with`` block."""
        if self.writer_lm is None:
            return nullcontext()
        # An optimizer that samples several answers from the LM must sample as many from the writer.
        drawn_alike = getattr(dspy.settings.lm, "drawn_alike", None)
        return dspy.context(lm=self.writer_lm if drawn_alike is None else drawn_alike(self.writer_lm))

    @property
    def _is_gated(self) -> bool:
        return bool(self.knobs.get("gate", "off") != "off")

    def _set_up_selection(self) -> None:
        """Keep the selection predictor only if ``select`` is on, so that an optimizer never tunes an unused one."""
        wanted: Any = SELECTORS[self.knobs["select_by"]] if self.knobs.get("select", False) else None
        there = getattr(self, "select_passages", None)
        if wanted is not None and (there is None or [*there.signature.fields] != [*wanted.fields]):
            self.select_passages = Predict(wanted)
        elif wanted is None and there is not None:
            del self.select_passages

    def named_parameters(self) -> list[tuple[str, Any]]:
        """Return the predictors and knobs, keyed by name; the selection predictor is last because it is called last."""
        return sorted(super().named_parameters(), key=lambda named: named[0] == "select_passages")

    def load_state(self, state: Any, **options: Any) -> None:
        """Load a state that ``dump_state`` returned."""
        for one in (self.deepcopy(), self):  # an invalid state fails on the copy and leaves this program unchanged
            one.take_knobs(state["knobs"])
            dspy.Module.load_state(one, state, **options)

    def take_knobs(self, state: Mapping[str, Any]) -> None:
        """Set the values of all knobs, and create the predictors that these values require.

        Raises:
            TechniqueError: A knob is unknown, or a value is not allowed.
        """
        self.knobs.load_state(state)
        self._set_up_selection()

    def _check_values(self) -> None:
        """Raise if the knob values do not fit the retriever or the predictors."""
        if self.knobs.get("select", False) and not hasattr(self, "select_passages"):
            raise TechniqueError(
                f"{self.NAME} was created with select=False, so knobs['select'] cannot be changed later; create it "
                "with select=True, or use with_knobs(select=True)"
            )
        if self._is_gated and self.retriever is not None and kind_of(self.retriever) != "dense":
            raise TechniqueError(
                f"{self.NAME} with gate={self.knobs['gate']} requires cosine similarities from a dense retriever, but "
                f"got a {kind_of(self.retriever)} retriever; set gate=off, or pass a dense retriever (a custom "
                'retriever must have the attribute kind = "dense")'
            )


@functools.cache
def _written_demos() -> dict[str, list[dict[str, Any]]]:
    """Return the built-in demonstrations, keyed by predictor name."""
    file = Path(__file__).with_name("demonstrations.json")
    data: dict[str, list[dict[str, Any]]] = json.loads(file.read_text(encoding="utf-8"))
    data["write_next_sentence"] = [
        {
            "passages": chain["passages"],
            "question": chain["question"],
            "sentences_so_far": chain["sentences"][:place],
            "next_sentence": sentence,
        }
        for chain in data["write_next_sentence"]
        for place, sentence in enumerate(chain["sentences"])
    ]
    return data


def _shared_steps(forward: Callable[..., Any]) -> Callable[..., dspy.Prediction]:
    """Wrap a technique's ``forward`` in the shared steps, but not a ``super().forward()`` that it calls."""

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
    """Return the technique's version of a shared knob, or the shared knob if the technique does not declare one."""
    return own if own is not None and own.help == shared.help else shared


def _check_knobs(name: str, knobs: Sequence[Knob]) -> None:
    before = {knob.name for knob in SHARED_KNOBS}
    for knob in knobs:
        if knob.name in before:
            raise TechniqueError(
                f"{name} declares the knob {knob.name!r} twice, or a shared knob has the same name; rename the knob"
            )
        missing = [other for other in knob.when if other not in before]
        if missing:
            raise TechniqueError(
                f"the knob {knob.name!r} in {name} depends on {missing[0]!r}, so {missing[0]!r} must be declared "
                f"first; declare it before {knob.name!r}, or remove when="
            )
        before.add(knob.name)


def _check_reranker(reranker: Any) -> None:
    name, kind = getattr(reranker, "id", None), type(reranker).__name__
    if not isinstance(name, str) or not name.strip() or name.startswith(("/", "~")) or "\\" in name:
        raise TechniqueError(
            f"a reranker's id must be a string that is the same on every machine and is not a path, but {kind} has "
            f"{name!r}"
        )
    if not callable(getattr(reranker, "score", None)):
        raise TechniqueError(f"a reranker must have the method score(query, passages), but {kind} does not")


def search_sum(
    technique: Technique, queries: Sequence[Query], weights: Sequence[float], *, name: str
) -> list[list[Hit]]:
    """Search with the weighted sum of the queries' unit vectors, and return one list of hits.

    Args:
        technique: The technique that searches; its ``depth`` sets the number of hits.
        queries: One or more queries. The original question is embedded as a query; other texts are embedded as
            passages.
        weights: The weight of each query, in the order of ``queries``.
        name: The vector's name in a trace.
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
        texts: The names that a trace shows for the searches.
        lists: The hits from each search.
        given: The inputs of the search.
        name: What was searched. Default: passages.
    """
    pairs = list(zip(texts, lists, strict=True))
    found = {text: [hit.passage.id for hit in hits] for text, hits in pairs}
    record("search", name, given, found, scores={text: tuple(hit.score for hit in hits) for text, hits in pairs})


def checked_options(question: Any, options: Any) -> list[str]:
    """Return the options without leading and trailing white space; an empty list if there are none.

    Args:
        question: The question, which is also checked.
        options: A sequence of strings, or None.

    Raises:
        TechniqueError: The question is blank, or the options are not two or more distinct strings.
    """
    if not isinstance(question, str) or not question.strip():
        raise TechniqueError(f"a question must be a nonempty string, but got {question!r}")
    if options is None:
        return []
    listed = isinstance(options, Sequence) and not isinstance(options, str)
    if not listed or not all(isinstance(option, str) and option.strip() for option in options):
        kind = "the string " * isinstance(options, str)
        raise TechniqueError(
            f"options must be a list of nonempty strings, but got {kind}{options!r} for {question[:80]!r}; pass a "
            "list, such as ['yes', 'no']"
        )
    texts = [option.strip() for option in options]
    if len(texts) == 1 or len(set(texts)) < len(texts):
        raise TechniqueError(
            f"options must be two or more distinct strings, but got {texts!r} for {question[:80]!r}; "
            "omit the options if the question has none"
        )
    return texts
