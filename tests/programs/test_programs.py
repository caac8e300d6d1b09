"""Programs: made by name, under DSPy alone, several as one, and with a rewriter of their own."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import json
import pickle

import cloudpickle
import dspy
import pytest

from querywright import ChromaRetriever, build_collection, resolve_embedder
from querywright.data.types import Label, Passage, Question
from querywright.errors import InputError, TechniqueError
from querywright.metrics import metric_named, scorable
from querywright.metrics.feedback import feedback_metric
from querywright.optimize.optimizer_run import DrawnLM, demonstrations
from querywright.optimize.program_state import program_from, shaped, state_of
from querywright.programs import (
    HCQR,
    RAG,
    TECHNIQUES,
    Ensemble,
    MultipleChoiceReader,
    OracleEvidence,
    PlainRetrieval,
    Technique,
    make_program,
    make_reader,
    technique_class,
    use_writer,
)
from querywright.retrieval.types import Query

QUESTION, OPTIONS = "Which drug lowers blood sugar?", ["Aspirin", "Insulin"]


def test_make_program(retriever):
    program = make_program("plain", retriever, reader="multiple_choice", max_passages=7)
    assert (type(program.technique), type(program.reader)) == (PlainRetrieval, MultipleChoiceReader)
    assert (program.technique.retriever, program.technique.knobs["max_passages"]) == (retriever, 7)
    with pytest.raises(TechniqueError, match=r"^unknown technique 'hyd' \(did you mean hyde\?\); available: closed_b"):
        technique_class("hyd")
    for arguments, message in (({"reader": "long"}, "unknown reader 'long'"), ({"top_k": 3}, "unknown knob 'top_k'")):
        with pytest.raises(TechniqueError, match=message):
            make_program("plain", retriever, **arguments)
    with pytest.raises(InputError, match="int is not a retriever"):
        make_program("plain", 5)


def test_a_technique_of_ones_own_may_leave_knobs_undeclared_but_not_its_forward(retriever):
    class Pair(Technique):
        NAME = "pair"

        def forward(self, question, options=None, history=None):
            return self.retrieve([Query("one"), Query("two")])

    out = Pair(retriever, max_passages=4)(question=QUESTION)
    assert (len(out.passages), retriever.searches) == (4, [(("one", "two"), 4)])
    Pair.NEEDS_OPTIONS = True
    for none in (None, []):
        with pytest.raises(TechniqueError, match=r"pair compares options, but the question has none.*pass options"):
            Pair(retriever)(question=QUESTION, options=none)
    with pytest.raises(NotImplementedError, match=r"Technique must implement forward\(\)"):
        Technique(retriever)(question=QUESTION)


CARDS = {key: Passage(key, f"card {key}") for key in "abcd"}
EVIDENCE = {"c": Label.ENTAILED, "a": Label.USEFUL, "gone": Label.ENTAILED, "b": Label.ENTAILED}
LABELLED = Question("q", QUESTION, tuple(OPTIONS), "Insulin", evidence=EVIDENCE)


def test_oracle_gives_the_passages_that_entail_and_knows_only_its_questions(scripted, asking):
    oracle = OracleEvidence(CARDS, [LABELLED])
    assert OracleEvidence.NAME not in TECHNIQUES
    with asking(lm := scripted({"answer": "Insulin"})):
        out = RAG(oracle, MultipleChoiceReader())(question=QUESTION, options=OPTIONS)
    assert ([p.id for p in out.passages], out.queries, out.answer) == (["c", "b"], [], "Insulin")
    assert "[1] card c\n[2] card b" in lm.engine.asked[0].text
    assert [p.id for p in oracle.with_knobs(max_passages=1)(QUESTION, OPTIONS).passages] == ["c"]
    for question, options in (("Another one?", OPTIONS), (QUESTION, OPTIONS[::-1]), (QUESTION, None)):
        assert oracle(question=question, options=options).passages == []
    after = dataclasses.replace(LABELLED, history=[" I use insulin. "])
    told = OracleEvidence(CARDS, [after])(question=QUESTION, options=OPTIONS, history="I use insulin.\n")
    assert [p.id for p in told.passages] == ["c", "b"]
    parts = dataclasses.replace(LABELLED, jointly=True, evidence={"a": "USEFUL", "b": "USEFUL", "c": "NOT_USEFUL"})
    assert [p.id for p in OracleEvidence(CARDS, [parts])(QUESTION, OPTIONS).passages] == ["a", "b"]
    either = dataclasses.replace(
        LABELLED, evidence=dict.fromkeys("abcd", Label.ENTAILED), alternatives=(("a", "b", "c"),)
    )
    assert [p.id for p in OracleEvidence(CARDS, [either], max_passages=3)(QUESTION, OPTIONS).passages] == [
        "a",
        "d",
        "b",
    ]


# Under DSPy alone: saved, pickled, evaluated and compiled by it.

FOUND = metric_named("decision_useful")
PADS = [{"id": "a", "text": "Pads wear first."}, {"id": "b", "text": "A rotor lasts."}]


def search(query, k):
    return PADS[:k]


def test_an_unlabelled_question_is_left_out_of_dspys_mean_and_said():
    asked = [Question(f"q{n}", f"What of {n}?", evidence={"a": Label.ENTAILED} if n < 4 else {}) for n in range(6)]
    examples, program = [question.to_example() for question in asked], make_program("plain", search, reader=None)
    with pytest.warns(UserWarning, match=r"2 of 6 examples that cannot be scored.*labeled evidence"):
        kept = scorable("decision_useful", examples)
    assert [example.id for example in kept] == ["q0", "q1", "q2", "q3"]
    assert dspy.Evaluate(devset=kept, metric=FOUND, display_progress=False)(program).score == 100.0
    with pytest.raises(InputError, match="none of the 2 examples can be scored: recall@5 requires labeled evidence"):
        scorable("recall@5", examples[4:])
    with pytest.raises(InputError, match="accuracy requires a right answer"):
        scorable("accuracy", examples)
    told = feedback_metric(FOUND)(examples[0], program.technique(question="What?"))
    assert (told.score, "decides the question" in told.feedback) == (1.0, True)


def test_whole_programs_are_copied_pickled_and_saved(tmp_path):
    program = RAG(HCQR(search, max_passages=1), make_reader("short_answer"), nearest=1)
    program.reader.predict.demos = [dspy.Example(question=f"q{n}", answer=f"a{n}") for n in range(3)]
    program.save(tmp_path / "program", save_program=True)
    program.save(tmp_path / "program.json")
    loaded = RAG(HCQR(search), make_reader("short_answer"))
    loaded.load(tmp_path / "program.json")
    for other in (
        loaded,
        copy.deepcopy(program),
        program.deepcopy(),
        program.reset_copy(),
        pickle.loads(pickle.dumps(program)),
        cloudpickle.loads(cloudpickle.dumps(program)),
        dspy.load(tmp_path / "program", allow_pickle=True),
    ):
        assert (other.nearest, other.technique.knobs) == (1, program.technique.knobs)
        assert [hit.passage.id for hit in other.technique.searched.search(["x"], 1)[0]] == ["a"]
    assert len(loaded.reader.predict.demos) == 3


def test_a_pickle_opens_a_collection_anew_and_holds_no_lm(tmp_path):
    embedder = resolve_embedder()
    build_collection("pads", [Passage(one["id"], one["text"]) for one in PADS], embedder=embedder, home=tmp_path)
    retriever = ChromaRetriever("pads", embedder=embedder, home=tmp_path)
    other = pickle.loads(pickle.dumps(make_program("plain", retriever, reader=None)))
    assert other.technique.searched.fingerprint == retriever.fingerprint
    technique = make_program("rrr", search).technique
    technique.writer_lm = dspy.LM("openai/x", api_key="secret")
    with pytest.raises(TechniqueError, match="writer_lm to None"):
        cloudpickle.dumps(technique)


# Several programs as one.


@pytest.fixture
def members(retriever):
    made = [
        make_program("multi_query", retriever, reader="short_answer", n_queries=1, max_passages=4) for _ in range(3)
    ]
    for number, program in enumerate(made):
        for predictor in program.predictors():
            predictor.signature = predictor.signature.with_instructions(f"Member {number}.")
    return made


def answers(*texts):
    """A step that answers as each member's reader is to, and searches for other words in each member."""

    def step(asked):
        number = int(asked.text.split("Member ")[1][0])
        return json.dumps({"queries": [f"words of {number}"], "answer": texts[number]})

    return step


