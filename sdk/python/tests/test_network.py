"""Networks of runs. What is tried here is refused before anything leaves the host."""

from __future__ import annotations

from typing import Union

import pytest

from belljar import Belljar, InvalidRequestError, NetworkDenied
from belljar._sse import EventReader
from belljar.compat import CodeExecutionTool, ToolContext

CODE = """
import socket
for host, port in (("10.0.0.1", 80), ("other.invalid", 80)):
    try:
        socket.create_connection((host, port), 20)
        print("connected")
    except OSError as fault:
        print(type(fault).__name__)
"""
PRIVATE = NetworkDenied("10.0.0.1", 80, "a private address", 1)
REFUSED = "ConnectionRefusedError\ngaierror\n"


def test_a_network_by_hosts(client: Belljar) -> None:
    result = client.run("python", CODE, network="allow:*.example.org:443,93.184.216.0/24:53/udp")
    assert result.stdout == REFUSED and result.network == "allow:*.example.org:443,93.184.216.0/24:53/udp"
    assert result.network_denied[0] == PRIVATE
    looked_up = result.network_denied[1]
    assert (looked_up.host, looked_up.port, looked_up.reason) == ("other.invalid", None, "not allowed")
    assert (result.usage.network_up_bytes, result.usage.network_down_bytes) == (0, 0)


def test_without_a_network_there_is_nothing_to_tell(client: Belljar) -> None:
    result = client.run("python", CODE)
    assert result.stdout == "OSError\ngaierror\n" and result.network == "none"
    assert result.network_denied == () and result.usage.network_up_bytes is None


def test_what_is_no_network_is_refused(client: Belljar) -> None:
    for network in ("allow:", "allow:127.0.0.1", "allow:a.org:443/quic", "lan"):
        with pytest.raises(InvalidRequestError) as caught:
            client.run("python", "", network=network)
        assert caught.value.field == "network"


def test_connections_are_told_as_they_are_made(client: Belljar) -> None:
    events = [event for event in client.stream("python", CODE, network="allow:example.org") if event.type == "network"]
    first = {"host": "10.0.0.1", "port": 80, "action": "refused", "reason": "a private address", "count": 1}
    assert events[0].data == first
    assert events[1].data["host"] == "other.invalid" and events[1].data["port"] is None


def test_an_event_that_this_version_does_not_know_is_harmless() -> None:
    reader = EventReader(several=False)
    known, unknown = list(reader.feed(b'event: stdout\ndata: {"text": "x"}\n\nevent: news\ndata: {"a": [1]}\n\n'))
    assert (known.type, known.text) == ("stdout", "x")
    assert (unknown.type, unknown.text, unknown.data) == ("news", "", {"a": [1]}) and not reader.ended


@pytest.mark.parametrize(
    ("network", "stdout"),
    [(False, "OSError\ngaierror\n"), ("none", "OSError\ngaierror\n"), ("allow:example.org", REFUSED)],
)
def test_the_network_of_the_tool(network: Union[bool, str], stdout: str) -> None:
    output = CodeExecutionTool().run(ToolContext(), language="python", code=CODE, network=network)
    assert output.text == f"exit_code: 0\nstdout:\n{stdout}\nstderr:\n"
    assert output.metadata["sandbox_network"] == network


def test_the_whole_internet_of_the_tool() -> None:
    code = CODE.replace(', ("other.invalid", 80)', ",")
    output = CodeExecutionTool().run(ToolContext(), language="python", code=code, network=True)
    assert output.text == "exit_code: 0\nstdout:\nConnectionRefusedError\n\nstderr:\n", "private addresses are no part of it"
