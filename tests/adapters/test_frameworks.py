"""Programs in LangChain, LlamaIndex, and Haystack: passages, answers, and saved pipelines."""

from __future__ import annotations

import asyncio

import pytest
from haystack import Pipeline
from haystack.components.builders import PromptBuilder
from haystack.core.errors import DeserializationError
from langchain_core.retrievers import BaseRetriever
from llama_index.core.base.base_retriever import BaseRetriever as LlamaRetriever
from llama_index.core.schema import QueryBundle

from querywright.adapters import haystack, langchain, llama_index
from querywright.errors import InputError, TechniqueError

QUESTION = "Which home blood pressure reading should be written down?"
OPTIONS = ["Only the highest one", "The average of several, seated and rested", "One after a walk"]
GIVEN = {"question": QUESTION, "options": OPTIONS}
FOUND = {"id": "home", "title": "Home", "rank": 1, "source": "cards", "queries": [QUESTION]}


def with_langchain(program):
    retriever = langchain.QuerywrightRetriever(program=program)
    assert isinstance(retriever, BaseRetriever)
    for found in (retriever.invoke(QUESTION), asyncio.run(retriever.ainvoke(QUESTION))):
        yield [(one.id, one.page_content, one.metadata.pop("score"), one.metadata) for one in found]


def with_llama_index(program):
    retriever = llama_index.QuerywrightRetriever(program)
    assert isinstance(retriever, LlamaRetriever)
    for found in (retriever.retrieve(QUESTION), asyncio.run(retriever.aretrieve(QueryBundle(QUESTION)))):
        yield [(one.node_id, one.text, one.score, one.metadata) for one in found]


def with_haystack(program):
    told = haystack.QuerywrightRetriever(program).run(QUESTION)
    assert told["queries"] == [QUESTION]
    yield [(one.id, one.content, one.score, one.meta) for one in told["documents"]]


@pytest.mark.parametrize("framework", [with_langchain, with_llama_index, with_haystack])
def test_a_retriever_gives_what_was_found_and_asks_no_reader(framework, open_program, server):
    first, *asynchronous = framework(open_program("plain"))
    (id, text, score, metadata), second = first
    assert (id, metadata) == ("home", FOUND)
    assert text.startswith("A home blood pressure reading")
    assert score > second[2]
    assert second[3]["rank"] == 2
    assert all(other == first for other in asynchronous)
    assert server.count == 0


def test_a_runnable_answers(program):
    runnable = langchain.as_runnable(program)
    result = runnable.invoke(GIVEN)
    assert (result["question"], result["answer"], result["documents"][0].id) == (QUESTION, OPTIONS[1], "home")
    assert [query["role"] for query in result["queries"]] == ["support", "distinguish", "verify"]
    assert (result["support"], result["fallbacks"]) == (None, [])
    assert result["documents"][0].metadata["score"] > 0
    assert result["documents"][0].metadata["queries"]
    assert asyncio.run(runnable.ainvoke(GIVEN)) == result


@pytest.mark.parametrize("given", [None, 3, ["a"], {"options": ["a", "b"]}, {"question": 3}])
def test_what_is_no_question_is_refused(program, given):
    with pytest.raises(InputError, match="the input must be a question or a dict"):
        langchain.as_runnable(program).invoke(given)


def test_options_in_a_single_string_are_refused(program):
    for ask in (
        lambda: langchain.as_runnable(program).invoke({**GIVEN, "options": "a,b"}),
        lambda: llama_index.QuerywrightQueryEngine(program).query(llama_index.ChoiceQuery(QUESTION, options="a,b")),
        lambda: haystack.QuerywrightProgram(program).run(QUESTION, "a,b"),
    ):
        with pytest.raises(TechniqueError, match="got the string 'a,b'"):
            ask()


def test_an_engine_answers_with_its_sources(open_program):
    engine, asked = (
        llama_index.QuerywrightQueryEngine(open_program()),
        llama_index.ChoiceQuery(QUESTION, options=OPTIONS),
    )
    for response in (engine.query(asked), asyncio.run(engine.aquery(asked))):
        assert (response.response, response.source_nodes[0].node_id) == (OPTIONS[1], "home")
        assert [query["role"] for query in response.metadata["queries"]] == ["support", "distinguish", "verify"]
        assert response.metadata["fallbacks"] == []
    with pytest.raises(TechniqueError, match="has none"):
        engine.query(QUESTION)
    plain = llama_index.QuerywrightQueryEngine(open_program("plain")).query(QUESTION)
    assert str(plain) == "home blood pressure reading should be written down?"


def test_a_component_answers(program):
    result = haystack.QuerywrightProgram(program).run(QUESTION, OPTIONS)
    assert (result["answer"], len(result["queries"]), result["documents"][0].id) == (OPTIONS[1], 3, "home")


def test_a_pipeline_is_saved_by_the_path_and_cannot_send_a_key_away(at_place):
    ours = ["querywright.adapters.haystack"]
    pipeline = Pipeline()
    pipeline.add_component("retriever", haystack.QuerywrightRetriever("artifacts/plain", lm="openai/other"))
    pipeline.add_component("prompt", PromptBuilder("{{documents[0].content}} {{query}}", required_variables="*"))
    pipeline.connect("retriever.documents", "prompt.documents")
    text = pipeline.dumps()
    assert "program: artifacts/plain" in text
    assert str(at_place) not in text
    assert "sk-never" not in text
    again = Pipeline.loads(text, allowed_modules=ours)
    assert again.to_dict() == pipeline.to_dict()
    given = {"retriever": {"query": QUESTION}, "prompt": {"query": QUESTION}}
    for said in (pipeline.run(given), again.run(given), asyncio.run(again.run_async(given))):
        assert said["prompt"]["prompt"].startswith("A home blood pressure reading")
    with pytest.raises(DeserializationError, match="must be a name without a URL"):
        Pipeline.loads(text.replace("openai/other", "openai/http://elsewhere.example/x"), allowed_modules=ours)


def test_the_examples(example):
    assert OPTIONS[1] in "\n".join(example("load_artifact.py"))
    *documents, chained = example("in_langchain.py")
    assert documents[0].startswith("1 home ")
    assert chained == f"{OPTIONS[1]} (2 documents)"
    *nodes, answer, queries = example("in_llama_index.py")
    assert nodes[0].startswith("1 home ")
    assert (answer, queries.count("', '")) == (OPTIONS[1], 2)
    (line,) = example("in_haystack.py")
    assert line.startswith(f"{OPTIONS[1]} ['home', ")
