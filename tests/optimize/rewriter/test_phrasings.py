"""How evidence is worded: sentences with a gap for the name, chosen by what they find for questions that ask alike."""

from __future__ import annotations

import math
from collections.abc import Sequence

from querywright.data.types import Label, Passage, Question
from querywright.optimize.rewriter.evidence import best_ideas, group_of, ideas
from querywright.optimize.rewriter.phrasings import Frame, frame_of, phrasings, sentences_of

NAMES = ("Alder", "Birch", "Cedar", "Dogwood", "Elm", "Fir", "Gum", "Hazel", "Ironwood", "Juniper")
PASSAGES = {
    name: Passage(id=name, title=name, text=f"{name} grows tall. Experts say that {name} lives long. More on {name}.")
    for name in NAMES
}


def title(id: str) -> str:
    return PASSAGES[id].title if id in PASSAGES else ""


def asked(name: str, text: str = "How old does {} get?") -> Question:
    return Question(f"{text}-{name}", text.replace("{}", name), evidence={name: Label.USEFUL})


def test_a_frame_is_the_question_with_a_gap_whatever_its_case_and_punctuation() -> None:
    assert frame_of(asked("Elm"), title) == Frame("how old does {} get", "Elm")
    assert frame_of(asked("Elm", "how old does {}  get ?"), title) == Frame("how old does {} get", "Elm")
    assert frame_of(asked("Elm", "How old do trees get?"), title) is None
    both = Question("q", "Is Elm older than Fir?", evidence={"Elm": Label.USEFUL, "Fir": Label.USEFUL})
    assert frame_of(both, title) is None


def test_sentences_hold_the_name_are_cut_and_only_the_first_two_are_taken() -> None:
    assert sentences_of(PASSAGES["Elm"], "Elm") == ["{} grows tall.", "Experts say that {} lives long."]
    assert sentences_of(Passage(id="x", title="X", text="Nothing of it. Nor here. ELM at last."), "Elm") == []
    long = Passage(id="x", title="X", text="elm " + "word " * 40)
    assert sentences_of(long, "Elm") == ["{} " + " ".join(["word"] * 15)]
    assert sentences_of(Passage(id="x", title="X", text="A {} for Elm."), "Elm") == ["A for {}."]


def measure(values: dict[str, float], calls: list[int] | None = None) -> object:
    """Worth of a text by the end that it has; of any other, the plain question's among them, .5."""

    def found(questions: Sequence[Question], texts: Sequence[str]) -> list[float]:
        assert len(questions) == len(texts)
        if calls is not None:
            calls.append(len(texts))
        return [next((worth for end, worth in values.items() if text.endswith(end)), 0.5) for text in texts]

    return found


def test_the_sentence_that_finds_most_in_the_mean_is_chosen_for_each_way_to_ask() -> None:
    old = [asked(name) for name in NAMES]
    tall = [asked(name, "How tall is {}?") for name in NAMES[:8]]
    few = [asked(name, "Where is {}?") for name in NAMES[:7]]
    found = measure({"lives long.": 0.9, "grows tall.": 0.6})
    told: list[tuple[str, int, int]] = []
    chosen = phrasings([*old, *tall, *few], title, PASSAGES.get, found, lambda *one: told.append(one))  # type: ignore[arg-type]
    assert chosen == {
        "how old does {} get": "Experts say that {} lives long.",
        "how tall is {}": "Experts say that {} lives long.",
    }
    assert told[-1][1:] == (2, 2)


def test_where_the_question_alone_finds_as_much_nothing_is_chosen() -> None:
    questions = [asked(name) for name in NAMES]
    for worth in (0.5, 0.1, math.nan):
        found = measure({"lives long.": worth, "grows tall.": worth})
        assert phrasings(questions, title, PASSAGES.get, found) == {}  # type: ignore[arg-type]


def test_a_sentence_does_not_count_for_the_question_that_it_was_taken_from() -> None:
    own = {name: Passage(id=name, title=name, text=f"{name} is number {place}.") for place, name in enumerate(NAMES)}
    questions = [asked(name) for name in NAMES]
    by_text = {question.question: question for question in questions}

    def found(members: Sequence[Question], texts: Sequence[str]) -> list[float]:
        """A sentence is worth much for its own question and nothing for all others."""
        values = []
        for question, text in zip(members, texts, strict=True):
            name = next(iter(question.evidence))
            values.append(1.0 if text in by_text else 5.0 if text.endswith(own[name].text) else 0.9)
        return values

    assert phrasings(questions, title, own.get, found) == {}


def test_missing_and_unhelpful_passages_give_no_sentence() -> None:
    questions = [
        Question(
            f"q{name}",
            f"How old is {name}?",
            evidence={name: Label.USEFUL, "gone": Label.USEFUL, "Fir": Label.NOT_USEFUL},
        )
        for name in NAMES
    ]
    calls: list[int] = []
    found = measure({"lives long.": 0.9}, calls)
    assert phrasings(questions, title, lambda id: None, found) == {}  # type: ignore[arg-type]
    assert phrasings(questions, title, PASSAGES.get, found) == {"how old is {}": "Experts say that {} lives long."}  # type: ignore[arg-type]


def test_sixty_four_sentences_are_tried_on_sixteen_questions_and_eight_of_them_on_sixty_four() -> None:
    names = [f"Plant{number:03}x" for number in range(100)]
    many = {name: Passage(id=name, title=name, text=f"{name} {place}.") for place, name in enumerate(names)}
    questions = [asked(name) for name in names]
    calls: list[int] = []
    phrasings(questions, lambda id: many[id].title, many.get, measure({}, calls))  # type: ignore[arg-type]
    assert calls == [16, 64 * 16, 64, 8 * 64]


def test_a_wording_is_an_idea_and_a_group_of_its_own() -> None:
    question = asked("Elm")
    tried = ideas(question, title, options=False, wording="{} lives long.")
    assert tried["question, {} lives long."] == ("How old does Elm get? Elm lives long.",)
    other = ideas(question, title, options=False, wording="{} grows tall.")
    assert len({group_of(tried), group_of(other), group_of(ideas(question, title, options=False))}) == 3
    groups = [group_of(tried)] * 2
    scored = [{"question": 0.0, "question, {} lives long.": gain} for gain in (0.3, -0.1)]
    assert best_ideas(groups, scored) == {groups[0]: "question, {} lives long."}
    nameless = Question("q", "How old?", evidence={})
    assert list(ideas(nameless, title, options=False, wording="{} lives long.")) == ["question"]
