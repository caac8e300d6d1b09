"""What is compared of an answer: SQuAD's normalisation, and tokens that fit text without spaces between words."""

from __future__ import annotations

import re
import string
import unicodedata

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
# In text with Chinese, Japanese or Korean characters a lone "a" is mostly a name: vitamin A, type A.
_ARTICLES_OF_WORDS = re.compile(r"\b(a|an|the)\b(?=\s+[a-z])")

# Jamo; radicals, punctuation, kana, Bopomofo and ideographs; Hangul; compatibility, full-width and rare forms.
_CJK = (
    "\u1100-\u11ff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef"
    "\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)
_HAS_CJK = re.compile(f"[{_CJK}]")
_NOT_IN_A_NUMBER = re.compile(f"(?<!\\d)[{_CJK}]|[{_CJK}](?!\\d)")
_TOKEN = re.compile(f"[{_CJK}]|[^\\s{_CJK}]+")


def normalize_answer(text: str) -> str:
    """Text as SQuAD compares it.

    In this order: lower case, delete ASCII punctuation (``U.S.`` becomes ``us``), put a space for the
    articles a, an and the, collapse white space. It turns the option letter "A" into nothing: for multiple
    choice use `extract_option`. Text without spaces between words stays one token: see `answer_tokens`.

    Source: Rajpurkar et al. 2016, arXiv:1606.05250.
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def answer_tokens(*texts: str) -> list[list[str]]:
    """The tokens of texts that are compared with each other.

    Where none of them holds a Chinese, Japanese or Korean character these are the words of `normalize_answer`.
    Where one does, all are read alike: Unicode's compatibility form (NFKC: full-width letters and digits become
    ASCII), lower case, all punctuation deleted and not ASCII's alone, and articles only in front of a Latin word.
    Punctuation of these scripts, written without a space, separates words unless it stands in a number.

    Each ideograph, kana and Hangul syllable is a token; Latin words and numbers stay whole. Spaces between such
    characters make no difference, so neither do Korean word spaces, which writers set freely; a Korean word would
    also be the wrong unit, since its particle hangs on it (``서울은`` is ``서울`` with one). Other scripts
    without spaces, such as Thai, stay whole.

    Args:
        texts: What is compared, such as a prediction and an accepted answer.

    Returns:
        The tokens of each text, in order.

    Source: characters and all punctuation for Chinese as in MLQA, Lewis et al. 2019, arXiv:1910.07475, and CMRC,
    Cui et al. 2018, arXiv:1810.07366 (whose F1 looks at the longest common run, ours at shared tokens as SQuAD);
    syllables for Korean as in KorQuAD, Lim et al. 2019, arXiv:1909.07005, which splits Latin words and numbers
    as well. The compatibility form is our own.
    """
    if not any(_HAS_CJK.search(text) for text in texts):
        return [normalize_answer(text).split() for text in texts]
    return [_TOKEN.findall(_normalize_wide(text)) for text in texts]


def _normalize_wide(text: str) -> str:
    spaced = _NOT_IN_A_NUMBER.sub(lambda mark: " " if _is_punctuation(mark[0]) else mark[0], text)
    folded = unicodedata.normalize("NFKC", spaced).lower().translate(_PUNCTUATION)
    plain = "".join(mark for mark in folded if not _is_punctuation(mark))
    return _ARTICLES_OF_WORDS.sub(" ", plain)


def _is_punctuation(mark: str) -> bool:
    return unicodedata.category(mark).startswith("P")
