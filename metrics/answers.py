"""Is the answer right: exact match and token F1 for short answers, the chosen option for multiple choice.

`contains_answer` asks it of an answer in full sentences, `hit` whether it could have been read at all.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

from querywright.errors import DataError
from querywright.metrics.tokens import answer_tokens

VERDICTS = (["yes"], ["no"], ["noanswer"])
"""Tokens of answers that are right or wrong as a whole."""

_MARKS = re.compile(r"[^\w\s]")


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """1.0 if the prediction has the tokens of any accepted answer, in the same order, else 0.0.

    Tokens are those of `answer_tokens`: for English this is SQuAD's exact match.

    Args:
        prediction: The answer given.
        answers: All accepted answers.

    Returns:
        0.0 or 1.0; NaN if there is no accepted answer.

    Raises:
        TypeError: ``answers`` is one text.
    """
    if not accepted(answers):
        return math.nan
    pairs = (answer_tokens(prediction, answer) for answer in answers)
    return float(any(given == wanted for given, wanted in pairs))


def token_f1(prediction: str, answers: Sequence[str]) -> float:
    """F1 of the tokens that prediction and answer share, the largest over the accepted answers.

    F1 = 2PR / (P + R) with P = shared / tokens of the prediction and R = shared / tokens of the answer,
    shared counted with repetition, over `answer_tokens`. Where one side has no token it is 1.0 if both
    have none, else 0.0.

    Args:
        prediction: The answer given.
        answers: All accepted answers.

    Returns:
        A value in [0, 1]; NaN if there is no accepted answer.

    Raises:
        TypeError: ``answers`` is one text.
    """
    if not accepted(answers):
        return math.nan
    pairs = (answer_tokens(prediction, answer) for answer in answers)
    return max(1.0 if given == wanted else f1(*overlap(given, wanted)) for given, wanted in pairs)


def contains_answer(prediction: str, answers: Sequence[str]) -> float:
    """1.0 if any accepted answer stands in the prediction, else 0.0: is an answer in a full sentence right?

    An answer stands there if its tokens follow one another, punctuation read as in `hit`; yes, no or noanswer must be
    its first token. Negations are not understood, and a sentence that holds several answers is right if one of them
    is: it is more lenient than `exact_match`, and the two are not to be compared with each other.

    Args:
        prediction: The answer given.
        answers: All accepted answers; one that normalises to nothing ("A") is never contained.

    Returns:
        0.0 or 1.0; NaN if there is no accepted answer.

    Raises:
        TypeError: ``answers`` is one text.

    Source: Mallen et al. 2023, arXiv:2212.10511, and for long answers Gao et al. 2023 (ALCE), arXiv:2305.14627. Both
    look for any substring; whole words, and the rule for yes and no, are our own.
    """
    if not accepted(answers):
        return math.nan
    return float(any(_is_contained(answer, prediction) for answer in answers))


def hit(passages: Sequence[str], answers: Sequence[str]) -> float:
    """1.0 if any accepted answer stands in any passage, else 0.0: could the reader have copied it?

    An answer stands in a passage if its tokens (`answer_tokens`) follow one another there. Punctuation is read
    both ways, deleted (``U.S.`` is ``US``) and as a space (``Curie's`` holds ``Curie``). A short answer that is a
    common word ("no") still hits by accident.

    Args:
        passages: Title and text of each passage that the reader was given.
        answers: All accepted answers; one that normalises to nothing ("A") is left out.

    Returns:
        0.0 or 1.0; NaN if there is no accepted answer that could be looked for.

    Raises:
        TypeError: ``passages`` or ``answers`` is one text.

    Source: Ma et al. 2023 (Rewrite-Retrieve-Read), arXiv:2305.14283. There any substring of the joined passages
    counts ("no" in "know"); here only whole words of one passage, as in DrQA, Chen et al. 2017, arXiv:1704.00051.
    """
    accepted(passages, "passages")
    wanted = [answer for answer in accepted(answers) if answer_tokens(answer) != [[]]]
    if not wanted:
        return math.nan
    return float(any(_stands_in(answer, passage) for answer in wanted for passage in passages))


def accepted(texts: Sequence[str], name: str = "answers") -> Sequence[str]:
    """The texts, when they are not one text that would be read letter by letter."""
    if isinstance(texts, str):
        raise TypeError(f"{name} must be a list of texts, but got the text {texts!r}; put it in a list")
    return texts


def choice_accuracy(answer: str, options: Sequence[str], right: str) -> float:
    """1.0 if the answer picks the right option; another option or none that can be told is 0.0.

    Args:
        answer: What the reader wrote.
        options: Option texts in the order shown.
        right: Text of the right option.

    Raises:
        DataError: ``right`` is not one of the options.
    """
    if right not in options:
        raise DataError(
            f"the right answer {right!r} is not among the options {list(options)!r}; "
            "give the text of one option, not its letter"
        )
    chosen = extract_option(answer, options)
    return float(chosen is not None and options[chosen] == right)


def is_invalid_choice(answer: str, options: Sequence[str]) -> bool:
    """Whether no option can be told from the answer; the share of these is reported beside the accuracy."""
    return extract_option(answer, options) is None


def extract_option(answer: str, options: Sequence[str]) -> int | None:
    r"""Which option an answer picks.

    Three steps, the first that finds something decides:

    1. The answer is an option's text. Case, white space, quotes, markdown emphasis and punctuation at the end
       are ignored, unless two options differ only by these (genotypes ``AA``, ``Aa``).
    2. A letter given as the final answer: announced ("Answer: B", "the answer is B", ``\boxed{B}``), alone on
       a line ("B", "(B)", "B."), or in front of a line ("B) text", one letter only). The last one wins. A
       letter beyond the number of options and a letter whose text is another option's are invalid; "A or B"
       picks no letter. Neither an article ("a drug") nor a letter inside an option's text or an abbreviated
       name ("E. coli") is taken for one.
    3. The text of one option, and of no other, stands in the answer as whole words. A text inside a longer
       option's text is not counted. Negations are not understood.

    Args:
        answer: What the reader wrote.
        options: Option texts in the order shown; letters are A, B, ... in this order.

    Returns:
        Index of the option, or None if none can be told.

    Source: no paper fixes this rule, and published scripts differ; hence it is spelled out.
    """
    menu = _Menu(options)
    text = answer.translate(_PLAIN) if menu.loose else answer
    exact = menu.index(text)
    if exact is not None:
        return exact
    spans = menu.spans(text)
    letter = _final_letter(text, menu, spans)
    if letter is not None:
        return letter if letter != _INVALID else None
    named = {index for index, _, _ in spans}
    return named.pop() if len(named) == 1 else None


def _is_contained(answer: str, prediction: str) -> bool:
    given, wanted = answer_tokens(prediction, answer)
    return given[:1] == wanted if wanted in VERDICTS else _stands_in(answer, prediction)


def _stands_in(answer: str, passage: str) -> bool:
    """Whether the answer's tokens are a run of the passage's, with punctuation deleted or as a space."""
    deleted = answer_tokens(passage, answer)
    spaced = answer_tokens(_MARKS.sub(" ", passage), _MARKS.sub(" ", answer))
    return any(wanted and f" {' '.join(wanted)} " in f" {' '.join(text)} " for text, wanted in (deleted, spaced))


def overlap(given: Sequence[str], wanted: Sequence[str]) -> tuple[float, float]:
    """Precision and recall of what is given, counted with repetition; both 0 where nothing is shared."""
    shared = (Counter(given) & Counter(wanted)).total()
    return (shared / len(given), shared / len(wanted)) if shared else (0.0, 0.0)


def f1(precision: float, recall: float) -> float:
    """Their harmonic mean; 0 where both are."""
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


_INVALID = -1
# Typographic quotes, dashes and the minus sign as ASCII; markdown emphasis and code marks dropped.
_PLAIN = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019", "'"),
        **dict.fromkeys("\u201c\u201d", '"'),
        **dict.fromkeys("\u2010\u2011\u2013\u2014\u2212", "-"),
        **dict.fromkeys("*`", ""),
    }
)
_QUOTES = "\"'"
_ENDING = " .,;:!?" + _QUOTES

_LETTER = r"[(\[{\"'*]*(?P<letter>[A-Za-z])(?!\w)"
_ANNOUNCED = (
    r"(?:\b(?:answer|choice|option)\b[\"']?(?:\s+(?:is|would\s+be|should\s+be|must\s+be)\b|\s*[:=])\s*[:=]?\s*"
    r"(?:(?:option|choice|letter)\s+)?|\\boxed\s*\{\s*(?:\\text\s*\{)?)" + _LETTER
)
_JUDGED = r"(?:^\s*|\b(?:option|choice|answer)\s+)" + _LETTER + r"[)\]\"']*\s+is\s+(?:the\s+)?(?:correct|right|best)\b"
# What may follow a letter: closing marks, the end of the line, a stop, a dash, a reason; no other word.
_STOP = (
    r"(?:[)\]}][)\]}\"'.:,]*|[\"'*]+[.:,]?(?!\w)|[.](?![.\w])|[:;!,](?!\w)|[ \t]+-(?=\s)"
    r"|(?=[ \t\r]*$)|(?=\s+(?:because|since|as)\b))"
)


class _Menu:
    """The options of one question, ready to be looked up in an answer."""

    def __init__(self, options: Sequence[str]) -> None:
        keys = [_key(option) for option in options]
        self.loose = len(set(keys)) == len(keys)
        self.keys = keys if self.loose else [option.strip() for option in options]
        self.size = len(keys)

    def index(self, text: str) -> int | None:
        """The option that the whole text is."""
        key = _key(text) if self.loose else text.strip()
        return self.keys.index(key) if key and self.keys.count(key) == 1 else None

    def spans(self, text: str) -> list[tuple[int, int, int]]:
        """(option, start, end) of each option text in the text, without those inside a longer one."""
        found = [
            (index, match.start(), match.end())
            for index, key in enumerate(self.keys)
            if key and not re.fullmatch("[A-Za-z]", key)
            for match in re.finditer(_whole_words(key), text, re.IGNORECASE if self.loose else 0)
        ]
        return [
            (index, start, end)
            for index, start, end in found
            if not any(s <= start and end <= e and e - s > end - start for _, s, e in found)
        ]


def _key(text: str) -> str:
    plain = " ".join(text.translate(_PLAIN).split())
    return plain.rstrip(_ENDING).lstrip(_QUOTES).lower()


def _whole_words(key: str) -> str:
    """Pattern of the key between word ends; no part of a hyphenated word or of a decimal number."""
    words = r"\s+".join(re.escape(word) for word in key.split())
    return rf"(?<!\w)(?<!\w-)(?<!\d[.,]){words}(?!\w)(?!-\w)(?![.,]\d)"


def _final_letter(text: str, menu: _Menu, spans: list[tuple[int, int, int]]) -> int | None:
    """The option whose letter is the final answer; `_INVALID` if it picks none, None without a letter."""
    final: list[tuple[int, int]] = []
    leading: set[int] = set()
    for pattern, announced in _letter_patterns(menu.size):
        for match in pattern.finditer(text):
            at = match.start("letter")
            if any(start <= at < end for _, start, end in spans):
                continue
            rest = text[match.end() :].split("\n", 1)[0]
            named = menu.index(rest)
            if named is None and re.match(r"\.[ \t]+[a-z]", text[match.end("letter") :]):
                continue  # an abbreviated name such as "S. aureus"
            index = _index_of_letter(match["letter"], menu)
            if named is not None and named != index:
                index = _INVALID
            if announced or not rest.strip():
                final.append((at, index))
            elif index != _INVALID or named is not None:
                leading.add(index)
    if final:
        return max(final)[1]
    return leading.pop() if len(leading) == 1 else None


def _index_of_letter(letter: str, menu: _Menu) -> int:
    """Index of an option that is this letter, else of the option that bears it."""
    own = menu.index(letter)
    index = ord(letter.upper()) - ord("A") if own is None else own
    return index if index < menu.size else _INVALID


def _letter_patterns(size: int) -> list[tuple[re.Pattern[str], bool]]:
    """Patterns of a final letter, each with whether it is announced as the answer."""
    last = chr(ord("A") + min(max(size, 1), 26) - 1)
    others = f"(?:(?-i:A)|[B-{last}])" if last > "A" else "(?-i:A)"  # a small "a" may be an article
    alone = rf"(?![)\]}}\"'.]*\s*(?:[,;/&+]|and\b|or\b)\s*(?:(?:and|or)\s+)?[(\[\"']?{others}(?![\w-]))"
    flags = re.IGNORECASE | re.MULTILINE
    return [
        (re.compile(_ANNOUNCED + alone + _STOP, flags), True),
        (re.compile(_JUDGED, flags), True),
        (re.compile(r"^[ \t]*" + _LETTER + alone + _STOP, flags), False),
    ]
