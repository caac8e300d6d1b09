"""Quality of the packaged sample: its size, its labels, and that word overlap alone does not solve it."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from importlib import resources

import pytest

from querywright.data import Label, Passage, Question, load_sample
from querywright.data.sample import Sample

MIN_CARDS = 190
MIN_QUESTIONS = 230
N_OPTIONS = 4
MAX_ENTAILED = 3
MIN_POSITION_P = 0.05
POSITION_SHARE = (0.20, 0.30)
MAX_LONGEST_SHARE = 0.35
MIN_SIBLINGS = 2
MIN_SIBLING_SHARE = 0.90
MAX_OPTION_SOLVER_ACCURACY = 0.45
MAX_PLAIN_FIRST_SHARE = 0.65

STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        """
        about across after again against along also another around because been before being between
        both could does doing done down each even every from have having here into just like made
        make makes many more most much must never often only other over same should some such than
        that their them then there these they this those through today told took under until used
        very want well were what when where which while will with without would your mine myself
        """,
    )
)
SUFFIXES = (
    "ation",
    "ings",
    "ing",
    "edly",
    "ies",
    "ied",
    "ness",
    "ment",
    "ers",
    "est",
    "ed",
    "es",
    "er",
    "ly",
    "s",
    "e",
    "y",
)


def stem(word: str) -> str:
    """The word without a common ending, at least four letters of it."""
    for suffix in SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= 4:
            return word[: -len(suffix)]
    return word


def content_words(text: str) -> set[str]:
    """Stems of the words of four letters or more that are no stop words."""
    words = re.findall(r"[^\W\d_]{4,}", text.lower())
    return {stem(word) for word in words if word not in STOP_WORDS}


def is_given_away(question: Question) -> bool:
    """Whether the right option alone shares the most content words with the question."""
    asked = content_words(question.question)
    shared = {option: len(content_words(option) & asked) for option in question.options}
    right = shared.pop(question.answer or "")
    return right > max(shared.values())


def is_longest(question: Question) -> bool:
    """Whether the right option has more characters than every other one."""
    return all(len(question.answer or "") > len(option) for option in question.options if option != question.answer)


def topic(card_id: str) -> str:
    return card_id.rpartition("-")[0]


def entailed(question: Question) -> list[str]:
    return [card_id for card_id, label in question.evidence.items() if label is Label.ENTAILED]


class BM25:
    """Okapi BM25 over stems, k1 = 1.5 and b = 0.75."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.counts = [Counter(self.tokens(text)) for text in texts]
        self.lengths = [sum(count.values()) for count in self.counts]
        self.mean_length = sum(self.lengths) / len(self.lengths)
        found = Counter(token for count in self.counts for token in count)
        n = len(texts)
        self.idf = {token: math.log(1 + (n - df + 0.5) / (df + 0.5)) for token, df in found.items()}

    @staticmethod
    def tokens(text: str) -> list[str]:
        return [stem(word) for word in re.findall(r"\w+", text.lower()) if word not in STOP_WORDS]

    def scores(self, query: str) -> list[float]:
        """One score a text."""
        tokens = [token for token in self.tokens(query) if token in self.idf]
        norms = [1.5 * (0.25 + 0.75 * length / self.mean_length) for length in self.lengths]
        return [
            sum(self.idf[token] * 2.5 * count[token] / (count[token] + norm) for token in tokens)
            for count, norm in zip(self.counts, norms, strict=True)
        ]


def option_solver_accuracy(sample: Sample) -> float:
    """How often the option whose search together with the question finds the best card is the right one."""
    index = BM25([passage.content for passage in sample.passages])
    right = 0.0
    for question in sample.questions:
        best = {option: max(index.scores(f"{question.question} {option}")) for option in question.options}
        top = [option for option, score in best.items() if score == max(best.values())]
        right += (question.answer in top) / len(top)
    return right / len(sample.questions)


