"""An LM as a judge: the base class for judges, and the class that uses a judge as a metric.

A judge reads parts of a case and assigns one of a few labels. It sees neither the technique that found a passage nor
the queries. Report the judge's name next to each of its figures, and compare the judge with people's labels before you
trust it (``querywright judge calibrate``).
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import re
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import dspy
from dspy.utils.exceptions import AdapterParseError, LMError

from querywright.data.judged import Case
from querywright.data.types import PERSON, Question, turns_of
from querywright.errors import BudgetError, DataError, InputError, OutageError, PromptTooLongError, unknown
from querywright.metrics.usefulness import passage_labels
from querywright.models.adapter import PromptAdapter, show_passages
from querywright.models.usage import Ledger, metered
from querywright.pool import bounded_map

if TYPE_CHECKING:
    from querywright.metrics.calibration import Calibration

_FIELD_MARKER = re.compile(r"\[\[(?=\s*##)")

NEEDS = {
    "right_answer": "no right answer for the judge; add the right answer{other}",
    "passage": "no passage for the judge; add a passage",
    "passages": "no passages for the judge; add at least one passage",
    "response": "no answer to judge; add an answer, or use a reader",
    "point": "no point to look for; add a point",
}
"""The parts of a case that a judge may require, each with the message to show if the part is missing."""


class JudgeFailedError(LMError):
    """The judge's LM failed on one case; the program being judged did not fail."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """One judgment by a judge or a person.

    Args:
        passage: Id of the passage; empty if an answer was judged.
        label: A label on the judge's scale; None if the judge's answer could not be read.
        by: ``person``, or the judge's name.
        reason: The judge's reason, if it gives one; for a guideline, the point. Default "".
    """

    passage: str
    label: str | None
    by: str
    reason: str = ""


class Judge(dspy.Module):
    """Labels a case with the LM in the DSPy settings.

    A judge is a subclass with the attributes below; ``judges.py`` lists all judges.

    Attributes:
        NAME: The judge's name.
        METRIC: Name of the judge's metric.
        ALSO: Additional metrics based on the same judgments: for each metric name, the score of each label.
        SIGNATURE: The prompt. Its inputs are parts of a case: ``question``, ``options``, ``right_answer``,
            ``passage`` (one passage), ``passages`` (all of them), ``response`` (the answer to judge), and ``point``.
            Its last output, ``label``, is a ``Literal`` of the labels; a ``reason`` may come before it.
        SCALE: The labels, worst first, each with its score from 0 to 1.
        GRADES: The label for each grade that people gave, from 1 (wrong) to 4 (right and complete), as in LiveQA; empty
            if such grades do not apply.
        OTHER: If the judge needs the right answer, the judge with the same labels that does not need it.
    """

    NAME: ClassVar[str]
    METRIC: ClassVar[str]
    SIGNATURE: ClassVar[type[dspy.Signature]]
    SCALE: ClassVar[Mapping[str, float]]
    GRADES: ClassVar[Mapping[int, str]] = {}
    ALSO: ClassVar[Mapping[str, Mapping[str, float]]] = {}
    OTHER: ClassVar[type[Judge] | None] = None

    def __init__(self) -> None:
        super().__init__()
        self.label = dspy.Predict(self.SIGNATURE)

    @classmethod
    def inputs(cls) -> tuple[str, ...]:
        """Return the parts of a case that the judge sees."""
        return tuple(cls.SIGNATURE.input_fields)

    @classmethod
    def needs(cls) -> tuple[str, ...]:
        """Return the parts of a case that the judge requires, other than the question."""
        return tuple(name for name in cls.inputs() if name in NEEDS)

    @classmethod
    def metrics(cls) -> dict[str, Mapping[str, float]]:
        """Return the judge's metrics: for each metric name, the score of each label."""
        return {cls.METRIC: cls.SCALE, **cls.ALSO}

    @classmethod
    def spellings(cls) -> dict[str, str]:
        """Return the label for each spelling that people may use: the labels, grades, and true and false."""
        found = {label.upper(): label for label in cls.SCALE} | {str(n): label for n, label in cls.GRADES.items()}
        return found | ({"TRUE": "yes", "FALSE": "no"} if set(cls.SCALE) == {"yes", "no"} else {})

    def forward(self, **parts: Any) -> dspy.Prediction:
        """Return a prediction with the judgment in the ``label`` field.

        Args:
            parts: The parts of a case that ``inputs`` names, as returned by ``shown``.

        Raises:
            AdapterParseError: The LM's answer could not be read as a label.
        """
        return self.label(**parts)

    def lacks(self, case: Case) -> str:
        """Return the first required part that the case does not have; empty if it has all of them.

        A blank response counts as a response that declines.
        """
        parts = _parts(case)
        return next((n for n in self.needs() if parts[n] is None or (parts[n] == "" and n != "response")), "")

    def shown(self, case: Case) -> dict[str, Any]:
        """Return the parts of a case for the prompt, each text on one line so that it cannot start a new field.

        Raises:
            DataError: The case lacks a required part, or has several passages and the judge reads only one.
        """
        missing = self.lacks(case)
        if missing:
            other = f", or use the judge {self.OTHER.NAME!r}" if self.OTHER else ""
            raise DataError(f"the question {case.question.question!r} has {NEEDS[missing].format(other=other)}")
        if "passage" in self.needs() and len(case.passages) != 1:
            raise DataError(f"the judge {self.NAME!r} requires exactly one passage, but got {len(case.passages)}")
        parts = _parts(case)
        return {name: parts[name] for name in self.inputs()}

    def label_of(self, case: Case) -> str | None:
        """Return the label for a case; None if the LM's answer could not be read as a label.

        Errors are as in ``judgement``.
        """
        made = self.judgement(case)
        return None if made is None else str(made.label)

    def judgement(self, case: Case) -> dspy.Prediction | None:
        """Return the label for a case with the judge's other outputs, such as its reason; None if it is unreadable.

        Raises:
            DataError: As in ``shown``.
            dspy.LMError: The LM failed; a failure is not a judgment and is not hidden.
        """
        shown = self.shown(case)
        try:
            made: dspy.Prediction = self(**shown)
        except AdapterParseError:
            return None
        return made if made.get("label") in self.SCALE else None  # some adapters return an answer without this field

    def cases(self, question: Question, prediction: Any) -> list[Case]:
        """Return the cases to judge in a program's prediction: each passage separately, or the answer."""
        passages = tuple(prediction.passages)
        if "passage" in self.needs():
            return [Case(question, (passage,)) for passage in passages]
        return [Case(question, passages, getattr(prediction, "answer", None))]

    def score(self, labels: Sequence[str | None], metric: str = "") -> float:
        """Return a question's score from the labels of its cases: the score of the best case.

        Unreadable labels are ignored. The score is 0 if no passage was found, and NaN if no label could be read or
        there was no answer.

        Args:
            labels: One label per case.
            metric: One of ``metrics``. Default: the first.
        """
        scale = self.metrics()[metric or self.METRIC]
        known = [scale[label] for label in labels if label is not None]
        return max(known, default=math.nan if labels or "passage" not in self.needs() else 0.0)

    def digest(self) -> str:
        """Return the SHA-256, as hex, of the judge's prompts: instructions, fields, labels, and demonstrations."""
        prompts: dict[str, Any] = {}
        for name, predictor in self.named_predictors():
            signature: Any = predictor.signature
            fields = {key: (field.json_schema_extra or {}).get("desc") for key, field in signature.fields.items()}
            demos = [{key: value for key, value in demo.items() if key != "augmented"} for demo in predictor.demos]
            prompts[name] = [signature.instructions, fields, demos]
        data = json.dumps([self.NAME, dict(self.SCALE), prompts], ensure_ascii=False, sort_keys=True)
        return hashlib.sha256(data.encode()).hexdigest()


