# The Python zygote: a booted interpreter that forks each child into its own box.
#
# CPython boots with the command line and environment of a cold run. When it has finished with `site`, and so with virtual
# environments, .pth files and `sitecustomize`, it asks every hook in `sys.path_hooks` whether its script is a directory or
# an archive to import from. One of them is ours (`hook.py`) and runs this file. In the zygote that call never ends. In a
# child it returns `None`, the answer for an ordinary script, and the interpreter continues by itself: it opens its script,
# finds the box's, and waits there for the code. So nothing here runs the code or imitates how it is run.
#
# The lines above name the modules to import beforehand, PRELOAD = [...], and matplotlib's backend, PLOTS = "...".


def main():
    import sys

    # The hook has been called, and programs must not find it.
    del sys.path_hooks[0]
    handlers = signal_handlers()
    try:
        for name in PRELOAD:
            __import__(name)
        if "matplotlib" in sys.modules:
            provide_plots(sys.modules)
    except BaseException as error:
        refuse(f"cannot preload {name}: {type(error).__name__}: {error}")
    kept, looked_at = frozenset(sys.modules), frozenset(sys.path_importer_cache)

    import gc
    import os
    import _socket

    if signal_handlers() != handlers:
        refuse("a preloaded module installs signal handlers, which programs would inherit")
    control = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, 0)
    os.closerange(3, 1024)
    trampoline, fflush = Trampoline.load()
    ending = Ending(fflush, kept)
    rehearsal = compile("import sys\nx = [str(i) for i in range(10)]\nprint(*x, flush=True)\n", "/sandbox/main.py", "exec")
    forget_the_rest(sys.modules, kept)
    forget_the_rest(sys.path_importer_cache, looked_at)
    control.send(f"ready {trampoline.orders} {trampoline.rseq} {trampoline.rseq_length}".encode())

    gc.collect()
    gc.freeze()
    zygote = os.getpid()
    while True:
        length, *_ = control.recvmsg_into([trampoline.received], _socket.CMSG_SPACE(4 * 64))
        if not length:
            os._exit(0)
        calls, rehearses, *_ = trampoline.header
        pid = trampoline.enter(calls)
        if pid == 0:
            break
        if os.getpid() != zygote:
            os._exit(70)
        os.closerange(3, 1024)
        born = pid > 0 and os.waitpid(pid, 0)[1] == 0
        control.send(trampoline.received[: HEADER if born else length])

    control.detach()
    try:
        gc.unfreeze()
        seed_anew(sys.modules)
        take_extras(os, sys)
        if rehearses:
            exec(rehearsal, {"__name__": "__main__", "__builtins__": __builtins__})
        ending.prepare()
        if rehearses:
            os.dup2(3, 1)
            os.close(3)
            ending.decide()
    except BaseException as error:
        os.write(2, f"zygote: {error!r}\n".encode())
        os._exit(70)


def refuse(why):
    import os
    import _socket

    _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, 0).send(why.encode(errors="replace")[:200])
    os._exit(1)


def provide_plots(modules):
    """A preloaded matplotlib has already read its configuration, so a run cannot choose a backend by a file of its own. It
    has our backend from the start, which saves nothing unless the run has asked for it."""
    matplotlib = modules["matplotlib"]
    # Anything but text stands for "whichever works".
    if isinstance(dict.__getitem__(matplotlib.rcParams, "backend"), str):
        return
    backend = type(matplotlib)(PLOTS)
    backend.__file__ = f"/sandbox/{PLOTS}.py"
    with open("/sandbox/.plots", "rb") as file:
        source = file.read()
    exec(compile(source, backend.__file__, "exec"), backend.__dict__)
    modules[PLOTS] = backend
    matplotlib.rcParams["backend"] = f"module://{PLOTS}"


def forget_the_rest(table, kept):
    for name in [name for name in table if name not in kept]:
        del table[name]


def take_extras(os, sys):
    """The arguments and variables of the run, if it has any: as in a cold run, except for what the kernel shows in
    /proc/self. Only the box and this child ever have them, not the zygote."""
    try:
        file = os.open("/sandbox/.extras", os.O_RDONLY)
    except FileNotFoundError:
        return
    data = b""
    while piece := os.read(file, 65536):
        data += piece
    os.close(file)
    os.unlink("/sandbox/.extras")
    number, *rest = data.split(b"\0")[:-1]
    args = [os.fsdecode(arg) for arg in rest[: int(number)]]
    sys.argv += args
    if hasattr(sys, "orig_argv"):
        sys.orig_argv += args
    for variable in rest[int(number) :]:
        name, _, value = variable.partition(b"=")
        # A variable of the caller's comes after those that every box has.
        os.environb.pop(name, None)
        os.environb[name] = value


def seed_anew(modules):
    """New seeds and a new thread id. `random` does this by itself after a fork; these modules do not."""
    if "numpy.random" in modules:
        modules["numpy.random"].seed()
    if "threading" in modules:
        modules["threading"].main_thread()._set_native_id()


def signal_handlers():
    import _signal

    return [_signal.getsignal(number) for number in range(1, _signal.NSIG)]


# The length of the header of orders: where their calls are, whether to rehearse, and fields that are not used here.
HEADER = 32


