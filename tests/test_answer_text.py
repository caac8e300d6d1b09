from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from querywright.answer_text import find_choice, fold, occurs_in, plain, same_answer, words

EQUAL = [
    # numbers
    ("1.50", "1.5"),
    (".5", "0.5"),
    ("+5", "5"),
    ("-0", "0"),
    ("1,000", "1000"),
    ("1.234,56", "1,234.56"),
    ("1.000.000", "1,000,000"),
    ("1,00,000", "100000"),  # as written in India
    ("1\u202f000", "1000"),
    ("1,5 mg", "1.5 mg"),
    ("2\u00b75 mg", "2.5 mg"),
    ("\u221240 °C", "-40°C"),
    ("\u2212 40", "-40"),
    ("37\u00baC", "37 °C"),
    ("2,50 €", "€2.50"),
    ("10 percent", "10%"),
    (">= 5", "≥5"),
    ("5 +/- 2", "5 ± 2"),
    ("1.5e3", "1500"),
    ("1.5 \u00d7 10\u00b3", "1500"),
    ("10^6", "1,000,000"),
    ("10\u207b\u00b3", "0.001"),
    ("2½", "2 1/2"),
    ("\u0662\u066b\u0665", "2.5"),
    ("2\u20133", "2-3"),
    ("2020-01-05", "2020-1-5"),
    ("x²", "x^2"),
    ("5-day", "5 day"),
    ("[0, 1.0)", "[0,1)"),
    # marks inside words
    ("U.S.", "US"),
    ("follow-up", "follow up"),
    ("B-12", "B12"),
    ("Johnson & Johnson", "Johnson and Johnson"),
    # marks around an answer
    ("“Paris”.", "paris"),
    ("**Paris**", "Paris"),
    ("`Paris`", "Paris"),
    ("- Paris", "Paris"),
    ("<b>Paris</b>", "Paris"),
    ("[Paris](https://x.org)", "Paris"),
    (r"\boxed{\text{Paris}}", "Paris"),
    (r"$\mathbf{Paris}$", "Paris"),
    (r"$40^\circ$C", "40 °C"),
    (r"5\%", "5%"),
    (r"\frac{1}{2}", "1/2"),
    ("&lt;5", "<5"),
    ("**Answer:** Paris", "Paris"),
    ("答案\uff1a巴黎", "巴黎"),
    # signs, articles
    ("C#.", "c#"),
    ("HBsAg -", "HBsAg-"),
    ("the Beatles", "Beatles"),
    ("Once Upon A Time", "once upon a time"),
    # Unicode
    ("cafe\u0301", "café"),
    ("\uff21\uff22\uff11", "ab1"),
    ("İstanbul", "istanbul"),
    ("I\u011eDIR", "I\u011fd\u0131r"),
    ("STRASSE", "Straße"),
    ("¿Por qué?", "por qué"),
    ("باريس؟", "باريس"),
    ("サッカー。", "ｻｯｶｰ"),
    (unicodedata.normalize("NFD", "서울은"), "서울은"),
    ("soft\u00adware", "software"),
]
DIFFERENT = [
    ("25 mg", "2.5 mg"),
    ("-40", "40"),
    ("10%", "10"),
    ("<5", ">5"),
    ("1,5", "15"),
    ("$5", "5"),
    ("5 mg", "5 g"),
    ("5 mg", "5 mg/kg"),
    ("2-3", "23"),
    ("[0,1)", "[0,1]"),
    ("[0,1)", "(0,1]"),
    ("3.11.2", "3112"),
    ("GPT-4", "GPT-4.1"),
    ("1st", "1"),
    ("1990s", "1990"),
    ("10^3", "103"),
    ("10\u207b\u00b3", "10\u00b3"),
    ("2020-01-05", "20200105"),
    ("1" * 40 + "1", "1" * 40 + "2"),
    ("C#", "C++"),
    ("A-", "A+"),
    ("B♭", "B"),
    ("<b>", "<i>"),
    ("A-", "A"),
    (".NET", "NET"),
    ("A", "The"),
    ("A", ""),
    ("A, B", "B"),
    ("Hepatitis A virus", "Hepatitis virus"),
    ("resume", "résumé"),
    ("?", "!"),
]


