"""Offer a compiled program as a tool to assistants: after `make demo`, run `.venv/bin/python examples/mcp_client.py`.

First install the extra: pip install 'querywright[mcp]'. To configure an assistant, use the command that this client
runs: querywright mcp ARTIFACT.
"""

import asyncio
import os
import sys

from mcp import Client, StdioServerParameters

QUESTION = "Which home blood pressure reading should be written down?"
OPTIONS = ["Only the highest one", "The average of several, seated and rested", "One after a walk"]
SERVER = StdioServerParameters(
    command=sys.executable,
    args=["-m", "querywright", "mcp", "artifacts/hcqr-sample"],
    env=dict(os.environ),  # by default, an MCP server gets almost no variables, not even an LM's API key
)


async def main() -> None:
    async with Client(SERVER) as client:
        print([tool.name for tool in (await client.list_tools()).tools])
        result = await client.call_tool("ask", {"question": QUESTION, "options": OPTIONS})
        print(result.structured_content["answer"])
        print([passage["id"] for passage in result.structured_content["passages"]])


if __name__ == "__main__":
    asyncio.run(main())
