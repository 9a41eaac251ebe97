"""Events, callbacks and submitted runs."""

from __future__ import annotations

import pytest

from belljar import Belljar, ConflictError, NotFoundError, RunNotFinishedError
from conftest import wait_until


def test_events_arrive_while_the_program_runs(client: Belljar) -> None:
    # The program waits for nobody: that the first output came early is seen from the run, which still runs then.
    seen = []
    for event in client.stream("sh", "echo one; sleep 3; echo two >&2"):
        seen.append((event.type, event.text))
        if event.text == "one\n":
            assert any(one.status == "running" for one in client.runs())
        last = event
    assert seen[1:] == [("stdout", "one\n"), ("stderr", "two\n"), ("end", "")] and seen[0][0] == "start"
    assert last.result and last.result.stdout == "one\n" and last.result.ok


def test_a_stream_knows_its_result(client: Belljar) -> None:
    stream = client.stream("sh", "exit 7")
    with pytest.raises(RuntimeError):
        stream.result
    assert [event.type for event in stream] == ["start", "end"]
    assert stream.result.exit_code == 7


def test_closing_a_stream_cancels_the_run(client: Belljar) -> None:
    with client.stream("sh", "echo up; sleep 60", timeout=60) as events:
        run_id = next(events).data["id"]
    wait_until(lambda: client.attach(run_id).status() == "cancelled", "the run is cancelled")


def test_a_stream_of_several_inputs(client: Belljar) -> None:
    events = list(client.stream("sh", "read n; exit $n", stdin=["1", "2"]))
    assert [(event.type, event.index) for event in events] == [("result", 0), ("result", 1), ("done", None)]
    assert [event.result.exit_code for event in events if event.result] == [1, 2]


def test_callbacks(client: Belljar) -> None:
    out, err = [], []
    result = client.run("sh", "echo a; echo b >&2; echo ü", on_stdout=out.append, on_stderr=err.append)
    assert "".join(out) == result.stdout == "a\nü\n" and "".join(err) == "b\n"


def test_a_callback_that_raises_cancels_the_run(client: Belljar) -> None:
    def listener(text: str) -> None:
        raise KeyError(text)

    with pytest.raises(KeyError):
        client.run("sh", "echo a; sleep 60", timeout=60, on_stdout=listener)
    newest = next(client.runs())
    wait_until(lambda: client.attach(newest.id).status() == "cancelled", "the run is cancelled")


def test_submit_and_wait(client: Belljar) -> None:
    handle = client.submit("sh", "sleep 3; echo done")
    with pytest.raises(RunNotFinishedError) as caught:
        handle.wait(0.01)
    assert isinstance(caught.value, TimeoutError) and caught.value.run_id == handle.id
    with pytest.raises(RunNotFinishedError):
        handle.result()
    assert handle.wait().stdout == "done\n"
    assert handle.result().ok and handle.status() == "exited"
    assert client.attach(handle.id).wait(5).id == handle.id


def test_cancel(client: Belljar) -> None:
    handle = client.submit("sh", "sleep 60", timeout=60)
    handle.cancel()
    assert handle.wait(60).status == "cancelled"
    with pytest.raises(ConflictError):
        handle.cancel()


def test_events_of_a_submitted_run_from_its_start(client: Belljar) -> None:
    handle = client.submit("sh", "echo one")
    handle.wait()
    for _ in range(2):
        assert [event.type for event in handle.events()] == ["start", "stdout", "end"]
    with client.attach(handle.id).events() as events:
        next(events)
    assert handle.result().ok


def test_an_unknown_run(client: Belljar) -> None:
    with pytest.raises(NotFoundError):
        client.attach("run_01M7P0VS4NRVE2CZH1A8KA8R19").result()
