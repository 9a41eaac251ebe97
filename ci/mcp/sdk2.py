"""The MCP Python SDK 2.x: requests that stand alone, since 2026-07-28."""

import asyncio
import sys

import jsonschema
from mcp import Client as Sdk
from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client

from checks import check, described


class Client:
    def __init__(self, session):
        self.session = session
        self.schemas = {}

    async def tools(self):
        tools = {tool.name: described(tool) for tool in (await self.session.list_tools()).tools}
        self.schemas = {name: tool["outputSchema"] for name, tool in tools.items()}
        return tools

    async def call(self, name, arguments, progress=None):
        async def heard(amount, _total, message):
            progress(amount, message)

        callback = heard if progress else None
        result = await self.session.call_tool(name, arguments, progress_callback=callback)
        answer = described(result)
        if not result.is_error:
            jsonschema.validate(result.structured_content, self.schemas[name])
            answer["structuredContent"] = result.structured_content
        return answer

    async def cancel(self, call):
        """On HTTP by closing the stream, on standard input by a message: the SDK knows."""
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)


async def main(what, *target):
    server = (
        target[0]
        if target[0].startswith("http")
        else stdio_client(StdioServerParameters(command=target[0], args=list(target[1:])))
    )
    async with Sdk(server) as session:
        assert session.protocol_version == "2026-07-28", session.protocol_version
        await check(Client(session), what)


asyncio.run(asyncio.wait_for(main(*sys.argv[1:]), 240))
