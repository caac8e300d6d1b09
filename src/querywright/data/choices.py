"""Options and answers in the forms that question sets write them."""

from __future__ import annotations

from string import ascii_uppercase
from typing import NamedTuple

from querywright.data.columns import Cell, Record, distinct, is_whole, parse_text_cell, split_names

INDEX_COLUMNS = ("answer_idx", "answer_letter", "answer_index", "answerKey")
_OPTIONS = "2 to 26 distinct, non-empty texts"


class Options(NamedTuple):
    """Option texts with their letters, and whether the data itself gives the letters."""

    labels: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    lettered: bool = False


class Answer(NamedTuple):
    """The right answer, None when it is not known, and its other spellings."""

    text: str | None = None
    aliases: tuple[str, ...] = ()


def read_options(record: Record) -> Options | None:
    """The options of a row: none, two or more; None after a problem."""
    cell = _options_cell(record)
    if cell.value is None:
        return Options()
    named = _named_options(parse_text_cell(cell.value))
    if named is None:
        record.complain(cell.column, cell.value, f"a list of {_OPTIONS}, or an object of letters and texts")
        return None
    if not named:
        return Options()
    labels = [label for label, _ in named]
    several_columns = cell.column not in record.values
    lettered = several_columns or not isinstance(parse_text_cell(cell.value), list)
    before = len(record.table.problems)
    expected = "a non-empty text for option {}"
    texts = [record.text(text, cell.column, expected.format(label)) for label, text in named]
    if len(record.table.problems) > before:
        return None
    if len(texts) < 2 or len(set(texts)) < len(texts) or len(set(labels)) < len(labels):
        record.complain(cell.column, texts, _OPTIONS)
        return None
    return Options(tuple(labels), tuple(texts), lettered)


def _named_options(value: object) -> list[tuple[str, object]] | None:
    """Pairs of letter and text, None when the value has no form of options."""
    if isinstance(value, dict) and set(value) == {"text", "label"} and isinstance(value["text"], list):
        labels, texts = value["label"], value["text"]
        if not isinstance(labels, list) or len(labels) != len(texts):
            return None
        return [(str(label).strip(), text) for label, text in zip(labels, texts, strict=True)]
    if isinstance(value, dict):
        return [(str(label).strip(), text) for label, text in value.items() if text is not None]
    if isinstance(value, list) and len(value) <= len(ascii_uppercase):
        return list(zip(ascii_uppercase, value, strict=False))
    return None


def _options_cell(record: Record) -> Cell:
    """One column, several columns named ``a,b,c``, or columns A, B, C ..."""
    cell = record.cell("options")
    if cell.value is not None:
        return cell
    mapped = record.table.mapped.get("options")
    if mapped is not None:
        names = split_names(mapped)
    elif "A" in record.values and "B" in record.values:
        count = next((n for n, letter in enumerate(ascii_uppercase) if letter not in record.values), 26)
        names = list(ascii_uppercase[:count])
    else:
        return cell
    texts = [record.values.get(name) for name in names]
    while texts and texts[-1] is None:
        texts.pop()
    return Cell(",".join(names), texts or None)


def read_answer(record: Record, options: Options | None) -> Answer:
    """The answer of a row, checked against its options."""
    index, given, several = record.cell("answer_idx"), record.cell("answer"), record.cell("answers")
    aliases = _texts(record, record.cell("aliases"))
    if given.value is None:
        given = several
    else:
        aliases += _texts(record, several)
    if isinstance(parse_text_cell(given.value), (list, dict)):
        texts = _texts(record, given)
        given = Cell(given.column, texts[0] if texts else None)
        aliases = texts[1:] + aliases
    if options is None or not record.ok:
        return Answer()
    if options.texts:
        text = _choose(record, options, index, given)
    elif given.value is not None:
        text = record.name(given.value, given.column, "a non-empty text (leave it out when it is not known)")
    else:
        text = None
        if index.value is not None:
            record.complain(index.column, index.value, "options that it points to, but the row has none")
    return Answer(text, tuple(alias for alias in distinct(aliases) if alias != text))


def _texts(record: Record, cell: Cell) -> list[str]:
    """A text or a list of texts; the ``text`` of SQuAD's ``{"text": [...], "answer_start": [...]}``."""
    value = parse_text_cell(cell.value)
    if isinstance(value, dict) and "text" in value:
        value = value["text"]
    if value is None:
        return []
    if not isinstance(value, list):
        value = [value]
    return [record.name(item, cell.column, "a non-empty text or a list of them") for item in value]


def _choose(record: Record, options: Options, index: Cell, given: Cell) -> str | None:
    """The text of the option that index and answer name."""
    by_index = None
    if index.value is not None:
        by_index = _by_label(options, index.value)
        if by_index is None:
            last = len(options.texts) - 1
            expected = f"one of {', '.join(options.labels)}, or a position from 0 to {last}"
            record.complain(index.column, index.value, expected)
            return None
    if given.value is None:
        return None if by_index is None else options.texts[by_index]
    found = _by_value(options, given.value)
    if not found:
        expected = f"one of the options {list(options.texts)}, its letter, or its position from 0"
    elif by_index is not None and by_index not in found:
        expected = f"{options.texts[by_index]!r} as {index.column}={index.value!r} says"
    elif by_index is None and len(found) > 1:
        expected = (
            f"one option, but it is the text of {options.labels[found[0]]} and the letter or position of "
            f"{options.labels[found[1]]}; put letters and positions into a column answer_idx"
        )
    else:
        return options.texts[found[0] if by_index is None else by_index]
    record.complain(given.column, given.value, expected)
    return None


def _by_label(options: Options, value: object) -> int | None:
    """The position that a letter, another label or a position from 0 stands for."""
    if not isinstance(value, str) and not is_whole(value):
        return None
    name = str(value).strip().strip("().:").casefold()
    labels = [label.casefold() for label in options.labels]
    if labels.count(name) == 1:
        return labels.index(name)
    return int(name) if name.isdecimal() and len(name) < 3 and int(name) < len(labels) else None


def _by_value(options: Options, value: object) -> list[int]:
    """The positions that an answer may mean: by its text, then without regard to case, then by its letter.

    In a plain list, where the data names no letters, a text that is an option is nothing else.
    """
    text = str(value).strip()
    folded = [option.casefold() for option in options.texts]
    found = []
    if text in options.texts:
        found.append(options.texts.index(text))
    elif folded.count(text.casefold()) == 1:
        found.append(folded.index(text.casefold()))
    if not found or options.lettered or is_whole(value):
        label = _by_label(options, value) if len(text) <= 3 else None
        found += [] if label is None else [label]
    return list(dict.fromkeys(found))
