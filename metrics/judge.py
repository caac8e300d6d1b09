"""An LM as a judge: what every judge has in common, and how one becomes a metric.

A judge reads parts of a case and gives one of a few labels. It never learns which technique found a passage or what
was searched for. Name the judge beside every number that comes from it, and hold it against labels of people before
believing it (``querywright judge calibrate``).
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
    "right_answer": "no right answer to show to the judge; give its answer{other}",
    "passage": "no passage to show to the judge; give one",
    "passages": "no passages to show to the judge; give at least one",
    "response": "no answer that could be judged; give one, or use a reader",
    "point": "no point to look for; give one",
}
"""Parts of a case that cannot be left out, and what is said when they are missing."""


class JudgeFailedError(LMError):
    """The LM of a judge failed on one case; the program that was judged did not."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """One thing that a judge, or a person, said.

    Args:
        passage: Id of the passage; empty where an answer was judged.
        label: A label of the judge's scale; None where what it said could not be read.
        by: ``person``, or the judge's name.
        reason: Why, where the judge says so; of a guideline, the point that was looked for. Default "".
    """

    passage: str
    label: str | None
    by: str
    reason: str = ""


class Judge(dspy.Module):
    """Labels a case with the ambient LM. A judge is a class with these attributes, in the list of ``judges.py``.

    Attributes:
        NAME: Its name.
        METRIC: The name of its metric.
        ALSO: Further metrics of the same judgements: the score of each label by the metric's name.
        SIGNATURE: The prompt. Its inputs are parts of a case: ``question``, ``options``, ``right_answer``,
            ``passage`` (one passage), ``passages`` (all of them), ``response`` (the answer that is judged), ``point``;
            its last output ``label`` is a ``Literal`` of the labels, a ``reason`` may stand before it.
        SCALE: The labels, worst first, with the score of each, 0 to 1.
        GRADES: Label by a grade that people gave, from 1 (wrong) to 4 (right and complete), as LiveQA grades
            answers; empty where such grades say nothing about it.
        OTHER: The judge that does without the right answer, for one that needs it; with the same labels.
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
        """The parts of a case that it is shown."""
        return tuple(cls.SIGNATURE.input_fields)

    @classmethod
    def needs(cls) -> tuple[str, ...]:
        """The parts of a case that cannot be left out, beside the question."""
        return tuple(name for name in cls.inputs() if name in NEEDS)

    @classmethod
    def metrics(cls) -> dict[str, Mapping[str, float]]:
        """Its metrics: the score of each label by the metric's name."""
        return {cls.METRIC: cls.SCALE, **cls.ALSO}

    @classmethod
    def spellings(cls) -> dict[str, str]:
        """Its labels by how people may have written them: as they are, as grades, or as true and false."""
        found = {label.upper(): label for label in cls.SCALE} | {str(n): label for n, label in cls.GRADES.items()}
        return found | ({"TRUE": "yes", "FALSE": "no"} if set(cls.SCALE) == {"yes", "no"} else {})

    def forward(self, **parts: Any) -> dspy.Prediction:
        """One judgement in the field ``label``.

        Args:
            parts: The parts of a case that ``inputs`` names, as ``shown`` makes them.

        Raises:
            AdapterParseError: The LM's answer could not be read as a label.
        """
        return self.label(**parts)

    def lacks(self, case: Case) -> str:
        """The first part that it needs and the case does not have; empty when all is there.

        A blank response is one: it declines.
        """
        parts = _parts(case)
        return next((n for n in self.needs() if parts[n] is None or (parts[n] == "" and n != "response")), "")

    def shown(self, case: Case) -> dict[str, Any]:
        """What it is shown of a case: each text on a line of its own, so that nothing in it can open another field.

        Raises:
            DataError: The case lacks a part that it needs, or has several passages where it judges one.
        """
        missing = self.lacks(case)
        if missing:
            other = f", or use the judge {self.OTHER.NAME}, which works without" if self.OTHER else ""
            raise DataError(f"the question {case.question.question!r} has {NEEDS[missing].format(other=other)}")
        if "passage" in self.needs() and len(case.passages) != 1:
            raise DataError(f"the judge {self.NAME} judges one passage at a time, but got {len(case.passages)}")
        parts = _parts(case)
        return {name: parts[name] for name in self.inputs()}

    def label_of(self, case: Case) -> str | None:
        """The label of a case; None where the LM's answer could not be read as one.

        It raises what ``judgement`` raises.
        """
        made = self.judgement(case)
        return None if made is None else str(made.label)

    def judgement(self, case: Case) -> dspy.Prediction | None:
        """The label of a case with what else the judge says, such as its reason; None without a readable label.

        Raises:
            DataError: As ``shown``.
            dspy.LMError: The LM failed; a failure is no judgement and is not hidden.
        """
        shown = self.shown(case)
        try:
            made: dspy.Prediction = self(**shown)
        except AdapterParseError:
            return None
        return made if made.get("label") in self.SCALE else None  # some adapters return an answer without the field

    def cases(self, question: Question, prediction: Any) -> list[Case]:
        """What is judged of a program's prediction: each passage by itself, or its answer."""
        passages = tuple(prediction.passages)
        if "passage" in self.needs():
            return [Case(question, (passage,)) for passage in passages]
        return [Case(question, passages, getattr(prediction, "answer", None))]

    def score(self, labels: Sequence[str | None], metric: str = "") -> float:
        """The score of a question from the labels of its cases: that of the best one.

        Labels that could not be read are left out; 0 where no passage was found, NaN where no label could be read or
        there was no answer.

        Args:
            labels: One a case.
            metric: One of ``metrics``. Default its first.
        """
        scale = self.metrics()[metric or self.METRIC]
        known = [scale[label] for label in labels if label is not None]
        return max(known, default=math.nan if labels or "passage" not in self.needs() else 0.0)

    def digest(self) -> str:
        """SHA-256, as hex, of its prompts: instructions, fields, labels and demonstrations."""
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

    The example has ``question``, ``options`` and, where the judge needs it, ``answer``; the prediction has
    ``passages`` and ``answer``. Where no right answer is known, the judge that does without one stands in. NaN where
    another part that the judge needs is missing, or nothing could be read (0.0 where ``trace`` is given, because a NaN
    would pass for a success). A case that does not fit the LM's context counts as unreadable.

    Args:
        judge: Any judge. One of passages gives the score of the best passage, one of answers that of the answer.
        lm: The LM that is asked. Default the ambient one, with the ambient adapter.
        threads: Judgements of one question under way at a time, 1 or more; how many calls an LM takes in all is for its
            engine to find. Default 8.

    Attributes:
        name: The metric that it is, one of those of the judge.
        calibration: What is known of the judge; None where nothing is.
        counts: Judgements by what became of them: ``known`` without asking, ``asked``, and of these ``unreadable`` and
            ``without answer``.
        spent: What its calls cost.
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
        """Another metric of the same judge: its judgements, threads and counts are those of this one.

        Raises:
            InputError: The judge gives no such metric.
        """
        if name not in self.judge.metrics():
            raise InputError(unknown(f"metric of the judge {self.judge.NAME}", name, self.judge.metrics()))
        found = copy.copy(self)
        found.name = name
        return found

    def __call__(self, example: Any, prediction: Any, trace: Any = None) -> float:
        """The score of a question."""
        score = self.score(self.judgements(example, prediction))
        return 0.0 if trace is not None and math.isnan(score) else score

    def score(self, judgements: Sequence[Judgement]) -> float:
        """The score that these judgements of a question make."""
        return self.judge.score([one.label for one in judgements], self.name)

    def judgements(self, example: Any, prediction: Any) -> list[Judgement]:
        """What is said of each passage in order, or of the answer; nothing where a part is missing that it takes.

        What the example's evidence says of a passage, by a person or by this judge, is known; the rest is asked side
        by side.

        Raises:
            OutageError: The judge's LM is out of reach.
            JudgeFailedError: It failed otherwise.
            BudgetError: The limit of calls is reached.
        """
        question = _question(example)
        judge = self._other if question.answer is None and self._other is not None else self.judge
        cases = judge.cases(question, prediction)
        if any(judge.lacks(case) for case in cases):
            return []
        by = [PERSON, judge.NAME, f"{judge.NAME}:{getattr(self.lm or dspy.settings.lm, 'model', '')}"]
        return self._said(judge, cases, _known(judge, question, by))

    def _said(self, judge: Judge, cases: Sequence[Case], known: Mapping[str, Judgement]) -> list[Judgement]:
        """The judgements of these cases, in order: those known, by the id of a passage, and the LM's."""
        asked = [case for case in cases if _id(judge, case) not in known]
        if asked and (self.lm or dspy.settings.lm) is None:
            raise InputError(f"the judge {judge.NAME} has no LM to ask; name one with judge_lm= or lm=")
        context: Any = nullcontext()
        if self.lm is not None:
            context = dspy.context(lm=self.lm, adapter=PromptAdapter(), disable_history=True, trace=None)
        with context, metered(self.spent):  # the threads work in copies of it
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
            lm = getattr(self.lm or dspy.settings.lm, "model", "the ambient LM")
            of = OutageError if isinstance(error, OutageError) else JudgeFailedError
            raise of(f"the judge {judge.NAME} by {lm} failed, not the program: {error}") from error
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
    """What the evidence says in this judge's labels, by the passage's id, and whose word it is: the first of ``by``."""
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
    """The id of the passage that is judged; empty for a judge of answers."""
    return case.passages[0].id if "passage" in judge.needs() else ""


def _raise(_: int, result: Any) -> None:
    if isinstance(result, Exception):
        raise result


def _parts(case: Case) -> dict[str, Any]:
    """The parts of a case by name, without DSPy's field markers: an LM could echo them and a parser take them for its
    answer.
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