class Trampoline:
    """The way into a box: machine code that forks like `os.fork`, but leaves the child in the box, confined according to
    the orders from outside. The code and the layout of its memory are in `entry_trampoline.rs` of the jail."""

    AREA, SIZE = 0x40000, 0x100000

    @staticmethod
    def load():
        """The trampoline, and the C library's `fflush`. What is imported to get them must not be found later."""
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        with open("/sandbox/.trampoline", "rb") as file:
            trampoline = Trampoline(ctypes, libc, file.read())
        return trampoline, trampoline.function(ctypes, libc.fflush, ctypes.c_void_p)

    def __init__(self, ctypes, libc, code):
        word, number = ctypes.c_size_t, ctypes.c_int
        libc.mmap.restype, libc.mmap.argtypes = word, [word, word, number, number, number, word]
        libc.mprotect.argtypes = [word, word, number]
        place = libc.mmap(0, self.SIZE, 1 | 2, 2 | 32, -1, 0)  # readable and writable, private and anonymous
        self.orders, machine = place + 2 * self.AREA, place + 3 * self.AREA
        ctypes.memmove(machine, code, len(code))
        if libc.mprotect(machine, self.AREA, 1 | 4):  # readable and executable
            refuse("cannot make the trampoline executable")
        self.received = memoryview((ctypes.c_char * self.AREA).from_address(self.orders)).cast("B")
        self.header = (ctypes.c_ssize_t * 4).from_address(self.orders)
        fork, munmap = self.address(ctypes, libc.fork), self.address(ctypes, libc.munmap)
        enter = ctypes.PYFUNCTYPE(number, word, word, word, word)(machine)
        self.call = lambda calls: enter(place, calls, fork, munmap)
        python = ctypes.pythonapi
        hooks = (python.PyOS_BeforeFork, python.PyOS_AfterFork_Parent, python.PyOS_AfterFork_Child)
        self.before, self.in_parent, self.in_child = (self.function(ctypes, hook) for hook in hooks)
        self.rseq, self.rseq_length = self.restartable_sequences(ctypes, libc)

    def enter(self, calls):
        self.before()
        pid = self.call(calls)
        if pid:
            self.in_parent()
        else:
            self.in_child()
        return pid

    def function(self, ctypes, function, *arguments):
        return ctypes.PYFUNCTYPE(ctypes.c_int, *arguments)(self.address(ctypes, function))

    def address(self, ctypes, function):
        return ctypes.cast(function, ctypes.c_void_p).value

    def restartable_sequences(self, ctypes, libc):
        """The address and length of the C library's rseq area, if it has registered one."""
        try:
            offset = ctypes.c_ssize_t.in_dll(libc, "__rseq_offset").value
            length = ctypes.c_uint.in_dll(libc, "__rseq_size").value
        except ValueError:
            return 0, 0
        libc.pthread_self.restype = ctypes.c_size_t
        return libc.pthread_self() + offset, length and max(length, 32)


class Ending:
    """Ends a finished program without tearing the interpreter down, which takes longer than most programs run and copies
    the memory shared with the zygote, page by page.

    It comes after everything that the program has registered for its exit, and only if it is certain that the teardown
    would have no visible effect: the script has run to its end by itself, no thread is left, and no object made by the
    program does anything when it is destroyed. In every other case, and in any doubt, CPython does what it always does."""

    # Their objects do something when they are destroyed that their types do not show.
    TELLING = frozenset(
        ["_ctypes", "_curses", "_curses_panel", "_dbm", "_gdbm", "_interpreters", "_multiprocessing", "_posixshmem"]
        + ["_sqlite3", "_tkinter", "_xxsubinterpreters", "readline"]
    )

    def __init__(self, fflush, kept):
        import _thread
        import atexit
        import gc
        import itertools
        import operator
        import os
        import sys

        self.kept, self.fflush, self.sys, self.register = kept, fflush, sys, atexit.register
        self.exit, self.close, self.getpid, self.threads = os._exit, os.closerange, os.getpid, _thread._count
        self.stats, self.objects, self.frozen, self.callbacks = gc.get_stats, gc.get_objects, gc.get_freeze_count, gc.callbacks
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
        # A tracer or profiler would see a Python function that is called here. So functions that are not written in Python
        # check for one first; if there is one, nothing is called.
        self.register(any, map(self.end, self.unwatched()))

    def collections(self):
        return [generation["collections"] for generation in self.stats()[1:]]

    def attributes_of_streams(self):
        buffers = [stream.buffer for stream in self.streams]
        # A stream without a buffer is its own raw stream.
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
            # The readers need not wait until the kernel has freed this process's memory.
            self.close(0, 3)
            self.exit(0)

    def decide(self):
        """Whether this program can have no more visible effect."""
        main = self.main
        # CPython sets these for a script, and removes them when it has run to its end, but not if it called exit.
        if "__file__" in main or "__cached__" in main or main.get("__name__") != "__main__":
            ran_through = False
        else:
            failed = self.sys.__dict__.keys() & {"last_type", "last_value", "last_traceback", "last_exc"}
            ran_through = self.sys.excepthook is self.hook and not failed
        alone = self.getpid() == self.pid and self.threads() == 0
        _, stdout, stderr = self.streams
        same_streams = self.sys.stdout is stdout and self.sys.stderr is stderr
        same_streams = same_streams and self.attributes_of_streams() == self.attributes
        uncollected = self.collections() == self.collected and self.frozen() == 0 and not self.callbacks
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
        # Otherwise the program's objects have been moved to a generation that was not searched.
        return complete

    def is_for_ever(self, thing):
        """Whether it is a type that is part of the interpreter: those are destroyed last, when no callback can run any more."""
        return type in self.mro(type(thing)) and not self.flags(thing) & 1 << 9  # Py_TPFLAGS_HEAPTYPE

    def is_quiet(self, name, module):
        if type(module) is not self.module:
            return False
        file = module.__dict__.get("__file__")
        is_extension = isinstance(file, str) and file.endswith(".so")
        return name not in self.TELLING and (not is_extension or "/lib-dynload/" in file)


main()
