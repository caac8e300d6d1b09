"""What a study takes at most, before anything is asked: LM calls, tokens, dollars and minutes, stage by stage."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dspy

from querywright.data.splits import Splits
from querywright.data.types import Passage, Question
from querywright.models.lm import engine_of
from querywright.models.usage import metered
from querywright.optimize.evaluate import asking
from querywright.optimize.study.building import last_variants, predictors_of, prompt_of, reads_for
from querywright.optimize.study.dry import DryRun, dry_retriever, dry_run
from querywright.optimize.study.finish import GOLDEN
from querywright.optimize.study.objectives import reads
from querywright.optimize.study.space import Space, TechniqueSpace
from querywright.optimize.study.spec import PLAIN, StudySpec
from querywright.optimize.study.testing import FRONT
from querywright.programs import make_program, technique_class

CHARACTERS_A_TOKEN = 4
ANSWER_TOKENS = 1000
"""Of an answer, where the LM has no limit."""

QUESTIONS = 3
"""Dev questions whose prompts are rendered."""

TEST_ARMS = 6
"""Programs that meet test: no rewriting, the best, it as written and with its reader as written, and two references.

With several objectives those of the front meet it as well.
"""

SAVED = 2
"""Programs that are saved, besides the front: no rewriting and the best."""

_MADE_UP = (Passage("made-up", "filler " * 85),)
_FEW = 6
"""Values of a knob up to which each is looked at; of more, the smallest and the largest."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a study.

    Args:
        name: What it is.
        calls: LM calls at most; None where nothing is known of them.
        tokens: Input and output tokens of these calls, at most.
        how: How the calls were counted, in words.
    """

    name: str
    calls: int | None
    tokens: int | None
    how: str


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a study takes at most, if nothing of it is stored yet.

    Args:
        stages: In their order.
        dollars: Estimated US dollars by stage; None where the price is not known.
        seconds_per_call: Of one LM call; None where nobody measured it.
        at_once: Calls that the LM works at side by side.
        assumptions: All that the figures rest on, in sentences.
    """

    stages: tuple[Stage, ...]
    dollars: tuple[float | None, ...]
    seconds_per_call: float | None
    at_once: int
    assumptions: tuple[str, ...]

    @property
    def calls(self) -> int:
        """LM calls of the stages that something is known of."""
        return sum(stage.calls or 0 for stage in self.stages)

    @property
    def tokens(self) -> int:
        """Tokens of the same."""
        return sum(stage.tokens or 0 for stage in self.stages)

    @property
    def total_dollars(self) -> float | None:
        """Dollars of the same; None where the price is not known."""
        return None if None in self.dollars else sum(one or 0.0 for one in self.dollars)

    @property
    def is_whole(self) -> bool:
        """Whether something is known of every stage."""
        return all(stage.calls is not None for stage in self.stages)

    def minutes(self, calls: int | None) -> float | None:
        """Minutes that so many calls take; None where nobody measured one."""
        if calls is None or self.seconds_per_call is None:
            return None
        return calls * self.seconds_per_call / self.at_once / 60

    def rows(self) -> list[dict[str, str]]:
        """A table: a row a stage, and all of them together."""
        found = [
            self._row(stage.name, stage.calls, stage.tokens, dollars, stage.how)
            for stage, dollars in zip(self.stages, self.dollars, strict=True)
        ]
        whole = "" if self.is_whole else "without what is not known"
        return [*found, self._row("in all, at most", self.calls, self.tokens, self.total_dollars, whole)]

    def to_json(self) -> dict[str, Any]:
        """The estimate as a JSON object."""
        return {
            "stages": [
                {
                    "name": stage.name,
                    "calls": stage.calls,
                    "tokens": stage.tokens,
                    "dollars": dollars,
                    "minutes": self.minutes(stage.calls),
                    "how": stage.how,
                }
                for stage, dollars in zip(self.stages, self.dollars, strict=True)
            ],
            "calls": self.calls,
            "tokens": self.tokens,
            "dollars": self.total_dollars,
            "minutes": self.minutes(self.calls),
            "whole": self.is_whole,
            "seconds_per_call": self.seconds_per_call,
            "at_once": self.at_once,
            "assumptions": list(self.assumptions),
        }

    def _row(self, name: str, calls: int | None, tokens: int | None, dollars: float | None, how: str) -> dict[str, str]:
        minutes = self.minutes(calls)
        return {
            "stage": name,
            "LM calls": "unknown" if calls is None else f"{calls:,}",
            "tokens": "unknown" if tokens is None else f"{tokens:,}",
            "dollars": "unknown" if dollars is None or calls is None else f"{dollars:.2f}",
            "minutes": "unknown" if minutes is None else f"{minutes:.1f}",
            "how": how,
        }