def plain_first_share(sample: Sample) -> float:
    """How often a TF-IDF search with the question finds an entailing card first."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(stop_words="english", sublinear_tf=True)
    cards = vectorizer.fit_transform(passage.content for passage in sample.passages)
    similarity = vectorizer.transform(question.question for question in sample.questions) @ cards.T
    hits = [
        scores.max() > 0 and sample.passages[scores.argmax()].id in entailed(question)
        for scores, question in zip(similarity.toarray(), sample.questions, strict=True)
    ]
    return sum(hits) / len(hits)


def position_counts(sample: Sample) -> list[int]:
    counts = Counter(question.options.index(question.answer or "") for question in sample.questions)
    return [counts[position] for position in range(N_OPTIONS)]


@pytest.fixture(scope="module")
def sample() -> Sample:
    folder = resources.files("querywright.data.sample")
    if not all((folder / name).is_file() for name in ("cards.jsonl", "questions.jsonl")):
        pytest.skip("the sample's files are not written yet")
    return load_sample()


def names(questions: Sequence[Question], wrong: Callable[[Question], bool]) -> list[str]:
    return [question.id for question in questions if wrong(question)]


# --- the sample ---


def test_size(sample):
    assert len(sample.passages) >= MIN_CARDS
    assert len(sample.questions) >= MIN_QUESTIONS


def test_four_distinct_options_with_the_answer_among_them(sample):
    assert names(sample.questions, lambda q: len({o.casefold() for o in q.options}) != N_OPTIONS) == []
    assert names(sample.questions, lambda q: len(q.options) != N_OPTIONS) == []
    assert names(sample.questions, lambda q: q.answer not in q.options) == []


def test_questions_and_cards_are_asked_once(sample):
    for texts in ([q.question for q in sample.questions], [p.text for p in sample.passages]):
        assert [text for text, count in Counter(texts).items() if count > 1] == []
    assert [passage.id for passage in sample.passages if not passage.title] == []


def test_every_card_entails_and_every_question_is_entailed(sample):
    entailing = {card_id for question in sample.questions for card_id in entailed(question)}
    assert sorted({passage.id for passage in sample.passages} ^ entailing) == []
    assert names(sample.questions, lambda q: not 1 <= len(entailed(q)) <= MAX_ENTAILED) == []


def test_right_positions_are_balanced(sample):
    from scipy.stats import chisquare

    counts = position_counts(sample)
    assert chisquare(counts).pvalue > MIN_POSITION_P, counts
    low, high = (share * len(sample.questions) for share in POSITION_SHARE)
    assert all(low <= count <= high for count in counts), counts


def test_the_right_option_is_seldom_the_longest(sample):
    longest = names(sample.questions, is_longest)
    assert len(longest) / len(sample.questions) < MAX_LONGEST_SHARE, longest


def test_topics_have_siblings_that_do_not_decide(sample):
    sizes = Counter(topic(passage.id) for passage in sample.passages)
    lonely = names(sample.questions, lambda q: any(sizes[topic(card_id)] - 1 < MIN_SIBLINGS for card_id in entailed(q)))
    assert len(lonely) <= (1 - MIN_SIBLING_SHARE) * len(sample.questions), lonely


def test_no_question_is_solved_by_overlap_with_its_options(sample):
    assert names(sample.questions, is_given_away) == []


@pytest.mark.slow
def test_searching_with_each_option_does_not_solve_it(sample):
    assert option_solver_accuracy(sample) < MAX_OPTION_SOLVER_ACCURACY


def test_searching_with_the_question_does_not_solve_it(sample):
    assert plain_first_share(sample) <= MAX_PLAIN_FIRST_SHARE


# --- the checks themselves ---


def question_of(text: str, *options: str, **evidence: str) -> Question:
    labels = {name.replace("_", "-"): Label[label] for name, label in evidence.items()}
    return Question("q", text, options, options[0], (), labels)


TOY = Sample(
    [
        Passage("s-salt-01", "Salt raises pressure because the kidneys hold water."),
        Passage("s-salt-02", "Bread and cheese hide most of the salt that people eat."),
        Passage("s-cuff-01", "A narrow cuff gives false high readings."),
    ],
    [
        question_of("Does bread matter?", "Yes, hidden sodium", "No, sugar", s_salt_02="ENTAILED"),
        question_of("Why is the reading high?", "The narrow cuff", "The doctor", s_cuff_01="ENTAILED"),
        question_of("What holds fluid back?", "A pair of organs", "Bread and cheese", s_salt_01="ENTAILED"),
    ],
)


def test_content_words():
    text = "Which readings? The READING was late twice; I'd measured it"
    assert content_words(text) == {"read", "late", "twic", "measur"}
    assert stem("testing") == stem("tests") == stem("tested") == "test"


def test_give_aways_are_seen():
    assert is_given_away(question_of("My ankles swell at night", "Swelling of ankles", "Cough at night", "Rash"))
    assert not is_given_away(question_of("My ankles swell", "Swelling", "Swollen ankles", "Rash"))
    assert not is_given_away(question_of("My ankles swell", "Fluid", "Cough", "Rash"))
    assert is_longest(question_of("?", "longer", "long"))
    assert not is_longest(question_of("?", "longer", "larger"))


def test_bm25_by_hand():
    index = BM25(["salt salt water", "water cuff"])
    idf = math.log(1 + (2 - 1 + 0.5) / (1 + 0.5))
    expected = idf * 2.5 * 2 / (2 + 1.5 * (0.25 + 0.75 * 3 / 2.5))
    assert index.scores("salt unknown") == [pytest.approx(expected), 0.0]


def test_solvers_on_a_toy():
    assert option_solver_accuracy(TOY) == pytest.approx((0.5 + 1 + 0) / 3)
    assert plain_first_share(TOY) == pytest.approx(2 / 3)
    assert topic("bp-num-01") == "bp-num"
