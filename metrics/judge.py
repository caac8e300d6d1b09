"""An LM as a judge: what every judge has in common, and how one becomes a metric.

A judge reads parts of a case and gives one of a few labels. It never learns which technique found a passage or what
was searched for. Name the judge beside every number that comes from it, and hold it against labels of people before
believing it (``querywright judge calibrate``).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import dspy
from dspy.utils.exceptions import AdapterParseError

from querywright.data.judged import Case
from querywright.data.types import Passage, Question
from querywright.errors import DataError, PromptTooLongError
from querywright.models.adapter import show_passages

_FIELD_MARKER = re.compile(r"\[\[(?=\s*##)")

NEEDS = {
    "right_answer": "no right answer to show to the judge; give its answer{other}",
    "passage": "no passage to show to the judge; give one",
    "passages": "no passages to show to the judge; give at least one",
    "response": "no answer that could be judged; give one, or use a reader",
    "point": "no point to look for; give one",
}
"""Parts of a case that cannot be left out, and what is said when they are missing."""


class Judge(dspy.Module):
    """Labels a case with the ambient LM. A judge is a class with these attributes, in the list of ``judges.py``.

    Attributes:
        NAME: Its name.
        METRIC: The name of its metric.
        SIGNATURE: The prompt. Its inputs are parts of a case: ``question``, ``options``, ``right_answer``,
            ``passage`` (one passage), ``passages`` (all of them), ``response`` (the answer that is judged), ``point``;
            its last output ``label`` is a ``Literal`` of the labels, a ``reason`` may stand before it.
        SCALE: The labels, worst first, with the score of each, 0 to 1.
        GRADES: Label by a grade that people gave, from 1 (wrong) to 4 (right and complete), as LiveQA grades
            answers; empty where such grades say nothing about it.
        OTHER: The judge that does without the right answer, for one that needs it.
    """

    NAME: ClassVar[str]
    METRIC: ClassVar[str]
    SIGNATURE: ClassVar[type[dspy.Signature]]
    SCALE: ClassVar[Mapping[str, float]]
    GRADES: ClassVar[Mapping[int, str]] = {}
    OTHER: ClassVar[str] = ""

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
            other = f", or use the judge {self.OTHER}, which works without" if self.OTHER else ""
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

    def score(self, labels: Sequence[str | None]) -> float:
        """The score of a question from the labels of its cases: that of the best one.

        Labels that could not be read are left out; 0 without any case, NaN where no label could be read.
        """
        known = [self.SCALE[label] for label in labels if label is not None]
        return max(known, default=math.nan if labels else 0.0)

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
    """A judge as a DSPy metric; it counts ``judgements`` and those that were ``unreadable``.

    The example has ``question``, ``options`` and, where the judge needs it, ``answer``; the prediction has
    ``passages`` and ``answer``. NaN where a part that the judge needs is missing, or nothing could be read (0.0 where
    ``trace`` is given, because a NaN would pass for a success). A case that does not fit the LM's context counts as
    unreadable.

    Args:
        judge: Any judge. One of passages gives the score of the best passage, one of answers that of the answer.
    """

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self.judgements = 0
        self.unreadable = 0
        self._lock = threading.Lock()

    def __call__(self, example: Any, prediction: Any, trace: Any = None) -> float:
        """The score of a question."""
        question = Question(
            id=str(getattr(example, "id", "")),
            question=example.question,
            options=tuple(getattr(example, "options", None) or ()),
            answer=getattr(example, "answer", None),
        )
        score = self._score(question, prediction)
        return 0.0 if trace is not None and math.isnan(score) else score

    def _score(self, question: Question, prediction: Any) -> float:
        if "right_answer" in self.judge.needs() and question.answer is None:
            return math.nan
        cases = self.judge.cases(question, prediction)
        if any(self.judge.lacks(case) for case in cases):
            return math.nan
        return self.judge.score([self._label(case) for case in cases])

    def _label(self, case: Case) -> str | None:
        try:
            label = self.judge.label_of(case)
        except PromptTooLongError:
            label = None
        with self._lock:
            self.judgements += 1
            self.unreadable += label is None
        return label


def judge_passages(judge: Judge, question: Question, passages: Sequence[Passage]) -> list[str | None]:
    """The judge's label of each passage, one call a passage, in order.

    Args:
        judge: A judge of single passages.
        question: The question, with its answer unless the judge works without.
        passages: The passages found.

    Returns:
        One label a passage; None where the LM's answer could not be read as a label.

    Raises:
        DataError: The judge needs the right answer, and the question has none.
        dspy.LMError: The LM failed; a failure is no judgement and is not hidden.
    """
    return [judge.label_of(Case(question, (passage,))) for passage in passages]


def _parts(case: Case) -> dict[str, Any]:
    """The parts of a case by name, without DSPy's field markers: an LM could echo them and a parser take them for its
    answer.
    """
    question, passages = case.question, _FIELD_MARKER.sub("[ [", show_passages(case.passages))

    def line(text: str | None) -> str | None:
        return None if text is None else _FIELD_MARKER.sub("[ [", " ".join(text.split()))

    return {
        "question": line(question.question),
        "options": [line(option) for option in question.options],
        "right_answer": line(question.answer),
        "passage": passages,
        "passages": passages,
        "response": line(case.response),
        "point": line(case.point),
    }
