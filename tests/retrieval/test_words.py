from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from querywright.retrieval.words import query_terms, terms


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Blood-pressure: 120/80 mmHg!", ["blood", "pressure", "120", "80", "mmhg"]),
        ("the patient's snake_case", ["the", "patient", "s", "snake", "case"]),
        ("STRASSE Straße", ["strasse", "strasse"]),
        ("CAFÉ cafe\u0301", ["café", "café"]),
        ("ﬁbre №1 \uff21\uff22\uff11", ["fibre", "no1", "ab1"]),
        ("soft\u00adhyphen zero\u200dwidth", ["softhyphen", "zerowidth"]),
        ("İSTANBUL Istanbul I\u011eDIR I\u011fd\u0131r", ["istanbul", "istanbul", "iğdir", "iğdir"]),
        ("\u0662\u0665 mg ¿Qué?", ["25", "mg", "qué"]),
        ("Aspirin™ \u2212 sof\u2011ter", ["aspirin", "sof", "ter"]),
        ("हिन्दी भाषा।", ["हिन्दी", "भाषा"]),
        ("Ελλάς ΕΛΛΆΣ", ["ελλάσ", "ελλάσ"]),
        ("", []),
        ("?! ... ❤️ \x00\x07", []),
        ("a\x00b", ["a", "b"]),
        ("half \ud800 character", ["half", "character"]),
    ],
)
def test_words(text: str, words: list[str]) -> None:
    assert terms(text) == words
    assert query_terms(text) == words


@pytest.mark.parametrize(
    ("text", "asked", "indexed"),
    [
        ("糖尿病", ["糖尿", "尿病"], ["糖尿", "尿病", "糖", "尿", "病"]),
        ("癌", ["癌"], ["癌"]),
        ("東京へ2024年、行く", ["東京", "京へ", "2024", "年", "行く"], None),
        ("ﾀﾞｲｴｯﾄ・コーラ", ["ダイ", "イエ", "エッ", "ット", "コー", "ーラ"], None),
        ("당뇨병 약", ["당뇨", "뇨병", "약"], None),
        ("ビタミンC", ["ビタ", "タミ", "ミン", "c"], None),
        ("ภาษา", ["ภา", "าษ", "ษา"], None),
    ],
)
def test_scripts_without_spaces(text: str, asked: list[str], indexed: list[str] | None) -> None:
    assert query_terms(text) == asked
    assert set(asked) <= set(terms(text))
    if indexed is not None:
        assert terms(text) == indexed


def test_decomposed_hangul_is_the_same() -> None:
    assert terms("\u1103\u1161\u11bc\u1102\u116d") == terms("당뇨")


@given(st.text())
def test_every_text_has_words_without_space_and_case(text: str) -> None:
    for word in terms(text):
        assert word
        assert not any(char.isspace() for char in word)
    assert set(query_terms(text)) <= set(terms(text))
    assert terms(text.upper().lower()) == terms(text.upper().lower().casefold())
