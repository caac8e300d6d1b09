"""What a study takes at most, before anything is asked: programs are run dry, their prompts answered with filler."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import dspy
import numpy as np
from dspy import lm15

from querywright.data.splits import Splits
from querywright.data.types import Passage, Question
from querywright.models.embedder import Vectors
from querywright.models.engine import LMEngine
from querywright.models.lm import engine_of
from querywright.models.usage import metered
from querywright.optimize.evaluate import asking
from querywright.optimize.optimizers import OPTIMIZERS
from querywright.optimize.study.building import last_variants, predictors_of, prompt_of, reads_for
from querywright.optimize.study.finish import GOLDEN
from querywright.optimize.study.holdout import FRONT
from querywright.optimize.study.objectives import objectives_of
from querywright.optimize.study.space import Space, TechniqueSpace
from querywright.optimize.study.spec import PLAIN, StudySpec
from querywright.programs import RAG, make_program, technique_class
from querywright.retrieval.types import Hit, Kind

CHARACTERS_A_TOKEN = 4
ANSWER_TOKENS = 1000
"""Of an answer, where the LM has no limit."""

QUESTIONS = 3
"""Dev questions whose prompts are rendered."""

TEST_ARMS = 6
"""Programs that meet test: no rewriting, the best, it as written and with its reader as written, and two references."""

_MADE_UP = (Passage("made-up", "filler " * 85),)
_FEW, _MANY = 6, 10**6
"""Values of a knob up to which each is looked at; ways of one whose values cannot be counted."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a study.

    Args:
        name: What it is.
        calls: LM calls at most; None where nothing bounds them.
        tokens: Input and output tokens of these calls, at most.
        how: How the calls were counted, in words.
        dollars: Estimated US dollars; None where the price is not known.
        minutes: None where nobody measured a call.
    """

    name: str
    calls: int | None
    tokens: int
    how: str
    dollars: float | None = None
    minutes: float | None = None

    def row(self) -> dict[str, str]:
        """A row of a table, but for how it was counted."""
        return {
            "stage": self.name,
            "LM calls": "unknown" if self.calls is None else f"{self.calls:,}",
            "tokens": "unknown" if self.calls is None else f"{self.tokens:,}",
            "dollars": "unknown" if self.dollars is None else f"{self.dollars:.2f}",
            "minutes": "unknown" if self.minutes is None else f"{self.minutes:.1f}",
        }


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a study takes at most, if nothing of it is stored yet.

    Args:
        stages: In their order; the last is all of them that something is known of.
        seconds_per_call: Of one LM call; None where nobody measured it.
        assumptions: All that the figures rest on, in sentences.
    """

    stages: tuple[Stage, ...]
    seconds_per_call: float | None
    assumptions: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The estimate as a JSON object."""
        *stages, total = (asdict(stage) for stage in self.stages)
        figures = {name: total[name] for name in ("calls", "tokens", "dollars", "minutes")}
        whole = all(stage["calls"] is not None for stage in stages)
        more = {"seconds_per_call": self.seconds_per_call, "assumptions": list(self.assumptions)}
        return {"stages": stages, **figures, "whole": whole, **more}


@dataclass(slots=True)
class _Asks:
    """What a technique asks for one question, at most, and in how many ways."""

    space: TechniqueSpace
    cap: int
    calls: int = 0
    longest: float = 0.0
    read: int = 0
    ways: int = 1

    @property
    def tokens(self) -> int:
        """Of one of its calls; prompts are as long as on average in the run that has the longest."""
        return math.ceil(self.longest / CHARACTERS_A_TOKEN) + self.cap

    @property
    def reading(self) -> int:
        """Tokens of a call of the reader."""
        return math.ceil(self.read / CHARACTERS_A_TOKEN) + self.cap


def estimate(
    spec: StudySpec,
    space: Space,
    splits: Splits,
    lm: Any,
    *,
    passages: Sequence[Passage] = (),
    seconds_per_call: float | None = None,
) -> Estimate:
    """What a study takes at most. Nothing is asked.

    Args:
        spec: A study that was checked.
        space: Its arms.
        splits: Its questions.
        lm: An LM made by ``resolve_lm``.
        passages: Some of the collection, as prompts show them. Default: made up, of about 600 characters.
        seconds_per_call: Of one LM call, as ``measure`` gives it. Default None: no minutes.
    """
    cap = int(lm.kwargs.get("max_tokens") or lm.kwargs.get("max_completion_tokens") or ANSWER_TOKENS)
    asked, likely = splits.dev[:QUESTIONS], engine_of(lm).decides_by_likelihood
    reader = next((one for one in space.readers if one is not None), None)
    found = [_look(_Asks(one, cap), asked, passages or _MADE_UP, reader, likely) for one in space.techniques]
    reads = any(one.reads for one in objectives_of(spec.objectives))
    stages = [
        _on_dev(found, space, len(splits.dev)),
        _reading(found, spec, len(splits.dev), reads),
        _prompts(found, spec, space, len(splits.train), reads),
        _tested(found, spec, splits, reader is not None),
    ]
    priced = []
    for stage in stages:
        minutes = None if seconds_per_call is None or stage.calls is None else stage.calls * seconds_per_call / 60
        priced.append(replace(stage, dollars=_dollars(lm, stage, cap), minutes=minutes))
    dollars, minutes = ([getattr(one, name) for one in priced if one.calls] for name in ("dollars", "minutes"))
    total = Stage(
        "in all, at most",
        sum(one.calls or 0 for one in priced),
        sum(one.tokens for one in priced),
        "" if all(one.calls is not None for one in priced) else "without what is not known",
        None if None in dollars else sum(dollars),
        None if None in minutes else sum(minutes),
    )
    lines = _assumptions(found, len(asked), cap, bool(passages), seconds_per_call)
    return Estimate((*priced, total), seconds_per_call, tuple(lines))


def measure(lm: dspy.LM, program: Any, question: Question) -> float | None:
    """Seconds of one LM call, from running a program over a question for real.

    Args:
        lm: An LM made by ``resolve_lm``.
        program: A technique and a reader, over a real retriever.
        question: The question; its answers are kept and not paid again.

    Returns:
        Seconds; None where every answer came from the store or nothing was asked.
    """
    began = time.monotonic()
    with asking(lm), metered() as meter:
        program(question=question.question, options=list(question.options) or None)
    cost = meter.total
    return min(cost.seconds, time.monotonic() - began) / cost.calls if cost.calls and cost.seconds else None


def _look(
    asks: _Asks, asked: Sequence[Question], shown: Sequence[Passage], reader: str | None, likely: bool
) -> _Asks:  # fmt: skip
    """Run a technique dry with its values as written and at their largest, and from there one knob at a time."""
    space = asks.space
    name, starts = space.name, [dict(space.given)]
    starts.append({**space.given, **{key: domain.highest for key, domain in space.domains.items()}})
    if technique_class(name).ENGINE is not None and not technique_class(name).LM_STAGES:
        # It asks nothing, and what it finds is read as what no rewriting finds.
        name, starts = PLAIN, [{"max_passages": space.given["max_passages"]}]

    def run(engine: str, values: Mapping[str, Any], questions: Sequence[Question]) -> frozenset[str]:
        """The prompts of the technique."""
        program = make_program(name, dry_retriever(engine, shown), reader=reader, **values)
        prompts: list[str] = []
        for one in questions:
            technique, read = dry_run(program, one, decides_by_likelihood=likely)
            prompts += technique
            asks.calls = max(asks.calls, len(technique))
            asks.longest = max(asks.longest, sum(map(len, technique)) / max(1, len(technique)))
            asks.read = max([asks.read, *map(len, read)])
        return frozenset(prompts)

    engine = "dense" if name == PLAIN else space.engine
    for start in starts:
        run(engine, start, asked)
    for key, domain in space.domains.items() if asks.calls else ():
        few = domain.size is not None and domain.size <= _FEW
        values = domain.values if few else [domain.lowest, domain.highest]
        around = ([run(engine, {**start, key: one}, asked[:1]) for one in (*values, start[key])] for start in starts)
        asks.ways *= (domain.size or _MANY) if any(map(_differ, around)) else 1
    if asks.calls and _differ([run(one, starts[0], asked[:1]) for one in space.engines]):
        asks.ways *= len(space.engines)
    return asks


def _differ(asks: Sequence[frozenset[str]]) -> bool:
    """Whether one asks what another does not, more than that it asks less."""
    ordered = sorted(asks, key=len)
    return not all(few <= more for few, more in itertools.pairwise(ordered))


def _on_dev(found: Sequence[_Asks], space: Space, n_dev: int) -> Stage:
    """All trials when the costliest techniques are chosen as often as they ask something new."""
    left, calls, tokens, said = max(0, space.trials - len(found)), 0, 0, []
    for one in sorted(found, key=lambda one: -one.calls * one.tokens):
        ways = one.ways * len(space.variants(one.space.name))
        more = min(left, ways - 1) if one.calls else 0
        left -= more
        calls += (1 + more) * one.calls * n_dev
        tokens += (1 + more) * one.calls * n_dev * one.tokens
        said += [f"{one.space.name} {one.calls} in at most {1 + more} ways"] if one.calls else []
    how = f"calls a question: {', '.join(said) or 'none'}; each way once for {n_dev} questions, {space.trials} trials"
    return Stage("techniques, on dev", calls, tokens, how)


def _reading(found: Sequence[_Asks], spec: StudySpec, n_dev: int, reads: bool) -> Stage:
    """The reader in every trial, and with every prompt that is chosen last."""
    last = last_variants(spec)
    calls = ((spec.trials if reads else 0) + (1 + len(last) if last else 0)) * n_dev
    how = f"{spec.trials} trials x {n_dev} questions; equal contexts are read once" if reads else "no objective reads"
    how += f"; {len(last)} ways to read and the reader as written x {n_dev} questions" if last else ""
    return Stage("reader, on dev", calls, calls * max(one.reading for one in found), how)


def _prompts(found: Sequence[_Asks], spec: StudySpec, space: Space, n_train: int, reads: bool) -> Stage:
    """What the optimizers ask."""
    early: list[int | None] = []
    late = []
    for one in found:
        own = {name: _most(spec, name, one, n_train, reads) for name in space.variants(one.space.name)}
        early += [own[name] for name in one.space.early]
        late.append([own[name] for name in one.space.late])
    dear = max(found, key=lambda one: one.calls * one.tokens)
    early += [_most(spec, name, dear, n_train, True) for name in last_variants(spec)]
    if None in (*early, *itertools.chain(*late)):
        return Stage("prompts", None, 0, "nothing bounds some optimizer; give the study a budget")
    surviving = sorted((sum(one or 0 for one in each) for each in late), reverse=True)[: spec.survivors]
    calls = sum(one or 0 for one in early) + sum(surviving)
    how = "each once; late ones for as many techniques as survive" if spec.prompts else "none"
    return Stage("prompts", calls, calls * max(*(one.reading for one in found), dear.tokens), how)


def _most(spec: StudySpec, variant: str, one: _Asks, n_train: int, reads: bool) -> int | None:
    """Calls that making a prompt takes at most."""
    found = prompt_of(spec, variant)
    prompt = None if found is None else spec.prompts[found[0]]
    if prompt is None or prompt.optimizer is None:
        return 0
    parts = {"technique", "reader"} if prompt.part == "all" else {prompt.part}
    tuned = [key for key in predictors_of(spec, one.space.name) if key.partition(".")[0] in parts]
    runs = one.calls + (1 if reads or reads_for(prompt) else 0)
    return OPTIMIZERS[prompt.optimizer].most_calls(n_train, len(tuned), prompt.arguments, calls_per_run=runs)


def _tested(found: Sequence[_Asks], spec: StudySpec, splits: Splits, reads: bool) -> Stage:
    """Programs that meet test, the reader check, and golden questions of what is saved."""
    dear, reading = max(found, key=lambda one: one.calls * one.tokens), max(one.reading for one in found)
    front = FRONT if len(spec.objectives) > 1 else 0
    programs, golden = TEST_ARMS + front, (2 + front) * min(GOLDEN, len(splits.dev))
    read = (programs * len(splits.test) + 2 * spec.reader_check + golden) * reads
    written = programs * len(splits.test) * dear.calls
    how = f"{programs} programs x {len(splits.test)} questions, each as costly as {dear.space.name}"
    how += f"; {2 * spec.reader_check + golden} further readings" if reads else ""
    return Stage("test", written + read, written * dear.tokens + read * reading, how)


def _dollars(lm: Any, stage: Stage, cap: int) -> float | None:
    """The price of a stage, by the price of one call of its size."""
    if not stage.calls:
        return None if stage.calls is None else 0.0
    inner = engine_of(lm).inner
    price = getattr(inner, "price", None)
    if price is None:
        return 0.0 if hasattr(inner, "answers_identity") else None
    each, model = stage.tokens // stage.calls, lm.model.partition("/")[2]
    usage = lm15.Usage(input_tokens=each - cap, output_tokens=cap, total_tokens=each)
    response = lm15.Response(
        id=None, model=model, message=lm15.Message.assistant([lm15.TextPart("-")]), finish_reason="stop", usage=usage
    )
    one = price(lm15.Request(model=model, messages=(lm15.Message.user("-"),)), response)
    return None if one is None else float(one) * stage.calls


def _assumptions(found: Sequence[_Asks], asked: int, cap: int, real: bool, seconds: float | None) -> list[str]:
    passages = "passages of the collection" if real else "made-up passages of about 600 characters"
    lines = [
        "nothing is stored yet; what is stored is neither asked nor paid again",
        "an LM step with the same prompt is asked once in a study, whatever trial asks it; each knob was looked at by "
        "itself for whether it changes a prompt",
        "no call is tried a second time and no unreadable answer asked for once more; both come on top, and a call of "
        "a rewriter is counted and priced as one of the LM",
        f"prompts were rendered for {asked} dev questions with {passages} and made-up answers, as long as the values "
        "of the knobs make them",
        f"{CHARACTERS_A_TOKEN} characters are a token of a prompt; an answer has {cap} tokens, the most that are "
        "allowed",
    ]
    if any(one.ways >= _MANY for one in found):
        lines.append("a knob whose values cannot be counted asks something new in every trial")
    if seconds is None:
        lines.append("seconds a call are unknown; they are measured with one real call (--measure)")
    else:
        lines.append(f"a call takes {seconds:.2f} seconds, as one that was made did; one at a time")
    return lines


@dataclass
class _DryEngine:
    """Answers every request with filler in the form asked for; the same request, the same filler."""

    decides_by_likelihood: bool = False
    asked: list[str] = field(default_factory=list)
    supports_response_schema = True
    supported_params = frozenset({"temperature", "max_tokens", "response_format", "seed"})

    def __deepcopy__(self, memo: dict[int, Any]) -> _DryEngine:
        return self

    def complete(self, request: lm15.Request) -> lm15.Response:
        """Note the prompt and make an answer up."""
        system: Any = request.system
        first = system if isinstance(system, str) else "".join(str(part.text) for part in system or ())
        prompt = "\n".join([first, *(str(message.text or "") for message in request.messages)])
        mark = hashlib.sha256(f"{prompt}{(request.config.temperature, request.config.seed)}".encode()).hexdigest()[:8]
        self.asked.append(f"{prompt}{mark}")
        form: Any = request.config.response_format or {}
        schema = form.get("json_schema", form).get("schema", {})
        text = json.dumps({name: _filler(one, f"{name} {mark}") for name, one in schema.get("properties", {}).items()})
        message, usage = lm15.Message.assistant([lm15.TextPart(text)]), lm15.Usage(input_tokens=1, output_tokens=1)
        return lm15.Response(id=None, model=request.model, message=message, finish_reason="stop", usage=usage)

    def close(self) -> None:
        """Do nothing."""


class _DryRetriever:
    """Finds as many passages as it is asked for, others for every query; what they say is made up or sampled."""

    def __init__(self, engine: str, passages: Sequence[Passage]) -> None:
        self.kind: Kind = {"bm25": "lexical", "expanded": "lexical", "hybrid": "hybrid"}.get(engine, "dense")
        self.fingerprint = f"dry {engine}"
        self._passages = passages

    def __deepcopy__(self, memo: dict[int, Any]) -> _DryRetriever:
        return self

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Passages that only this query finds."""
        return [[self._hit(query, rank) for rank in range(1, k + 1)] for query in queries]

    def _hit(self, query: str, rank: int) -> Hit:
        mark = hashlib.sha256(f"{self.fingerprint}\n{query}\n{rank}".encode()).hexdigest()
        one = self._passages[int(mark[:8], 16) % len(self._passages)]
        return Hit(Passage(mark[:16], one.text, f"{one.title} {mark[:6]}".strip()), 0.0, rank)


