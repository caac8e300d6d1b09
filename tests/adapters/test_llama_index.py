from __future__ import annotations

import asyncio

import pytest
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.schema import QueryBundle

from querywright.adapters.llama_index import ChoiceQuery, QuerywrightQueryEngine, QuerywrightRetriever
from querywright.errors import TechniqueError

QUESTION = "Which home blood pressure reading should be written down?"
OPTIONS = ["Only the highest one", "The average of several, seated and rested", "One after a walk"]


def ids(nodes):
    return [node.node_id for node in nodes]


@pytest.fixture
def retriever(open_program):
    return QuerywrightRetriever(open_program("plain"))


@pytest.fixture
def engine(program):
    return QuerywrightQueryEngine(program)


def test_a_retriever_gives_nodes_of_what_was_found(retriever, server):
    nodes = retriever.retrieve(QUESTION)
    assert isinstance(retriever, BaseRetriever)
    assert nodes[0].node_id == "home"
    assert nodes[0].text.startswith("A home blood pressure reading")
    assert nodes[0].metadata["rank"] == 1
    assert nodes[0].metadata["queries"] == [QUESTION]
    assert nodes[0].metadata["source"] == "cards"
    assert server.count == 0, "the reader is not asked"
    assert ids(asyncio.run(retriever.aretrieve(QueryBundle(QUESTION)))) == ids(nodes)


def test_an_engine_answers_with_its_sources(open_program):
    response = QuerywrightQueryEngine(open_program("plain")).query(QUESTION)
    assert str(response) == "which home blood pressure reading should be written"
    assert ids(response.source_nodes)[0] == "home"
    assert ids(QuerywrightQueryEngine(open_program("plain")).retrieve(QUESTION)) == ids(response.source_nodes)
    assert response.metadata["queries"] == [{"text": QUESTION, "role": "original"}]
    assert response.metadata["fallbacks"] == []


def test_an_engine_takes_options(engine):
    asked = ChoiceQuery(QUESTION, options=OPTIONS)
    response = engine.query(asked)
    assert response.response == OPTIONS[1]
    assert asyncio.run(engine.aquery(asked)).response == OPTIONS[1]
    assert ids(engine.retrieve(asked)) == ids(response.source_nodes)
    with pytest.raises(TechniqueError, match="has none"):
        engine.query(QUESTION)


def test_the_example(example):
    *nodes, answer, queries = example("in_llama_index.py")
    assert nodes[0].startswith("1 home ")
    assert answer == OPTIONS[1]
    assert queries.count("', '") == 2
