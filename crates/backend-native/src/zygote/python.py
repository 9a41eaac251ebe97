# The zygote of Python: an interpreter that has booted and forks, each child into a box of its own.
#
# CPython imports this file while it boots, as `usercustomize`, with the command line and environment of a cold run. In
# the zygote the import never ends. In a child it fails, as it does in a cold run where there is no such module, and the
# interpreter goes on by itself: it looks for its script, finds the box's, and waits there for the code. So there is
# nothing here that runs the code or imitates how it is run.
#
# The line above this one names the modules to import beforehand: PRELOAD = [...]


def main():
    import sys

    forget_how_this_was_found(sys)
    handlers = signal_handlers()
    try:
        for name in PRELOAD:
            __import__(name)
    except BaseException as error:
        refuse(f"cannot preload {name}: {type(error).__name__}: {error}")
    kept, looked_at = frozenset(sys.modules), frozenset(sys.path_importer_cache)

    import ctypes
    import gc
    import os
    import _socket

    if signal_handlers() != handlers:
        refuse("a preloaded module handles signals, which a program would find")
    control = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    # Without what Python does after a fork, which copies memory. The processes on the way do not need it.
    fork = ctypes.PyDLL(None, use_errno=True).fork
    with open("/sandbox/.filter", "rb") as file:
        filter = SyscallFilter(ctypes, file.read())
    ending = Ending(libc, kept)
    rehearsal = compile("import sys\nx = [str(i) for i in range(10)]\nprint(*x, flush=True)\n", "/sandbox/main.py", "exec")
    control.send(b"ready")

    gc.collect()
    gc.freeze()
    while True:
        message, beside, _, _ = control.recvmsg(16, _socket.CMSG_SPACE(4 * 64))
        if not message:
            os._exit(0)
        fds = [fd for _, _, data in beside for fd in numbers(data)]
        pid = fork()
        if pid == 0:
            break
        for fd in fds:
            os.close(fd)
        if pid < 0:
            control.send(f"cannot fork: {os.strerror(ctypes.get_errno())}".encode())
            continue
        # The tail of the child's error message, if any, is in its stderr.
        _, status = os.waitpid(pid, 0)
        control.send(b"born" if status == 0 else b"a child could not enter its box")

    control.detach()
    try:
        landlocked, rehearsed = message[0] == 1, message[1] == 1
        namespaces, (stdin, stdout, stderr, last_pid), rest = fds[:7], fds[7:11], fds[11:]
        ruleset = rest.pop(0) if landlocked else None
        enter(libc, os, fork, namespaces, last_pid, tasks=rest)
        settle(os, (stdin, os.open("/dev/null", os.O_WRONLY), stderr))
        confine(ctypes, libc, os, ruleset, filter)
        forget_the_rest(sys.modules, kept | {__name__})
        forget_the_rest(sys.path_importer_cache, looked_at)
        seed_anew(sys.modules)
        gc.unfreeze()
        if rehearsed:
            exec(rehearsal, {"__name__": "__main__", "__builtins__": __builtins__})
        ending.prepare()
        os.dup2(stdout, 1)
        os.closerange(3, 1024)
        if rehearsed:
            ending.decide()
    except BaseException as error:
        os.write(2, f"zygote: {error!r}\n".encode())
        os._exit(70)


def refuse(why):
    import os
    import _socket

    _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, 0).send(why.encode(errors="replace")[:200])
    os._exit(1)


def forget_how_this_was_found(sys):
    """A box has no packages of the user's, so the directory of this file must leave no trace."""
    directory = __file__.rpartition("/")[0]
    sys.path[:] = [entry for entry in sys.path if entry != directory]
    sys.path_importer_cache.pop(directory, None)


def forget_the_rest(table, kept):
    for name in [name for name in table if name not in kept]:
        del table[name]


def seed_anew(modules):
    """What `random` does by itself after a fork, and numpy does not."""
    if "numpy.random" in modules:
        modules["numpy.random"].seed()


