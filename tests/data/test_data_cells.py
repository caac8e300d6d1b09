"""Lists and objects in text cells, as JSON, Python, pandas and NumPy write them."""

from __future__ import annotations

import csv
import json

import numpy
import pandas
import pytest

from querywright.data import Label, Passage, Question, read_passages, read_questions
from querywright.data.types import PERSON
from querywright.errors import DataError

TURNS = [{"role": "user", "content": "It's loose."}, {"role": "assistant", "content": "Which one?"}]


@pytest.fixture
def one(tmp_path):
    """Reads the one question of a CSV file that has these cells."""

    def call(**cells):
        path = tmp_path / "one.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, ["question", *cells])
            writer.writeheader()
            writer.writerow({"question": "?", **cells})
        (question,) = read_questions(path)
        return question

    return call


@pytest.mark.parametrize("column", ["answers", "golden_answers", "generation_gt", "ground_truths", "answer"])
@pytest.mark.parametrize(
    ("cell", "answers"),
    [
        ("['2 bar', 'about 2 bar']", ("2 bar", "about 2 bar")),
        ("['2 bar' 'about 2 bar']", ("2 bar", "about 2 bar")),
        ("['2 bar'\n 'about 2 bar']", ("2 bar", "about 2 bar")),
        ('["it\'s 2" \'2 "bar"\']', ("it's 2", '2 "bar"')),
        ("('2 bar', 'about 2 bar')", ("2 bar", "about 2 bar")),
        ("array(['2 bar'], dtype=object)", ("array(['2 bar'], dtype=object)",)),
        ("[np.str_('2 bar')]", ("2 bar",)),
        (r"['a\\b', 'caf\xe9', '\u4e2d\n']", ("a\\b", "café", "中")),
        ("[1912 1913]", ("1912", "1913")),
        ("{'text': array(['2 bar', '2'], dtype=object), 'answer_start': array([4, 4])}", ("2 bar", "2")),
        ("['2 bar']", ("2 bar",)),
        ("[]", ()),
    ],
)
def test_printed_answers_are_the_list_that_was_printed(one, column, cell, answers):
    assert one(**{column: cell}).answers == answers


@pytest.mark.parametrize(
    "text",
    [
        "[sic] what", "[Untitled] by X", "(a) the first", "(3, 4)", "[0, 1)", "{0, 1}", "{x | x > 0}",
        "[...] and he", '["The Wall"] is an album', "('Smile')", "['Tis the season", "[...]", '"["', '"[a, b]"', "None",
        "NaN", "f(x)[0]", "[OH]-", "(500) Days of Summer",
    ],
)  # fmt: skip
def test_a_text_with_brackets_stays_a_text(one, text):
    assert one(answer=text).answers == (text,)
    assert one(answers=text).answers == (text,)


@pytest.mark.parametrize("text", ["[sic]", "[1992 film]", "[a, b]"])
def test_an_answer_in_brackets_stays_a_text(one, text):
    assert one(answer=text).answers == (text,)


def test_a_list_without_quotes_is_read_in_a_column_of_lists(one):
    assert one(answers="[Paris, l'Isle-Adam]").answers == ("Paris", "l'Isle-Adam")
    assert one(answer="Rome", aliases="[Roma, Urbs]").aliases == ("Roma", "Urbs")
    assert list(one(evidence="[p1, p2]").evidence) == list(one(retrieval_gt="[p1, p2]").evidence) == ["p1", "p2"]
    assert one(options="[red, blue]", answer="blue").options == ("red", "blue")


def test_a_list_that_was_encoded_twice_is_read(one):
    assert one(answers=json.dumps('["a", "b"]')).answers == ("a", "b")
    assert one(evidence=json.dumps('{"p1": "USEFUL"}')).evidence == {"p1": Label.USEFUL}


def test_the_text_of_an_option_is_no_list(one):
    options = "[\"['a', 'b']\", \"['b', 'a']\"]"
    assert one(options=options, answer="['b', 'a']").answer == "['b', 'a']"


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        ("answers", "['a', 'b"), ("answers", "['a' 'b' ... 'y' 'z']"), ("aliases", "[b'a' b'b']"),
        ("answer", "['a', Decimal('1.5')]"), ("options", "['a', print('b')]"), ("evidence", "['a'; 'b']"),
        ("evidence", "[p1, ...]"), ("evidence", "{'p1': 'ENTAI"), ("retrieval_gt", "[p1,, p2]"),
        ("evidence", "[interval('a')]"), ("retrieval_gt", "[0 1 2 ... 7 8 9]"),
        ("history", "[{'role': user, 'content': 'Hi'}]"), ("reference_contexts", "['one' 'two'"),
        ("reference_contexts", "one"), ("assessors", "{'p': __import__('os').getcwd()}"),
    ],
)  # fmt: skip
def test_a_printed_list_that_cannot_be_read_is_refused(tmp_path, problems, column, cell):
    name = "user_input" if column == "reference_contexts" else "query"
    pandas.DataFrame([{name: "?", **({"answer": "x"} if column != "answer" else {}), column: cell}]).to_csv(
        path := tmp_path / "one.csv", index=False
    )
    (problem,) = problems(path)
    assert problem.startswith(f'{path} line 2, column "{column}": found ')
    assert "; expected " in problem


