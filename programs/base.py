"""What every technique has in common: a plan of queries, one search, fusion, a cut, and a gate before it all."""

from __future__ import annotations

import copy
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast

import dspy
from dspy.utils.exceptions import LMError

from querywright.data.types import History, Passage, turns_of
from querywright.errors import InputError, PromptTooLongError, QuerywrightError, TechniqueError
from querywright.models.circuit_breaker import INCURABLE
from querywright.programs.gate import GATE_DEPTH, SHARED_KNOBS, certainty
from querywright.programs.hyperparameters import Knob, Knobs
from querywright.programs.query_cleaning import LONGEST_QUERY, query_texts
from querywright.programs.selection import SelectPassages, select
from querywright.programs.signatures import after_history, tuned_signature
from querywright.programs.steps import Ask, Call, Record, Step, Together, drive, drive_async
from querywright.retrieval.callable import as_retriever
from querywright.retrieval.fusion import fuse
from querywright.retrieval.types import Hit, Query, kind_of
from querywright.shared import Shared

if TYPE_CHECKING:
    from querywright.retrieval.rerank import Reranker

T = TypeVar("T")

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


@dataclass(frozen=True, slots=True)
class Plan:
    """The queries of a technique.

    Args:
        queries: In the order in which fusion sees them. Empty: nothing is searched.
        fallbacks: Names of the steps that fell back to something plainer.
    """

    queries: tuple[Query, ...]
    fallbacks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """A sub-question and what was read in answer to it: the only words of an LM that a reader may be shown.

    Args:
        question: The sub-question.
        answer: Its answer.
    """

    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class Found:
    """What a technique found.

    Args:
        passages: Unique, best first, at most ``max_passages``.
        queries: What was searched for.
        fallbacks: Names of the steps that fell back.
        findings: Sub-answers for the reader.
    """

    passages: Sequence[Passage]
    queries: Sequence[Query]
    fallbacks: Sequence[str] = ()
    findings: Sequence[Finding] = ()


class _Held(Shared):
    """Keeps an object out of DSPy's sight, which would tune what it finds inside, and the same in every copy."""

    __slots__ = ("held",)

    def __init__(self, held: Any) -> None:
        self.held = held

    def __reduce__(self) -> tuple[Any, ...]:
        if isinstance(self.held, dspy.BaseLM):  # it may hold a key, which no file may
            raise TechniqueError(
                "a program with an LM of its own cannot be pickled; set its technique.writer_lm to None for it"
            )
        return _Held, (self.held,)


