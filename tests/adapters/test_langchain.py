from __future__ import annotations

import asyncio
import json

import pytest
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever

from querywright.adapters.langchain import QuerywrightRetriever, TakenBack, as_runnable

QUESTION = "Which home blood pressure reading should be written down?"
OPTIONS = ["Only the highest one", "The average of several, seated and rested", "One after a walk"]
GIVEN = {"question": QUESTION, "options": OPTIONS}


def ids(documents: list[Document]) -> list[str | None]:
    return [document.id for document in documents]


@pytest.fixture
def retriever(open_program):
    return QuerywrightRetriever(program=open_program("plain"))


@pytest.fixture
def runnable(program):
    return as_runnable(program)


def test_a_retriever_gives_documents_of_what_was_found(retriever, server):
    documents = retriever.invoke(QUESTION)
    assert isinstance(retriever, BaseRetriever)
    assert documents[0].page_content.startswith("A home blood pressure reading")
    assert documents[0].id == "home"
    wanted = {"id": "home", "title": "Home", "rank": 1, "source": "cards", "queries": [QUESTION]}
    assert {key: value for key, value in documents[0].metadata.items() if key != "score"} == wanted
    assert [document.metadata["rank"] for document in documents] == [1, 2]
    assert server.count == 0, "the reader is not asked"


def test_a_runnable_answers(runnable):
    result = runnable.invoke(GIVEN)
    assert result["question"] == QUESTION
    assert result["answer"] == OPTIONS[1]
    assert ids(result["documents"])[0] == "home"
    assert [query["role"] for query in result["queries"]] == ["support", "distinguish", "verify"]
    assert result["support"] is None
    assert result["fallbacks"] == []
    assert asyncio.run(runnable.ainvoke(GIVEN)) == result


def test_parts_of_a_stream_add_up_to_the_answer(runnable):
    whole = runnable.invoke(GIVEN)
    parts = list(runnable.stream(GIVEN))
    assert [next(iter(part)) for part in parts[:3]] == ["question", "queries", "documents"]
    assert "answer" not in parts[2]

    async def collect():
        return [part async for part in runnable.astream(GIVEN)]

    for added in (parts, asyncio.run(collect())):
        total = added[0]
        for part in added[1:]:
            total = total + part
        assert total["answer"] == whole["answer"]
        assert ids(total["documents"]) == ids(whole["documents"])
        assert total["queries"] == whole["queries"]
        assert total["fallbacks"] == []


def pieces(text, *, whole=True):
    """An answer as a server streams it, in pieces of five characters."""
    parts = [text[start : start + 5] for start in range(0, len(text), 5)]
    choices = [{"index": 0, "delta": {"content": part}, "finish_reason": None} for part in parts]
    if whole:
        choices.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    chunks = [
        {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [one]} for one in choices
    ]
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks] + ["data: [DONE]\n\n"] * whole
    return {"body": "".join(lines).encode()}


def test_text_that_is_taken_back_is_not_in_the_sum(open_program, chat_server, monkeypatch):
    broken = pieces('{"answer": "something that is not', whole=False)
    server = chat_server(broken, pieces('{"answer": "the average"}'))
    monkeypatch.setenv("OPENAI_API_BASE", server.url)
    parts = list(as_runnable(open_program("plain")).stream("What is written down at home?"))
    said = [part["answer"] for part in parts if "answer" in part]
    assert server.count == 2
    assert len(said) > 4
    assert [text for text in said if isinstance(text, TakenBack)] == [""]
    assert "".join(said) == "something that is notthe average"
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    assert total["answer"] == "the average"


def test_the_example(example):
    *documents, chained, streamed = example("in_langchain.py")
    assert documents[0].startswith("1 home ")
    assert chained == f"{OPTIONS[1]} (2 documents)"
    assert streamed == OPTIONS[1]
