"""What a study takes at most, before anything is asked: programs are run dry, their prompts answered with filler."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import dspy
import numpy as np
from dspy import lm15

from querywright.data.splits import Splits
from querywright.data.types import Passage, Question
from querywright.metrics.judges import JUDGED
from querywright.models.embedder import Vectors
from querywright.models.engine import LMEngine
from querywright.models.lm import engine_of
from querywright.models.usage import metered
from querywright.optimize.evaluate import asking
from querywright.optimize.optimizers import OPTIMIZERS
from querywright.optimize.study.finish import GOLDEN
from querywright.optimize.study.holdout import FRONT
from querywright.optimize.study.objectives import objectives_of
from querywright.optimize.study.space import Space, TechniqueSpace, predictors_of, reads_for
from querywright.optimize.study.spec import PLAIN, StudySpec
from querywright.programs import RAG, make_program, technique_class
from querywright.programs.base import MAX_PASSAGES
from querywright.retrieval.types import Hit, Kind

CHARACTERS_A_TOKEN = 4
ANSWER_TOKENS = 1000
"""Of an answer, where the LM has no limit."""

QUESTIONS = 3
"""Dev questions whose prompts are rendered."""

TEST_ARMS = 6
"""Programs that meet test: no rewriting, the best, it as written and with its reader as written, and two references."""

_MADE_UP = (Passage("made-up", "filler " * 85),)
_MANY = 10**6
"""Ways of a knob whose values cannot be counted; there are never more than trials."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a study: what it takes at most, and how its calls were counted, in words.

    Dollars are None where the price is not known, minutes where nobody measured a call.
    """

    name: str
    how: str
    calls: int
    tokens: int
    dollars: float | None
    minutes: float | None

    def row(self) -> dict[str, str]:
        """A row of a table."""
        dollars, minutes = (
            "unknown" if value is None else f"{value:{form}}"
            for value, form in ((self.dollars, ".2f"), (self.minutes, ".1f"))
        )
        counts = {"LM calls": f"{self.calls:,}", "tokens": f"{self.tokens:,}"}
        return {"stage": self.name, **counts, "dollars": dollars, "minutes": minutes}


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a study takes at most, the last stage being all of them, and what the figures rest on, in sentences."""

    stages: tuple[Stage, ...]
    assumptions: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The estimate as a JSON object."""
        *stages, total = [asdict(stage) for stage in self.stages]
        return {**total, "stages": stages, "assumptions": list(self.assumptions)}


def estimate(
    spec: StudySpec,
    space: Space,
    splits: Splits,
    lm: Any,
    *,
    writers: Sequence[Any] = (),
    passages: Sequence[Passage] = (),
    seconds_per_call: float | None = None,
) -> Estimate:
    """What a study that was checked takes at most; nothing is asked.

    Passages are some of the collection, as prompts show them, by default made up, of about 600 characters. Without
    ``seconds_per_call``, of one LM call as ``measure`` gives it, there are no minutes.
    """
    cap = int(lm.kwargs.get("max_tokens") or lm.kwargs.get("max_completion_tokens") or ANSWER_TOKENS)
    likely = engine_of(lm).decides_by_likelihood
    asked, shown = splits.dev[:QUESTIONS], passages or _MADE_UP
    seen = {one.name: _looked_at(one, asked, shown, space.readers[0], likely) for one in space.techniques}
    each = math.ceil(max(longest for _, _, longest in seen.values()) / CHARACTERS_A_TOKEN) + cap
    prices = [_price(one, each, cap) for one in (lm, *writers)]
    price = None if None in prices else max(filter(None, prices), default=0.0)

    def stage(name: str, calls: int, how: str) -> Stage:
        dollars = 0.0 if not calls else None if price is None else calls * price
        minutes = None if seconds_per_call is None else calls * seconds_per_call / 60
        return Stage(name, how, calls, calls * each, dollars, minutes)

    counted = _counted(spec, space, splits, {name: (calls, ways) for name, (calls, ways, _) in seen.items()})
    stages = [stage(*one) for one in counted]
    total = stage("in all, at most", sum(one.calls for one in stages), "")
    named = " and ".join(one.model for one in writers)
    of = "passages of the collection" if passages else "made-up passages of about 600 characters"
    assumed = (
        "nothing is stored yet, and an LM step with the same prompt is asked once in a study, whatever trial asks it; "
        "each knob was looked at by itself for whether it changes a prompt",
        "no call is tried a second time and no unreadable answer asked for once more; both come on top",
        f"every call has {each} tokens, those of the longest prompt of {len(asked)} dev questions with {of} "
        f"({CHARACTERS_A_TOKEN} characters each) and of the longest answer that is allowed ({cap})",
        *(["judges ask another LM, and are counted at the price and pace of the LM"] if spec.judge_lm else []),
        "seconds a call are unknown; they are measured with one real call (--measure)"
        if seconds_per_call is None
        else f"a call takes {seconds_per_call:.2f} seconds, as one that was made did; one at a time",
        *([] if not writers else [f"each call is as dear as the dearest: {named} write, {lm.model} reads"]),
    )
    return Estimate((*stages, total), assumed)


def measure(lm: dspy.LM, program: Any, question: Question) -> float | None:
    """Seconds of one LM call, from running a program over a question for real; its answers are kept and not paid again.

    None where every answer came from the store or nothing was asked.
    """
    began = time.monotonic()
    with asking(lm), metered() as meter:
        program(**question.inputs)
    cost = meter.total
    return min(cost.seconds, time.monotonic() - began) / cost.calls if cost.calls and cost.seconds else None


def _counted(
    spec: StudySpec, space: Space, splits: Splits, asks: dict[str, tuple[int, int]]
) -> Iterator[tuple[str, int, str]]:
    """Name, calls and how they were counted of each stage, from a technique's calls a question and its ways to ask."""
    n_train, n_dev, n_test = map(len, splits)
    last, dear = len(spec.last_prompts), max(asks, key=lambda name: asks[name][0])
    left, calls, said = max(0, space.trials - len(asks)), 0, []
    for name, (asked, ways) in sorted(asks.items(), key=lambda one: -one[1][0]):  # as often as the costly ask anew
        own = space[name]
        times = 1 + min(left, ways * len((*own.early, *own.late)) - 1) if asked else 1
        left, calls = left - times + 1, calls + times * asked * n_dev
        said += [f"{name} {asked} in at most {times} ways"] if asked else []
    how = f"calls a question: {', '.join(said) or 'none'}; each way once for {n_dev} questions"
    yield "techniques, on dev", calls, how
    how = f"{space.trials} trials x {n_dev} questions; equal contexts are read once" if spec.reads else "none reads"
    how += f"; {last} ways to read and the reader as written x {n_dev} questions" if last else ""
    yield "reader, on dev", ((space.trials if spec.reads else 0) + (1 + last if last else 0)) * n_dev, how

    def most(variant: str, technique: str, reads: bool) -> int:
        """Calls that making a prompt takes."""
        prompt = spec.prompt_of(variant)
        if prompt is None or prompt.optimizer is None:
            return 0
        tuned = [key for key in predictors_of(spec, technique) if key.partition(".")[0] in prompt.parts]
        runs = asks[technique][0] + (1 if reads or reads_for(prompt) else 0)
        return OPTIMIZERS[prompt.optimizer].most_calls(n_train, len(tuned), prompt.arguments, calls_per_run=runs)

    made = [most(name, one.name, spec.reads) * _writers(one) for one in space.techniques for name in one.early]
    made += [most(name, dear, True) for name in spec.last_prompts]
    late = sorted(
        (sum(most(name, one.name, spec.reads) for name in one.late) * _writers(one) for one in space.techniques),
        reverse=True,
    )
    how = "each once; late ones for as many techniques as survive" if spec.prompts else "none"
    yield "prompts", sum(made) + sum(late[: spec.survivors]), how
    front, reader = FRONT if len(spec.objectives) > 1 else 0, space.readers[0] is not None
    further = (2 * spec.reader_check + (2 + front) * min(GOLDEN, n_dev)) * reader
    judges = {JUDGED[name] for one in objectives_of(spec.objectives) for name in one.metrics if name in JUDGED}
    if judges:
        shown = int(str(spec.fixed.get("max_passages", MAX_PASSAGES.high)))
        each = sum(shown if "passage" in judge.needs() else 1 for judge in judges)
        count = space.trials * n_dev + (TEST_ARMS + front) * n_test + spec.reader_check * 2
        how = f"{each} a question at most, for {count} results; no passage of a question is judged twice"
        yield "judges", each * count, how
    how = f"{TEST_ARMS + front} programs x {n_test} questions, each as costly as {dear}"
    how += f"; {further} further readings" if further else ""
    yield "test", (TEST_ARMS + front) * n_test * (asks[dear][0] + reader) + further, how


