"""Techniques of each kind with the models and the index that querywright ships with."""

from __future__ import annotations

import dspy
import pytest

from querywright.data.declined import DECLINED
from querywright.data.types import Passage
from querywright.models.adapter import PromptAdapter
from querywright.models.embedder import resolve_embedder
from querywright.models.lm import resolve_lm
from querywright.programs import TECHNIQUES, GroundedReader, MultiQuery, make_program
from querywright.retrieval.chroma import ChromaRetriever
from querywright.retrieval.index import build_collection

pytestmark = pytest.mark.slow

CARDS = [
    Passage("sugar", "For low blood sugar take 15 g of fast sugar, such as juice.", "Low blood sugar"),
    Passage("insulin", "Insulin lowers blood sugar and is kept in the fridge.", "Insulin"),
    Passage("fever", "Paracetamol brings a fever down within an hour.", "Fever"),
    Passage("sleep", "Adults need seven to nine hours of sleep.", "Sleep"),
    Passage("salt", "Less salt in food lowers blood pressure.", "Salt"),
]
QUESTION = "What should be taken first when blood sugar is low?"
OPTIONS = ["Fast sugar such as juice", "More insulin", "Less salt"]
SMALL = {"n_documents": 2, "pool": 3, "max_steps": 2, "n_sub_questions": 2, "top_k": 2, "max_passages": 3}
"""Knobs that make a technique quick."""


@pytest.fixture(scope="module")
def retriever(tmp_path_factory, model_files):
    """One over the cards, with the embedded LM in the settings."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("embedded")
        (folder / "models").symlink_to(model_files)
        patch.setenv("QUERYWRIGHT_HOME", str(folder))
        embedder = resolve_embedder("embedded")
        build_collection("tiny", CARDS, embedder=embedder, home=folder)
        with dspy.context(lm=resolve_lm("embedded"), adapter=PromptAdapter()):
            yield ChromaRetriever("tiny", embedder=embedder, home=folder)


@pytest.mark.parametrize("name", ["hcqr", "hyde", "decomposition", "rerank"])
def test_it_answers_with_the_embedded_models(name, retriever):
    own = {knob.name for knob in TECHNIQUES[name].KNOBS}
    knobs = {key: value for key, value in SMALL.items() if key in own}
    program = make_program(name, retriever, reader="multiple_choice", **knobs)
    out = program(question=QUESTION, options=OPTIONS)
    assert (out.answer in OPTIONS, out.fallbacks) == (True, [])
    assert {passage.id for passage in out.passages} <= {card.id for card in CARDS}
    assert len(out.passages) <= 3
    assert "sugar" in [passage.id for passage in out.passages]
    asked = [step for step in out.steps if step.kind == "lm"]
    assert asked
    assert all(step.made is not None for step in asked)


def test_a_name_is_written_as_it_stands_in_the_question(retriever):
    out = MultiQuery(retriever)("The arena where the Lewiston Maineiacs played their home games can seat how many?")
    written = [query.text for query in out.queries if query.role == "paraphrase"]
    assert len(written) >= 2  # and the same is not written again and again
    assert all("Lewiston Maineiacs" in text for text in written)


def test_a_grounded_answer_names_passages_that_were_shown_or_declines(retriever):
    reader = GroundedReader()
    out, again = (reader(question=QUESTION, options=None, passages=CARDS[:2]) for _ in range(2))
    signature = reader.predict.signature.with_updated_fields("passage_numbers", highest=2)
    raw = reader.predict(signature=signature, passages="[1] Tea.\n[2] Juice.", question=QUESTION)
    assert (out.fallbacks, bool(out.answer), again.toDict()) == ([], True, out.toDict())
    assert set(out.support) <= {"sugar", "insulin"}
    assert out.answer != DECLINED or out.support == []
    assert set(raw.passage_numbers) <= {1, 2}  # its grammar has no others
