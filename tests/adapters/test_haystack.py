from __future__ import annotations

import asyncio

import pytest
from haystack import Document, Pipeline
from haystack.components.builders import PromptBuilder
from haystack.core.errors import DeserializationError

from querywright.adapters.haystack import QuerywrightProgram, QuerywrightRetriever

QUESTION = "Which home blood pressure reading should be written down?"
OPTIONS = ["Only the highest one", "The average of several, seated and rested", "One after a walk"]
OURS = ["querywright.adapters.haystack"]


def ids(documents):
    return [document.id for document in documents]


def test_a_component_answers(program):
    result = QuerywrightProgram(program).run(QUESTION, OPTIONS)
    assert result["answer"] == OPTIONS[1]
    assert len(result["queries"]) == 3
    first = result["documents"][0]
    assert isinstance(first, Document)
    assert first.id == "home"
    assert first.content.startswith("A home blood pressure reading")
    assert first.meta["rank"] == 1
    assert first.meta["title"] == "Home"
    assert first.meta["source"] == "cards"
    assert asyncio.run(QuerywrightProgram(program).run_async(QUESTION, OPTIONS))["answer"] == OPTIONS[1]


def test_a_component_only_retrieves(open_program, server):
    component = QuerywrightRetriever(open_program("plain"))
    result = component.run(QUESTION)
    assert ids(result["documents"])[0] == "home"
    assert result["queries"] == [QUESTION]
    assert asyncio.run(component.run_async(QUESTION)) == result
    assert server.count == 0


def test_a_pipeline_is_saved_by_the_path_and_loaded_again(at_place):
    pipeline = Pipeline()
    pipeline.add_component("retriever", QuerywrightRetriever("artifacts/plain"))
    pipeline.add_component("prompt", PromptBuilder("{{documents[0].content}} {{query}}", required_variables="*"))
    pipeline.connect("retriever.documents", "prompt.documents")
    text = pipeline.dumps()
    assert "program: artifacts/plain" in text
    assert str(at_place) not in text
    assert "sk-never" not in text
    again = Pipeline.loads(text, allowed_modules=OURS)
    assert again.to_dict() == pipeline.to_dict()
    for one in (pipeline, again):
        said = one.run({"retriever": {"query": QUESTION}, "prompt": {"query": QUESTION}})
        assert said["prompt"]["prompt"].startswith("A home blood pressure reading")
    assert asyncio.run(again.run_async({"retriever": {"query": QUESTION}, "prompt": {"query": QUESTION}})) == said


def test_a_pipeline_from_elsewhere_cannot_send_a_key_away(at_place):
    pipeline = Pipeline()
    pipeline.add_component("program", QuerywrightProgram("artifacts/plain", lm="openai/other"))
    text = pipeline.dumps().replace("openai/other", "openai/http://elsewhere.example/x")
    with pytest.raises(DeserializationError, match="holds an address"):
        Pipeline.loads(text, allowed_modules=OURS)


def test_the_example(example):
    (line,) = example("in_haystack.py")
    assert line.startswith(f"{OPTIONS[1]} ['home', ")