def _writers(space: TechniqueSpace) -> int:
    """LMs that a technique may ask."""
    return max(1, len(space.writers))


def _price(lm: Any, each: int, cap: int) -> float | None:
    """US dollars of a call of so many tokens; None where the price is not known."""
    inner = engine_of(lm).inner
    price = getattr(inner, "price", None)
    if price is None:
        return 0.0 if hasattr(inner, "answers_identity") else None
    request = lm15.Request(model=lm.model.partition("/")[2], messages=(lm15.Message.user("-"),))
    found: float | None = price(request, _response(request, "-", each - cap, cap))
    return found


def _looked_at(
    space: TechniqueSpace, asked: Sequence[Question], shown: Sequence[Passage], reader: str | None, likely: bool
) -> tuple[int, int, int]:
    """LM calls of a technique for a question at most, in how many ways its values let it ask, its longest prompt.

    It is run dry with its values as written and at their largest, and from there one knob at a time.
    """
    name, starts = space.name, [dict(space.given)]
    starts.append({**space.given, **{key: domain.highest for key, domain in space.domains.items()}})
    if technique_class(name).ENGINE is not None and not technique_class(name).LM_STAGES:
        # It asks nothing, and what it finds is read as what no rewriting finds.
        name, starts = PLAIN, [{"max_passages": space.given["max_passages"]}]
    calls, longest, engine = 0, 0, "dense" if name == PLAIN else space.engine

    def run(values: dict[str, Any], questions: Sequence[Question] = asked[:1], engine: str = engine) -> set[str]:
        nonlocal calls, longest
        program = make_program(name, _DryRetriever(engine, shown), reader=reader, **values)
        prompts: set[str] = set()
        for one in questions:
            technique, read = dry_run(program, one, decides_by_likelihood=likely)
            calls, prompts = max(calls, len(technique)), prompts | set(technique)
            longest = max([longest, *map(len, technique), *map(len, read)])
        return prompts

    for start in starts:
        run(start, asked)
    ways = _writers(space)
    for key, domain in space.domains.items() if calls else ():
        ends = (domain.lowest, domain.highest)
        if any(_differ([run(start), *(run({**start, key: one}) for one in ends)]) for start in starts):
            ways *= domain.size or _MANY
    if calls and _differ([run(starts[0], engine=one) for one in space.engines]):
        ways *= len(space.engines)
    return calls, ways, longest


