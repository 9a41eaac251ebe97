#!/usr/bin/env python3
"""An MCP client without a library: starts the server that mcp.json names, lists its tools and calls one.

    python3 mcp_client.py
"""

import json
import pathlib
import subprocess

configuration = json.loads(pathlib.Path(__file__).with_name("mcp.json").read_text())["mcpServers"]["belljar"]
command = [configuration["command"], *configuration["args"]]
server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def send(message):
    server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    server.stdin.flush()


def call(id, method, params):
    send({"id": id, "method": method, "params": params})
    for line in server.stdout:
        answer = json.loads(line)
        if answer.get("id") == id:
            return answer["result"]
    raise EOFError("the server ended")


client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "example", "version": "1"}}
print("server:", call(1, "initialize", client)["serverInfo"]["name"])
send({"method": "notifications/initialized"})

print("tools:", ", ".join(tool["name"] for tool in call(2, "tools/list", {})["tools"]))

result = call(3, "tools/call", {"name": "run_code", "arguments": {"language": "python", "code": "print(6 * 7)"}})
print(result["content"][0]["text"])

server.stdin.close()
server.wait()