@dataclass(slots=True)
class _Technique:
    """What a technique asks for one question, at most."""

    space: TechniqueSpace
    calls: int = 0
    chars: float = 0.0
    """Of its prompts, on average over the calls of the run that has the longest."""
    read_chars: float = 0.0
    ways: int = 1
    """Choices of its values that ask different things."""

    @property
    def arms(self) -> int:
        """Ways, each with every prompt variant."""
        return self.ways * (len(self.space.early) + len(self.space.late))

    def note(self, run: DryRun) -> frozenset[str]:
        """Take a run into account; gives what it asked."""
        lengths, read = ([len(one.prompt) for one in part] for part in (run.technique, run.reader))
        self.calls = max(self.calls, len(lengths))
        self.chars = max(self.chars, sum(lengths) / len(lengths) if lengths else 0.0)
        self.read_chars = max([self.read_chars, *read])
        return frozenset(one.key for one in run.technique)

    def tokens(self, cap: int) -> int:
        """Of one of its calls."""
        return math.ceil(self.chars / CHARACTERS_A_TOKEN) + cap


def estimate(
    spec: StudySpec,
    space: Space,
    splits: Splits,
    lm: Any,
    *,
    passages: Sequence[Passage] = (),
    seconds_per_call: float | None = None,
    test_arms: int | None = None,
    at_once: int = 1,
) -> Estimate:
    """What a study takes at most. Nothing is asked.

    Args:
        spec: A study that was checked.
        space: Its arms.
        splits: Its questions.
        lm: An LM made by ``resolve_lm``.
        passages: Some of the collection, as prompts show them. Default: made up, of about 600 characters.
        seconds_per_call: Of one LM call, as ``measure`` gives it. Default None: no minutes.
        test_arms: Programs that meet test. Default None: as many as may, which rests on the objectives.
        at_once: Calls that the LM works at side by side. Default 1.
    """
    engine = engine_of(lm)
    shown, by_likelihood = tuple(passages) or _MADE_UP, engine.decides_by_likelihood
    asked = splits.dev[:QUESTIONS]
    reader = next((one for one in space.readers if one is not None), None)
    found = [_look(one, asked, shown, reader, by_likelihood) for one in space.techniques]
    reading = reads(spec.objectives)
    cap = int(lm.kwargs.get("max_tokens") or lm.kwargs.get("max_completion_tokens") or ANSWER_TOKENS)
    n_dev, n_test = len(splits.dev), len(splits.test)

    calls, tokens = _first_asked(found, space.trials, n_dev, cap)
    costliest = max(found, key=lambda one: one.calls * one.tokens(cap))
    a_reading = math.ceil(max(one.read_chars for one in found) / CHARACTERS_A_TOKEN) + cap
    readings = space.trials * n_dev if reading else 0
    front = FRONT if len(spec.objectives) > 1 else 0
    test_arms = TEST_ARMS + front if test_arms is None else test_arms
    tested, reads_test = test_arms * n_test, reader is not None
    stages = [
        Stage("techniques, on dev", calls, tokens, _said(found, space.trials, n_dev)),
        Stage(
            "reader, on dev",
            readings,
            readings * a_reading,
            f"{space.trials} trials x {n_dev} questions; equal contexts are read once"
            if reading
            else "no objective reads",
        ),
        _prompts(spec, found, len(splits.train), reading, a_reading, cap),
        *_last(spec, costliest, splits, a_reading, cap),
        Stage(
            "test",
            tested * (costliest.calls + reads_test),
            tested * (costliest.calls * costliest.tokens(cap) + reads_test * a_reading),
            f"{test_arms} programs x {n_test} questions, each as costly as {costliest.space.name}",
        ),
    ]
    if spec.reader_check and reads_test:
        checks = 2 * spec.reader_check
        how = f"closed book and oracle evidence x {spec.reader_check} further questions"
        stages.append(Stage("reader check", checks, checks * a_reading, how))
    stages += _saving(spec, SAVED + front, n_dev, reads_test and not reading, a_reading)
    dollars = [_dollars(lm, engine.inner, stage, cap) for stage in stages]
    return Estimate(
        tuple(stages), tuple(dollars), seconds_per_call, at_once,
        tuple(_assumptions(found, asked, cap, bool(passages), seconds_per_call, at_once, bool(spec.rewriter))),
    )  # fmt: skip


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
    if not cost.calls:
        return None
    return min(cost.seconds, time.monotonic() - began) / cost.calls if cost.seconds else None