def _differ(asks: list[set[str]]) -> bool:
    """Whether one asks what another does not, more than that it asks less."""
    return any(not (one <= other or other <= one) for one in asks for other in asks)


def dry_run(program: RAG, question: Question, *, decides_by_likelihood: bool) -> tuple[list[str], list[str]]:
    """The prompts of a technique over a ``_DryRetriever`` and of its reader, as far as made-up answers lead.

    An LM that decides choices by likelihood is shown no list of them and no quotation marks.
    """
    engine = _DryEngine(decides_by_likelihood)
    lm = dspy.LM("dry/run", engine=LMEngine(engine, identity="dry"), cache=False, num_retries=0)
    with asking(lm):
        found = program.technique(**question.inputs)
        before = len(engine.asked)
        if program.reader is not None:
            program.reader(**question.inputs, passages=found.passages, findings=found.findings)
    return engine.asked[:before], engine.asked[before:]


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
        system: Any = request.system
        first = system if isinstance(system, str) else "".join(str(part.text) for part in system or ())
        prompt = "\n".join([first, *(str(message.text or "") for message in request.messages)])
        mark = hashlib.sha256(f"{prompt}{(request.config.temperature, request.config.seed)}".encode()).hexdigest()[:8]
        self.asked.append(f"{prompt}{mark}")
        form: Any = request.config.response_format or {}
        fields = form.get("json_schema", form).get("schema", {}).get("properties", {})
        return _response(request, json.dumps({name: _filler(one, f"{name} {mark}") for name, one in fields.items()}))

    def close(self) -> None:
        """There is nothing to close."""


def _response(request: lm15.Request, text: str, read: int = 1, written: int = 1) -> lm15.Response:
    message = lm15.Message.assistant([lm15.TextPart(text)])
    usage = lm15.Usage(input_tokens=read, output_tokens=written, total_tokens=read + written)
    return lm15.Response(id=None, model=request.model, message=message, finish_reason="stop", usage=usage)


@dataclass
class _DryRetriever:
    """Finds as many passages as it is asked for, others for every query; what they say is made up or sampled."""

    engine: str
    passages: Sequence[Passage]

    def __deepcopy__(self, memo: dict[int, Any]) -> _DryRetriever:
        return self

    @property
    def kind(self) -> Kind:
        return "hybrid" if self.engine == "hybrid" else "lexical" if self.engine in {"bm25", "expanded"} else "dense"

    @property
    def fingerprint(self) -> str:
        return f"dry {self.engine}"

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        return [[self._hit(query, rank) for rank in range(1, k + 1)] for query in queries]

    def embed(self, texts: Sequence[str]) -> Vectors:
        return np.ones((len(texts), 2), dtype=np.float32)

    def search_vectors(self, vectors: Any, k: int) -> list[list[Hit]]:
        return self.search([f"vector {place}" for place in range(len(vectors))], k)

    def _hit(self, query: str, rank: int) -> Hit:
        mark = hashlib.sha256(f"{self.engine}\n{query}\n{rank}".encode()).hexdigest()
        one = self.passages[int(mark[:8], 16) % len(self.passages)]
        return Hit(Passage(mark[:16], one.text, f"{one.title} {mark[:6]}".strip()), 0.0, rank)


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
