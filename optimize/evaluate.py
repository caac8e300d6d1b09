"""Run programs on questions and keep the result of each question. A failure never counts as a score."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import dspy
from dspy.utils.exceptions import LMError

from querywright.data.types import Label, Question
from querywright.errors import InputError, QuerywrightError
from querywright.metrics.answers import is_invalid_choice
from querywright.metrics.dspy_metrics import METRICS, Metric, needs
from querywright.metrics.judge import JudgedMetric, Judgement
from querywright.metrics.statistics import Mean, PairedTest, mean_with_interval, paired_exact_test
from querywright.metrics.usefulness import usefulness
from querywright.models.transcript import Exchange, Transcript
from querywright.models.usage import Cost, Ledger, metered
from querywright.optimize.contexts import asking as asking
from querywright.optimize.failures import (
    Failures,
    MetricError,
    TooManyFailuresError,
    failure_kind,
    failure_message,
    map_runs,
    with_place,
)
from querywright.programs.rag import RAG
from querywright.progress import Bar, LiveArm
from querywright.progress import Progress as Progress
from querywright.retrieval.checks import rebuilt

if TYPE_CHECKING:
    import pandas

DEFAULT_METRICS: Mapping[str, Metric] = {name: METRICS[name] for name in ("accuracy", "decision_useful")}


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one question.

    Args:
        id: Id of the question.
        scores: Value of each metric; NaN if it could not be scored.
        label: Label of the passages as a whole, from the evidence or else from a judge of usefulness; None without
            either.
        answer: The answer; None without a reader.
        support: Ids of the passages that support the answer; None if the reader does not name them.
        invalid: Whether the answer to a multiple-choice question does not name an option.
        passages: Ids of the passages shown, best first.
        found: Ids of all passages that the searches returned, before fusion and truncation, in order of appearance.
        queries: Role and text of each query.
        fallbacks: Names of the steps that used a fallback.
        seconds: Seconds from question to answer. Time spent waiting for the LM counts; time spent loading a model does
            not.
        cost: The program's LM calls and tokens for this question, even if it failed.
        failure: ``lm``, ``parse``, ``prompt_too_long``, ``judge``, ``metric``, or ``bug``; None without a failure.
        message: Message of the failure.
        unjudged: Number of passages without a label.
        judgements: Labels that each judge gave to the passages and the answer.
        rebuilt: Names of the collections that were rebuilt after the retrievers that searched them were opened.
        exchanges: Prompts and answers of the program's LM calls in order, including cached answers but not the calls by
            judges. Empty if no transcript is kept.
    """

    id: str
    scores: Mapping[str, float]
    label: Label | None = None
    answer: str | None = None
    support: tuple[str, ...] | None = None
    invalid: bool = False
    passages: tuple[str, ...] = ()
    found: tuple[str, ...] = ()
    queries: tuple[tuple[str, str], ...] = ()
    fallbacks: tuple[str, ...] = ()
    seconds: float = 0.0
    cost: Cost = field(default_factory=Cost)
    failure: str | None = None
    message: str = ""
    unjudged: int = 0
    judgements: tuple[Judgement, ...] = ()
    rebuilt: tuple[str, ...] = ()
    exchanges: tuple[Exchange, ...] = field(default=(), repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return the row as a JSON object, without prompts; NaN becomes null."""
        return {
            **{
                one.name: list(value) if isinstance(value := getattr(self, one.name), tuple) else value
                for one in fields(self)
                if one.name != "exchanges"
            },
            "scores": {name: finite(value) for name, value in self.scores.items()},
            "label": None if self.label is None else str(self.label),
            "queries": [{"role": role, "text": text} for role, text in self.queries],
            "seconds": round(self.seconds, 3),
            "cost": self.cost.to_json(),
            "judgements": [asdict(one) for one in self.judgements],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Row:
        """Return the row that ``to_json`` wrote."""
        changes = {
            "scores": {name: math.nan if value is None else value for name, value in data["scores"].items()},
            "label": None if data["label"] is None else Label(data["label"]),
            "queries": tuple((query["role"], query["text"]) for query in data["queries"]),
            "cost": Cost.from_json(data["cost"]),
            "judgements": tuple(Judgement(**one) for one in data.get("judgements", ())),
        }
        kept: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
        }
        return cls(**(kept | changes))


class Results:
    """Program results that can be shown as text in a terminal, as tables in a notebook, or as a DataFrame."""

    __slots__ = ()

    def _told(self) -> tuple[Sequence[Evaluation], Sequence[str], Sequence[Question]]:
        """Return the evaluations, sentences about the evaluations, and the questions if they are known."""
        raise NotImplementedError

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row per program and question; the columns are those of ``question_rows``."""
        import pandas

        from querywright.optimize.tables import question_rows

        told: Any = self._told()
        evaluations, _, questions = told
        return pandas.DataFrame(question_rows(evaluations, questions))

    def __repr__(self) -> str:
        from querywright.optimize.tables import percent

        evaluations, sentences, _ = self._told()
        arms = (
            f"{one.name} (n {len(one.rows)}): "
            + (", ".join(f"{name} {percent(one.mean(name))}" for name in one.metrics) or "nothing scored")
            for one in evaluations
        )
        return "\n".join([*arms, *sentences])

    def _repr_html_(self) -> str:
        from querywright.optimize.report import results_html

        told: Any = self._told()
        evaluations, sentences, _ = told
        return results_html(evaluations, sentences, getattr(self, "comparisons", ()))


@dataclass(frozen=True, slots=True, repr=False)
class Evaluation(Results):
    """Results of one program on a set of questions.

    Args:
        name: Name of the program.
        rows: One row per question, in the order of the questions.
        seconds: Wall time of the run. If programs shared the threads, the time is split in proportion to the time that
            their questions took, so that the parts add up to the whole.
    """

    name: str
    rows: tuple[Row, ...]
    seconds: float

    def values(self, metric: str) -> list[float]:
        """Return the value of a metric for each question; NaN if it could not be scored."""
        return [row.scores.get(metric, math.nan) for row in self.rows]

    def mean(self, metric: str) -> Mean:
        """Return the mean of a metric with its interval and the number of scored and unscored questions."""
        return mean_with_interval(self.values(metric))

    def average(self, metric: str) -> float:
        """Return the mean of a metric without its interval, which is slow to compute for many programs."""
        return _average([value for value in self.values(metric) if not math.isnan(value)])

    def against(self, other: Evaluation, metric: str) -> PairedTest:
        """Return the paired test of this program against another program on the same questions.

        Raises:
            InputError: The questions differ.
        """
        if [row.id for row in self.rows] != [row.id for row in other.rows]:
            raise InputError(f"{self.name} and {other.name} were not evaluated on the same questions")
        return paired_exact_test(self.values(metric), other.values(metric))

    @property
    def metrics(self) -> list[str]:
        """The metrics that scored at least one question."""
        names = list(dict.fromkeys(name for row in self.rows for name in row.scores))
        return [name for name in names if not all(math.isnan(value) for value in self.values(name))]

    @property
    def cost(self) -> Cost:
        """LM calls and tokens for all questions."""
        return sum((row.cost for row in self.rows), Cost())

    @property
    def calls_per_question(self) -> float:
        """LM calls per question, including cached calls."""
        return self.cost.asked / max(1, len(self.rows))

    @property
    def tokens_per_question(self) -> float:
        """Input and output tokens per question, including the tokens of cached calls."""
        return self.cost.asked_tokens / max(1, len(self.rows))

    @property
    def failures(self) -> Counter[str]:
        """The number of failed questions of each kind."""
        return Counter(row.failure for row in self.rows if row.failure is not None)

    def label_share(self, label: Label) -> float:
        """Return the share of the labeled questions whose passages as a whole have this label; NaN without labels."""
        return _average([row.label is label for row in self.rows if row.label is not None])

    @property
    def unjudged_share(self) -> float:
        """The share of the shown passages that are unlabeled; NaN without passages."""
        shown = sum(len(row.passages) for row in self.rows)
        return sum(row.unjudged for row in self.rows) / shown if shown else math.nan

    @property
    def fallback_rate(self) -> float:
        """The share of the successful questions in which a step used a fallback."""
        return _average([bool(row.fallbacks) for row in self.rows if row.failure is None])

    @property
    def unreadable_rate(self) -> float:
        """The share of the LM's answers that could not be parsed, even after a second request; NaN without answers."""
        return self.cost.unreadable / self.cost.answers if self.cost.answers else math.nan

    @property
    def invalid_rate(self) -> float:
        """The share of the answered questions whose answer does not name an option."""
        return _average([row.invalid for row in self.rows if row.answer is not None])

    def latency(self, quantile: float) -> float:
        """Return the time in seconds within which this share of the questions was answered; NaN without such questions.

        Failed questions do not count, and neither do questions with a cached answer, because a cached answer takes no
        time.
        """
        seconds = sorted(row.seconds for row in self.rows if row.failure is None and not row.cost.saved)
        return seconds[max(0, math.ceil(quantile * len(seconds)) - 1)] if seconds else math.nan

    def to_json(self, *, rows: bool = False) -> dict[str, Any]:
        """Return a summary as a JSON object, with all rows if ``rows`` is true."""
        data: dict[str, Any] = {
            "arm": self.name,
            "n": len(self.rows),
            "metrics": {name: mean_json(self.mean(name)) for name in self.metrics},
            "labels": {str(label): finite(self.label_share(label)) for label in Label},
            "unjudged": finite(self.unjudged_share),
            "fallback_rate": finite(self.fallback_rate),
            "invalid_rate": finite(self.invalid_rate),
            "unreadable_rate": finite(self.unreadable_rate),
            "failures": dict(self.failures),
            "cost": self.cost.to_json(),
            "seconds": round(self.seconds, 3),
            "latency": {"p50": finite(self.latency(0.5)), "p95": finite(self.latency(0.95))},
        }
        if rows:
            data["rows"] = [row.to_json() for row in self.rows]
        return data

    def _told(self) -> tuple[Sequence[Evaluation], Sequence[str], Sequence[Question]]:
        return [self], [], []


def _average(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def mean_json(mean: Mean) -> dict[str, Any]:
    """Return a mean as a JSON object; NaN becomes null."""
    return {name: finite(value) for name, value in asdict(mean).items()}


@dataclass(slots=True)
class _Attempt:
    """One question in one program, with its cost, transcript, and seconds so far."""

    arm: str
    place: int
    meter: Ledger = field(default_factory=Ledger)
    transcript: Transcript = field(default_factory=Transcript)
    seconds: float = 0.0


def evaluate(
    program: RAG,
    questions: Sequence[Question],
    *,
    name: str,
    failures: Failures | None = None,
    met: Callable[[Row], object] = lambda _: None,
    **given: Any,
) -> Evaluation:
    """Run one program on questions and score it.

    Args:
        program: A technique and a reader.
        questions: The questions, in order.
        name: Name of the program.
        failures: Counts failed questions across several evaluations, such as one per block of questions, and replaces
            ``max_failures``. Default None: this evaluation counts only its own.
        met: Called with each question's row when the question ends.
        given: Further arguments for `evaluate_all`, which also documents the errors.
    """
    counts = None if failures is None else {name: failures}
    return evaluate_all({name: program}, questions, failures=counts, met=lambda _, row: met(row), **given)[name]


def evaluate_all(
    programs: Mapping[str, RAG],
    questions: Sequence[Question],
    *,
    lm: dspy.LM,
    metrics: Mapping[str, Metric] = DEFAULT_METRICS,
    threads: int = 4,
    max_failures: float = 0.05,
    failures: Mapping[str, Failures] | None = None,
    progress: Progress | None = None,
    met: Callable[[str, Row], object] = lambda *_: None,
    on_out: Callable[[str, TooManyFailuresError], object] | None = None,
    transcribed: Collection[str] = (),
) -> dict[str, Evaluation]:
    """Run programs on the same questions in one thread pool, and score them.

    The questions of all programs share the threads, so that the LM stays busy even if there are few questions. A
    program's answers do not depend on the other programs. A failed question is recorded as a failure and not scored; it
    never counts as zero.

    Args:
        programs: The programs by name.
        questions: The questions, in order.
        lm: An LM from ``resolve_lm``.
        metrics: DSPy metrics by name; answer metrics are left out for a program without a reader. Default accuracy
            and decision_useful.
        threads: Number of questions to run at a time, 1 or more. Default 4.
        max_failures: Share of a program's questions that may fail, 0 to 1; at least one may fail unless it is 0.
            Default 0.05.
        failures: Counters of failed questions by program, used instead of ``max_failures``. Default None.
        progress: Called after each question.
        met: Called with the program and the question's row when a question ends.
        on_out: Called with the name of a program that has too many failed questions, and with the error. The program's
            remaining questions are skipped, and it has no results. Default None: raise the error.
        transcribed: Programs whose rows keep the prompts and answers of LM calls (several kilobytes per call). Default
            none.

    Raises:
        OutageError: The LM cannot be reached; nothing is scored.
        BudgetError: The call limit is reached.
        TooManyFailuresError: More questions failed than allowed.
        InputError: A question does not suit the program, or a value is out of range.
    """
    chosen = {
        name: {n: m for n, m in metrics.items() if one.reader is not None or "reader" not in needs(n)}
        for name, one in programs.items()
    }
    queue = [_Attempt(*one) for one in in_order(programs, len(questions), threads)]
    runs = failures or {name: Failures(name, len(questions), max_failures) for name in programs}
    rows: dict[str, dict[int, Row]] = {name: {} for name in programs}
    busy = dict.fromkeys(programs, 0.0)

    def ask(one: _Attempt) -> Row:
        began = time.monotonic()
        try:
            with metered(one.meter):
                heard = one.transcript if one.arm in transcribed else None
                return _ask(programs[one.arm], questions[one.place], chosen[one.arm], one.meter, heard)
        finally:
            one.seconds = time.monotonic() - began

    def ended(position: int, result: Row | Exception) -> None:
        one = queue[position]
        row = result if isinstance(result, Row) else Row(
            id=questions[one.place].id, scores=dict.fromkeys(chosen[one.arm], math.nan), seconds=one.seconds,
            cost=one.meter.total, failure=failure_kind(result), message=failure_message(result)[:500],
            exchanges=one.transcript.exchanges,
        )  # fmt: skip
        rows[one.arm][one.place] = row
        busy[one.arm] += one.seconds
        met(one.arm, row)

    def out(run: Failures, error: TooManyFailuresError) -> None:
        del rows[run.name]
        assert on_out is not None
        on_out(run.name, error)

    began = time.monotonic()
    with asking(lm):  # the threads use copies of this context
        map_runs(
            ask, queue, [runs[one.arm] for one in queue], id_of=lambda one: questions[one.place].id, threads=threads,
            progress=progress, on_done=ended, on_out=on_out and out,
        )  # fmt: skip
    share = (time.monotonic() - began) / (sum(busy[name] for name in rows) or 1.0)
    return {
        name: Evaluation(name, tuple(found[place] for place in range(len(questions))), busy[name] * share)
        for name, found in rows.items()
    }


def in_order(programs: Mapping[str, RAG], count: int, threads: int) -> list[tuple[str, int]]:
    """Return the program and position of each question in the order in which the questions start.

    Programs take turns. The more LM calls a program makes in sequence, the earlier its questions start. Otherwise, its
    last questions would still be running when most threads have nothing left to do.
    """
    pairs = [(name, place) for place in range(count) for name in programs]
    if len(programs) == 1:
        return pairs
    in_turn = {name: one.technique.LM_STAGES + (one.reader is not None) for name, one in programs.items()}
    return sorted(pairs, key=lambda pair: pair[1] - in_turn[pair[0]] * threads / len(programs))


def _ask(
    program: RAG, question: Question, metrics: Mapping[str, Metric], meter: Ledger, transcript: Transcript | None
) -> Row:
    example = question.to_example()
    began = time.monotonic()
    with transcript or nullcontext():
        prediction = program(**question.inputs)
    seconds = time.monotonic() - began - meter.loaded
    cost = meter.total  # a judge's calls do not belong to the program
    ids = tuple(passage.id for passage in prediction.passages)
    searches = [step.made for step in prediction.steps if step.kind == "search" and step.made is not None]
    scores, judgements = _scores(metrics, example, prediction)
    asked = judged_question(question, judgements)
    judged = usefulness(
        ids, asked.evidence, jointly=asked.jointly, pooled=bool(asked.assessors), alternatives=asked.alternatives
    )
    answer = prediction.answer
    return Row(
        id=question.id,
        scores=scores,
        label=judged.label,
        answer=answer,
        support=None if prediction.get("support") is None else tuple(prediction.support),
        invalid=bool(question.options) and answer is not None and is_invalid_choice(answer, question.options),
        passages=ids,
        found=tuple(dict.fromkeys(key for made in searches for ids in made.values() for key in ids)),
        queries=tuple((query.role, query.text) for query in prediction.queries),
        fallbacks=tuple(prediction.fallbacks),
        seconds=seconds,
        cost=cost,
        unjudged=judged.unjudged,
        judgements=judgements,
        rebuilt=tuple(sorted(rebuilt(meter.searched))),
        exchanges=() if transcript is None else transcript.exchanges,
    )


def _scores(
    metrics: Mapping[str, Metric], example: Any, prediction: Any
) -> tuple[dict[str, float], tuple[Judgement, ...]]:
    """Return the value of each metric, and the judgments; metrics that use the same judge share its judgments."""
    scores: dict[str, float] = {}
    said: dict[tuple[int, int], list[Judgement]] = {}
    for name, metric in metrics.items():
        if isinstance(metric, JudgedMetric):
            judge = id(metric.judge), id(metric.lm)
            if judge not in said:
                said[judge] = metric.judgements(example, prediction)
            scores[name] = metric.score(said[judge])
        else:
            scores[name] = metric_value(name, metric, example, prediction)
    return scores, tuple(one for judgements in said.values() for one in judgements)


def metric_value(name: str, metric: Metric, example: Any, prediction: Any) -> float:
    """Return the value of a metric; an error that it raises becomes a ``MetricError`` with the metric's name."""
    try:
        value = float(metric(example, prediction))
    except (LMError, QuerywrightError):
        raise
    except Exception as error:
        raise MetricError(f"the metric {name} raised {with_place(error)}") from error
    if math.isinf(value):
        raise MetricError(
            f"the metric {name} must return a finite number, but got {value}; return NaN for a question that cannot be "
            "scored"
        )
    return value


def judged_question(question: Question, judgements: Iterable[Judgement]) -> Question:
    """Return the question with the labels from judges of usefulness as its evidence. Unreadable judgments add no label.

    Existing labels stay unchanged, and so does the evidence of a question whose labels cover all passages.
    """
    said = {one.passage: one for one in reversed(list(judgements)) if one.passage and one.label in set(Label)}
    if not said or (question.evidence and not question.assessors):
        return question
    new = {key: one for key, one in sorted(said.items()) if key not in question.evidence}
    return replace(
        question,
        evidence={**question.evidence, **{key: Label(str(one.label)) for key, one in new.items()}},
        assessors={**question.assessors, **{key: (one.by,) for key, one in new.items()}},
        jointly=question.jointly and bool(question.evidence),
    )


def finite(value: float) -> float | None:
    """Return the value, or None for NaN, because JSON does not support NaN."""
    return None if math.isnan(value) else value


def live_arm(name: str, state: str, values: Sequence[float], total: int, done: int | None = None) -> LiveArm:
    """Return the current state of a program in a run.

    Args:
        name: Name of the program.
        state: ``waiting``, ``running``, or ``done``.
        values: Score of each finished question; NaN if it could not be scored.
        total: Number of questions.
        done: Number of finished questions. Default: the number of values.
    """
    found = mean_with_interval(values)
    mean, low, high = (finite(one) for one in (found.value, found.low, found.high))
    done = len(values) if done is None else done
    return {
        "name": name, "state": state, "done": done, "unscored": done - found.n, "total": total,
        "mean": mean, "low": low, "high": high,
    }  # fmt: skip


def stands(
    progress: Progress | None,
    told: Callable[[], tuple[str, list[LiveArm]]],
    spent: Callable[[], str] | None = None,
) -> None:
    """Show the metric and each program's current score in a progress bar. A progress callable does not receive them."""
    if isinstance(progress, Bar):
        progress.stand(told, spent)


def standing(rows: Mapping[str, Sequence[Row]], total: int, metrics: Iterable[str]) -> tuple[str, list[LiveArm]]:
    """Return the first metric that has a value, and its current value for each program.

    Args:
        rows: The results of each program so far.
        total: Number of questions of each program.
        metrics: Names of the metrics.
    """
    now = {name: list(each) for name, each in rows.items()}  # other threads extend the lists in the meantime
    scored = (
        name
        for name in metrics
        if any(not math.isnan(row.scores.get(name, math.nan)) for each in now.values() for row in each)
    )
    metric = next(scored, next(iter(metrics), ""))
    return metric, [
        live_arm(
            name, "waiting" if not each else "done" if len(each) == total else "running",
            [row.scores.get(metric, math.nan) for row in each], total,
        )
        for name, each in now.items()
    ]  # fmt: skip
