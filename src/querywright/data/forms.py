"""Convert rows from well-known datasets and tools whose column names alone do not show what the columns mean.

A form recognizes rows by their columns, so a dataset is read the same way from the Hub and from a file. A form yields
rows with the column names in :mod:`querywright.data.reading`, which checks them. Most datasets do not need a form.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from querywright.data.cells import MISSING, parse_cell, short
from querywright.data.rows import is_whole
from querywright.data.tables import Kind
from querywright.data.types import Label
from querywright.errors import DataError

Values = Mapping[str, Any]
Shape = Callable[[Values], Iterable[Values | None]]
LIVEQA = {1: Label.NOT_USEFUL, 2: Label.NOT_USEFUL, 3: Label.USEFUL, 4: Label.ENTAILED}
"""LiveQA-Med's grades: 1 incorrect, 2 incorrect but related, 3 correct but incomplete, 4 correct and complete."""


class Form(NamedTuple):
    """A test that recognizes rows, and the functions that convert them (None if a kind needs no conversion)."""

    known_by: Callable[[Values], bool]
    questions: Shape | None = None
    passages: Shape | None = None


def shaped(values: Values, kind: Kind) -> list[Values | None]:
    """Return the questions or passages in a row, with our column names; None for each one without text or an answer.

    Raises:
        DataError: The row has a form's columns, but unexpected values.
    """
    form = next((form for form in FORMS if form.known_by(values)), None)
    shape = None if form is None else form.questions if kind == "questions" else form.passages
    return [values] if shape is None else list(shape(values))


def _has(*columns: str) -> Callable[[Values], bool]:
    return lambda values: all(column in values for column in columns)


def _unusable(column: str, found: object, expected: str) -> DataError:
    return DataError(f'column "{column}": found {short(found)}; expected {expected}')


def _cell(values: Values, column: str) -> Any:
    """Return a column's value, or the list or object that its text represents; None if it is missing.

    Raises:
        DataError: The text cannot be parsed.
    """
    value = values.get(column)
    try:
        return None if isinstance(value, str) and value.strip() in MISSING else parse_cell(value)
    except DataError as error:
        raise DataError(f'column "{column}": {error}') from error


def _filled(text: object) -> bool:
    return isinstance(text, str) and bool(text.strip())


def _without(values: Values, *columns: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in columns}


def _inner_rows(value: object) -> list[Values] | None:
    """Return a list of objects, converting an object of lists if necessary; None for any other value."""
    if isinstance(value, Mapping):
        columns = list(value.values())
        if all(isinstance(column, list) for column in columns) and len({len(column) for column in columns}) <= 1:
            return [dict(zip(value, items, strict=True)) for items in zip(*columns, strict=True)]
    if isinstance(value, list) and all(isinstance(item, Mapping) for item in value):
        return value
    return None


# --- HotpotQA: supporting_facts (titles and sentence numbers) and context (titles and sentences) ---


def _hotpot_pairs(values: Values, column: str, second: str) -> list[tuple[Any, Any]]:
    """Return pairs of a title and its sentences or numbers, from objects (Hub) or lists (published file)."""
    value = _cell(values, column)
    rows = _inner_rows(value)
    pairs = None
    if rows is not None and all(row.keys() >= {"title", second} for row in rows):
        pairs = [(row["title"], row[second]) for row in rows]
    elif isinstance(value, list) and all(isinstance(item, list) and len(item) == 2 for item in value):
        pairs = [(title, rest) for title, rest in value]
    if pairs is None or not all(_filled(title) for title, _ in pairs):
        raise _unusable(column, value, f"a list of pairs of a title and {second}")
    return pairs


def _hotpot_questions(values: Values) -> Iterator[Values]:
    pairs = _hotpot_pairs(values, "supporting_facts", "sent_id") if values["supporting_facts"] else []
    yield {**values, "supporting_facts": list(dict.fromkeys(title for title, _ in pairs)), "jointly": True}


def _hotpot_passages(values: Values) -> Iterator[Values | None]:
    for title, sentences in _hotpot_pairs(values, "context", "sentences"):
        if not isinstance(sentences, list) or not all(isinstance(sentence, str) for sentence in sentences):
            raise _unusable("context", sentences, "a list of sentences for each title")
        text = "".join(sentences)
        yield {"id": title, "title": title, "text": text} if text.strip() else None


# --- AmbigNQ: annotations, each with an answer or with several disambiguated questions and their answers ---


def _is_ambiguous(values: Values) -> bool:
    return any("qaPairs" in note for note in _inner_rows(_cell(values, "annotations")) or ())


def _ambiguous_questions(values: Values) -> Iterator[Values]:
    for note in _inner_rows(_cell(values, "annotations")) or ():
        pairs = _inner_rows(note.get("qaPairs"))
        if note.get("type") == "singleAnswer":
            yield {"question": values.get("question"), "answers": note.get("answer")}
        elif note.get("type") == "multipleQAs" and pairs:
            yield from ({"question": pair.get("question"), "answers": pair.get("answer")} for pair in pairs)
        else:
            raise _unusable("annotations", note, "an object of type singleAnswer, or of type multipleQAs with qaPairs")


# --- others: each row is a question or a passage, with different column names ---