def test_an_ensemble_gives_the_answer_of_most_and_fuses_what_all_found(members, scripted, asking):
    program = Ensemble(members)
    with asking(scripted(answers("a", "B.", " b"))):
        alone = [{p.id for p in member(question="What?").passages} for member in members]
        made, later = program(question="What?"), asyncio.run(program.acall(question="What?"))
    ids = [passage.id for passage in made.passages]
    common = set.intersection(*alone)
    assert (made.answer, len(made.queries), len(set(ids))) == ("B.", 6, 4)
    assert set(ids) <= set.union(*alone)
    assert set(ids[: len(common)]) == common  # what all found stands first
    assert (later.answer, [p.id for p in later.passages]) == (made.answer, ids)
    with asking(scripted(answers("a", "b", "c"))):
        assert program(question="What?").answer == "a"  # of equals the first


def test_an_ensemble_is_a_program_like_any_other_of_one_kind(members, retriever, scripted, asking):
    program = Ensemble(members)
    names = [name for name, _ in program.named_predictors()]
    assert names[:3] == ["technique.paraphrase", "reader.predict", "members[1].technique.paraphrase"]
    other = copy.deepcopy(program)
    other.technique.paraphrase.demos = [{"question": "x", "queries": ["y"]}]
    assert (bool(other.members[0].technique.paraphrase.demos), program.technique.paraphrase.demos) == (True, [])
    with asking(scripted()):
        assert Ensemble([make_program("multi_query", retriever) for _ in range(2)])(question="What?").answer is None
    for odd, message in (
        (members[:1], "2 to 20"),
        (
            [members[0], make_program("hyde", retriever, reader="short_answer")],
            "the same technique and the same reader",
        ),
        ([members[0], make_program("multi_query", retriever)], "the same technique and the same reader"),
        ([program, members[0]], "pass its members"),
    ):
        with pytest.raises(TechniqueError, match=message):
            Ensemble(odd)


