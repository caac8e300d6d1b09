from __future__ import annotations

import math

import dspy
import pytest

from querywright.data.types import Label, Passage, Question
from querywright.errors import DataError, InputError
from querywright.metrics.dspy_metrics import METRICS, RANKED, metric_named, needs
from querywright.programs.steps import Record

CHOICE = Question(
    "q1",
    "Which drug?",
    ("Aspirin", "Insulin"),
    "Insulin",
    evidence={"p1": Label.USEFUL, "p2": Label.NOT_USEFUL},
).to_example()
OPEN = Question(
    "q2",
    "Who?",
    answer="Marie Curie",
    aliases=("Curie",),
    evidence={"p1": Label.ENTAILED, "p3": Label.USEFUL},
).to_example()
BARE = Question("q3", "What?").to_example()
USELESS = Question("q4", "Which?", evidence={"p": Label.NOT_USEFUL}).to_example()


def prediction(answer="", ids=(), **more):
    return dspy.Prediction(answer=answer, passages=[Passage(key, "text") for key in ids], **more)


def guessing(guess, answer):
    made = [None, {"queries": ["x"]}, {"best_guess": guess}]
    steps = [Record("lm", "some step", 1, {}, one) for one in made]
    return prediction(answer, steps=[Record("search", "passages", 2, {}, {"q": ["p1"]}), *steps])


@pytest.mark.parametrize(
    ("name", "example", "given", "value"),
    [
        ("accuracy", CHOICE, prediction("B"), 1.0),
        ("accuracy", CHOICE, prediction(None), 0.0),
        ("accuracy", Question("q", "Which?", ("x", "y")).to_example(), prediction("x"), math.nan),
        ("accuracy", OPEN, prediction("the Marie Curie"), 1.0),
        ("exact_match", OPEN, prediction("Curie."), 1.0),
        ("exact_match", OPEN, prediction(None), 0.0),
        ("exact_match", Question("q", "Which vitamin?", answer="A").to_example(), prediction(""), 0.0),
        ("token_f1", OPEN, prediction("Pierre Curie"), 2 / 3),
        ("token_f1", OPEN, prediction("  "), 0.0),
        ("contains_answer", OPEN, prediction("It was Curie, I think."), 1.0),
        ("accuracy", OPEN, prediction("It was Curie, I think."), 0.0),
        ("accuracy", OPEN, prediction("It was Curie, I think.", support=[]), 1.0),  # a grounded reader's sentence
        ("accuracy", OPEN, prediction("It was Curie, I think.", support=[("Radium", 0)]), 0.0),  # no ids of passages
        ("accuracy", CHOICE, prediction("It is insulin that helps.", support=["p1"]), 1.0),
        ("joint_passage_exact_match", OPEN, prediction("It was Curie.", support=["p3", "p1"]), 1.0),
        ("joint_passage_exact_match", OPEN, prediction("It was Curie.", support=["p1"]), 0.0),
        ("joint_passage_f1", OPEN, prediction("It was Curie.", support=["p1"]), 2 / 3),  # P 1, R 1/2
        ("support_passage_f1", OPEN, prediction("It was Pierre.", support=["p1", "p2", "p3"]), 4 / 5),  # P 2/3, R 1
        ("hypothesis_agreement", CHOICE, guessing("Insulin", "B"), 1.0),
        ("hypothesis_agreement", CHOICE, guessing("Insulin", "Aspirin"), 0.0),
        ("hit", CHOICE, dspy.Prediction(passages=[Passage("p", "text", title="Insulin")]), 1.0),
        ("hit", OPEN, dspy.Prediction(passages=[Passage("p", "curiePol")]), 0.0),
        ("recall", OPEN, prediction(ids=["x", "p3"]), 0.5),
        ("recall", OPEN, prediction(), 0.0),
        ("exact_recovery", OPEN, prediction(ids=["x", "y", "p1"]), 1.0),
        ("exact_recovery", CHOICE, prediction(ids=["p2"]), 0.0),
        ("decision_useful", CHOICE, prediction(ids=["p1"]), 1.0),
        ("decision_useful", CHOICE, prediction(ids=["p2", "x"]), 0.0),
        ("decision_useful", CHOICE, prediction(), 0.0),
        ("recall", USELESS, prediction(ids=["p"]), math.nan),
        ("decision_useful", USELESS, prediction(), 0.0),
        ("abstention_recall", USELESS, prediction(), 1.0),
        ("abstention_recall", USELESS, prediction(ids=["p"]), 0.0),
        ("abstention_recall", USELESS.copy(assessors={"p": ["judge"]}), prediction(), math.nan),
        ("abstention_recall", CHOICE, prediction(), math.nan),
    ],
)
def test_values(name, example, given, value):
    assert METRICS[name](example, given) == pytest.approx(value, nan_ok=True)
    assert METRICS[name](example, given, trace=[]) == pytest.approx(0.0 if math.isnan(value) else value)