def _look(
    space: TechniqueSpace, asked: Sequence[Question], shown: Sequence[Passage], reader: str | None, likely: bool
) -> _Technique:
    """Run a technique dry with its values as written and at their largest, and from there one knob at a time."""
    found = _Technique(space)
    if technique_class(space.name).ENGINE is not None and not technique_class(space.name).LM_STAGES:
        # It asks nothing, and what it finds is read as what no rewriting finds.
        name, starts = PLAIN, [{"max_passages": space.given["max_passages"]}]
    else:
        largest = {key: domain.highest for key, domain in space.domains.items()}
        name, starts = space.name, [dict(space.given), {**space.given, **largest}]

    def run(engine: str, values: Mapping[str, Any], questions: Sequence[Question]) -> frozenset[str]:
        program = make_program(name, dry_retriever(engine, shown), reader=reader, **values)
        noted = [found.note(dry_run(program, one, decides_by_likelihood=likely)) for one in questions]
        return frozenset().union(*noted)

    engine = "dense" if name == PLAIN else space.engine
    for start in starts:
        run(engine, start, asked)
    if not found.calls:
        return found
    for key, domain in space.domains.items():
        size = domain.size
        values = domain.values if size is not None and size <= _FEW else [domain.lowest, domain.highest]
        around = [
            [run(engine, {**start, key: value}, asked[:1]) for value in (*values, start[key])] for start in starts
        ]
        found.ways *= (size or _MANY) if any(_differ(asks) for asks in around) else 1
    if _differ([run(one, starts[0], asked[:1]) for one in space.engines]):
        found.ways *= len(space.engines)
    return found


def _differ(asks: Sequence[frozenset[str]]) -> bool:
    """Whether one asks what another does not, more than that it asks less."""
    ordered = sorted(asks, key=len)
    return not all(few <= more for few, more in itertools.pairwise(ordered))


_MANY = 10**6
"""Ways of a knob whose values cannot be counted; there are never more than trials."""


def _first_asked(found: Sequence[_Technique], trials: int, n_dev: int, cap: int) -> tuple[int, int]:
    """Calls and tokens of all trials when the costliest techniques are chosen as often as they ask something new."""
    times = {one.space.name: 1 for one in found}
    left = max(0, trials - len(found))
    for one in sorted(found, key=lambda one: -one.calls * one.tokens(cap)):
        more = min(left, one.arms - 1) if one.calls else 0
        times[one.space.name] += more
        left -= more
    calls = {one.space.name: times[one.space.name] * one.calls * n_dev for one in found}
    return sum(calls.values()), sum(calls[one.space.name] * one.tokens(cap) for one in found)


def _said(found: Sequence[_Technique], trials: int, n_dev: int) -> str:
    each = ", ".join(
        f"{one.space.name} {one.calls} in at most {min(one.arms, trials)} ways" for one in found if one.calls
    )
    return f"calls a question: {each or 'none'}; each way once for {n_dev} questions, {trials} trials"


def _prompts(
    spec: StudySpec, found: Sequence[_Technique], n_train: int, reading: bool, a_reading: int, cap: int
) -> Stage:
    """What the optimizers ask."""
    early: list[int] = []
    late: dict[str, int] = {}
    unknown: list[str] = []
    for one in found:
        for variant in (*one.space.early, *one.space.late):
            prompt = prompt_of(spec, variant)
            if prompt is None:
                continue
            most = _most(spec, prompt[0], one, n_train, reading)
            if most is None:
                unknown.append(f"{prompt[0]} for {one.space.name}")
            elif spec.prompts[prompt[0]].is_late:
                late[one.space.name] = late.get(one.space.name, 0) + most
            else:
                early.append(most)
    if unknown:
        said = f"nothing bounds {', '.join(dict.fromkeys(unknown))}; give the study a budget"
        return Stage("prompts", None, None, said)
    surviving = sorted(late.values(), reverse=True)[: spec.survivors]
    calls = sum(early) + sum(surviving)
    how = f"{len(early)} early, and the late ones of {len(surviving)} techniques, each once"
    tokens = calls * max(a_reading, *(one.tokens(cap) for one in found))
    return Stage("prompts", calls, tokens, how if early or late else "none")