def signal_handlers():
    import _signal

    return [_signal.getsignal(number) for number in range(1, _signal.NSIG)]


def numbers(data):
    return [int.from_bytes(data[i : i + 4], "little") for i in range(0, len(data) // 4 * 4, 4)]


def enter(libc, os, fork, namespaces, last_pid, tasks):
    """Goes into a box, by way of two processes that end: one that leaves the host's process numbers, and one that has
    its parent outside, so that the next has PID 1 for its parent as every orphan of the box does. That one is to have
    the number of a box's first command."""
    libc.prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL
    libc.alarm(10)
    for file in tasks:
        os.write(file, b"0")
    for namespace in namespaces:
        check(libc.setns(namespace, 0), "setns")
    pid = fork()
    if pid:
        os._exit(0 if pid > 0 and os.waitpid(pid, 0)[1] == 0 else 1)
    os.pwrite(last_pid, b"1", 0)
    if os.fork():
        os._exit(0)
    if os.getpid() != 2:
        raise RuntimeError(f"the program is process {os.getpid()}")


def settle(os, streams):
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.chdir("/sandbox")


def confine(ctypes, libc, os, ruleset, filter):
    """As `confine.rs` of the jail does it to every other program. The keeper looks whether it was done."""
    for capability in range(64):
        if libc.prctl(24, capability, 0, 0, 0):  # PR_CAPBSET_DROP, until there is no such capability
            break
    check(libc.prctl(47, 4, 0, 0, 0), "clear the ambient capabilities")  # PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL
    os.setgroups([])
    os.setresgid(1000, 1000, 1000)
    os.setresuid(1000, 1000, 1000)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3
    check(libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")
    check(libc.prctl(4, 1, 0, 0, 0), "be dumpable, as after exec")  # PR_SET_DUMPABLE
    check(libc.prctl(38, 1, 0, 0, 0), "set no_new_privs")  # PR_SET_NO_NEW_PRIVS
    if ruleset is not None:
        check(libc.syscall(446, ruleset, 0), "landlock_restrict_self")
    filter.load(libc)


class SyscallFilter:
    def __init__(self, ctypes, instructions):
        self.instructions = ctypes.create_string_buffer(instructions, len(instructions))

        class Program(ctypes.Structure):
            _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]

        self.program = Program(len(instructions) // 8, ctypes.addressof(self.instructions))
        self.reference = ctypes.byref(self.program)

    def load(self, libc):
        check(libc.prctl(22, 2, self.reference, 0, 0), "load the syscall filter")  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER


class Ending:
    """Ends a program that has nothing left to say without taking the interpreter apart, which takes longer than most
    programs do and copies what is shared with the zygote, page by page.

    It comes after everything that the program has asked for at its exit, and only where it is certain that nothing more
    could be seen: the script has run to its end by itself, no thread is left, and no object made by the program has
    something to do when it goes. In every other case, and in any doubt, CPython does what it always does."""

    # Their objects do something when they go that cannot be seen in their types.
    TELLING = frozenset(
        ["_ctypes", "_curses", "_curses_panel", "_dbm", "_gdbm", "_interpreters", "_multiprocessing", "_posixshmem"]
        + ["_sqlite3", "_tkinter", "_xxsubinterpreters", "readline"]
    )

    def __init__(self, libc, kept):
        import _thread
        import atexit
        import gc
        import itertools
        import operator
        import os
        import sys

        self.kept, self.fflush, self.sys, self.register = kept, libc.fflush, sys, atexit.register
        self.exit, self.close, self.getpid, self.threads = os._exit, os.closerange, os.getpid, _thread._count
        self.stats, self.objects, self.frozen, self.heralds = gc.get_stats, gc.get_objects, gc.get_freeze_count, gc.callbacks
        self.frame, self.streams, self.hook = sys._getframe, (sys.stdin, sys.stdout, sys.stderr), sys.excepthook
        self.main, self.module, self.error = sys.modules["__main__"].__dict__, type(sys), Exception
        self.mro, self.reference = type.__dict__["__mro__"].__get__, __import__("_weakref").ref
        self.names, self.callback = type.__dict__["__dict__"].__get__, self.reference.__dict__["__callback__"].__get__
        self.referent, self.flags = self.reference.__call__, type.__dict__["__flags__"].__get__
        self.attributes = self.attributes_of_streams()
        ask, absent = operator.methodcaller("__call__"), itertools.filterfalse
        self.unwatched = lambda: zip(absent(ask, [sys.gettrace]), absent(ask, [sys.getprofile]))

    def prepare(self):
        self.pid, self.collected, self.witness = self.getpid(), self.collections(), []
        # Whoever traces or profiles would be told of a function that is called here. So whether anybody does is asked by
        # what is not written in Python, and if so, nothing is called.
        self.register(any, map(self.end, self.unwatched()))

    def collections(self):
        return [generation["collections"] for generation in self.stats()[1:]]

    def attributes_of_streams(self):
        buffers = [stream.buffer for stream in self.streams]
        # One that does not buffer is its own.
        parts = [*self.streams, *buffers, *(getattr(buffer, "raw", buffer) for buffer in buffers)]
        return [list(part.__dict__) for part in parts]

    def end(self, _):
        if self.frame().f_back is not None:
            return
        try:
            silent = self.decide()
        except self.error:
            return
        if silent:
            # Whoever reads there need not wait until the kernel has taken this process apart.
            self.close(0, 3)
            self.exit(0)

    def decide(self):
        """Whether nothing more can come of this program."""
        main = self.main
        # CPython sets these for a script, and removes them when it has run to its end; not if it called exit.
        if "__file__" in main or "__cached__" in main or main.get("__name__") != "__main__":
            ran_through = False
        else:
            failed = self.sys.__dict__.keys() & {"last_type", "last_value", "last_traceback", "last_exc"}
            ran_through = self.sys.excepthook is self.hook and not failed
        alone = self.getpid() == self.pid and self.threads() == 0
        _, stdout, stderr = self.streams
        same_streams = self.sys.stdout is stdout and self.sys.stderr is stderr
        same_streams = same_streams and self.attributes_of_streams() == self.attributes
        uncollected = self.collections() == self.collected and self.frozen() == 0 and not self.heralds
        if not (ran_through and alone and same_streams and uncollected and self.no_last_words()):
            return False
        for stream in (stdout, stderr):
            stream.flush()
        self.fflush(None)
        return True

    def no_last_words(self):
        for name, module in list(self.sys.modules.items()):
            if name not in self.kept and not self.is_quiet(name, module):
                return False
        quiet, complete = set(), False
        for generation in (0, 1):
            for thing in self.objects(generation):
                if thing is self.witness:
                    complete = True
                kind = type(thing)
                if kind in quiet:
                    continue
                bases = self.mro(kind)
                if any("__del__" in self.names(base) for base in bases):
                    return False
                if self.reference in bases:
                    if self.callback(thing) is not None and not self.is_for_ever(self.referent(thing)):
                        return False
                else:
                    quiet.add(kind)
        # Otherwise what the program made has been moved to where it is not looked for.
        return complete

    def is_for_ever(self, thing):
        """Whether it is a type that is part of the interpreter: those go last, when nobody can be called any more."""
        return type in self.mro(type(thing)) and not self.flags(thing) & 1 << 9  # Py_TPFLAGS_HEAPTYPE

    def is_quiet(self, name, module):
        if type(module) is not self.module:
            return False
        file = module.__dict__.get("__file__")
        is_extension = isinstance(file, str) and file.endswith(".so")
        return name not in self.TELLING and (not is_extension or "/lib-dynload/" in file)


def check(result, what):
    if result != 0:
        import ctypes

        raise OSError(ctypes.get_errno(), what)


main()
raise ImportError(name="usercustomize")