class _DryVectors(_DryRetriever):
    """The same, searched by vectors too."""

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Any vectors."""
        return np.ones((len(texts), 2), dtype=np.float32)

    def search_vectors(self, vectors: Any, k: int) -> list[list[Hit]]:
        """Any passages."""
        return self.search([f"vector {place}" for place in range(len(vectors))], k)


def dry_retriever(engine: str, passages: Sequence[Passage]) -> Any:
    """A retriever that searches nothing, and stands for an engine; it shows these passages, one or more."""
    return (_DryVectors if engine == "dense" else _DryRetriever)(engine, passages)


def dry_run(
    program: RAG, question: Question, *, decides_by_likelihood: bool = False
) -> tuple[list[str], list[str]]:  # fmt: skip
    """The prompts of a technique and of its reader for a question, as far as made-up answers lead.

    Args:
        program: Over a ``dry_retriever``.
        question: The question.
        decides_by_likelihood: Whether the LM decides choices by likelihood, and is shown no list of them and no
            quotation marks.
    """
    engine = _DryEngine(decides_by_likelihood)
    lm = dspy.LM("dry/run", engine=LMEngine(engine, identity="dry"), cache=False, num_retries=0)
    options = list(question.options) or None
    with asking(lm):
        found = program.technique(question=question.question, options=options)
        before = len(engine.asked)
        if program.reader is not None:
            program.reader(
                question=question.question, options=options, passages=found.passages, findings=found.findings
            )
    return engine.asked[:before], engine.asked[before:]


def _filler(schema: Any, mark: str) -> Any:
    """A value of a JSON schema: a dozen words where it is a text."""
    if "enum" in schema or "const" in schema:
        return schema.get("enum", [schema.get("const")])[0]
    kind = schema.get("type")
    if kind == "array":
        items = schema.get("items", {})
        count = 1 if items.get("type") == "integer" else schema.get("minItems", 16)
        return [_filler(items, f"{mark} {place}") for place in range(count)]
    if kind in {"integer", "number"}:
        return schema.get("minimum", 1)
    return kind == "boolean" or " ".join([mark, *["filler"] * (12 - len(mark.split()))])
