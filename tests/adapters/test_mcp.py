from __future__ import annotations

import json

import anyio
import pytest
from mcp import Client

from querywright.adapters.mcp import server as serve

QUESTION = "Which home blood pressure reading should be written down?"
OPTIONS = ["Only the highest one", "The average of several, seated and rested", "One after a walk"]
GIVEN = {"question": QUESTION, "options": OPTIONS}


def with_client(server, work, **options):
    """Return the result of work with a client that is connected to a server."""

    async def connected():
        async with Client(server, **options) as client:
            return await work(client)

    return anyio.run(connected)


def call(server, name, arguments, **options):
    return with_client(server, lambda client: client.call_tool(name, arguments), **options)


def test_the_tools_say_what_they_take_and_give(program):
    async def look(client):
        return (await client.list_tools()).tools, client.server_info, client.instructions

    tools, info, instructions = with_client(serve(program), look)
    assert info.name == "querywright"
    assert "hcqr" in instructions
    assert [tool.name for tool in tools] == ["ask", "retrieve"]
    for tool in tools:
        assert set(tool.input_schema["properties"]) == {"question", "options"}
        assert tool.input_schema["required"] == ["question"]
        assert tool.annotations.read_only_hint
    assert {"answer", "support", "passages", "queries", "fallbacks"} == set(tools[0].output_schema["properties"])


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_ask(program, mode):
    result = call(serve(program), "ask", GIVEN, mode=mode)
    assert not result.is_error
    said = result.structured_content
    assert said["answer"] == OPTIONS[1]
    assert said["passages"][0]["id"] == "home"
    assert said["passages"][0]["rank"] == 1
    assert [query["role"] for query in said["queries"]] == ["support", "distinguish", "verify"]
    assert json.loads(result.content[0].text) == said


def test_retrieve_asks_no_reader(open_program, server):
    said = call(serve(open_program("plain")), "retrieve", {"question": QUESTION}).structured_content
    assert "answer" not in said
    assert said["passages"][0]["text"].startswith("A home blood pressure reading")
    assert said["passages"][0]["queries"] == [QUESTION]
    assert server.count == 0


def test_what_a_client_can_mend_is_told_and_nothing_else(program, monkeypatch):
    served = serve(program)
    told = call(served, "ask", {"question": QUESTION})
    assert told.is_error
    assert "pass options" in told.content[0].text
    assert call(served, "ask", {"question": 3}).is_error
    assert call(served, "forget", {}).is_error

    def broken(*_, **__):
        raise RuntimeError("a secret of the machine")

    monkeypatch.setattr(type(program.program), "forward", broken)
    crashed = call(served, "ask", GIVEN)
    assert crashed.is_error
    assert "secret" not in crashed.content[0].text


def test_an_lm_that_fails_is_told_without_its_key(open_program, chat_server, monkeypatch):
    refusing = chat_server({"status": 401, "body": {"error": {"message": "wrong key sk-never-to-be-saved-1234567890"}}})
    monkeypatch.setenv("OPENAI_API_BASE", refusing.url)
    failed = call(serve(open_program("plain")), "ask", {"question": QUESTION})
    assert failed.is_error
    assert "the LM did not answer (LMAuthError)" in failed.content[0].text
    assert "sk-never" not in failed.content[0].text


def test_the_example_asks_over_stdio(example):
    tools, answer, passages = example("mcp_client.py")
    assert tools == "['ask', 'retrieve']"
    assert answer == OPTIONS[1]
    assert passages.startswith("['home', ")
