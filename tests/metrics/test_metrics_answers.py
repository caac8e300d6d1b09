from __future__ import annotations

import math
import unicodedata
from collections import Counter

import pytest
from dspy.evaluate.metrics import em_score, f1_score
from hypothesis import given
from hypothesis import strategies as st

from querywright.metrics.answers import contains_answer, exact_match, hit, token_f1
from querywright.metrics.tokens import answer_tokens, normalize_answer

WORDS = st.lists(st.sampled_from(["red", "blue", "green", "the", "a", "x-ray", "U.S."]), max_size=6).map(" ".join)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The Eiffel Tower!", "eiffel tower"),
        ("U.S.", "us"),
        ("x-ray", "xray"),
        ("an  answer\tto   the question", "answer to question"),
        ("theatre and anagram", "theatre and anagram"),
        ("A", ""),
        ("the.end", "theend"),  # punctuation goes first, so no article is left alone
        ("a-b", "ab"),
        ("“the”", "“ ”"),  # only ASCII punctuation is deleted
        ("東京タワー", "東京タワー"),
    ],
)
def test_normalisation_follows_squad(text, normal):
    assert normalize_answer(text) == normal


def test_exact_match_is_the_best_over_the_answers():
    assert exact_match("the Beatles", ["Queen", "Beatles"]) == 1.0
    assert exact_match("Beatle", ["Queen", "Beatles"]) == 0.0
    assert exact_match("A", [""]) == 1.0  # the trap that multiple choice must avoid


def test_f1_by_hand():
    assert token_f1("the Eiffel Tower", ["Eiffel Tower in Paris"]) == pytest.approx(2 / 3)
    assert token_f1("red red blue", ["red blue blue"]) == pytest.approx(2 / 3)  # shared: red once, blue once
    assert token_f1("red", ["blue", "red green"]) == pytest.approx(2 / 3)


def test_f1_without_tokens():
    assert token_f1("", ["red"]) == 0.0
    assert token_f1("red", ["the"]) == 0.0
    assert token_f1("the", ["a"]) == 1.0


def test_no_accepted_answer_cannot_be_scored():
    assert math.isnan(exact_match("red", []))
    assert math.isnan(token_f1("red", []))


@given(WORDS, WORDS)
def test_f1_is_symmetric_and_bounded(one, other):
    value = token_f1(one, [other])
    assert 0.0 <= value <= 1.0
    assert value == token_f1(other, [one])
    same_tokens = Counter(normalize_answer(one).split()) == Counter(normalize_answer(other).split())
    assert (value == 1.0) == same_tokens


@given(WORDS, st.lists(WORDS, min_size=1, max_size=4))
def test_exact_match_implies_full_f1_and_aliases_never_hurt(prediction, answers):
    assert token_f1(prediction, answers) >= exact_match(prediction, answers)
    assert token_f1(prediction, answers) == max(token_f1(prediction, [answer]) for answer in answers)


@given(st.text(max_size=50))
def test_any_text_equals_itself(text):
    normal = normalize_answer(text)
    assert normal == " ".join(normal.split())
    assert token_f1(text, [text]) == 1.0
    assert exact_match(text, [text]) == 1.0


@pytest.mark.parametrize("score", [exact_match, token_f1, lambda text, answers: hit([text], answers)])
def test_one_text_in_the_place_of_several_answers_is_refused(score):
    with pytest.raises(TypeError, match="answers must be a list of texts, but got the text 'Paris'; put it in a list"):
        score("P", "Paris")


@given(st.text(st.characters(max_codepoint=0x10FF), max_size=40), st.text(st.characters(max_codepoint=0x10FF)))
def test_without_cjk_characters_tokens_are_squads(one, other):
    assert answer_tokens(one, other) == [normalize_answer(one).split(), normalize_answer(other).split()]


@given(WORDS, WORDS.filter(bool))
def test_english_f1_is_dspys(prediction, answer):
    if normalize_answer(prediction) and normalize_answer(answer):
        assert token_f1(prediction, [answer]) == pytest.approx(f1_score(prediction, answer))
    assert exact_match(prediction, [answer]) == float(em_score(prediction, answer))


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("東京タワー", ["東", "京", "タ", "ワ", "ー"]),
        ("大韓 民國", ["大", "韓", "民", "國"]),
        ("서울은", ["서", "울", "은"]),
        (unicodedata.normalize("NFD", "서울은"), ["서", "울", "은"]),  # jamo, as some file systems write them
        ("IBM公司\uff0c成立於\uff11\uff19\uff11\uff11年。", ["ibm", "公", "司", "成", "立", "於", "1911", "年"]),
        ("「東京」\uff08Tokyo、Japan\uff09", ["東", "京", "tokyo", "japan"]),
        ("ｶﾞﾝﾀﾞﾑ", ["ガ", "ン", "ダ", "ム"]),
        ("約\uff12\uff0e\uff15人、1,000円", ["約", "25", "人", "1000", "円"]),  # SQuAD too makes 25 of 2.5
        ("ビタミン A", ["ビ", "タ", "ミ", "ン", "a"]),
        ("The Beatles の A day", ["beatles", "の", "day"]),
        ("𠮷野家", ["𠮷", "野", "家"]),
        ("“U.S.”美国", ["us", "美", "国"]),
    ],
)
def test_tokens_of_cjk_texts(text, tokens):
    assert answer_tokens(text) == [tokens]