def _mmlu_questions(values: Values) -> Iterator[Values]:
    yield {**_without(values, "answer"), "answer_idx": values["answer"]}


def _medquad(values: Values, kind: Kind) -> Iterator[Values | None]:
    """Convert MedQuAD: the long answer is the passage to find, not a short answer to compare."""
    id = f"{values.get('document_source')}_{values['question_id']}"
    names = {"source": "document_source", "url": "document_url", "type": "question_type"}
    metadata = {key: values.get(column) for key, column in names.items()}
    passage = {"id": id, "title": values["question_focus"], "text": values["answer"], "metadata": metadata}
    found = {"question": values["question"], "evidence": [id]} if kind == "questions" else passage
    yield found if _filled(values["answer"]) else None


def _judged_questions(values: Values) -> Iterator[Values]:
    grades = _cell(values, "judged")
    if not isinstance(grades, Mapping) or not all(is_whole(grade) and grade in LIVEQA for grade in grades.values()):
        raise _unusable("judged", grades, "an object that maps passage IDs to grades from 1 to 4")
    yield {**values, "evidence": {key: LIVEQA[grade] for key, grade in grades.items()}}


def _autorag_questions(values: Values) -> Iterator[Values]:
    """Convert AutoRAG: a list of lists of ids (any passage in each inner list is enough), a list of ids, or one id."""
    found = _cell(values, "retrieval_gt")
    if not isinstance(found, list) and found not in (None, ""):
        yield values
        return
    listed = found or []
    groups = [[id for id in (one if isinstance(one, list) else [one]) if id not in (None, "")] for one in listed]
    groups = [[id for place, id in enumerate(group) if id not in group[:place]] for group in groups if group]
    given = {
        "jointly": len(groups) > 1 and any(isinstance(one, list) for one in listed),
        "alternatives": [group for group in groups if len(group) > 1],
    }
    yield {**given, **values, "retrieval_gt": [id for group in groups for id in group]}


def _text_id(text: object) -> str:
    return hashlib.sha256(str(text).strip().encode("utf-8", "replace")).hexdigest()[:16]


def _ragas_questions(values: Values) -> Iterator[Values]:
    """Convert Ragas: ``answer`` and ``response`` come from a system; contexts are strings, and their hash is the id."""
    kept = _without(values, "answer", "response")
    contexts = _cell(values, "reference_contexts")
    if not isinstance(contexts, list | None):
        raise _unusable("reference_contexts", contexts, "a list of strings")
    if values.get("reference_context_ids") is None and contexts is not None:
        kept["reference_context_ids"] = [_text_id(text) for text in contexts]
    yield kept


def _ragas_passages(values: Values) -> Iterator[Values]:
    columns = {
        "reference_contexts": "reference_context_ids",
        "retrieved_contexts": "retrieved_context_ids",
        "contexts": "",
    }
    if not columns.keys() & values.keys():
        raise DataError(
            f"no column with contexts ({', '.join(columns)}) to use as passages; the columns are {list(values)}"
        )
    for column, ids in columns.items():
        texts = _cell(values, column) or []
        if not isinstance(texts, list):
            raise _unusable(column, texts, "a list of strings")
        names = _cell(values, ids) or [_text_id(text) for text in texts]
        if not isinstance(names, list) or len(names) != len(texts):
            raise _unusable(ids, names, f"a list with one ID per item in {column} ({len(texts)} in total)")
        yield from ({"id": name, "text": text} for name, text in zip(names, texts, strict=True))


def _beir_passages(values: Values) -> Iterator[Values | None]:
    """Convert BEIR, in which some documents have only a title and some are empty."""
    if _filled(values["text"]):
        yield values
    else:
        yield {**values, "text": values["title"], "title": ""} if _filled(values["title"]) else None


def _is_flashrag_passage(values: Values) -> bool:
    contents = values.get("contents")
    first, newline, _ = contents.partition("\n") if isinstance(contents, str) else ("", "", "")
    first = first.strip()
    return "title" not in values and bool(newline) and len(first) > 2 and first[0] == first[-1] == '"'


def _flashrag_passages(values: Values) -> Iterator[Values]:
    first, _, rest = values["contents"].partition("\n")
    yield {**values, "title": first.strip()[1:-1], "contents": rest}


FORMS = (
    Form(_has("supporting_facts", "context"), _hotpot_questions, _hotpot_passages),
    Form(_is_ambiguous, _ambiguous_questions),
    Form(
        lambda values: _has("question", "subject", "choices", "answer")(values) and is_whole(values["answer"]),
        _mmlu_questions,
    ),
    Form(
        _has("document_id", "question_id", "question_focus", "question", "answer"),
        lambda values: _medquad(values, "questions"),
        lambda values: _medquad(values, "passages"),
    ),
    Form(_has("question", "judged"), _judged_questions),
    Form(_has("retrieval_gt"), _autorag_questions),
    Form(
        lambda values: any(column in values for column in ("user_input", "ground_truth", "ground_truths")),
        _ragas_questions,
        _ragas_passages,
    ),
    Form(_has("_id", "title", "text"), passages=_beir_passages),
    Form(_is_flashrag_passage, passages=_flashrag_passages),
)
"""All forms. The first form that recognizes a row converts the row."""
