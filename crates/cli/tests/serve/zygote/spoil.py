import builtins
import ctypes
import os
import signal
import sys


def look():
    constants = [250, "q", os.__doc__[:3], repr(())]
    planted = [hasattr(place, "planted") for place in (builtins, os, sys, os.path)]
    registered = ["planted" in sys.modules, "planted" in sys.path, "PLANTED" in os.environ, len(sys.meta_path)]
    state = [str(signal.getsignal(signal.SIGUSR1)), sys.getrecursionlimit(), os.path.exists("/tmp/planted")]
    return constants + planted + registered + state


def spoil():
    ctypes.memset(id(250) + 24, 251, 1)
    for text in ("q", os.__doc__):
        ctypes.memset(id(text) + sys.getsizeof(text) - len(text) - 1, ord("z"), 1)
    for place in (builtins, os, sys, os.path):
        place.planted = True
    sys.modules["planted"] = os
    sys.path.append("planted")
    sys.meta_path.append(None)
    os.environ["PLANTED"] = "1"
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    sys.setrecursionlimit(777)
    open("/tmp/planted", "w").close()


os.write(1, (str(look()) + "\n").encode())
spoil()
os.write(1, (str(look()) + "\n").encode())
os._exit(0)