# A writer: an LM of its own for what a technique asks.

WRITERS = [name for name, kind in TECHNIQUES.items() if kind.LM_STAGES]


@pytest.fixture
def lms(scripted):
    """The LM of the settings, and a rewriter."""
    outer, rewriter = scripted(), scripted()
    outer.model, rewriter.model = "outer", "rewriter:mine@abc"
    return outer, rewriter


@pytest.mark.parametrize("name", WRITERS)
def test_a_rewriter_writes_for_the_technique_and_the_other_lm_reads(name, lms, retriever, asking):
    outer, rewriter = lms
    program = make_program(name, retriever, reader="multiple_choice", writer_lm=rewriter)
    with asking(outer):
        out = program(question=QUESTION, options=OPTIONS)
        later = asyncio.run(program.acall(question=QUESTION, options=OPTIONS))
        plain = make_program("rrr", retriever)(question=QUESTION)
    assert (len(outer.engine.asked), bool(rewriter.engine.asked)) == (3, True), "one reading each, and no rewriter"
    assert {step.lm for step in out.steps if step.kind == "lm"} == {"rewriter:mine@abc"}
    assert [step.made for step in later.steps] == [step.made for step in out.steps]
    assert all("lm" not in step.given for step in out.steps)
    assert [(step.kind, step.lm) for step in plain.steps] == [("lm", "outer"), ("search", None)]


def test_copies_keep_the_rewriter_and_what_is_saved_does_not(lms, retriever, asking):
    outer, rewriter = lms
    program = make_program("rrr", retriever, writer_lm=rewriter)
    copies = [copy.deepcopy(program), program.reset_copy(), shaped(program, nearest=2, members=0)]
    for one in (*copies, several := shaped(program, nearest=0, members=2)):
        before = len(rewriter.engine.asked)
        with asking(outer):
            one(question=QUESTION)
        assert len(rewriter.engine.asked) == before + (2 if isinstance(one, Ensemble) else 1)
    assert not outer.engine.asked
    assert program.technique.with_knobs(max_passages=2).writer_lm is rewriter
    use_writer(several, None)
    with asking(outer):
        several(question=QUESTION)
    assert len(outer.engine.asked) == 2
    assert state_of(program) == state_of(make_program("rrr", retriever))
    assert program.dump_state()["technique.rewriter"]["lm"] is None
    assert program_from(state_of(program), retriever).technique.writer_lm is None


def test_demonstrations_keep_the_weighing_and_none_is_of_a_conversation(retriever, scripted, asking):
    made = {"discriminating_features": ["a"], "reasoning": "b", "confirming_evidence": ["c"], "best_guess": "Insulin"}
    weighed = {"weighing": ["It thins blood.", "It lowers sugar."]}
    queries = dict.fromkeys(("support", "distinguish", "verify"), "insulin")
    program = make_program("hcqr", retriever, reader="multiple_choice", deliberate=True)
    train = [Question("q", QUESTION, tuple(OPTIONS)), Question("r", "And then?", tuple(OPTIONS), history=("Hm.",))]
    tuner = dspy.BootstrapFewShot(metric=lambda *given: True, max_labeled_demos=0)
    with asking(lm := scripted({**made, **weighed, **queries, "answer": "Insulin"})):
        tuned = tuner.compile(program, trainset=[one.to_example() for one in train])
        again = program_from(state_of(tuned), retriever)
        again(question="Which drug is it?", options=OPTIONS)
    before = dict(tuned.named_predictors())
    for name, part in again.named_predictors():
        assert [demo["question"] for demo in part.demos] == [QUESTION]
        assert demonstrations(part, before[name].demos) == part.demos
    assert again.technique.form_hypothesis.demos[0].weighing == weighed["weighing"]
    assert "It thins blood." in lm.engine.asked[-3].text


def test_where_an_optimizer_draws_anew_the_rewriter_is_drawn_from_and_stopped_too(lms, retriever, asking):
    outer, rewriter = lms
    stops = []
    drawn = DrawnLM(outer, 7, stops.append)
    program = make_program("rrr", retriever, reader="short_answer", writer_lm=rewriter)
    for lm in (drawn, drawn.copy(rollout_id=1, temperature=1.0), drawn.copy(rollout_id=2, temperature=1.0)):
        with asking(lm):
            program(question=QUESTION)
    sampling = [asked.sampling for asked in rewriter.engine.asked]
    assert not any(sampling[0])
    assert [temperature for temperature, _ in sampling[1:]] == [1.0, 1.0]
    assert (len({seed for _, seed in sampling}), len(stops)) == (3, 6), "stopped before each call, of both"
    assert rewriter.kwargs.get("rollout_id") is None, "the rewriter itself is as it was"
