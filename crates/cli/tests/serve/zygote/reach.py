import ctypes
import os
import signal
import socket

libc = ctypes.CDLL(None, use_errno=True)


def tried(attempt, *arguments):
    try:
        return str(attempt(*arguments))
    except OSError as error:
        return os.strerror(error.errno)


def traced(pid):
    ctypes.set_errno(0)
    PTRACE_ATTACH = 16
    return os.strerror(ctypes.get_errno()) if libc.ptrace(PTRACE_ATTACH, pid, 0, 0) else "attached"


for pid in PIDS:
    print(tried(os.kill, pid, 0), tried(os.listdir, f"/proc/{pid}"), tried(os.pidfd_open, pid), traced(pid), sep="|")
print(tried(os.kill, os.getpid(), 0), len(tried(os.listdir, "/proc/self")) > 100, sep="|")

sockets = [name for name in os.listdir("/proc/self/fd") if "socket" in tried(os.readlink, "/proc/self/fd/" + name)]
print(sockets, sorted(name for name in os.listdir("/proc") if name.isdigit()), os.listdir("/dev/shm"))
pair = socket.socketpair()
sockets = [name for name in os.listdir("/proc/self/fd") if "socket" in tried(os.readlink, "/proc/self/fd/" + name)]
print(len(sockets), flush=True)
print(tried(os.kill, -1, signal.SIGTERM), tried(os.kill, -1, signal.SIGKILL), sep="\n")
