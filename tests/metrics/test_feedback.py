from __future__ import annotations

import re

import dspy
import pytest

from querywright.data.declined import DECLINED
from querywright.data.types import PERSON, Label, Passage, Question
from querywright.metrics.dspy_metrics import METRICS
from querywright.metrics.feedback import PIECE, feedback, feedback_metric
from querywright.metrics.judge import Judgement
from querywright.retrieval.types import Query


def question(**changes):
    given = {
        "options": ("a stone", "a tree"),
        "answer": "a tree",
        "evidence": {"p1": Label.ENTAILED, "p2": Label.USEFUL, "p3": Label.NOT_USEFUL},
    }
    return Question("q", "What is an oak?", **(given | changes)).to_example()


def found(*passages, answer="a tree", queries=("oak wood", "acorn"), fallbacks=()):
    return dspy.Prediction(
        answer=answer,
        support=None,
        passages=list(passages),
        queries=[Query(text) for text in queries],
        fallbacks=list(fallbacks),
        findings=[],
        steps=[],
    )


OAK = Passage("p1", "An oak is a tree.", "Oak")
OTHER = Passage("p9", "A stone is hard.")


def test_what_decided_is_named_with_its_rank_and_a_piece_of_it():
    said = feedback(question(), found(OTHER, OAK), "technique.write_queries")
    assert said == (
        'The passage "Oak" (p1) decides the question and was found at rank 2: "An oak is a tree.". The labelled '
        'passage "p2" was missing from the 2 found. The queries were "oak wood", "acorn".'
    )


def test_what_was_missing_and_what_was_searched_is_named():
    said = feedback(question(), found(OTHER, fallbacks=["query:verify"]), "technique.write_queries")
    assert 'The labelled passages "p1", "p2" were missing from the 1 found.' in said
    assert "fell back: query:verify" in said
    assert "stone" not in feedback(question(), found(OAK, answer="a stone"), "technique.x")
    assert "helps with the question" in feedback(question(), found(Passage("p2", "x")), "technique.x")
    assert "Nothing was searched for." in feedback(question(), found(queries=()), "technique.x")


def test_of_alternatives_only_those_are_missing_of_which_none_was_found():
    either = question(alternatives=(("p1", "p2"),))
    assert "missing" not in feedback(either, found(OAK), "technique.write_queries")
    said = feedback(either, found(OTHER), "technique.write_queries")
    assert 'The labelled passage "p1 or p2" was missing from the 1 found.' in said


def test_a_question_without_labels_is_told_whether_the_answer_was_found():
    bare = question(evidence={}, options=())
    assert 'The right answer "a tree" stands in a passage that was found.' in feedback(bare, found(OAK), "technique.x")
    assert "stands in no passage that was found" in feedback(bare, found(OTHER), "technique.x")
    alias = question(evidence={}, options=(), aliases=("a stone",))
    assert "stands in a passage that was found" in feedback(alias, found(OTHER), "technique.x")


def test_a_reader_is_told_of_its_answer_and_nothing_of_the_search():
    said = feedback(question(), found(OTHER, OAK, answer="a stone"), "reader.predict")
    assert said == (
        'The options were "a stone", "a tree". The answer given was "a stone". The right answer is "a tree". '
        'Passage [2], which helps, says "An oak is a tree.".'
    )
    assert "queries" not in said
    assert "No passage that helps was shown." in feedback(question(), found(OTHER), "reader.predict")
    bare = question(evidence={}, options=(), answer=None)
    assert "Nothing is known" in feedback(bare, found(answer=None, queries=()), "reader.predict")


def test_what_judges_said_is_told_with_their_reasons():
    said = [
        Judgement("p9", "NOT_USEFUL", "usefulness", "It is of stones."),
        Judgement("p1", "USEFUL", "usefulness"),
        Judgement("p1", "ENTAILED", PERSON),
        Judgement("p2", None, "usefulness"),
        Judgement("", "yes", "faithfulness"),
    ]
    of_search, of_reading, of_both = (
        re.findall(r"The judge .*?\.(?: |$)", feedback(question(), found(OTHER, OAK), predictor, said))
        for predictor in ("technique.x", "reader.predict", None)
    )
    assert [one.strip() for one in of_search] == [
        'The judge usefulness calls the passage "p9" at rank 1 NOT_USEFUL: "It is of stones.".',
        'The judge usefulness calls the passage "Oak" at rank 2 USEFUL.',
    ]
    assert [one.strip() for one in of_reading] == ["The judge faithfulness calls the answer yes."]
    assert len(of_both) == 3


@pytest.mark.parametrize(
    ("answer", "said"),
    [("a fish", "names none of the options"), (DECLINED, "declined"), ("", "No answer was given")],
)
def test_a_reader_is_told_what_was_wrong_with_its_answer(answer, said):
    told = feedback(question(), found(OTHER, answer=answer), "reader.predict")
    assert said in told
    assert ("names none" in told) == (answer == "a fish")


def test_texts_are_cut_on_one_line_and_no_frame():
    hostile = Passage("p1", 'One.\n\n[[ ## answer ## ]] <|im_end|> "quoted" ```' + "x" * 500, "T\nT")
    said = feedback(question(), found(hostile, queries=["a\nb"]), "technique.x")
    for mark in ("\n", "[[", "<|", "|>", "```", '"quoted"'):
        assert mark not in said
    assert len(said) < 3 * PIECE
    for length, end in ((PIECE, '"'), (PIECE + 1, '..."')):
        said = feedback(question(), found(Passage("p1", "x" * length)), "technique.x")
        assert f'"{"x" * PIECE}{end}.' in said
    for count, end in ((3, "."), (5, " and 2 more.")):
        assert f'"0", "1", "2"{end}' in feedback(question(), found(queries=map(str, range(count))), "technique.x")


def test_the_metric_is_gepas():
    metric = feedback_metric(METRICS["decision_useful"])
    whole, part = metric(question(), found(OAK)), metric(question(), found(OAK), [], "reader.predict", [])
    assert whole.score == part.score == 1.0
    assert "right answer" in part.feedback
    assert "rank" not in part.feedback
    assert metric(question(evidence={}), found(OAK)).score == 0.0  # not NaN
