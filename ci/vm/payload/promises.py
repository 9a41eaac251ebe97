"""What holds for root and for an ordinary user alike. Importing this registers the checks."""

import functools
import signal

from belljar import Server, Traces, boxed, finish, run, start, wait_until
from checks import check as register, expect, run_all

EVERY_GUARANTEE = {"filesystem", "network", "memory", "pids", "cpu", "disk", "syscalls", "privileges"}

MIB = 1 << 20

# Written and kept, so that it counts: more than any limit used here.
EAT_MEMORY = "hoard = []\nwhile True: hoard.append(b'x' * (1 << 20))"
# Leaves its session and its process group, closes nothing, ignores what can be ignored.
DAEMONS = """
import os, signal, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(each, signal.SIG_IGN)
        if os.fork() == 0: time.sleep(1000)
        time.sleep(1000)
"""

# Tells why it cannot have another process: 11 is EAGAIN.
FORK_OFTEN = """
import os, time
try:
    for _ in range(30):
        if os.fork() == 0: time.sleep(1000)
except OSError as error:
    print(error.errno)
"""

BEFORE_ALL = Traces()


def check(function):
    """A check whose runs must leave neither process nor cgroup behind."""

    @functools.wraps(function)
    def leaves_nothing():
        traces = Traces()
        function()
        traces.expect_none()

    return register(leaves_nothing)


@check
def python_prints():
    done = run("print('hello from', 6 * 7)")
    done.expect_status("exited", 0)
    expect(done.stdout == "hello from 42\n", done)
    expect(done.backend == "native", done)


@check
def the_exit_code_is_the_programs_own():
    run("import sys; sys.exit(7)").expect_status("exited", 7)


@check
def every_guarantee_is_kept_and_none_waived():
    isolation = run("pass").isolation
    expect(set(isolation["kept"]) == EVERY_GUARANTEE, f"kept {isolation['kept']}")
    expect(isolation["waived"] == [], f"waived {isolation['waived']}")


@check
def a_memory_bomb_is_out_of_memory():
    done = run(EAT_MEMORY, "--memory", "64M")
    done.expect_status("out_of_memory", 137)
    expect(done.oom_killed is True, done)
    expect("Memory limit exceeded" in done.stderr, done)
    peak = done.usage["memory_peak_bytes"]
    expect(32 * MIB < peak <= 64 * MIB, f"a peak of {peak} under a limit of 64 MiB")


@check
def a_memory_bomb_in_a_child_is_out_of_memory():
    done = run(f"import os\nif os.fork() == 0:\n exec({EAT_MEMORY!r})\nos.wait()\nprint('survived')", "--memory", "64M")
    done.expect_status("out_of_memory", 137)


@check
def a_kill_within_the_limit_is_not_out_of_memory():
    done = run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "--memory", "64M")
    done.expect_status("signaled", 137)
    expect(done.oom_killed is False, done)


@check
def memory_within_the_limit_can_be_used():
    done = run("print(len(b'x' * (100 << 20)))", "--memory", "256M")
    done.expect_status("exited", 0)
    expect(done.usage["memory_peak_bytes"] > 100 * MIB, f"the peak misses what was used: {done}")


@check
def forks_are_refused_at_the_limit():
    count = """
import os, signal
children = 0
try:
    while children < 200:
        if os.fork() == 0: signal.pause()
        children += 1
except BlockingIOError:
    pass
print(children)
"""
    few = run(count, "--pids", "20")
    few.expect_status("exited", 0)
    expect(10 <= int(few.stdout) < 20, f"{few.stdout.strip()} children under a limit of 20")
    more = run(count, "--pids", "60")
    expect(50 <= int(more.stdout) < 60, f"{more.stdout.strip()} children under a limit of 60")


@check
def a_fork_bomb_is_bounded_and_ends_at_the_timeout():
    # It carries on when fork is refused, and no process of it ever ends.
    bomb = "import os\nwhile True:\n try: os.fork()\n except OSError: pass"
    process = start(bomb, "--pids", "30", "--timeout", "20s")
    wait_until(lambda: len(boxed()) > 15, process, "the bomb did not go off")
    most = 0
    while process.poll() is None:
        most = max(most, len(boxed()))
    # PID 1 may stand outside of the limit.
    expect(most <= 30 + 1, f"{most} processes under a limit of 30")
    finish(process).expect_status("timed_out", 124)