class JudgedMetric:
    """A judge as a DSPy metric.

    The example has ``question``, ``options``, and, if the judge needs it, ``answer``; the prediction has ``passages``
    and ``answer``. If the right answer is unknown, the judge that does not need it is used instead. The value is NaN if
    another required part is missing or no label could be read (0.0 if ``trace`` is given, because NaN would count as a
    success). A case that does not fit into the LM's context counts as unreadable.

    Args:
        judge: Any judge. For a passage judge, the value is the score of the best passage; for an answer judge, the
            score of the answer.
        lm: The judge's LM. Default: the LM and the adapter in the DSPy settings.
        threads: Number of judgments per question that run in parallel, 1 or more; the LM's engine limits the total
            number of calls. Default 8.

    Attributes:
        name: Name of the metric, one of the judge's metrics.
        calibration: The judge's calibration; None without one.
        counts: Number of judgments: ``known`` (no call needed), ``asked``, and, of those asked, ``unreadable`` and
            ``without answer``.
        spent: Cost of the judge's calls.
    """

    def __init__(self, judge: Judge, *, lm: dspy.LM | None = None, threads: int = 8) -> None:
        if threads < 1:
            raise InputError(f"threads must be 1 or more, but got {threads}")
        self.judge, self.lm, self.name, self.threads = judge, lm, judge.METRIC, threads
        self.calibration: Calibration | None = None
        self.counts: Counter[str] = Counter()
        self.spent = Ledger()
        self._other = None if judge.OTHER is None else judge.OTHER()
        self._lock = threading.Lock()

    def of(self, name: str) -> Self:
        """Return another metric for the same judge, which shares its threads and counts.

        Raises:
            InputError: The judge has no such metric.
        """
        if name not in self.judge.metrics():
            raise InputError(unknown(f"metric for the judge {self.judge.NAME!r}", name, self.judge.metrics()))
        found = copy.copy(self)
        found.name = name
        return found

    def __call__(self, example: Any, prediction: Any, trace: Any = None) -> float:
        """Return a question's score."""
        score = self.score(self.judgements(example, prediction))
        return 0.0 if trace is not None and math.isnan(score) else score

    def score(self, judgements: Sequence[Judgement]) -> float:
        """Return a question's score from its judgments."""
        return self.judge.score([one.label for one in judgements], self.name)

    def judgements(self, example: Any, prediction: Any) -> list[Judgement]:
        """Return the judgment of each passage in order, or of the answer; empty if a required part is missing.

        Labels from a person or from this judge in the example's evidence are reused; the other passages are judged in
        parallel.

        Raises:
            OutageError: The judge's LM cannot be reached.
            JudgeFailedError: The judge's LM failed for another reason.
            BudgetError: The limit on calls was reached.
        """
        question = _question(example)
        judge = self._other if question.answer is None and self._other is not None else self.judge
        cases = judge.cases(question, prediction)
        if any(judge.lacks(case) for case in cases):
            return []
        by = [PERSON, judge.NAME, f"{judge.NAME}:{getattr(self.lm or dspy.settings.lm, 'model', '')}"]
        return self._said(judge, cases, _known(judge, question, by))

    def _said(self, judge: Judge, cases: Sequence[Case], known: Mapping[str, Judgement]) -> list[Judgement]:
        """Return the judgments of these cases, in order.

        Judgments in ``known``, by passage id, are reused; the LM judges the other cases.
        """
        asked = [case for case in cases if _id(judge, case) not in known]
        if asked and (self.lm or dspy.settings.lm) is None:
            raise InputError(f"the judge {judge.NAME!r} has no LM; set judge_lm= or lm=")
        context: Any = nullcontext()
        if self.lm is not None:
            context = dspy.context(lm=self.lm, adapter=PromptAdapter(), disable_history=True, trace=None)
        with context, metered(self.spent):  # the threads work in copies of this context
            answers: list[Any] = bounded_map(
                lambda case: self._asked(judge, case), asked, threads=self.threads, on_done=_raise
            )
        with self._lock:
            self.counts.update(
                {"asked": len(asked), "known": len(cases) - len(asked)}
                | {"unreadable": sum(one.label is None for one in answers)}
                | {"without answer": len(asked) if judge is self._other else 0}
            )
        said = iter(answers)
        return [known.get(_id(judge, case)) or next(said) for case in cases]

    def _asked(self, judge: Judge, case: Case) -> Judgement:
        try:
            made = judge.judgement(case)
        except PromptTooLongError:
            made = None
        except BudgetError:
            raise
        except (LMError, OutageError) as error:
            lm = getattr(self.lm or dspy.settings.lm, "model", "the LM configured in DSPy")
            of = OutageError if isinstance(error, OutageError) else JudgeFailedError
            raise of(f"error in the judge {judge.NAME!r} ({lm}), not in the program: {error}") from error
        if made is None:
            return Judgement(_id(judge, case), None, judge.NAME)
        return Judgement(_id(judge, case), str(made.label), judge.NAME, str(made.get("reason") or ""))


