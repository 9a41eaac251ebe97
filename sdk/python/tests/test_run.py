"""Runs, their options and their results."""

from __future__ import annotations

import pathlib

import pytest

import belljar
from belljar import Batch, Belljar, Result, run
from conftest import wait_until


def test_two_lines() -> None:
    assert run("python", "print(1)").stdout == "1\n"


def test_a_result_has_every_field(client: Belljar) -> None:
    result = client.run("python", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert (result.status, result.exit_code, result.ok) == ("exited", 3, False)
    assert (result.stdout, result.stderr) == ("out\n", "err\n")
    assert result.id.startswith("run_") and result.language == "python" and "3." in result.runtime
    assert result.backend == "native" and "filesystem" in result.isolation.kept and result.isolation.waived == ()
    assert result.usage.wall_ms > 0 and result.usage.memory_peak_bytes > 0
    assert result.raw["exit_code"] == 3
    assert result.files == () and result.decision is None and result.compile is None and result.stage == "run"


def test_a_failed_program_is_a_result_unless_it_is_checked(client: Belljar) -> None:
    result = client.run("python", "raise ValueError('no good')")
    assert not result.ok
    with pytest.raises(belljar.ProgramFailedError, match="ended with 1: ValueError: no good") as caught:
        result.check()
    assert caught.value.result is result
    assert client.run("python", "").check().ok


def test_input_arguments_and_environment(client: Belljar) -> None:
    code = "import os, sys; print(sys.stdin.read(), sys.argv[1:], os.environ['A'])"
    result = client.run("python", code, stdin="in", args=["x", "y z"], env={"A": "b"})
    assert result.stdout == "in ['x', 'y z'] b\n"
    assert client.run("python", "print(input())", stdin=b"bytes").stdout == "bytes\n"
    with pytest.raises(ValueError, match="not UTF-8"):
        client.run("python", "", stdin=b"\xff")


def test_limits(client: Belljar) -> None:
    timed_out = client.run("python", "while True: pass", timeout=0.3)
    assert timed_out.timed_out and timed_out.exit_code == 124 and "Execution timed out" in timed_out.stderr
    assert client.run("python", "while True: pass", cpu_time=0.3).timed_out
    eaten = client.run("python", "x = b'x' * (200 << 20)", memory="64M")
    assert eaten.oom_killed and eaten.status == "out_of_memory" and eaten.exit_code == 137
    assert client.run("python", "open('f', 'wb').write(bytes(3 << 20))", disk="2M").exit_code == 1
    long = client.run("python", "print('x' * 100000)", output_limit=1024)
    assert long.stdout_truncated and len(long.stdout) < 3000


def test_the_compiler_has_limits_and_a_result_of_its_own(client: Belljar) -> None:
    result = client.run("c", "int main() { return 4; }", compile_timeout=30, compile_memory="512M")
    assert result.exit_code == 4 and result.compile and result.compile.exit_code == 0
    broken = client.run("c", "int main() { retur }")
    assert broken.stage == "compile" and not broken.ok and "error" in broken.stderr
    with pytest.raises(belljar.ProgramFailedError, match="did not compile"):
        broken.check()


def test_files_go_in_and_come_back(client: Belljar, tmp_path: pathlib.Path) -> None:
    local = tmp_path / "local.bin"
    local.write_bytes(b"\x00\xff")
    code = "open('out/all', 'wb').write(b''.join(open(n, 'rb').read() for n in ('a.txt', 'b.bin', 'd/local', 'run')))"
    files = {"a.txt": "text", "b.bin": b"\x01", "d/local": local, "run": {"content": "!", "executable": True}, "out/x": ""}
    result = client.run("python", code, files=files, collect="out/all")
    assert [one.path for one in result.files] == ["out/all"]
    assert result.file("out/all").content == b"text\x01\x00\xff!" and result.files[0].size == 8
    again = client.run("python", "print(len(open('again', 'rb').read()))", files={"again": result.files[0]})
    assert again.stdout == "8\n"
    named = client.run("sh", "ls local.*", files=[local])
    assert named.stdout == "local.bin\n"
    with pytest.raises(KeyError):
        result.file("nothing")


def test_a_file_of_an_earlier_run_and_an_upload(client: Belljar, tmp_path: pathlib.Path) -> None:
    first = client.run("sh", "echo one > n.txt", collect=["n.txt"])
    assert client.run("sh", "cat m.txt", files={"m.txt": {"from_run": first.id, "from_path": "n.txt"}}).stdout == "one\n"
    local = tmp_path / "data"
    local.write_bytes(b"uploaded")
    upload = client.upload(local)
    assert upload.size == 8 and upload.id in [one.id for one in client.uploads()]
    assert client.run("sh", "cat u", files={"u": upload}).stdout == "uploaded"
    client.delete_upload(upload)
    assert upload.id not in [one.id for one in client.uploads()]


def test_bytes_of_the_output(client: Belljar) -> None:
    result = client.run("python", "import sys; sys.stdout.buffer.write(b'\\xff\\x00')", output_base64=True)
    assert result.stdout_bytes == b"\xff\x00" and result.stderr_bytes == b""
    assert client.run("sh", "echo a").stdout_bytes == b"a\n"


def test_several_inputs(client: Belljar) -> None:
    batch = client.run("sh", "read n; exit $n", stdin=["0", "3"])
    assert isinstance(batch, Batch) and len(batch) == 2 and not batch.ok
    assert [result.exit_code for result in batch.results()] == [0, 3]
    assert isinstance(batch[0], Result) and batch[0:1] == batch.entries[:1]


def test_allowed_imports_deny(client: Belljar) -> None:
    result = client.run("python", "import os", allowed_imports=["json"])
    assert result.denied and result.exit_code == 126 and result.stderr.startswith("Denied by policy:")
    assert result.decision and result.decision.action == "deny" and result.decision.by == "request"
    assert client.run("python", "import json", allowed_imports=["json"]).ok


def test_an_unknown_option_is_a_type_error(client: Belljar) -> None:
    with pytest.raises(TypeError, match="no option 'time_out'"):
        client.run("python", "", time_out=1)  # type: ignore[call-arg, call-overload]
    with pytest.raises(TypeError, match="no option 'runtime'"):
        run("python", "", runtime="runsc")  # type: ignore[call-arg, call-overload]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"timeout": "1s"}, TypeError),
        ({"timeout": -1}, ValueError),
        ({"memory": "much"}, ValueError),
        ({"memory": 1.5}, TypeError),
        ({"files": "a.txt"}, TypeError),
        ({"files": {"a": 1}}, TypeError),
        ({"files": {"a": {"contents": "x"}}}, TypeError),
        ({"args": "x"}, TypeError),
        ({"stdin": 5}, TypeError),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_sent(options: dict, error: type) -> None:
    with pytest.raises(error):
        Belljar("http://127.0.0.1:1").run("python", "", **options)


def test_sizes() -> None:
    from belljar._options import size_in_bytes

    sizes = {5: 5, "5": 5, "1K": 1024, "256M": 256 << 20, "1.5G": 3 << 29, "2MiB": 2 << 20, "3kb": 3072}
    assert {size: size_in_bytes(size, "memory") for size in sizes} == sizes


def test_lists(client: Belljar) -> None:
    names = {language.name: language for language in client.languages()}
    assert names["python"].available and "py" in names["python"].aliases and names["python"].runtime
    native = next(backend for backend in client.backends() if backend.name == "native")
    assert native.ready and all(guarantee.kept for guarantee in native.guarantees)
    assert "languages" in client.pool()
    mine = client.run("lua", "print(1)")
    listed = client.runs(language="lua", status="exited")
    assert next(listed).id == mine.id


def test_pages_are_followed(client: Belljar) -> None:
    for _ in range(3):
        client.run("sh", "true", stdin=["x"] * 20)
    runs = list(client.runs(language="sh"))
    assert len(runs) >= 60 and len({one.id for one in runs}) == len(runs)


def test_scan(client: Belljar) -> None:
    findings = client.scan("python", "import os\nos.system('id')")
    assert [(one.rule, one.line) for one in findings] == [("python.process.spawn", 2)]
    assert [one.rule for one in client.scan("python", "import os", allowed_imports=[])] == ["python.imports.not-allowed"]


def test_audit(client: Belljar) -> None:
    result = client.run("python", "print('find me 5150')")
    found = wait_until(lambda: list(client.audit.search("find me 5150")), "the record is written")
    assert found[0]["id"] == result.id
    assert client.audit.get(result.id)["stdout"] == "find me 5150\n"
    assert client.audit.verify()["ok"]