@check
def a_timeout_ends_the_whole_tree():
    done = run(DAEMONS + "print('started', flush=True)\nwhile True: pass", "--timeout", "15s")
    done.expect_status("timed_out", 124)
    expect(done.timed_out is True, done)
    expect(done.stdout == "started\n", done)
    expect("Execution timed out" in done.stderr, done)
    wall = done.usage["wall_ms"]
    expect(15_000 <= wall < 120_000, f"ended after {wall} ms instead of 15000")


@check
def daemons_do_not_outlive_their_parent():
    done = run(DAEMONS + "print('done')")
    done.expect_status("exited", 0)
    expect(done.usage["wall_ms"] < 30_000, f"the daemons held the caller: {done}")


@check
def cpu_time_is_counted_for_the_whole_tree():
    # Each process alone stays below the limit of 3 s; together they do not.
    busy = """
import os, time
for _ in range(4):
    if os.fork() == 0:
        while time.process_time() < 2: pass
        os._exit(0)
    os.wait()
print('got away')
"""
    done = run(busy, "--cpu-time", "3s", "--timeout", "120s")
    done.expect_status("timed_out", 124)
    expect(done.usage["cpu_ms"] >= 3_000, done)
    expect(done.usage["wall_ms"] < 60_000, done)
    run(busy, "--cpu-time", "60s", "--timeout", "120s").expect_status("exited", 0)


@check
def sleep_is_no_cpu_time():
    run("import time; time.sleep(4)", "--cpu-time", "3s").expect_status("exited", 0)


@check
def the_cpu_rate_is_kept():
    # Counted from the loop on: starting Python may itself take a second here.
    busy = """
import time
begun, used = time.monotonic(), time.process_time()
while time.process_time() - used < 2: pass
print(time.monotonic() - begun)
"""
    done = run(busy, "--cpus", "0.25")
    done.expect_status("exited", 0)
    expect(float(done.stdout) > 7, f"2 s of CPU at a rate of 0.25 took {done.stdout.strip()} s")


@check
def runs_side_by_side_have_limits_of_their_own():
    bombs = [start(EAT_MEMORY, "--memory", "64M") for _ in range(2)]
    prints = [start(f"print({number})", "--memory", "64M") for number in range(2)]
    for number, process in enumerate(prints):
        done = finish(process)
        done.expect_status("exited", 0)
        expect(done.stdout == f"{number}\n", done)
    for process in bombs:
        finish(process).expect_status("out_of_memory", 137)


def _killed_in_mid_run(fatal):
    process = start(DAEMONS + "time.sleep(1000)", "--timeout", "600s")
    # The parent, three children, three grandchildren; and PID 1.
    wait_until(lambda: len(boxed()) >= 8, process, "the program did not start")
    process.send_signal(fatal)
    process.communicate(timeout=60)


@check
def kill_9_of_belljar_leaves_nothing():
    _killed_in_mid_run(signal.SIGKILL)


@check
def an_interrupt_of_belljar_leaves_nothing():
    _killed_in_mid_run(signal.SIGINT)


@check
def the_box_sees_no_cgroup_and_no_other_process():
    look = """
import os
print(sorted(name for name in os.listdir('/proc') if name.isdigit() and int(name) not in (1, os.getpid())))
print(os.path.exists('/sys/fs/cgroup/cgroup.procs'))
print(os.getuid() == 0)
"""
    done = run(look)
    done.expect_status("exited", 0)
    expect(done.stdout == "[]\nFalse\nFalse\n", done)


@check
def a_box_that_waited_keeps_the_limits_of_the_run_that_it_gets():
    with Server() as server:
        done = server.run_warm("import sys; print(6 * 7, sys.stdin.read())", stdin="read")
        expect((done["stdout"], done["exit_code"]) == ("42 read\n", 0), done)
        small = {"memory_bytes": 64 * MIB}
        done = server.run_warm("print('kept')", limits=small)
        expect(done["stdout"] == "kept\n", done)
        done = server.run_warm(EAT_MEMORY, limits=small)
        expect(done["status"] == "out_of_memory", done)
        expect(done["usage"]["memory_peak_bytes"] <= 64 * MIB, done)
        done = server.run_warm(FORK_OFTEN, limits={"pids": 10})
        expect(done["stdout"] == "11\n", done)


def keep_all():
    """Runs the checks. The last one finds what came to light only after its own check had passed."""

    @register
    def nothing_is_left_in_the_end():
        BEFORE_ALL.expect_none()

    run_all()
