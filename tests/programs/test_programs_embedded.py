"""HCQR with the models and the index that querywright ships with."""

from __future__ import annotations

import dspy

from querywright.data.types import Passage
from querywright.models.adapter import PromptAdapter
from querywright.models.embedded import EmbeddedSettings
from querywright.models.embedder import resolve_embedder
from querywright.models.lm import engine_of, resolve_lm
from querywright.programs import make_program
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
