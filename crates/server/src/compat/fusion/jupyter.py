"""Runs the cells of a notebook one after the other, as a kernel would, and writes down what each came to.

This is the program of one run, in its box. What it writes is what the cells let it write: they share its process, and
code that tampers with it changes only its own results.

The order comes on standard input: {"cells", "cell_timeout", "output_limit", "results"}.
"""

import ast
import asyncio
import base64
import inspect
import io
import json
import linecache
import os
import re
import signal
import sys
import tempfile
import traceback
import types
import warnings

FORMATS = {
    "_repr_html_": "text/html",
    "_repr_markdown_": "text/markdown",
    "_repr_latex_": "text/latex",
    "_repr_svg_": "image/svg+xml",
    "_repr_png_": "image/png",
    "_repr_jpeg_": "image/jpeg",
    "_repr_json_": "application/json",
    "_repr_javascript_": "application/javascript",
    "_repr_pdf_": "application/pdf",
}
COMMAND = re.compile(r"^(\s*)!(.*)$")
MAGIC = re.compile(r"^(\s*)%(\w+)(.*)$")


class CellTimeoutError(BaseException):
    """Not an Exception, so that a cell which catches those is stopped all the same."""


class UsageError(Exception):
    """What IPython raises for a magic that it does not have."""


class Capture:
    """One of the process's own streams, so that what child processes write is there, too."""

    def __init__(self, descriptor, limit):
        self.descriptor, self.limit = descriptor, limit
        self.file = tempfile.TemporaryFile()

    def begin(self):
        self.file.seek(0)
        self.file.truncate()
        os.dup2(self.file.fileno(), self.descriptor)

    def end(self):
        size, half = os.fstat(self.file.fileno()).st_size, self.limit // 2
        if size <= self.limit:
            return self.read(0, size)
        return "%s\n[... %d bytes omitted ...]\n%s" % (
            self.read(0, half),
            size - 2 * half,
            self.read(size - half, half),
        )

    def read(self, offset, length):
        return os.pread(self.file.fileno(), length, offset).decode("utf-8", "replace")


class Notebook:
    def __init__(self, order):
        self.cell_timeout, self.results = order["cell_timeout"], order["results"]
        self.captures = [Capture(1, order["output_limit"]), Capture(2, order["output_limit"])]
        self.displayed = []
        self.done = {"cells": [], "stopped": False}
        self.loop = None
        self.module = types.ModuleType("__main__")
        self.module.__dict__.update(display=self.display, __builtins__=__builtins__)
        sys.modules["__main__"] = self.module

    def run(self, cells):
        self.write()
        for number, source in enumerate(cells, 1):
            self.cell(number, source)
            self.write()
            if self.done["stopped"]:
                return

    def cell(self, number, source):
        self.displayed, errors = [], []
        for capture in self.captures:
            capture.begin()
        sys.stdout, sys.stderr = (open(fd, "w", buffering=1, closefd=False, errors="replace") for fd in (1, 2))
        try:
            signal.setitimer(signal.ITIMER_REAL, self.cell_timeout)
            try:
                self.execute("<cell %d>" % number, source)
                self.figures()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except BaseException as error:
            errors.append(told(error))
            self.done["stopped"] = isinstance(error, CellTimeoutError)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                pass
        stdout, stderr = (capture.end() for capture in self.captures)
        self.done["cells"].append(
            {"stdout": stdout, "stderr": stderr, "display": self.displayed, "error": errors}
        )

    def execute(self, name, source):
        try:
            tree = ast.parse(source, name)
        except SyntaxError:
            translated = translate(source)
            if translated == source:
                raise
            source = translated
            tree = ast.parse(source, name)
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr) and not source.rstrip().endswith(";"):
            last = ast.Expression(tree.body.pop().value)
        self.evaluate(tree, name, "exec")
        if last is not None:
            value = self.evaluate(last, name, "eval")
            if value is not None:
                self.module._ = value
                self.display(value)

    def evaluate(self, tree, name, mode):
        code = compile(tree, name, mode, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, True)
        value = eval(code, self.module.__dict__)
        if code.co_flags & inspect.CO_COROUTINE:
            self.loop = self.loop or asyncio.new_event_loop()
            value = self.loop.run_until_complete(value)
        return value

    def display(self, *values, **_):
        self.displayed.extend(bundle(value) for value in values)

    def figures(self):
        """Whatever the cell has drawn and not closed, as a kernel with inline figures shows it."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is None:
            return
        for number in pyplot.get_fignums():
            figure, image = pyplot.figure(number), io.BytesIO()
            figure.savefig(image, format="png", bbox_inches="tight")
            self.displayed.append({"text/plain": repr(figure), "image/png": in_base64(image.getvalue())})
        pyplot.close("all")

    def write(self):
        """Whole or not at all: the box may end at any moment."""
        unfinished = self.results + ".part"
        with open(unfinished, "w", encoding="utf-8", errors="replace") as file:
            json.dump(self.done, file, default=str)
        os.replace(unfinished, self.results)


def bundle(value):
    """A value in every form that it can take, by MIME type."""
    forms = {"text/plain": repr(value)}
    for method, kind in FORMATS.items():
        form = call(value, method)
        if form is not None:
            forms[kind] = in_base64(form) if isinstance(form, bytes) else form
    more = call(value, "_repr_mimebundle_")
    more = more[0] if isinstance(more, tuple) and more else more
    if isinstance(more, dict):
        forms.update({str(kind): in_base64(form) if isinstance(form, bytes) else form for kind, form in more.items()})
    return forms


def call(value, method):
    """A class has the method without having a form: only what is an object is asked."""
    if isinstance(value, type):
        return None
    try:
        found = getattr(value, method, None)
        form = found() if callable(found) else None
        return form[0] if isinstance(form, tuple) and form and method != "_repr_mimebundle_" else form
    except Exception:
        return None


def in_base64(data):
    return base64.b64encode(data).decode("ascii")


def told(error):
    """An error as a kernel tells it, without the frames of this program."""
    trace = error.__traceback__
    while trace is not None and not trace.tb_frame.f_code.co_filename.startswith("<cell "):
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace)
    try:
        value = str(error)
    except Exception:
        value = "<unprintable>"
    return {"ename": type(error).__name__, "evalue": value, "traceback": lines}


def translate(source):
    """The little of IPython's own syntax that notebooks are full of: `!command`, and magics, of which there are none."""

    def line(text):
        command, magic = COMMAND.match(text), MAGIC.match(text)
        if command:
            return "%s__import__('subprocess').run(%r, shell=True)" % command.groups()
        if magic and magic.group(2) == "matplotlib":
            return "%spass" % magic.group(1)
        if magic:
            raise UsageError("Line magic function `%%%s` not found." % magic.group(2)) from None
        return text

    translated = [line(text) for text in source.split("\n")]
    # The value of a command is of no interest to anybody.
    if translated and COMMAND.match(source.split("\n")[-1]):
        translated[-1] += ";"
    return "\n".join(translated)


def overrun(*_):
    raise CellTimeoutError("the cell did not end in time")


def main():
    order = json.loads(sys.stdin.buffer.read().decode("utf-8", "surrogatepass"))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.setdefault("MPLBACKEND", "agg")
    warnings.filterwarnings("ignore", message=".*non-interactive.*")
    sys.argv = [""]
    signal.signal(signal.SIGALRM, overrun)
    originals = os.dup(1), os.dup(2)
    notebook = Notebook(order)
    notebook.run(order["cells"])
    os.dup2(originals[0], 1)
    os.dup2(originals[1], 2)
    # Threads that a cell has left behind are not waited for.
    os._exit(0)


main()