def test_both_texts_are_read_alike_where_one_has_cjk_characters():
    assert answer_tokens("“Tokyo”", "東京") == [["tokyo"], ["東", "京"]]
    assert answer_tokens("“Tokyo”", "Tokyo") == [["“tokyo”"], ["tokyo"]]
    assert exact_match("2008。", ["2008"]) == 1.0


def test_cjk_answers_by_hand():
    assert exact_match("北京市。", ["北京市"]) == 1.0
    assert exact_match("대한 민국", ["대한민국"]) == 1.0
    assert token_f1("北京市", ["北京"]) == pytest.approx(4 / 5)  # P 2/3, R 1
    assert token_f1("서울은", ["서울"]) == pytest.approx(4 / 5)  # by words it would be 0
    assert token_f1("東京タワー", ["京都タワー"]) == pytest.approx(4 / 5)  # shared: 京 タ ワ ー
    assert token_f1("1911年", ["1912年"]) == pytest.approx(1 / 2)  # a number is one token
    assert token_f1("上海", ["北京"]) == 0.0


PASSAGE = "Radium\nMarie Curie's lab in Paris/Sceaux found it; she knew no rest (U.S. visit: 1921)."


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("Marie Curie", 1.0),
        ("the lab", 1.0),  # articles do not count
        ("Paris", 1.0),
        ("US", 1.0),
        ("U.S.", 1.0),
        ("1921", 1.0),
        ("192", 0.0),
        ("no", 1.0),  # a word of its own; an accident, which the definition allows
        ("now", 0.0),
        ("new", 0.0),  # a part of "knew"
        ("C", 0.0),
        ("Curie Marie", 0.0),
        ("radium Marie", 1.0),  # the title stands before the text
        ("Pierre Curie", 0.0),
    ],
)
def test_hit_by_hand(answer, value):
    assert hit(["Nothing here.", PASSAGE], [answer]) == value
    assert hit(["Nothing here.", PASSAGE], ["absent", answer]) == value


def test_a_hit_lies_within_one_passage():
    assert hit(["seen by Marie", "Curie was there"], ["Marie Curie"]) == 0.0
    assert hit([], ["Curie"]) == 0.0


def test_hit_in_cjk_text():
    assert hit(["首都は東京都です。"], ["東京"]) == 1.0
    assert hit(["IBM公司成立于1911年。"], ["IBM"]) == 1.0
    assert hit(["서울은 수도이다."], ["서울"]) == 1.0
    assert hit(["서울은 수도이다."], ["부산"]) == 0.0
    assert hit(["Lord of the Rings (指輪物語)"], ["The Lord of the Rings"]) == 1.0


def test_an_answer_that_cannot_be_looked_for():
    for answers in ([], ["A"], ["", "the"]):
        assert math.isnan(hit([PASSAGE], answers))
    assert hit(["Curie"], ["A", "Curie"]) == 1.0
    with pytest.raises(TypeError, match="passages must be a list"):
        hit("Curie", ["Curie"])


@pytest.mark.parametrize(
    ("written", "answer", "value"),
    [
        ("Insulin lowers blood sugar.", "insulin", 1.0),
        ("It is the U.S. that won.", "US", 1.0),
        ("Insulins lower it.", "insulin", 0.0),
        ("", "insulin", 0.0),
        ("Yes, both are rivers.", "yes", 1.0),
        ("yes", "Yes.", 1.0),
        ("They are, yes.", "yes", 0.0),
        ("There is no river.", "no", 0.0),
        ("No one is.", "no one", 1.0),
        ("No, both are.", "yes", 0.0),
        ("수도는 서울이다.", "서울", 1.0),
        ("Vitamin A.", "A", 0.0),
    ],
)
def test_an_answer_in_a_sentence_by_hand(written, answer, value):
    assert contains_answer(written, [answer]) == value
    assert contains_answer(written, ["absent", answer]) == value


def test_an_answer_in_a_sentence_without_accepted_ones():
    assert math.isnan(contains_answer("Curie", []))
    with pytest.raises(TypeError, match="answers must be a list"):
        contains_answer("Curie", "Curie")
