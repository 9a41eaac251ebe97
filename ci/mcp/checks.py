"""What every MCP client must be able to do with Belljar, whichever SDK and transport it uses."""

import asyncio
import json
import os
import time
import uuid

TOOLS = ["run_code", "list_languages", "get_run", "cancel_run"]


async def check(client, what):
    """Every check but the one that needs a hasty server, or that one, with a client that is connected."""
    tools = await client.tools()
    assert list(tools) == TOOLS, list(tools)
    assert tools["run_code"]["outputSchema"]["type"] == "object"
    assert tools["run_code"]["annotations"]["destructiveHint"] is False
    checks = {
        "everything": [runs, fails, refuses, pages, shows_pictures, passes_files_on, progresses, cancels],
        "handover": [hands_over],
    }
    for each in checks[what]:
        await asyncio.wait_for(each(client), 60)
        print(f"  {each.__name__}", flush=True)


async def runs(client):
    answer = await client.call("run_code", {
        "language": "python",
        "code": "import sys; print(sys.stdin.read().upper(), open('a.txt').read(), sys.argv[1])",
        "stdin": "in", "args": ["arg"], "files": [{"path": "a.txt", "content": "file"}],
    })
    assert not answer.get("isError"), answer
    assert text(answer) == "exit code 0\nstdout:\nIN file arg", text(answer)
    assert answer["structuredContent"]["stdout"] == "IN file arg\n"
    languages = await client.call("list_languages", {})
    assert any(known["name"] == "python" for known in languages["structuredContent"]["languages"])


async def fails(client):
    """A program that fails is a result."""
    answer = await client.call("run_code", {"language": "python", "code": "1/0"})
    assert not answer.get("isError"), answer
    assert text(answer).startswith("exit code 1\nstderr:\n"), text(answer)
    assert "ZeroDivisionError" in answer["structuredContent"]["stderr"]
    late = await client.call("run_code", {"language": "bash", "code": "sleep 9", "timeout_ms": 200})
    assert text(late).startswith("timed out after 200ms (exit code 124)"), text(late)
    assert late["structuredContent"]["status"] == "timed_out"


async def refuses(client):
    """What Belljar will not run is an error that says what to do."""
    for arguments, expected in [
        ({"language": "klingon", "code": "1"}, "unknown language 'klingon'"),
        ({"language": "python", "code": "1", "tiemout_ms": 3}, "there is no argument 'tiemout_ms'"),
        ({"language": "python", "code": "1", "backend": "none"}, "the backend 'none' is not allowed here"),
        ({"language": "python", "code": "1", "timeout_ms": 10**12}, "timeout"),
    ]:
        answer = await client.call("run_code", arguments)
        assert answer["isError"] and expected in text(answer) and "\nhint: " in text(answer), answer
    gone = await client.call("get_run", {"run_id": "run_0"})
    assert gone["isError"] and "run the code again with run_code" in text(gone), gone


async def pages(client):
    """Long output is cut for the model, which can read all of it."""
    code = "print(''.join(f'{n:06d}\\n' for n in range(20_000)), end='')"
    answer = await client.call("run_code", {"language": "python", "code": code})
    short, result = text(answer), answer["structuredContent"]
    assert len(short) < 31_000 and "000000\n" in short and short.endswith("019999"), len(short)
    assert result["stdout_truncated"] and len(result["stdout"]) < 31_000
    whole, offset = "", 0
    while offset is not None:
        arguments = {"run_id": result["id"], "stream": "stdout", "offset": offset}
        page = (await client.call("get_run", arguments))["structuredContent"]["page"]
        whole, offset = whole + page["content"], page["next_offset"]
    assert whole == "".join(f"{n:06d}\n" for n in range(20_000))