@pytest.mark.parametrize(("one", "other"), EQUAL)
def test_equal_answers(one: str, other: str) -> None:
    assert same_answer(one, other)
    assert same_answer(other, one)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_different_answers(one: str, other: str) -> None:
    assert not same_answer(one, other)
    assert not same_answer(other, one)


@pytest.mark.parametrize(
    ("answer", "text", "occurs"),
    [
        ("5 mg", "The dose is 2.5 mg a day.", False),
        ("2.5 mg", "The dose is 2.50mg.", True),
        ("5 mg", "The dose is 5 mg/kg.", False),
        ("5 mg", "less than <5 mg", False),
        ("5", "5.5", False),
        ("5", "It costs $5", True),
        ("10", "10% of them", False),
        ("40", "it was \u221240 °C", False),
        ("-40", "it was \u221240 °C", True),
        ("3.11", "Python 3.11.2", False),
        ("1", "1/2", False),
        ("1914", "the war (1914\u20131918)", True),
        ("2020", "on 2020-01-05", True),
        ("Curie", "Marie Curie's lab", True),
        ("US", "the U.S. visit", True),
        ("C", "C++ and C#", False),
        (".NET", "runs in .NET 8", True),
        ("NET", "runs in .NET 8", False),
        ("A", "rich in vitamin A.", True),
        ("A", "He has a cat and the dog", False),
        ("서울", "서울은 수도이다.", True),
        ("१० साल", "वह १० साल का है।", True),
    ],
)
def test_an_answer_in_a_text(answer: str, text: str, occurs: bool) -> None:
    assert occurs_in(answer, text) is occurs


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("IBM公司\uff0c成立於\uff11\uff19\uff11\uff11年。", ["ibm", "公", "司", "成", "立", "於", "1911", "年"]),
        ("約\uff12\uff0e\uff15人、1,000円", ["約", "2.5", "人", "1000", "円"]),
        ("ｶﾞﾝﾀﾞﾑ", ["ガ", "ン", "ダ", "ム"]),
        ("“U.S.”𠮷野家", ["us", "𠮷", "野", "家"]),
        ("The Beatles の a day", ["beatles", "の", "day"]),
        ("1,2,3", ["1", "2", "3"]),
        ("p<0.05", ["p", "<0.05"]),
        ("E = mc²", ["e", "=", "mc2"]),
    ],
)
def test_tokens(text: str, tokens: list[str]) -> None:
    assert words(text) == tokens


LABELS = ["ENTAILED", "USEFUL", "NOT_USEFUL"]


@pytest.mark.parametrize(
    ("value", "choices", "index"),
    [
        ("NOT_USEFUL", LABELS, 2),
        ("not-useful", LABELS, 2),
        ("NotUseful", LABELS, 2),
        ("Label: NOT_USEFUL", LABELS, 2),
        ("Score: 3", ["1", "2", "3"], 2),
        (["USEFUL"], LABELS, 1),
        ("not useful at all", LABELS, None),
        ("USEFUL or NOT_USEFUL", LABELS, None),
        (["USEFUL", "ENTAILED"], LABELS, None),
        (None, LABELS, None),
        ({"label": "USEFUL"}, LABELS, None),
        (True, ["yes", "no"], 0),
        ("true", ["yes", "no"], 0),
        ("Y", ["yes", "no"], 0),
        ("n.", ["yes", "no"], 1),
        ("yes and no", ["yes", "no"], None),
        ("maybe", ["yes", "no"], None),
        ("yes", [True, False], 0),
        (5, ["4", "5.0"], 1),
        ("aa", ["AA", "Aa", "aa"], 2),
        ("Aa.", ["AA", "Aa", "aa"], 1),
        ("aA", ["AA", "Aa", "aa"], None),
        ("A-.", ["A+", "A-"], 1),
        ("5!", ["5", "5!"], 1),
        ("drug", ["drug", "drug"], None),
    ],
)
def test_a_choice_is_found_unless_it_is_unclear(value: object, choices: list[object], index: int | None) -> None:
    assert find_choice(value, choices) == index


@settings(max_examples=200)
@given(st.text(max_size=40))
def test_any_text_equals_itself_and_occurs_in_itself(text: str) -> None:
    assert same_answer(text, text)
    assert same_answer(unicodedata.normalize("NFD", text), unicodedata.normalize("NFC", text))
    assert occurs_in(text, text) or not words(text)
    assert fold(fold(plain(text))) == fold(plain(text))
