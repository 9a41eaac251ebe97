"""The client for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import List

import pytest

import belljar
from belljar import AsyncBelljar, Belljar
from conftest import DEADLINE, Server, wait_until


def test_run_and_lists(async_client: AsyncBelljar) -> None:
    async def main() -> None:
        async with async_client as client:
            result = await client.run("python", "print(input())", stdin="in")
            assert result.ok and result.stdout == "in\n"
            assert (await belljar.arun("sh", "exit 3")).exit_code == 3
            assert [one.exit_code for one in (await client.run("sh", "read n; exit $n", stdin=["1", "2"])).results()] == [1, 2]
            assert any(language.name == "python" for language in await client.languages())
            assert any(backend.ready for backend in await client.backends())
            assert "languages" in await client.pool()
            assert (await client.scan("python", "import os; os.system('x')"))[0].rule == "python.process.spawn"
            upload = await client.upload(b"data")
            assert (await client.run("sh", "cat u", files={"u": upload})).stdout == "data"
            assert upload.id in [one.id for one in await client.uploads()]
            await client.delete_upload(upload)
            assert result.id in [one.id async for one in client.runs(language="python")]
            deadline = time.monotonic() + DEADLINE  # records are written soon after the run
            while result.id not in [one["id"] async for one in client.audit.search(language="python")]:
                assert time.monotonic() < deadline, "the record is written"
                await asyncio.sleep(0.01)
            assert (await client.audit.get(result.id))["id"] == result.id
            assert (await client.audit.verify())["ok"]
            async for record in client.audit.search(language="python"):
                assert record["language"] == "python"
                break
            assert [one async for one in client.approvals.list(status="pending")] == []

    asyncio.run(main())


def test_stream_and_callbacks(async_client: AsyncBelljar) -> None:
    async def main() -> None:
        seen = [(event.type, event.text) async for event in async_client.stream("sh", "echo a; sleep 0.1; echo b >&2")]
        assert [kind for kind, _ in seen] == ["start", "stdout", "stderr", "end"]
        heard: List[str] = []

        async def listener(text: str) -> None:
            heard.append(text)

        result = await async_client.run("sh", "echo a; echo b >&2", on_stdout=listener, on_stderr=heard.append)
        assert result.ok and sorted(heard) == ["a\n", "b\n"]
        stream = async_client.stream("sh", "exit 3")
        async for _ in stream:
            pass
        assert stream.result.exit_code == 3

    asyncio.run(main())


def test_submit(async_client: AsyncBelljar) -> None:
    async def main() -> None:
        handle = await async_client.submit("sh", "sleep 60", timeout=60)
        with pytest.raises(belljar.RunNotFinishedError):
            await handle.wait(0.01)
        with pytest.raises(belljar.RunNotFinishedError):
            await handle.result()
        await handle.cancel()
        assert (await handle.wait(60)).status == "cancelled" == await handle.status()
        done = await async_client.submit("sh", "echo one")
        assert (await done.wait()).stdout == "one\n"
        assert [event.type async for event in async_client.attach(done.id).events()] == ["start", "stdout", "end"]

    asyncio.run(main())


def test_asyncio_run_twice(async_client: AsyncBelljar) -> None:
    async def main() -> str:
        return (await async_client.run("sh", "echo again")).stdout

    assert [asyncio.run(main()) for _ in range(3)] == ["again\n"] * 3


def test_many_at_a_time(async_client: AsyncBelljar) -> None:
    async def main() -> List[int]:
        results = await asyncio.gather(*(async_client.run("sh", f"exit {n}") for n in range(40)))
        return [result.exit_code for result in results]

    assert asyncio.run(main()) == list(range(40))


def test_cancelling_the_task_cancels_the_run(async_client: AsyncBelljar, shared_server: Server) -> None:
    client = Belljar(shared_server.url)

    async def main() -> None:
        task = asyncio.ensure_future(async_client.run("perl", "sleep 60", timeout=60))
        running = lambda: [one.id for one in client.runs(language="perl", status="running")]  # noqa: E731
        run_id = (await asyncio.get_running_loop().run_in_executor(None, wait_until, running, "it runs"))[0]
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        status = lambda: client.attach(run_id).status() == "cancelled"  # noqa: E731
        await asyncio.get_running_loop().run_in_executor(None, wait_until, status, "it is cancelled")

    asyncio.run(main())


def test_errors(async_client: AsyncBelljar) -> None:
    async def main() -> None:
        with pytest.raises(belljar.InvalidRequestError):
            await async_client.run("klingon", "")
        with pytest.raises(belljar.InvalidRequestError):
            async for _ in async_client.stream("klingon", ""):
                pass
        with pytest.raises(belljar.ServerUnreachableError):
            await AsyncBelljar("unix:/nowhere/at.all").languages()
        with pytest.raises(belljar.TooLargeError):
            await async_client.run("python", "", files={"big": b"x" * (20 << 20)})

    asyncio.run(main())


def test_over_a_unix_socket(make_server: object, tmp_path: object) -> None:
    server: Server = make_server("", "--listen", f"unix:{tmp_path}/s.sock")  # type: ignore[operator]
    assert server.url.startswith("unix:")

    async def main() -> None:
        async with AsyncBelljar(server.url) as client:
            assert (await client.run("sh", "echo a")).stdout == "a\n"

    asyncio.run(main())
    assert Belljar(server.url).run("sh", "echo b").stdout == "b\n"
