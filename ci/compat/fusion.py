"""PyPI's sandbox-fusion, told where we are by SANDBOX_FUSION_ENDPOINT alone."""

import asyncio
import base64

from sandbox_fusion import (
    RunCodeRequest,
    RunJupyterRequest,
    RunStatus,
    SummaryMapping,
    run_code,
    run_code_async,
    run_concurrent,
    run_jupyter,
    run_jupyter_async,
    summary_run_code_result,
)

SUMMARY = SummaryMapping(
    CompileFailed="compile failed", CompileTimeout="compile timeout", RunFailed="run failed", RunTimeout="run timeout"
)


def summary(language, code, **more):
    result = run_code(RunCodeRequest(code=code, language=language, **more), max_attempts=1, client_timeout=60)
    return summary_run_code_result(result, SUMMARY)


def code():
    request = RunCodeRequest(
        code="print(input()); open('out.txt', 'w').write(open('in.txt').read() * 2)",
        language="python",
        stdin="read",
        run_timeout=5,
        files={"in.txt": base64.b64encode(b"ab").decode()},
        fetch_files=["out.txt"],
    )
    result = run_code(request, max_attempts=1, client_timeout=60)
    assert result.status == RunStatus.Success and result.run_result.stdout == "read\n", result
    assert base64.b64decode(result.files["out.txt"]) == b"abab", result.files


def summaries():
    assert summary("cpp", "int main() {}") == "Success"
    assert summary("cpp", "int main() { retur }") == "compile failed"
    assert summary("cpp", "int main() { return 3; }") == "run failed"
    assert summary("bash", "sleep 60", run_timeout=0.3) == "run timeout"


def sandbox_error():
    try:
        run_code(RunCodeRequest(code="1", language="csharp"), max_attempts=1)
    except Exception as error:
        assert "'csharp' is not available here" in str(error), error
    else:
        raise AssertionError("a language that is not there has run")


def jupyter():
    cells = ["a = 123", "a", "print(a)", "import sys; _ = sys.stderr.write('err')", "raise RuntimeError('no')"]
    result = run_jupyter(RunJupyterRequest(cells=cells, total_timeout=20), max_attempts=1, client_timeout=60)
    assert result.status == RunStatus.Success, result
    assert [cell.stdout for cell in result.cells] == ["", "", "123\n", "", ""], result.cells
    assert result.cells[1].display == [{"text/plain": "123"}] and result.cells[3].stderr == "err"
    assert (result.cells[4].error[0]["ename"], result.cells[4].error[0]["evalue"]) == ("RuntimeError", "no")


async def at_once():
    requests = [run_code_async(RunCodeRequest(code=f"print({n})", language="python")) for n in range(8)]
    results = await asyncio.gather(*requests)
    assert [result.run_result.stdout for result in results] == [f"{n}\n" for n in range(8)]
    notebook = await run_jupyter_async(RunJupyterRequest(cells=["1 + 1"]))
    assert notebook.cells[0].display == [{"text/plain": "2"}]


code()
summaries()
sandbox_error()
jupyter()
asyncio.run(at_once())
echoes = run_concurrent(run_code, args=[[RunCodeRequest(code=f"echo {n}", language="bash")] for n in range(8)])
assert [result.run_result.stdout for result in echoes] == [f"{n}\n" for n in range(8)]
print("sandbox-fusion is served")
