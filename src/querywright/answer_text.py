r"""The rules for comparing two answers, shared by metrics, judges' labels, options, and gold answers.

Answers are compared as a careful reader would compare them. Numbers are compared as numbers: ``1.50`` is ``1.5`` and
``1,000`` is ``1000``, but ``-40`` is not ``40``, ``<5`` is not ``>5``, ``[0, 1)`` is not ``[0, 1]``, and ``5`` does not
occur in ``2.5``. Signs that carry meaning are compared (``C#``, ``C++``, ``A-``, ``10%``, ``$5``). Case, the Unicode
form, quotes, brackets, final punctuation, articles, and marks around an answer (Markdown, LaTeX, HTML tags, "Answer:")
are ignored.

Marks inside a word (``U.S.``, ``Curie's``, ``follow-up``) can be dropped or read as a space; two strings are equal if
they agree in either reading.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence, Set
from decimal import Context, Decimal
from functools import cache, lru_cache
from typing import NamedTuple

# Jamo; radicals, kana, Bopomofo and ideographs; Hangul; compatibility and rare forms.
CJK = (
    "\u1100-\u11ff\u2e80-\u2fff\u3005-\u3007\u3021-\u302f\u3031-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff"
    "\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)
"""Characters that are each a separate token, for use inside the brackets of a regular expression."""

ANSWER_WORDS = unicodedata.normalize(
    "NFKC",
    r"answer|ans(?:\.|(?=\s*[:=]))|choice|option|letter|letra|lettre|lettera|variante?|Antwort|Lösung|Auswahl|réponse|choix|respuesta|opción|resposta|opção|risposta|opzione"
    r"|scelta|antwoord|optie|keuze|ответ|вариант|відповідь|odpowiedź|opcja|odpověď|cevap|yan\u0131t|seçenek|svar|vastaus"
    r"|válasz|răspuns|απάντηση|jawaban|đáp án|câu trả lời|تשובה|תשובה|الإجابة|إجابة|الجواب|جواب|الخيار|پاسخ"
    r"|उत्तर|जवाब|विकल्प|উত্তর|คำตอบ|答案|选项|選項|选择|選擇|选|選(?!択)|回答|答え|正解|選択肢|정답|답변|답|선택지",
)
"""The words for "answer" and "option" in many languages, as alternatives in a regular expression."""

_SIGNS = str.maketrans(
    {
        **dict.fromkeys("\u00ad\u061c\u180e\ufeff\u0640\u2122\u2120\u00ae\u00a9"),
        **dict.fromkeys(map(chr, [*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070)])),
        **dict.fromkeys(map(chr, range(0xFE00, 0xFE10))),
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032\u02bc\u02b9\u05f3", "'"),
        **dict.fromkeys(
            "\u201c\u201d\u201e\u201f\u00ab\u00bb\u05f4\u300c\u300d\u300e\u300f\u300a\u300b\u3008\u3009", '"'
        ),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2212\u02d7", "-"),
        **dict.fromkeys("\u2014\u2015", " - "),
        **dict.fromkeys("\u3010\u3014\u3016", "["),
        **dict.fromkeys("\u3011\u3015\u3017", "]"),
        **dict.fromkeys("\u3002\u06d4\u0964\u0965\u1362\u104b\u17d4", ". "),
        **dict.fromkeys("\u3001\u060c\u1363\u104a\u055d", ", "),
        **dict.fromkeys("\u00bf\u00a1\u200b", " "),
        "\u061b": "; ",
        "\u061f": "? ",
        **dict(zip("\u066b\u066c\u2044\u2215\u02da\u266f\u2a7d\u2a7e", ".,//°#≤≥", strict=True)),
    }
)
"""Characters that are removed, and variants of characters with the form that replaces them."""

_IN_NUMBERS = [
    (re.compile("(?<=[0-9])[\u00a0\u2007\u2009\u202f](?=[0-9]{3}(?![0-9]))"), ","),
    (re.compile("(?<=[0-9])\\s?\u00ba(?=\\s?[CF]\\b)"), "°"),
    (re.compile("(?<=[0-9])\u00b7(?=[0-9])"), "."),
    (re.compile(r"(?<![\w)\]])\u2212\s+(?=[0-9])"), "-"),
    (re.compile("(?<=[0-9])(?=[\u00b2\u00b3\u00b9\u2070\u2074-\u207b])"), "^"),
    (re.compile("(?<=[0-9])(?=[\u00bc-\u00be\u2150-\u215e\u2189])"), " "),
]

_COMMANDS = {
    "times": "\u00d7", "pm": "±", "leq": "≤", "le": "≤", "geq": "≥", "ge": "≥", "neq": "≠", "lt": "<", "gt": ">",
    "mu": "μ", "degree": "°", "left": "", "right": "", "quad": " ",
}  # fmt: skip
_BLOCK = r"(?i)</?(?:p|br|hr|div|li|ul|ol|td|th|tr|table|h[1-6])(?:\s[^<>]*)?/?>"
_INLINE = (
    r"(?i)</?(?:b|i|u|s|em|strong|sub|sup|span|code|pre|mark|small|big|font|center|a|answer|final|final_answer|label"
    r"|verdict|choice|option)(?:\s[^<>]*)?/?>"
)
_BRACES = [  # innermost first
    ("\\", r"\\(?:text\w*|math\w+|emph|operatorname|mbox|underline)\s*\{([^{}]*)\}", r"\1"),
    ("^{", r"\^\{([^{}]*)\}", r"^\1"),
    ("\\", r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r"\1/\2"),
    ("\\", r"\\f?boxed\s*\{([^{}]*)\}", r" answer: (\1)"),
]
_ROWS: list[tuple[str, str, str | Callable[[re.Match[str]], str]]] = [
    ("<", _BLOCK, "\n"),
    ("<", "(?i)<sup>", "^"),
    ("<", _INLINE, ""),
    ("&", r"(?i)&(?:#\d+|#x[0-9a-f]+|[a-z]+\d*);", lambda entity: html.unescape(entity[0])),
    ("$", r"\$\$?(?=[^\s$])([^$\n]*[^\s$])\$\$?(?!\d)", r"\1"),
    ("\\", r"\^\s*(?:\{\s*\\circ\s*\}|\\circ)", "°"),
    *(4 * _BRACES),
    ("\\", rf"\\({'|'.join(_COMMANDS)})(?![A-Za-z])", lambda command: _COMMANDS[command[1]]),
    ("\\", r"\\(?:([%$#&_{}])|[,;:! ]|[()\[\]])", lambda escaped: escaped[1] or " "),
    ("", r"(?m)^[ \t]*(?:#{1,6}|>(?=\s+\D)|[-*+\u2022](?=\s))[ \t]+", ""),
    ("](", r"!?\[([^\[\]]+)\]\([^()\s]+\)", r"\1"),
    ("**", r"\*\*(?=\S)(.+?)(?<=\S)\*\*", r"\1"),
    ("*", r"(?<![\w*])\*(?=[^\s*])(.+?)(?<=[^\s*])\*(?![\w*])", r"\1"),
    ("*", r"(?<!\w)\*+(?=\S)|(?<=\S)\*{2,}(?!\w)", ""),
    ("_", r"(?<!\w)(_{1,3})(?=[^\s_])(.+?)(?<=[^\s_])\1(?!\w)", r"\2"),
    ("~~", r"~~(?=\S)(.+?)(?<=\S)~~", r"\1"),
    ("`", "`+", ""),
]
_MARKUP = [(sign, re.compile(pattern), by) for sign, pattern, by in _ROWS]
"""Markup of HTML, LaTeX, and Markdown: a character that occurs in every match, the pattern, and the replacement."""

_LEAD_IN = re.compile(
    rf"^[\W_]*(?:the\s+)?(?:(?:final|correct|right|best|short)\s+)?(?:{ANSWER_WORDS}|label|verdict|rating|score|judge?ment)"
    r"['\"]?\s*(?:[:=]|是|は|은|는)\s*(?=\S)",
    re.IGNORECASE,
)

_SPELLED = {"<=": "≤ ", ">=": "≥ ", "!=": "≠ ", "-->": "→  ", "->": "→ ", "=>": "→ "}
"""Signs that are written with several characters, each with a replacement of the same length."""

_NUMBER = r"""
    (?=[<>≤≥±+.0-9-])
    (?P<compared>(?:[<>≤≥±]|\+/-)\s{0,2})?
    (?P<sign>(?<![\w%)\].])[-+])?
    (?P<number>
        (?<![\d.])[0-9]{1,3}(?:\ [0-9]{3})*\ 000(?![\d.,])
        | [0-9]+(?:(?:[.,:/'-]|\ -\ )[0-9]+)*
        | (?<![\w.])\.[0-9]+
    )
    (?:
        [eE](?P<exponent>[+-]?[0-9]{1,4})(?!\w)
        | \s?[x\u00d7*·]\s?10\^(?P<ten>[+-]?[0-9]{1,3})
        | \^(?P<power>[+-]?[0-9]{1,3})
    )?
    (?P<suffix>\s?[%‰] | \s[Pp]er\ ?cent\b | (?:st|nd|rd|th|s)\b)?
    (?:\s?(?P<currency>[$¢£¥֏؋৳฿៛₠-⃀])(?!\s?\d))?
    (?:\s?(?P<rate>[a-zμ]{1,4}\d?(?:/[a-zμ]{1,4}\d?)+)(?![\w/-]))?
"""
_MARK = r"[!-/:-@\[-`{-~·]"
_PART = re.compile(rf"(?:(?!{_MARK}).|(?<=\d)[.,:/](?=\d))+")
_GROUPS = re.compile(
    r"[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?|[1-9]\d?(?:,\d{2})+,\d{3}(?:\.\d+)?|[1-9]\d{0,2}(?:['\ ]\d{3})+"
)
_GROUPS_BY_DOTS = re.compile(r"[1-9]\d{0,2}(?:(?:\.\d{3})+,\d+|(?:\.\d{3}){2,})")
_DECIMAL = re.compile(r"\d*\.?\d+|\d+,(?!\d{3}\Z)\d+|0,\d+")
_DATE = re.compile(r"(\d{4})([-/.])(\d{1,2})\2(\d{1,2})")
_EXACT = Context(prec=200, traps=[])
_ARTICLES = {"a", "an", "the"}
_NO_NOUN = {"and", "or", "to", "vs", "versus", "plus", "is", "was", "are"}
_STARTS_WORD = re.compile(f"[^\\W{CJK}]|[$<>±.]")
_VERDICTS = {"yes": "yes", "y": "yes", "true": "yes", "no": "no", "n": "no", "false": "no"}


class Token(NamedTuple):
    """A token in a string.

    Args:
        text: The token's normalized text, which is used in comparisons.
        start: Offset of the token's first character in the plain text.
        end: Offset just past the token's last character.
    """

    text: str
    start: int
    end: int


@lru_cache(maxsize=4096)
def plain(text: str) -> str:
    """Normalize a string's Unicode form, and remove Markdown, LaTeX, and HTML tags. Letters keep their case.

    Args:
        text: Any text.
    """
    return unicode_form(_unmarked(unicodedata.normalize("NFC", text)))


def unicode_form(text: str) -> str:
    """Normalize a string to one Unicode form. Letters keep their case.

    The form is NFKC: composed, without full-width characters. Digits in all scripts become ASCII, and so do quotation
    marks, dashes, the minus sign, and other scripts' periods and commas. Invisible characters are removed.

    Args:
        text: Any text.
    """
    if text.isascii():
        return text
    for pattern, by in _IN_NUMBERS:
        text = pattern.sub(by, text)
    text = unicodedata.normalize("NFKC", text.translate(_SIGNS)).translate(_SIGNS)
    return re.sub(r"[^\D0-9]", lambda digit: str(unicodedata.decimal(digit[0])), text)


def fold(text: str) -> str:
    """Return a string in lower case: ``ß`` becomes ``ss``, and the Turkish dotted and dotless i both become ``i``.

    Args:
        text: A string from ``unicode_form``.
    """
    if text.isascii():
        return text.lower()
    folded = unicodedata.normalize("NFKC", text.casefold())
    return folded.replace("i\u0307", "i").replace("\u0131", "i")


def tokens(text: str, *, inside: bool = False, articles: bool = False, case: bool = False) -> list[Token]:
    """Return the tokens in a plain string.

    Each number, each word, and each Chinese, Japanese, or Korean character is a token.

    Args:
        text: A string from ``plain``.
        inside: Whether marks inside a word split it (``Curie's``). Default False: the marks are removed (``U.S.``).
        articles: Whether articles before a word are kept. Default False.
        case: Whether case matters. Default False.
    """
    found: list[Token] = []
    for each in _scan(text, case):
        if articles or not each.article:
            found += each.parts if inside else [each.whole]
    return found


def words(text: str) -> list[str]:
    """Return an answer's tokens as strings. Two answers are equal if their lists are equal.

    Args:
        text: An answer, or any other short string.
    """
    return [token.text for token in tokens(_answer(text))]


def closest_tokens(one: str, other: str) -> tuple[list[str], list[str]]:
    """Return two answers' tokens in the reading in which the answers have the most tokens in common.

    The module docstring describes the readings. Two answers are equal if their lists are equal.

    Args:
        one: An answer.
        other: The answer to compare it with.
    """
    pairs = [(_texts(_answer(one), *reading), _texts(_answer(other), *reading)) for reading in _READINGS]
    for given, wanted in pairs:
        if given == wanted:
            return list(given), list(wanted)
    given, wanted = max(pairs[:2], key=lambda pair: _shared(*pair))
    return list(given), list(wanted)


def same_answer(one: str, other: str) -> bool:
    """Return whether two answers are equal.

    Args:
        one: An answer.
        other: The answer to compare it with.
    """
    given, wanted = closest_tokens(one, other)
    return given == wanted


def occurs_in(answer: str, text: str) -> bool:
    """Return whether an answer's tokens occur in a text, in order and without gaps; False if there are no tokens.

    Args:
        answer: The answer.
        text: A sentence or a passage.
    """
    form, said = _answer(answer), words(answer)
    longest = max((word for word in said if word.isalpha() and word != "and"), key=len, default="")
    if longest not in _letters(text):  # saves tokenizing most passages
        return False
    letter = len(said) == 1 and said[0] in _ARTICLES  # only a capital "A" is a letter
    for inside, articles in _READINGS[:2] if letter else _READINGS:
        wanted, given = (_texts(one, inside, articles, letter) for one in (form, plain(text)))
        if wanted and f" {' '.join(wanted)} " in f" {' '.join(given)} ":
            return True
    return False


def find_choice(value: object, choices: Sequence[object]) -> int | None:
    """Return the index of the choice that equals a value, or None if no choice or several choices do.

    Different spellings count as equal if only one choice matches: ``["NOT USEFUL"]``, ``not-useful``, and
    ``**NOT_USEFUL**`` are ``NOT_USEFUL``; ``true`` and ``Y`` are ``yes``.

    Args:
        value: A string, a Boolean, or a list with one string or Boolean.
        choices: The possible values.
    """
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if value is None or isinstance(value, list | dict):
        return None
    text, texts = str(value), [str(choice) for choice in choices]
    for level in _LEVELS:
        wanted = level(text)
        found = [index for index, one in enumerate(texts) if wanted & level(one)]
        if found:
            return found[0] if len(found) == 1 else None
    return None


def bare_label(text: str) -> str:
    """Return an option's letter or number without the marks and words around it: ``(B)``, ``**B.**``, ``option B``.

    Args:
        text: A string that names an option.
    """
    bare = _answer(text).strip(" ().:[]\"'")
    return re.sub(rf"^(?:{ANSWER_WORDS})\s+(?=\w$)", "", bare, flags=re.IGNORECASE)


_READINGS = ((False, False), (True, False), (False, True), (True, True))  # values of inside and articles


class _Scanned(NamedTuple):
    whole: Token
    parts: tuple[Token, ...]
    article: bool = False


@lru_cache(maxsize=4096)
def _letters(text: str) -> str:
    return re.sub(r"[\W\d_]+", "", fold(plain(text)))


@lru_cache(maxsize=4096)
def _answer(text: str) -> str:
    """Return an answer's plain form, without a leading "Answer:"."""
    return _LEAD_IN.sub("", plain(text).strip())


@lru_cache(maxsize=4096)
def _texts(text: str, inside: bool, articles: bool, case: bool = False) -> tuple[str, ...]:
    return tuple(token.text for token in tokens(text, inside=inside, articles=articles, case=case))


def _keys(text: str, case: bool) -> set[tuple[str, ...]]:
    return {found for reading in _READINGS if (found := _texts(_answer(text), *reading, case))}


_LEVELS: tuple[Callable[[str], Set[object]], ...] = (
    lambda text: {text.strip()} - {""},
    lambda text: {_answer(text)} - {""},
    lambda text: _keys(text, True),
    lambda text: _keys(text, False),
    lambda text: {_VERDICTS.get(" ".join(_texts(_answer(text), False, False)))} - {None},
)


def _shared(given: Sequence[str], wanted: Sequence[str]) -> float:
    shared = (Counter(given) & Counter(wanted)).total()
    return 2 * shared / (len(given) + len(wanted)) if shared else 0.0


def _unmarked(text: str) -> str:
    bare = text
    for sign, pattern, by in _MARKUP:
        if sign in bare:
            bare = pattern.sub(by, bare)
    return bare if bare.strip() else text  # an answer may itself be a tag


@cache
def marks() -> str:
    r"""Return the combining marks, such as vowel signs, which ``\w`` does not match."""
    return "".join(char for char in map(chr, range(0x300, 0x20000)) if unicodedata.category(char)[0] == "M")


@cache
def _pattern() -> re.Pattern[str]:
    letter, character = (f"(?:[^\\W{others}_{CJK}][{marks()}]*)" for others in (r"\d", ""))
    return re.compile(
        rf"""
        {_NUMBER}
        | (?P<word>[A-Za-z]+(?=[,.;:]?\s\w)  # most words, found at once
            |(?:(?<![\w.])\.)?{letter}(?:{character}|{_MARK}(?<![+#<>=&*|~])(?={character}))*)
          (?P<after>\+\+|[+#*](?!\w)|-(?!\w)|\s[+-](?=[\s.]*\Z))?
        | (?P<cjk>[{CJK}])
        | (?P<interval>\[[^][(),;]+[,;][^][(),;]+\)|\([^][(),;]+[,;][^][(),;]+\])
        | (?P<symbol>°\s?[CFKcfk]\b|[^\s\w])
        """,
        re.VERBOSE,
    )


@lru_cache(maxsize=4096)
def _scan(text: str, case: bool) -> tuple[_Scanned, ...]:
    folded: Callable[[str], str] = str if case else fold
    for spelled, sign in _SPELLED.items():
        text = text.replace(spelled, sign)
    found: list[_Scanned] = []

    def add(whole: str, start: int, end: int) -> None:
        token = Token(folded(whole), start, end)
        found.append(_Scanned(token, (token,)))

    for match in _pattern().finditer(text):
        start, end = match.span()
        if match.lastgroup == "word" and match[0].isalpha():
            add(match[0], start, end)
        elif match["number"]:
            for piece in _numbers(match):
                add(piece, start, end)
        elif match["word"]:
            word, after = match["word"], (match["after"] or "").strip()
            if after == "-" and not _is_sign(word, text[end:], match["after"]):
                after, end = "", match.end("word")
            parts = _parts(word, after)
            shown = [(_canonical(part) or part, start + at, start + at + len(part)) for part, at in parts]
            whole = Token(folded("".join(part for part, _ in parts)), start, end)
            found.append(_Scanned(whole, tuple(Token(folded(part), *place) for part, *place in shown)))
        elif match["interval"]:
            ends = (_canonical(one.strip()) or one.strip() for one in re.split("[,;]", match[0][1:-1]))
            add(match[0][0] + ",".join(ends) + match[0][-1], start, end)
        elif match[0] == "&":
            add("and", start, end)
        elif match["cjk"] or match[0][0] in "%‰°♭" or _is_kept(match[0]):
            add("".join(match[0].split()), start, end)
    if not found and (rest := text.strip()):  # the text has only signs, so compare them
        token = Token(rest, text.index(rest), text.index(rest) + len(rest))
        return (_Scanned(token, (token,)),)
    return tuple(
        each._replace(article=_is_article(text, found, place)) if each.whole.text.lower() in _ARTICLES else each
        for place, each in enumerate(found)
    )


def _is_kept(sign: str) -> bool:
    return unicodedata.category(sign) in ("Sm", "Sc") and sign not in "|~^≈"


def _is_sign(word: str, rest: str, after: str) -> bool:
    """Return whether a minus after a word belongs to it (``A-``, ``HBsAg-``), unlike a dash or a hyphen (``pre-``)."""
    short = len(word) <= 2 or (len(word) <= 6 and any(char.isupper() or char.isdigit() for char in word[1:]))
    return not re.search(r"\w", rest) or (short and after == "-")


def _parts(word: str, after: str) -> list[tuple[str, int]]:
    """Return the parts of a word between its marks, with offsets. A leading dot and a trailing sign are kept."""
    parts = [(part[0], part.start()) for part in _PART.finditer(word)]
    if word[0] == ".":
        parts[0] = (f".{parts[0][0]}", 0)
    parts[-1] = (parts[-1][0] + after, parts[-1][1])
    return parts


def _is_article(text: str, found: Sequence[_Scanned], place: int) -> bool:
    """Return whether a token is an article before a word. A capital A inside a sentence is a letter (vitamin A)."""
    if place + 1 == len(found):
        return False
    this, after = found[place].whole, found[place + 1].whole
    gap = text[this.end : after.start]
    if not gap[:1].isspace() or gap.strip(" \n\t\"'([") or after.text in _NO_NOUN or not _STARTS_WORD.match(after.text):
        return False
    written = text[this.start : this.end]
    return written != "A" or _opens(text[: this.start])


def _opens(before: str) -> bool:
    bare = before.rstrip(" \t\"'([")
    return not bare or bare[-1] in ".!?:;\n-"


def _numbers(match: re.Match[str]) -> list[str]:
    """Return the tokens in a number. The ends of a range of years are separate tokens, and so is the year in a date."""
    raw, ahead = match["number"], (match["compared"] or "").strip().replace("+/-", "±")
    sign = "-" if match["sign"] == "-" else ""
    suffix = (match["suffix"] or "").strip().lower()
    suffix = "%" if suffix.startswith("per") else suffix
    pieces = _pieces(raw.replace(" - ", "-"))
    exponent = match["exponent"] or match["ten"]
    if match["power"] and pieces[-1] == "10":
        exponent, pieces[-1] = match["power"], "1"
    elif match["power"]:
        pieces[-1] += f"^{match['power'].removeprefix('+')}"
    if exponent and (scaled := _canonical(f"{pieces[-1]}e{exponent}")):
        pieces[-1] = scaled
    if sign and pieces[0] != "0":
        pieces[0] = sign + pieces[0]
    pieces[0] = ahead + pieces[0]
    pieces[-1] += suffix
    return [*filter(None, [match["currency"]]), *pieces, *filter(None, [match["rate"]])]  # "5 €" is "€5"


def _pieces(raw: str) -> list[str]:
    one = _canonical(raw)
    if one:
        return [one]
    if date := _DATE.fullmatch(raw):
        return [date[1], f"{int(date[3])}-{int(date[4])}"]
    ends = [_canonical(end) for end in raw.split("-")]
    if len(ends) == 2 and all(ends):
        low, high = (str(end) for end in ends)
        years = re.fullmatch(r"\d{4}-\d{4}", raw)
        return [low, "-", high] if years else [f"{low}-{high}"]
    if "," in raw:
        return [piece for part in raw.split(",") for piece in _pieces(part)]
    return [raw]


def _canonical(raw: str) -> str | None:
    """Return the same string for all spellings of a number, or None if the string is not a single number."""
    mantissa, mark, exponent = raw.partition("e")
    if len(raw) > 100 or (mark and not re.fullmatch(r"[+-]?\d{1,4}", exponent)):
        return None
    if _GROUPS.fullmatch(mantissa):
        mantissa = re.sub("[,' ]", "", mantissa)
    elif _GROUPS_BY_DOTS.fullmatch(mantissa):
        mantissa = mantissa.replace(".", "").replace(",", ".")
    elif _DECIMAL.fullmatch(mantissa):
        mantissa = mantissa.replace(",", ".")
    else:
        return None
    value = Decimal(f"{mantissa}e{exponent or 0}").normalize(_EXACT)
    return str(value) if abs(value.adjusted()) > 30 else f"{value:f}"
