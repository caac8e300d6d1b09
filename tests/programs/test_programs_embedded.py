"""Every technique with the models and the index that querywright ships with."""

from __future__ import annotations

import dspy
import pytest

from querywright.data.declined import DECLINED
from querywright.data.types import Passage
from querywright.models.adapter import PromptAdapter
from querywright.models.embedded import EmbeddedSettings
from querywright.models.embedder import resolve_embedder
from querywright.models.lm import engine_of, resolve_lm
from querywright.programs import TECHNIQUES, GroundedReader, MultiQuery, make_program
from querywright.retrieval.chroma import ChromaRetriever
from querywright.retrieval.index import build_collection

CARDS = [
    Passage("sugar", "For low blood sugar take 15 g of fast sugar, such as juice.", "Low blood sugar"),
    Passage("insulin", "Insulin lowers blood sugar and is kept in the fridge.", "Insulin"),
    Passage("fever", "Paracetamol brings a fever down within an hour.", "Fever"),
    Passage("sleep", "Adults need seven to nine hours of sleep.", "Sleep"),
    Passage("salt", "Less salt in food lowers blood pressure.", "Salt"),
]
QUESTION = "What should be taken first when blood sugar is low?"
OPTIONS = ["Fast sugar such as juice", "More insulin", "Less salt"]


def test_hcqr_over_chroma_with_the_embedded_models(tmp_path):
    embedder = resolve_embedder("embedded")
    build_collection("tiny", CARDS, embedder=embedder, home=tmp_path)
    retriever = ChromaRetriever("tiny", embedder=embedder, home=tmp_path)
    lm = resolve_lm("embedded", settings=EmbeddedSettings(max_chars=40))
    program = make_program("hcqr", retriever, reader="multiple_choice", max_passages=3, top_k=2)

    with dspy.context(lm=lm, adapter=PromptAdapter()):
        out = program(question=QUESTION, options=OPTIONS)

    assert out.fallbacks == []
    assert [query.role for query in out.queries] == ["support", "distinguish", "verify"]
    assert all(query.text for query in out.queries)
    assert out.steps[0].made["best_guess"] in OPTIONS
    assert out.answer in OPTIONS
    assert "sugar" in [passage.id for passage in out.passages]
    assert 2 <= len(out.passages) <= 3
    assert engine_of(lm).ledger.total.calls == 3


SMALL = {"n_documents": 2, "pool": 3, "max_steps": 2, "n_sub_questions": 2, "top_k": 2}
"""Knobs that make a technique quick."""


@pytest.fixture(scope="module")
def parts(tmp_path_factory, model_files):
    """The embedded LM, and a retriever over the cards."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("embedded")
        (folder / "models").symlink_to(model_files)
        patch.setenv("QUERYWRIGHT_HOME", str(folder))
        embedder = resolve_embedder("embedded")
        build_collection("tiny", CARDS, embedder=embedder, home=folder)
        yield resolve_lm("embedded"), ChromaRetriever("tiny", embedder=embedder, home=folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n, kind in TECHNIQUES.items() if n != "hcqr" and not kind.ENGINE])
def test_it_answers_with_the_embedded_models(name, parts):
    lm, retriever = parts
    own = {knob.name for knob in TECHNIQUES[name].KNOBS}
    knobs = {key: value for key, value in {**SMALL, "max_passages": 3}.items() if key in own}
    program = make_program(name, retriever, reader="multiple_choice", **knobs)
    with dspy.context(lm=lm, adapter=PromptAdapter()):
        out = program(question=QUESTION, options=OPTIONS)
        again = program(question=QUESTION, options=OPTIONS)

    assert out.answer in OPTIONS
    assert out.fallbacks == []
    assert {passage.id for passage in out.passages} <= {card.id for card in CARDS}
    assert len(out.passages) <= 3
    if name not in {"closed_book", "rrr"}:  # which may search nothing
        assert "sugar" in [passage.id for passage in out.passages]
    asked = [step for step in out.steps if step.kind == "lm"]
    assert bool(asked) == bool(TECHNIQUES[name].LM_STAGES)
    assert all(step.made is not None for step in asked)
    assert [step.made for step in again.steps] == [step.made for step in out.steps]


def test_a_name_is_written_as_it_stands_in_the_question(parts):
    lm, retriever = parts
    question = "The arena where the Lewiston Maineiacs played their home games can seat how many people?"
    with dspy.context(lm=lm, adapter=PromptAdapter()):
        out = MultiQuery(retriever)(question=question)

    written = [query.text for query in out.queries if query.role == "paraphrase"]
    assert len(written) >= 2  # and the same is not written again and again
    assert all("Lewiston Maineiacs" in text for text in written)


@pytest.mark.slow
def test_a_grounded_answer_names_passages_that_were_shown_or_declines(parts):
    lm, _ = parts
    reader = GroundedReader()
    with dspy.context(lm=lm, adapter=PromptAdapter()):
        outs = [reader(question=QUESTION, options=None, passages=CARDS[:2]) for _ in range(2)]
        signature = reader.predict.signature.with_updated_fields("passage_numbers", highest=2)
        raw = reader.predict(signature=signature, passages="[1] Tea.\n[2] Juice.", question=QUESTION)

    out, again = outs
    assert out.fallbacks == []
    assert out.answer
    assert set(out.support) <= {"sugar", "insulin"}
    assert out.answer != DECLINED or out.support == []
    assert again.toDict() == out.toDict()
    assert set(raw.passage_numbers) <= {1, 2}  # its grammar has no others
