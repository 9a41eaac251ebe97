"""PyPI's piston_rspy, as its readme uses it."""

import asyncio
import os
import sys

import piston_rspy as piston


async def main(url):
    client = piston.Client.with_url(url)

    runtimes = await client.fetch_runtimes()
    python = next(runtime for runtime in runtimes if runtime.language == "python")
    assert "py" in python.aliases, python.aliases

    file = piston.File(name="main.py", content="import sys; print(input(), sys.argv[1:]); sys.exit(3)")
    executor = piston.Executor(
        language="python", version=python.version, files=[file], stdin="read", args=["one"], run_timeout=5000
    )
    response = await client.execute(executor)
    assert response.is_ok() and response.version == python.version, response
    assert (response.run.stdout, response.run.code) == ("read ['one']\n", 3), response.run
    assert response.compile is None and response.run.is_err()

    broken = piston.Executor().set_language("c").set_version("*")
    broken.add_file(piston.File(name="a.c", content="int main() { retur 1; }"))
    response = await client.execute(broken)
    assert response.compile is not None and response.compile.code == 1, response
    assert "error" in response.compile.stderr

    slow = piston.Executor().set_language("sh").set_version("*").set_run_timeout(200)
    slow.add_file(piston.File(content="sleep 60"))
    response = await client.execute(slow)
    assert (response.run.code, response.run.signal) == (None, "SIGKILL"), response.run

    unknown = piston.Executor().set_language("html").set_version("5.0.0")
    unknown.add_file(piston.File(content="<p>"))
    response = await client.execute(unknown)
    assert response.is_err() and response.status == 400, response.status
    print("piston_rspy is served")


asyncio.run(main(sys.argv[1]))
# The threads of one of these clients outlive the interpreter, and now and then abort it.
sys.stdout.flush()
os._exit(0)