async def shows_pictures(client):
    code = r"open('dot.png', 'wb').write(b'\x89PNG\r\n\x1a\n' + bytes(9)); open('a.csv', 'w').write('a,b')"
    answer = await client.call("run_code", {"language": "python", "code": code, "collect": ["*.png", "*.csv"]})
    kinds = [(block["type"], block.get("mimeType")) for block in answer["content"]]
    assert kinds == [("text", None), ("image", "image/png")], kinds
    assert "- dot.png (17 bytes)" in text(answer) and "- a.csv (3 bytes)" in text(answer), text(answer)
    page = await client.call("get_run", {"run_id": answer["structuredContent"]["id"], "file": "a.csv"})
    assert page["structuredContent"]["page"]["content"] == "a,b"


async def passes_files_on(client):
    """A file goes from one run into the next, and what was not there to collect is said."""
    code = "open('big', 'w').write('x' * 300_000)"
    first = await client.call("run_code", {"language": "python", "code": code, "collect": ["big", "*.svg"]})
    assert len(json.dumps(first)) < 5_000, first
    assert "Nothing to collect: no file matches '*.svg'" in text(first), text(first)
    file = {"path": "in", "from_run": first["structuredContent"]["id"], "from_path": "big"}
    answer = await client.call("run_code", {"language": "bash", "code": "wc -c < in", "files": [file]})
    assert text(answer) == "exit code 0\nstdout:\n300000", text(answer)
    dot = r"open('dot.png', 'wb').write(b'\x89PNG\r\n\x1a\n' + bytes(9))"
    shown = await client.call("run_code", {"language": "python", "code": dot, "collect": ["dot.png"]})
    again = await client.call("get_run", {"run_id": shown["structuredContent"]["id"], "file": "dot.png"})
    for answer in (shown, again):
        picture = answer["content"][1]["data"]
        assert json.dumps(answer).count(picture) == 1, answer


async def progresses(client):
    seen = []
    code = "for n in 1 2 3; do printf 'step %s\\a\\n' $n; sleep 0.9; done"
    await client.call("run_code", {"language": "bash", "code": code}, lambda *news: seen.append(news))
    assert len(seen) >= 1, seen
    amounts = [amount for amount, _ in seen]
    assert amounts == sorted(set(amounts)), amounts
    assert all(message.startswith("running for ") for _, message in seen), seen
    assert any("step" in message and "\a" not in message for _, message in seen), seen


async def cancels(client):
    """A call that its client gives up is the end of its box."""
    mark = f"mark-{uuid.uuid4()}"
    # With a disk of its own it gets a box of its own: arguments that a program gets from a zygote are not in /proc.
    arguments = {"language": "python", "code": "import time; time.sleep(30)", "args": [mark], "timeout_ms": 30_000,
                 "disk_bytes": 33_000_000}
    call = asyncio.create_task(client.call("run_code", arguments))
    await until(lambda: processes(mark), "the program to start")
    await client.cancel(call)
    await until(lambda: not processes(mark), "the box to be gone")


async def hands_over(client):
    """A run that takes longer than the server's answer-within, here 2s, is answered with a handle."""
    arguments = {"language": "bash", "code": "sleep 4; echo done", "timeout_ms": 30_000}
    answer = await client.call("run_code", arguments)
    handle = answer["structuredContent"]
    assert handle["status"] == "running" and "get_run" in text(answer), answer
    answer = await ended(client, answer)
    assert text(answer) == "exit code 0\nstdout:\ndone", answer
    endless = {"language": "bash", "code": "sleep 60", "timeout_ms": 60_000}
    handle = (await client.call("run_code", endless))["structuredContent"]
    answer = await ended(client, await client.call("cancel_run", {"run_id": handle["id"]}))
    assert answer["structuredContent"]["status"] == "cancelled", answer


async def ended(client, answer):
    """Waits as a model would."""
    while answer["structuredContent"]["status"] == "running":
        answer = await client.call("get_run", {"run_id": answer["structuredContent"]["id"]})
    return answer


def text(answer):
    return answer["content"][0]["text"]


def processes(mark):
    """The processes on this machine with the mark among their arguments."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as line:
                if mark.encode() in line.read():
                    found.append(pid)
        except OSError:
            pass
    return found


async def until(condition, what):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        await asyncio.sleep(0.02)


def described(result):
    """A result as the wire has it."""
    return json.loads(result.model_dump_json(by_alias=True, exclude_none=True))
