"""Quality of the packaged sample: its size, its labels, and that word overlap alone does not solve it."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from querywright.data import Label, load_sample

N_OPTIONS = 4
STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        """
    about across after again against along also another around because been before being between both could does doing
    done down each even every from have having here into just like made make makes many more most much must never often
    only other over same should some such than that their them then there these they this those through today told took
    under until used very want well were what when where which while will with without would your mine myself
    """,
    )
)
SUFFIXES = re.findall(r"\w+", "ation ings ing edly ies ied ness ment ers est ed es er ly s e y")


def stem(word: str) -> str:
    """The word without a common ending, at least four letters of it."""
    ending = next((end for end in SUFFIXES if word.endswith(end) and len(word) - len(end) >= 4), "")
    return word.removesuffix(ending)


def content_words(text: str) -> set[str]:
    """Stems of the words of four letters or more that are no stop words."""
    return {stem(word) for word in re.findall(r"[^\W\d_]{4,}", text.lower()) if word not in STOP_WORDS}


def entailed(question):
    return [card_id for card_id, label in question.evidence.items() if label is Label.ENTAILED]


@pytest.fixture(scope="module")
def sample():
    return load_sample()


def test_size_options_and_labels(sample):
    assert len(sample.passages) >= 190
    assert len(sample.questions) >= 230
    for question in sample.questions:
        assert len({option.casefold() for option in question.options}) == len(question.options) == N_OPTIONS
        assert question.answer in question.options
        assert 1 <= len(entailed(question)) <= 3, question.id
    for texts in ([q.question for q in sample.questions], [p.text for p in sample.passages]):
        assert len(set(texts)) == len(texts)
    assert all(passage.title for passage in sample.passages)
    assert {passage.id for passage in sample.passages} == {id for one in sample.questions for id in entailed(one)}


def test_right_options_are_told_by_neither_place_nor_length(sample):
    from scipy.stats import chisquare

    places = Counter(question.options.index(question.answer) for question in sample.questions)
    counts = [places[place] for place in range(N_OPTIONS)]
    assert chisquare(counts).pvalue > 0.05, counts
    assert all(0.2 <= count / len(sample.questions) <= 0.3 for count in counts), counts
    longest = [one for one in sample.questions if len(one.answer) > sorted(map(len, one.options))[-2]]
    assert len(longest) / len(sample.questions) < 0.35


def test_topics_have_siblings_that_do_not_decide(sample):
    topics = Counter(passage.id.rpartition("-")[0] for passage in sample.passages)
    lonely = [one.id for one in sample.questions if any(topics[id.rpartition("-")[0]] < 3 for id in entailed(one))]
    assert len(lonely) <= 0.1 * len(sample.questions), lonely


def test_no_question_is_solved_by_overlap_with_its_options(sample):
    for question in sample.questions:
        asked = content_words(question.question)
        shared = {option: len(content_words(option) & asked) for option in question.options}
        assert shared.pop(question.answer) <= max(shared.values()), question.id


def test_neither_the_question_nor_its_options_find_the_answer_by_their_words(sample):
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(stop_words="english", sublinear_tf=True)
    cards = vectorizer.fit_transform(passage.content for passage in sample.passages)

    def scores(texts):
        return (vectorizer.transform(texts) @ cards.T).toarray()

    ids = [passage.id for passage in sample.passages]
    best = scores([question.question for question in sample.questions]).argmax(axis=1)
    first = sum(ids[place] in entailed(one) for place, one in zip(best, sample.questions, strict=True))
    assert first / len(sample.questions) <= 0.65
    right = 0
    for question in sample.questions:
        found = scores([f"{question.question} {option}" for option in question.options]).max(axis=1)
        right += question.options[found.argmax()] == question.answer
    assert right / len(sample.questions) < 0.45