def test_the_other_columns_read_what_is_printed_too(one):
    assert one(answer="2 bar", aliases="['two bar' '2 bar']").answers == ("2 bar", "two bar")
    assert one(answer="2 bar", aliases="nan", evidence="None").aliases == ()
    assert one(evidence="{'p1': 'ENTAILED', 'p2': 'useful', 'p3': None}").evidence == {
        "p1": Label.ENTAILED, "p2": Label.USEFUL,
    }  # fmt: skip
    assert list(one(evidence="['p1', 7]").evidence) == ["p1", "7"]
    assert list(one(evidence="(1, 2)").evidence) == ["1", "2"]
    assert one(options="['red' 'blue']", answer="red").options == ("red", "blue")
    assert one(options="{'A': 'red', 'B': 'blue'}", answer="B").answer == "blue"
    assert one(evidence="['p1']", assessors="{'p1': ('me',)}").assessors == {"p1": ("me",)}
    turns = ("user: It's loose.", "assistant: Which one?")
    assert one(history=str(TURNS)).history == one(history=str(numpy.array(TURNS))).history == turns


def test_questions_come_back_from_the_csv_file_of_a_frame(tmp_path):
    questions = [
        Question("1", "One?", ("a", "b's"), "a", evidence={"p": Label.USEFUL}, assessors={"p": (PERSON, "x")}),
        Question("2", "Two?", (), "y", ("z, z", '"z"'), {}, False, {}, ("user: Hi", "Well\nthen")),
    ]  # fmt: skip
    names = Question.__dataclass_fields__
    pandas.DataFrame([{name: getattr(one, name) for name in names} for one in questions]).to_csv(tmp_path / "q.csv")
    assert read_questions(tmp_path / "q.csv") == questions


def test_forms_of_other_tools_are_known_in_printed_cells(one, tmp_path):
    hotpot = {
        "answer": "Ed", "supporting_facts": "{'title': array(['A', 'B'], dtype=object), 'sent_id': array([0, 0])}",
        "context": "{'title': ['A', 'B'], 'sentences': [array(['One.', ' Two.'], dtype=object), array(['X.'])]}",
    }  # fmt: skip
    assert (list(one(**hotpot).evidence), one(**hotpot).jointly) == (["A", "B"], True)
    assert read_passages(tmp_path / "one.csv") == [Passage("A", "One. Two.", "A"), Passage("B", "X.", "B")]
    ambiguous = "{'type': array(['singleAnswer'], dtype=object), 'answer': [array(['1', 'one'])], 'qaPairs': [[]]}"
    assert one(annotations=ambiguous).answers == ("1", "one")
    assert one(judged="{'p': 4, 'q': 2}").evidence == {"p": Label.ENTAILED, "q": Label.NOT_USEFUL}
    ragas = {"user_input": "?", "reference": "Rome", "reference_contexts": "['Rome is it.' 'So it is.']"}
    (expected,) = read_questions([{**ragas, "reference_contexts": ["Rome is it.", "So it is."]}])
    pandas.DataFrame([ragas]).to_csv(tmp_path / "ragas.csv", index=False)
    assert read_questions(tmp_path / "ragas.csv") == [expected]
    assert len(expected.evidence) == 2
    metadata = pandas.DataFrame(
        [{"id": "a", "text": "x", "metadata": {"year": 2020, "topic": "it's", "none": numpy.nan}}]
    )
    metadata.to_csv(tmp_path / "p.csv", index=False)
    assert read_passages(tmp_path / "p.csv") == [Passage("a", "x", "", {"year": 2020, "topic": "it's"})]


@pytest.mark.parametrize("turns", [str(TURNS), "[HumanMessage(content='It is loose.'), AIMessage(content='Which?')]"])
def test_a_printed_conversation_is_no_question(turns):
    with pytest.raises(DataError, match=r'"user_input".* expected a single question'):
        read_questions([{"user_input": turns, "reference": "The chain."}])