@pytest.mark.parametrize("name", sorted(METRICS))
@pytest.mark.parametrize("example", [BARE, dspy.Example(question="What?").with_inputs("question")])
def test_an_example_without_labels_cannot_be_scored(name, example):
    value = METRICS[name](example, prediction("Curie", ["p1"]))
    assert math.isnan(value)
    assert METRICS[name](example, prediction("Curie", ["p1"]), trace=[]) == 0.0  # no success for an optimizer


def test_support_that_a_reader_does_not_name_cannot_be_scored():
    for name in ("joint_passage_exact_match", "joint_passage_f1", "support_passage_f1"):
        assert math.isnan(METRICS[name](OPEN, prediction("Marie Curie")))
        assert math.isnan(METRICS[name](OPEN, prediction("Marie Curie", support=[("Radium", 0)])))
        assert math.isnan(METRICS[name](BARE, prediction("Marie Curie", support=["p1"])))


@pytest.mark.parametrize(
    "made", [guessing("maybe", "B"), guessing("Insulin", "maybe"), guessing("Insulin", None), prediction("B", steps=[])]
)
def test_no_guess_or_no_option_is_no_agreement_and_no_difference(made):
    assert math.isnan(METRICS["hypothesis_agreement"](CHOICE, made))
    assert math.isnan(METRICS["hypothesis_agreement"](OPEN, made))


def test_what_metrics_need():
    assert all(needs(name) for name in METRICS)
    assert all(needs(f"{name}@5") == {"evidence"} for name in RANKED)
    assert needs("hit") == {"answer"}
    assert needs("judged_useful") == frozenset()


def test_a_fault_is_not_scored():
    with pytest.raises(AttributeError):
        METRICS["accuracy"](OPEN, dspy.Prediction(passages=[]))
    with pytest.raises(AttributeError):
        METRICS["recall"](OPEN, dspy.Prediction(answer="x"))
    wrong = dspy.Example(question="?", options=["x", "y"], answer="B")
    with pytest.raises(DataError, match="must be one of the options"):
        METRICS["accuracy"](wrong, prediction("x"))
    odd = dspy.Example(question="?", evidence={"p": "good"})
    with pytest.raises(DataError, match="but got 'good'"):
        METRICS["recall"](odd, prediction(ids=["p"]))


@pytest.mark.parametrize(
    ("name", "ids", "value"),
    [
        ("recall@1", ["p3", "p1"], 0.5),
        ("full_recall@1", ["p3", "p1"], 0.0),
        ("full_recall@2", ["p3", "p1"], 1.0),
        ("exact_recovery@2", ["x", "p1"], 1.0),
        ("precision@4", ["x", "p1"], 0.25),
        ("mrr@3", ["x", "p1", "p3"], 0.5),
        ("ndcg@2", ["x", "p1"], (1 / math.log2(3)) / (1 + 1 / math.log2(3))),
    ],
)
def test_a_measure_of_the_first_k_passages_is_named_with_its_depth(name, ids, value):
    assert metric_named(name)(OPEN, prediction(ids=ids)) == pytest.approx(value)
    assert math.isnan(metric_named(name)(BARE, prediction(ids=ids)))


@pytest.mark.parametrize("name", ["recall@", "recall@0", "recall@1001", "accuracy@5", "bleu", "recall@²"])
def test_a_metric_that_is_none_is_refused(name):
    with pytest.raises(InputError, match=f"unknown metric '{name}'.*; available: accuracy.*recall@K.*1 to 1000"):
        metric_named(name)


def test_a_function_of_a_module_in_this_folder_is_a_metric(tmp_path, monkeypatch):
    (tmp_path / "own_metrics_here.py").write_text(
        "def two(example, prediction, trace=None):\n    return 2.0\n\nNUMBER = 3\n", encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    assert metric_named("own_metrics_here:two")(None, None) == 2.0
    for name, said in (("own_metrics_here:three", "three"), ("own_metrics_here:NUMBER", "must be a function")):
        with pytest.raises(InputError, match=said):
            metric_named(name)


def test_alternatives_of_a_question_count_as_one_passage():
    evidence = dict.fromkeys("abc", Label.ENTAILED)
    example = Question("q", "?", answer="x", evidence=evidence, alternatives=(("a", "b"),)).to_example()
    values = {"recall": 1.0, "recall@2": 1.0, "full_recall@2": 1.0, "ndcg@2": 1.0, "precision@2": 1.0, "recall@1": 0.5}
    for name, value in values.items():
        assert metric_named(name)(example, prediction(ids=["b", "c"])) == value
    assert metric_named("precision@2")(example, prediction(ids=["a", "b"])) == 1.0
    assert metric_named("support_passage_f1")(example, prediction("x", support=["a", "c"])) == 1.0
    assert metric_named("joint_passage_exact_match")(example, prediction("x", support=["b", "c"])) == 1.0