class _SharedPart:
    """An attribute that copies share."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"_{name}"

    def __get__(self, technique: Any, owner: type) -> Any:
        return self if technique is None else getattr(technique, self._name).held

    def __set__(self, technique: Any, value: Any) -> None:
        setattr(technique, self._name, _Held(value))


class Technique(dspy.Module):
    """A way from a question to passages.

    A technique declares ``NAME``, ``TITLE``, ``PAPER``, ``PROMPTS``, ``LM_STAGES``, ``SEARCHES`` and ``KNOBS`` and
    writes ``plan``; searching, fusing and cutting happen here. One that searches more than once writes ``find``
    instead, one that treats what was found in a way of its own writes ``retrieve``. All three are coroutines that await
    ``ask``, ``search`` and ``together`` and nothing else, which makes ``forward`` and ``aforward`` the same program.

    ``max_passages`` must be among the knobs of a technique that searches; ``pool`` (else ``top_k``, else
    ``max_passages``), ``fusion`` (else ``FUSION_RULE``) and ``rrf_k`` (else 60) are read where they are declared. A
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
    PROMPTS: ClassVar[Mapping[str, type[dspy.Signature]]] = {}
    """The signatures of its LM steps, each of which becomes a predictor in the attribute of that name."""
    LM_STAGES: ClassVar[int] = 0
    """LM calls one after another, at most, with the knobs at their defaults; calls side by side count once."""
    SEARCHES: ClassVar[str] = "1"
    KNOBS: ClassVar[tuple[Knob, ...]] = (MAX_PASSAGES,)
    NEEDS_OPTIONS: ClassVar[bool] = False
    NEEDS_VECTORS: ClassVar[bool] = False
    """Whether it searches with vectors of its own, which only a dense retriever can."""
    USES_RERANKER: ClassVar[bool] = False
    FUSION_RULE: ClassVar[str] = "interleave"
    """How lists become one, for a technique without a knob for it."""
    ITERATIVE: ClassVar[bool] = False
    """Whether what is searched depends on what was found."""
    ENGINE: ClassVar[str | None] = None
    """The only engine that it can search with; None for a technique that searches with any."""

    retriever = _SharedPart()
    reranker = _SharedPart()
    writer_lm = _SharedPart()
    """The LM that is asked in place of that of the DSPy settings, or None; ``use_writer`` sets it."""
    turns: tuple[str, ...] = ()
    """The conversation before the question that is asked; only of the copy that ``forward`` makes for it."""
    pooled: int = 0
    """Passages to select from; only of the copy that finds them."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = {knob.name: knob for knob in cls.KNOBS}
        shared = tuple(_own_default(own.get(knob.name), knob) for knob in SHARED_KNOBS)
        rest = tuple(knob for knob in cls.KNOBS if knob not in shared)
        _check_knobs(cls.__name__, rest)
        cls.KNOBS = (*rest, *shared) if cls.LM_STAGES else rest

    def __init__(self, retriever: Any = None, *, reranker: Reranker | None = None, **knobs: Any) -> None:
        super().__init__()
        self.retriever = None if retriever is None else as_retriever(retriever)
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
        self.writer_lm = None
        self.knobs = Knobs(self.KNOBS, knobs)
        for name, signature in self.PROMPTS.items():
            setattr(self, name, dspy.Predict(signature))
        self._set_up_selection()
        self._check_values()

    def with_knobs(self, **values: Any) -> Self:
        """A copy with other knob values; prompts are copied, the retriever is shared."""
        other = copy.deepcopy(self)
        other.knobs.update(values)
        other._set_up_selection()
        other._check_values()
        return other

    # What a technique writes.

    async def plan(self, question: str, options: Sequence[str]) -> Plan:
        """The queries for a question; ``options`` is empty when the question has none."""
        raise NotImplementedError(f"{type(self).__name__} must write plan(), find() or its own forward()")

    async def find(self, question: str, options: Sequence[str]) -> Found:
        """The passages for a question: plan, search once, fuse and cut."""
        plan = await self.plan(question, options)
        passages = await self.retrieve(question, plan.queries) if plan.queries else []
        return Found(passages, plan.queries, plan.fallbacks)

    async def retrieve(self, question: str, queries: Sequence[Query]) -> list[Passage]:
        """The passages for the queries of a plan."""
        return self.fused(queries, await self.search([query.text for query in queries], self.depth))

    # What a technique is given.

    @property
    def max_passages(self) -> int:
        """Passages that are kept at most: those given to the reader, or those to select from."""
        return self.pooled or int(self.knobs["max_passages"])

    @property
    def depth(self) -> int:
        """Hits asked for each query: ``pool``, else ``top_k``, else ``max_passages``."""
        return int(next((self.knobs[name] for name in ("pool", "top_k") if name in self.knobs), self.max_passages))

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

    def lm_of(self, name: str) -> Any:
        """The LM that a predictor asks here and now: the writer, else its own, else that of the DSPy settings."""
        if self.writer_lm is None:
            return getattr(self, name).lm or dspy.settings.lm
        # An optimizer that draws from an LM again and again draws from the writer as often.
        drawn_alike = getattr(dspy.settings.lm, "drawn_alike", None)
        return self.writer_lm if drawn_alike is None else drawn_alike(self.writer_lm)

    def written(self, knob: str = "n_queries") -> int:
        """Texts that the prompt asks for: as many as ``n_written`` says, and never fewer than are kept.

        Args:
            knob: The knob that says how many are kept.
        """
        return max(int(self.knobs[knob]), int(self.knobs.get("n_written", 0)))

    def ask(self, name: str, **inputs: Any) -> Step[dspy.Prediction | None]:
        """An LM step; awaited, it gives the prediction, or None when the answer could not be read.

        Args:
            name: A name in ``PROMPTS``.
            inputs: Its inputs; ``signature`` and ``config`` as DSPy takes them.
        """
        own = {} if self.writer_lm is None else {"lm": self.lm_of(name)}
        predictor = getattr(self, name)
        if self.turns and self.knobs["use_history"]:
            inputs |= after_history(inputs.get("signature") or predictor.signature, self.turns)
        return Ask(name, predictor, **inputs, **own)

    def tuned(self, name: str, field: str = "", **changes: Any) -> Any:
        """The signature of an LM step with what a call adds to it; see ``tuned_signature``."""
        return tuned_signature(getattr(self, name), field, **changes)

    async def ask_texts(
        self, name: str, field: str, desc: str, *, question: str, knob: str = "n_queries", **inputs: Any
    ) -> list[str]:
        """Ask for a list of texts to search with, as many as ``written`` says.

        Args:
            name: A name in ``PROMPTS``.
            field: The list among its outputs.
            desc: What the prompt says of the list; ``{}`` stands for the number of texts.
            question: The question; a text that only repeats it is dropped.
            knob: The knob that says how many are kept, the first ones. Default ``n_queries``.
            inputs: Other inputs.

        Returns:
            Each text once, on one line; none when the answer could not be read.
        """
        count = self.written(knob)
        signature = self.tuned(name, field, desc=desc.format(count), count=count, max_chars=LONGEST_QUERY)
        made = await self.ask(name, signature=signature, question=question, **inputs)
        return [] if made is None else query_texts(made[field], self.knobs[knob], besides=[question])

    def search(self, texts: Sequence[str], k: int) -> Step[list[list[Hit]]]:
        """A search; awaited, it gives at most ``k`` hits a text, best first, from one call of the retriever."""
        retriever, asked = self.searched, list(texts)

        def search() -> list[list[Hit]]:
            lists: list[list[Hit]] = retriever.search(asked, k)
            if len(lists) != len(asked):
                raise InputError(
                    f"the retriever {retriever!r} gave {len(lists)} lists for {len(asked)} queries; search must give "
                    "one a query, in their order"
                )
            return lists

        return Call(search, lambda lists, stage: search_record(asked, lists, stage, {"queries": asked}))

    def together(self, steps: Sequence[Step[T]]) -> Step[list[T]]:
        """Steps side by side; awaited, it gives their results in order."""
        return Together(steps)

    def fused(self, queries: Sequence[Query], lists: Sequence[Sequence[Hit]]) -> list[Passage]:
        """The lists as one, cut to ``max_passages``."""
        rule = "union" if len(lists) == 1 else self.knobs.get("fusion", self.FUSION_RULE)
        weights, k = [query.weight for query in queries], self.knobs.get("rrf_k", 60)
        return [hit.passage for hit in fuse(rule, lists, weights=weights, k=k, limit=self.max_passages)]

    # What a caller calls.

    def forward(self, question: str, options: Sequence[str] | None = None, history: History = None) -> dspy.Prediction:
        """Find passages for a question.

        Args:
            question: The question as it was asked.
            options: Option texts of a multiple-choice question, or None.
            history: The conversation before the question, see ``turns_of``. The LM steps are shown it, unless
                ``use_history`` is off; where the question itself is searched, it is searched alone. Default none.

        Returns:
            A prediction with ``passages`` (list of Passage, unique, best first, at most ``max_passages``),
            ``queries`` (list of Query), ``fallbacks`` (list of names), ``findings`` (list of Finding) and ``steps``
            (list of Record: all that was asked and searched; for traces, never for a reader).

        Raises:
            TechniqueError: The question is blank, its options are not two or more distinct texts, or it has
                none and the technique compares options.
            DataError: The history has another form.
        """
        log: list[Record] = []
        return drive(self.walk(log, question, options, history), log)

    async def aforward(
        self, question: str, options: Sequence[str] | None = None, history: History = None
    ) -> dspy.Prediction:
        """``forward`` in an event loop: LM calls side by side wait together."""
        log: list[Record] = []
        return await drive_async(self.walk(log, question, options, history), log)

    async def walk(
        self, log: list[Record], question: str, options: Sequence[str] | None = None, history: History = None
    ) -> dspy.Prediction:
        """``forward`` as a coroutine of steps, for a driver of one's own.

        Args:
            log: What the driver writes the record of each step to.
            question: The question as it was asked.
            options: Option texts of a multiple-choice question, or None.
            history: The conversation before the question.
        """
        asked, turns = self, turns_of(history)
        if turns:
            asked = self.having(turns=turns)
        found = await asked._work(question, options)
        return dspy.Prediction(
            passages=list(found.passages),
            queries=list(found.queries),
            fallbacks=list(found.fallbacks),
            findings=list(found.findings),
            steps=log,
        )

    def having(self, **attributes: Any) -> Self:
        """The same predictors, knobs and retriever under other attributes, for one question."""
        other: Any = object.__new__(type(self))
        other.__dict__.update(self.__dict__, **attributes)
        return cast("Self", other)

    def _work(self, question: str, options: Sequence[str] | None) -> Coroutine[Step[Any], Any, Found]:
        choices = checked_options(question, options)
        if self.NEEDS_OPTIONS and not choices:
            raise TechniqueError(
                f"{self.NAME} compares options, but the question has none: {question[:80]!r}; "
                "give options, or use another technique"
            )
        self._check_values()
        return self._gated(question, choices) if self._is_gated else self._found(question, choices)

    def _found(self, question: str, options: Sequence[str]) -> Coroutine[Step[Any], Any, Found]:
        """What the technique finds, or what the LM selects from a larger pool of it."""
        if not self.knobs.get("select", False):
            return self.find(question, options)
        asks: Any = self
        selected: Any = select(asks, asks.having(pooled=int(self.knobs["select_pool"])), question, options)
        return cast("Coroutine[Step[Any], Any, Found]", selected)

    async def _gated(self, question: str, options: Sequence[str]) -> Found:
        """What plain retrieval finds where it looks certain or the LM fails, else what the technique finds."""
        queries, rule = [Query(question)], self.knobs["gate"]
        (hits,) = await self.search([question], max(GATE_DEPTH, self.max_passages))
        plain = self.fused(queries, [hits[: self.max_passages]])  # what plain retrieval would have found
        value, least = certainty(rule, hits[:GATE_DEPTH]), self.knobs[f"gate_{rule}"]
        given, certain = {rule: round(value, 4), "at least": least}, value >= least
        await _noted(rule, given, "pass the question through" if certain else "translate")
        if certain:
            return Found(plain, queries)
        try:
            return await self._found(question, options)
        except LMError as error:
            ours = isinstance(error, QuerywrightError) and not isinstance(error, PromptTooLongError)
            if ours or isinstance(error, INCURABLE):  # an outage, a spent budget, a wrong key: no question goes better
                raise
            await _noted("the LM failed", {}, f"{type(error).__name__}: {error}")
            return Found(plain, queries, ("lm",))

    @property
    def _is_gated(self) -> bool:
        return bool(self.knobs.get("gate", "off") != "off")

    def _set_up_selection(self) -> None:
        """The predictor that selects is there where it is asked, so that no optimizer tunes one that is not."""
        wanted, there = bool(self.knobs.get("select", False)), hasattr(self, "select_passages")
        if wanted and not there:
            self.select_passages = dspy.Predict(SelectPassages)
        elif there and not wanted:
            del self.select_passages

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


def _noted(name: str, given: Mapping[str, Any], made: str) -> Step[None]:
    """A record of the gate's."""
    return Call(lambda: None, lambda _, stage: Record("gate", name, stage, given, made))


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


def search_record(
    texts: Sequence[str],
    lists: Sequence[Sequence[Hit]],
    stage: int,
    given: Mapping[str, Any],
    *,
    name: str = "passages",
) -> Record:
    """The record of a search.

    Args:
        texts: What was searched for, as a trace names it.
        lists: The hits of each.
        stage: Of the step.
        given: What went in.
        name: What was searched. Default: passages.
    """
    pairs = list(zip(texts, lists, strict=True))
    found = {text: [hit.passage.id for hit in hits] for text, hits in pairs}
    return Record("search", name, stage, given, found, {text: tuple(hit.score for hit in hits) for text, hits in pairs})


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
