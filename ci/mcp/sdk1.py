"""The MCP Python SDK 1.x: the generation that begins with `initialize`. It checks every structured answer against the
tool's output schema by itself."""

import asyncio
import sys

from mcp import ClientSession, StdioServerParameters, types
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from checks import check, described


class Client:
    def __init__(self, session):
        self.session = session

    async def tools(self):
        return {tool.name: described(tool) for tool in (await self.session.list_tools()).tools}

    async def call(self, name, arguments, progress=None):
        async def heard(amount, _total, message):
            progress(amount, message)

        callback = heard if progress else None
        return described(await self.session.call_tool(name, arguments, progress_callback=callback))

    async def cancel(self, call):
        """This generation says so; the last request is the one that is meant."""
        params = types.CancelledNotificationParams(requestId=self.session._request_id - 1, reason="enough")
        notification = types.CancelledNotification(method="notifications/cancelled", params=params)
        await self.session.send_notification(types.ClientNotification(notification))
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)


async def main(what, *target):
    connected = (
        streamable_http_client(target[0])
        if target[0].startswith("http")
        else stdio_client(StdioServerParameters(command=target[0], args=list(target[1:])))
    )
    async with connected as streams, ClientSession(streams[0], streams[1]) as session:
        initialized = await session.initialize()
        assert initialized.protocolVersion == "2025-11-25", initialized
        await check(Client(session), what)


asyncio.run(asyncio.wait_for(main(*sys.argv[1:]), 240))