def _last(spec: StudySpec, one: _Technique, splits: Splits, a_reading: int, cap: int) -> list[Stage]:
    """What it takes to choose the reader's prompts at the end, where some are named."""
    names = last_variants(spec)
    if not names:
        return []
    found = [prompt_of(spec, name) for name in names]
    each = [_most(spec, prompt[0], one, len(splits.train), True) for prompt in found if prompt is not None]
    bounded = [calls for calls in each if calls is not None]
    readings = (1 + len(names)) * len(splits.dev)
    how = f"{len(names)} ways to read and the reader as written x {len(splits.dev)} questions, and making them"
    if len(bounded) < len(each):
        return [Stage("reader, last", None, None, "nothing bounds how they are made; give the study a budget")]
    calls = sum(bounded) + readings
    return [Stage("reader, last", calls, calls * max(a_reading, one.tokens(cap)), how)]


def _saving(spec: StudySpec, programs: int, n_dev: int, unread: bool, a_reading: int) -> list[Stage]:
    """Golden questions that dev did not read: where no objective reads, or with prompts that were chosen last."""
    if not unread and not last_variants(spec):
        return []
    golden = min(GOLDEN, n_dev)
    calls = programs * golden
    return [Stage("saving", calls, calls * a_reading, f"{programs} programs x {golden} golden questions are read")]


def _most(spec: StudySpec, name: str, one: _Technique, n_train: int, reading: bool) -> int | None:
    prompt = spec.prompts[name]
    if prompt.optimizer is None:
        return 0
    from querywright.optimize.optimizers import OPTIMIZERS

    most = getattr(OPTIMIZERS[prompt.optimizer], "most_calls", None)
    if most is None:
        return None
    parts = {"technique", "reader"} if prompt.part == "all" else {prompt.part}
    tuned = [key for key in predictors_of(spec, one.space.name) if key.partition(".")[0] in parts]
    runs = one.calls + (1 if reading or reads_for(prompt) else 0)
    calls = most(n_train, len(tuned), prompt.arguments, calls_per_run=runs)
    return None if calls is None else int(calls)


def _dollars(lm: Any, inner: Any, stage: Stage, cap: int) -> float | None:
    """The price of a stage, by the price of one call of its size."""
    price = getattr(inner, "price", None)
    if not stage.calls or stage.tokens is None:
        return 0.0 if stage.calls == 0 else None
    if price is None:
        return 0.0 if hasattr(inner, "answers_identity") else None
    from dspy import lm15

    each = stage.tokens // stage.calls
    usage = lm15.Usage(input_tokens=each - cap, output_tokens=cap, total_tokens=each)
    response = lm15.Response(
        id=None, model=lm.model.partition("/")[2], message=lm15.Message.assistant([lm15.TextPart("-")]),
        finish_reason="stop", usage=usage,
    )  # fmt: skip
    request = lm15.Request(model=lm.model.partition("/")[2], messages=(lm15.Message.user("-"),))
    one = price(request, response)
    return None if one is None else float(one) * stage.calls


def _assumptions(
    found: Sequence[_Technique],
    asked: Sequence[Question],
    cap: int,
    real: bool,
    seconds: float | None,
    at_once: int,
    rewritten: bool,
) -> list[str]:
    passages = "passages of the collection" if real else "made-up passages of about 600 characters"
    lines = [
        "nothing is stored yet; what is stored is neither asked nor paid again",
        "an LM step with the same prompt is asked once in a study, whatever trial asks it; each knob was looked at by "
        "itself for whether it changes a prompt",
        "no call is tried a second time and no unreadable answer asked for once more; both come on top",
        f"prompts were rendered for {len(asked)} dev questions with {passages} and made-up answers, as long as the "
        "values of the knobs make them",
        f"{CHARACTERS_A_TOKEN} characters are a token of a prompt; an answer has {cap} tokens, the most that are "
        "allowed",
    ]
    if rewritten:
        lines.append("a call of the rewriter is counted and priced as one of the LM; it costs no dollars")
    if any(one.ways >= _MANY for one in found):
        lines.append("a knob whose values cannot be counted asks something new in every trial")
    if seconds is None:
        lines.append("seconds a call are unknown; they are measured with one real call (--measure)")
    else:
        lines.append(f"a call takes {seconds:.2f} seconds, as one that was made did; {at_once} at a time")
    return lines