def _question(example: Any) -> Question:
    return Question(
        id=str(getattr(example, "id", "")),
        question=example.question,
        options=tuple(getattr(example, "options", None) or ()),
        answer=(getattr(example, "answer", None) or "").strip() or None,
        history=turns_of(getattr(example, "history", None)),
        evidence=getattr(example, "evidence", None) or {},
        jointly=bool(getattr(example, "jointly", False)),
        assessors=getattr(example, "assessors", None) or {},
        alternatives=getattr(example, "alternatives", None) or (),
    )


def _known(judge: Judge, question: Question, by: Sequence[str]) -> dict[str, Judgement]:
    """Return the evidence labels on this judge's scale, keyed by passage id, with the first assessor in ``by``."""
    known = {}
    labels = passage_labels(
        question.evidence, question.evidence, jointly=question.jointly, alternatives=question.alternatives
    )
    for key, label in zip(question.evidence, labels, strict=True):
        who = next((one for one in by if one in question.assessors.get(key, (PERSON,))), None)
        if who is not None and str(label) in judge.SCALE:
            known[key] = Judgement(key, str(label), who)
    return known


def _id(judge: Judge, case: Case) -> str:
    """Return the id of the passage to judge; empty for an answer judge."""
    return case.passages[0].id if "passage" in judge.needs() else ""


def _raise(_: int, result: Any) -> None:
    if isinstance(result, Exception):
        raise result


def _parts(case: Case) -> dict[str, Any]:
    """Return the parts of a case, keyed by name, without DSPy's field markers.

    An LM could repeat these markers, and a parser could then mistake them for the LM's answer.
    """
    question, passages = case.question, _FIELD_MARKER.sub("[ [", show_passages(case.passages))

    def line(text: str | None) -> str | None:
        return None if text is None else _FIELD_MARKER.sub("[ [", " ".join(text.split()))

    return {
        "question": line(" ".join([*(f"[before: {turn}]" for turn in question.history), question.question])),
        "options": [line(option) for option in question.options],
        "right_answer": line(question.answer),
        "passage": passages,
        "passages": passages,
        "response": line(case.response),
        "point": line(case.point),
    }
