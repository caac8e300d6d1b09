"""Metrics for answers: exact match and token F1 for short answers, and the chosen option for multiple choice.

`contains_answer` is for answers in full sentences. `hit` shows whether the passages contain the answer.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache

from querywright.answer_text import (
    ANSWER_WORDS,
    CJK,
    Token,
    closest_tokens,
    find_choice,
    occurs_in,
    plain,
    same_answer,
    tokens,
    words,
)
from querywright.errors import DataError

VERDICTS = (["yes"], ["no"], ["noanswer"])
"""Answers, as tokens, that get no partial credit."""


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """Return 1.0 if the prediction equals an accepted answer by a careful reader's standard, else 0.0.

    The rule is in `querywright.answer_text`. SQuAD's rule (`squad_exact_match`) deletes punctuation before comparing,
    so that 25 mg equals 2.5 mg, -40 equals 40, and C# equals C++.

    Args:
        prediction: The program's answer.
        answers: All accepted answers.

    Returns:
        0.0 or 1.0; NaN if there is no accepted answer.

    Raises:
        TypeError: ``answers`` is a single string.
    """
    return _best(lambda one, other: float(same_answer(one, other)), prediction, answers)


def token_f1(prediction: str, answers: Sequence[str]) -> float:
    """Return the F1 of the tokens that the prediction shares with an accepted answer; the largest value counts.

    F1 = 2PR / (P + R), with P = shared / tokens in the prediction and R = shared / tokens in the answer; repeated
    tokens count repeatedly. A number with its sign, decimals, and percent sign is one token, and so is each Chinese,
    Japanese, or Korean character. `squad_f1` uses SQuAD's rule.

    Args:
        prediction: The program's answer.
        answers: All accepted answers.

    Returns:
        A value in [0, 1]; 1.0 if both sides are empty, 0.0 if one is; NaN if there is no accepted answer.

    Raises:
        TypeError: ``answers`` is a single string.

    Source: single characters for Chinese, as in MLQA, Lewis et al. 2019, arXiv:1910.07475, and CMRC, Cui et al. 2018,
    arXiv:1810.07366; syllables for Korean, as in KorQuAD, Lim et al. 2019, arXiv:1909.07005.
    """
    return _best(lambda one, other: _token_f1(*closest_tokens(one, other)), prediction, answers)


def squad_exact_match(prediction: str, answers: Sequence[str]) -> float:
    """Return SQuAD's exact match, for comparison with figures in papers. See `exact_match`.

    Both strings are lowercased, ASCII punctuation is deleted (``2.5`` becomes ``25``), the articles "a", "an", and
    "the" are replaced by spaces, and white space is collapsed.

    Args:
        prediction: The program's answer.
        answers: All accepted answers.

    Source: Rajpurkar et al. 2016, arXiv:1606.05250.
    """
    return _best(lambda one, other: float(_squad_form(one) == _squad_form(other)), prediction, answers)


def squad_f1(prediction: str, answers: Sequence[str]) -> float:
    """Return SQuAD's token F1, for comparison with figures in papers. See `token_f1`.

    Args:
        prediction: The program's answer.
        answers: All accepted answers.

    Source: Rajpurkar et al. 2016, arXiv:1606.05250; empty answers are handled as in SQuAD 2.0.
    """
    return _best(
        lambda one, other: _token_f1(_squad_form(one).split(), _squad_form(other).split()), prediction, answers
    )


def contains_answer(prediction: str, answers: Sequence[str]) -> float:
    """Return 1.0 if an accepted answer occurs in the prediction, else 0.0; for answers in full sentences.

    An answer occurs if the prediction contains its tokens in a row, with punctuation handled as in `hit`. The answers
    yes, no, and noanswer must be the first token. Negations are not understood, and a sentence that contains several
    answers counts as right if one of them is right. This metric is more lenient than `exact_match`, so do not compare
    their values.

    Args:
        prediction: The program's answer.
        answers: All accepted answers; an empty answer never occurs.

    Returns:
        0.0 or 1.0; NaN if there is no accepted answer.

    Raises:
        TypeError: ``answers`` is a single string.

    Source: Mallen et al. 2023, arXiv:2212.10511, and, for long answers, Gao et al. 2023 (ALCE), arXiv:2305.14627. Both
    look for any substring; matching whole words and the rule for yes and no are our own.
    """
    return _best(lambda text, answer: float(_is_contained(answer, text)), prediction, answers)


def hit(passages: Sequence[str], answers: Sequence[str]) -> float:
    """Return 1.0 if an accepted answer occurs in a passage, so that the reader could have copied it, else 0.0.

    An answer occurs if a passage contains its tokens in a row. Punctuation inside a word is handled both ways: it is
    deleted (``U.S.`` is ``US``) and replaced by a space (``Curie's`` contains ``Curie``). A number is one token, so
    ``5 mg`` does not occur in ``2.5 mg``. A short answer that is a common word ("no") may still occur by accident.

    Args:
        passages: Title and text of each passage that the reader was given.
        answers: All accepted answers; empty answers are ignored.

    Returns:
        0.0 or 1.0; NaN if there is no accepted answer to look for.

    Raises:
        TypeError: ``passages`` or ``answers`` is a single string.

    Source: Ma et al. 2023 (Rewrite-Retrieve-Read), arXiv:2305.14283. In that paper, any substring of the joined
    passages counts ("no" in "know"). Here, only whole words in a single passage count, as in DrQA, Chen et al. 2017,
    arXiv:1704.00051.
    """
    accepted(passages, "passages")
    wanted = [answer for answer in accepted(answers) if words(answer)]
    if not wanted:
        return math.nan
    return float(any(occurs_in(answer, passage) for answer in wanted for passage in passages))


def accepted(texts: Sequence[str], name: str = "answers") -> Sequence[str]:
    """Return the strings; raise TypeError for a single string, whose letters would be read as separate strings."""
    if isinstance(texts, str):
        raise TypeError(f"{name} must be a list of strings, but got the string {texts!r}; put the string in a list")
    return texts


def choice_accuracy(answer: str, options: Sequence[str], right: str) -> float:
    """Return 1.0 if the answer picks the right option, and 0.0 if it picks a wrong option or is unclear.

    Args:
        answer: The reader's answer.
        options: Option texts in the order shown.
        right: Text of the right option.

    Raises:
        DataError: ``right`` is not one of the options.
    """
    _check_right(right, options)
    chosen = extract_option(answer, options)
    return float(chosen is not None and options[chosen] == right)


def mmlu_accuracy(answer: str, options: Sequence[str], right: str) -> float:
    """Return 1.0 if the answer's first line is the right option's letter or text, compared as in MMLU, else 0.0.

    Use it for comparisons with figures in papers. Case, ASCII punctuation, and surrounding white space are ignored, and
    letters in sentences are not recognized. `choice_accuracy` is the default because it can read an answer in a
    sentence and does not treat the option ``2.5`` as ``25``. The option text also counts because readers in querywright
    may answer with the text. Arguments and errors are as in `choice_accuracy`.

    Source: the task ``mmlu_generative`` of EleutherAI's lm-evaluation-harness, after Hendrycks et al. 2021,
    arXiv:2009.03300, who compare the likelihood of the letters.
    """
    _check_right(right, options)
    letter = chr(ord("a") + list(options).index(right))
    return float(_mmlu_form(answer) in {letter, _mmlu_form(right)})


def is_invalid_choice(answer: str, options: Sequence[str]) -> bool:
    """Return whether an answer does not clearly pick an option; reports show the share of such answers."""
    return extract_option(answer, options) is None


def extract_option(answer: str, options: Sequence[str]) -> int | None:
    r"""Return the index of the option that an answer picks.

    Three steps are tried in order, and the first one that finds an option decides:

    1. The answer is an option's text (`querywright.answer_text.find_choice`): case, punctuation around it, and final
       punctuation do not matter, unless two options differ only by these (genotypes ``AA``, ``Aa``).
    2. The final answer is a letter: announced ("Answer: B", "the answer is B", "it is B", "option B",
       "Antwort: B", ``\boxed{B}``), alone on a line ("B", "(B)", "B."), or at the start of a line ("B) text", one
       letter only). The last letter wins. A letter beyond the number of options is invalid, and so is a letter that is
       followed by a different option's text; "A or B" picks no letter. An article ("a drug"), a letter inside an
       option's text, and an abbreviated name ("E. coli") are not option letters.
    3. The text of exactly one option occurs in the answer as whole words. A match inside a longer option's text or a
       hyphenated word does not count. Negations are not understood.

    Args:
        answer: The reader's answer.
        options: Option texts in the order shown; letters are A, B, ... in this order.

    Returns:
        Index of the option, or None if it is unclear.

    Source: no paper defines this rule, and published scripts differ, so it is spelled out here.
    """
    exact = find_choice(answer, options)
    if exact is not None:
        return exact
    text, menu = plain(answer), _Menu(options)
    spans = menu.spans(text)
    letter = _final_letter(text, menu, spans)
    if letter is not None:
        return letter if letter != _INVALID else None
    named = {index for index, _, _ in spans}
    return named.pop() if len(named) == 1 else None


def _best(score: Callable[[str, str], float], prediction: str, answers: Sequence[str]) -> float:
    """Return the largest score over the accepted answers; NaN if there is none."""
    return max((score(prediction, answer) for answer in accepted(answers)), default=math.nan)


def _token_f1(given: list[str], wanted: list[str]) -> float:
    return 1.0 if given == wanted else f1(*overlap(given, wanted))


_PUNCTUATION = str.maketrans("", "", string.punctuation)


def _squad_form(text: str) -> str:
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text.lower().translate(_PUNCTUATION)).split())


def _mmlu_form(text: str) -> str:
    return text.strip().partition("\n")[0].lower().translate(_PUNCTUATION).strip()


def _check_right(right: str, options: Sequence[str]) -> None:
    if right not in options:
        raise DataError(
            f"the right answer must be one of the options {list(options)!r}, but got {right!r}; "
            "pass the text of an option, not its letter"
        )


def _is_contained(answer: str, prediction: str) -> bool:
    wanted = words(answer)
    return words(prediction)[:1] == wanted if wanted in VERDICTS else occurs_in(answer, prediction)


def overlap(given: Sequence[str], wanted: Sequence[str]) -> tuple[float, float]:
    """Return token precision and recall, with repeated tokens counted repeatedly; both are 0 if nothing is shared."""
    shared = (Counter(given) & Counter(wanted)).total()
    return (shared / len(given), shared / len(wanted)) if shared else (0.0, 0.0)


def f1(precision: float, recall: float) -> float:
    """Return the harmonic mean of precision and recall; 0 if both are 0."""
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


_INVALID = -1
_PART = f"[^\\W{CJK}]"  # a character of a word with spaces around it
_LETTER = rf"[(\[{{\"'*]*(?P<letter>[A-Za-z])(?!{_PART})"
_CORRECT = (
    "(?:correct|right|best|richtig|korrekt|correct[aeo]|correctement|exacte|juste|corrett[ao]|giusta|corret[ao]|certa"
    "|juist|yang benar|đúng)"
)
_IS = (
    rf"(?:\s+(?:{_CORRECT}\s+)?(?:is|would\s+be|should\s+be|must\s+be|ist|lautet|wäre|est|es|sería|é|è|to|jest|adalah|là"
    r"|هي|هو)\b|\s*(?:[:=]|是|为|為|は|が|은|는)|\s+-(?=\s))\s*[:=]?\s*"
)
_NAMED = rf"(?<!{_PART})(?:{ANSWER_WORDS})[\"']?"
_CHOSEN = r"\bI(?:['\s](?:will|would|ll|d))?\s+(?:choose|chose|pick|select|go\s+with)\s+"
_POINTED = (
    rf"(?:\b(?:it|this|that)(?:'s|\s+is)|\b(?:es|das)\s+ist|\bc'est|^\W*(?:es|è|é)|(?<!{_PART}){_CORRECT}{_IS})\s*"
)
_ANNOUNCED = (
    rf"(?:{_NAMED}{_IS}|{_CHOSEN}|(?P<pointed>{_POINTED}))(?:(?:the|la|a(?=\s+letra))\s+)?(?:(?:{ANSWER_WORDS})\s*)?"
    rf"{_LETTER}"
)
_BARE = rf"(?:^\W*(?:(?!not\b)[^\s\d!-@]+\s+){{0,2}}?{_NAMED}\s+|{_NAMED}(?<=[{CJK}])\s*){_LETTER}"
_JUDGED = rf"(?:^\s*|{_NAMED}\s+){_LETTER}[)\]\"']*\s+(?:is|ist|est|es|é|è)\s+(?:the\s+|die\s+|la\s+|a\s+)?{_CORRECT}\b"
# What may follow a letter: closing marks, the end of the line, a period, a dash, a reason, or an ending; no other word.
_STOP = (
    r"(?:[)\]}][)\]}\"'.:,]*|'[dt][i\u0131uü]r\b|[\"'*]+[.:,]?(?!\w)|[.](?![.\w])|[:;!,](?!\w)|[ \t]+-(?=\s)"
    rf"|(?=[ \t\r]*$)|(?=\s+(?:because|since|as)\b)|(?=\s*[{CJK}])|(?=\s+है))"
)


class _Menu:
    """The options of one question, prepared for lookup in an answer."""

    def __init__(self, options: Sequence[str]) -> None:
        self.options = options
        forms = [plain(option).strip() for option in options]
        self.case = len({tuple(words(form)) for form in forms}) < len(forms)
        self.wanted = [None if re.fullmatch("[A-Za-z]?", form) else form for form in forms]
        self.size = len(forms)

    def index(self, text: str) -> int | None:
        """Return the index of the option whose text equals the whole text."""
        return find_choice(text, self.options)

    def spans(self, text: str) -> list[tuple[int, int, int]]:
        """Return (option, start, end) for each option's text that occurs in the text, except inside a longer match."""
        found = set()
        for inside in (False, True):
            given = tokens(text, inside=inside, case=self.case)
            for index, form in enumerate(self.wanted):
                wanted = [] if form is None else [one.text for one in tokens(form, inside=inside, case=self.case)]
                found |= {(index, start, end) for start, end in _runs(given, wanted) if _is_whole(text, start, end)}
        return [
            (index, start, end)
            for index, start, end in found
            if not any(s <= start and end <= e and e - s > end - start for _, s, e in found)
        ]


def _runs(given: Sequence[Token], wanted: Sequence[str]) -> list[tuple[int, int]]:
    """Return the spans in which the wanted tokens occur in a row."""
    size = len(wanted)
    places = range(len(given) - size + 1) if size else ()
    return [
        (given[at].start, given[at + size - 1].end)
        for at in places
        if given[at].text == wanted[0] and [one.text for one in given[at : at + size]] == wanted
    ]


def _is_whole(text: str, start: int, end: int) -> bool:
    """Return whether a span is not part of a hyphenated word."""
    return not re.search(r"\w-\Z", text[max(0, start - 2) : start]) and not re.match(r"-\w", text[end : end + 2])


def _final_letter(text: str, menu: _Menu, spans: list[tuple[int, int, int]]) -> int | None:
    """Return the option whose letter is the final answer.

    The result is `_INVALID` if the letter does not match an option, and None if there is no letter.
    """
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
            if index == _INVALID and match.groupdict().get("pointed"):
                continue  # "it is O" may be a blood group
            if announced or not rest.strip():
                final.append((at, index))
            elif index != _INVALID or named is not None:
                leading.add(index)
    if final:
        return max(final)[1]
    return leading.pop() if len(leading) == 1 else None


def _index_of_letter(letter: str, menu: _Menu) -> int:
    """Return the index of the option whose text is this letter or, if there is none, of the option with this letter."""
    own = menu.index(letter)
    index = ord(letter.upper()) - ord("A") if own is None else own
    return index if index < menu.size else _INVALID


@cache
def _letter_patterns(size: int) -> list[tuple[re.Pattern[str], bool]]:
    """Return the patterns for a final letter, each with a flag: whether it announces the letter as the answer."""
    last = chr(ord("A") + min(max(size, 1), 26) - 1)
    others = f"(?:(?-i:A)|[B-{last}])" if last > "A" else "(?-i:A)"  # a small "a" may be an article
    more = "(?:and|or|und|oder|et|ou|y|o|e|и|или)"
    alone = rf"(?![)\]}}\"'.]*\s*(?:[,;/&+]|{more}\b|[或和と])\s*(?:{more}\s+)?[(\[\"']?{others}(?![\w-]))"
    flags = re.IGNORECASE | re.MULTILINE
    return [
        (re.compile(_ANNOUNCED + alone + _STOP, flags), True),
        (re.compile(_JUDGED, flags), True),
        (re.compile(_BARE + alone + _STOP, flags), False),
        (re.compile(r"^[ \t]*" + _LETTER + alone + _STOP, flags), False),
    ]
