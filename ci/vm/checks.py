"""Named checks with one line each on standard output: `ok NAME`, or `FAILED NAME: why`, then the totals.

A check is a function marked with @check. It fails by raising: `expect` for what it looks at, anything else for what
went wrong on the way. There is no way to skip one.
"""

import sys
import traceback

_checks = []


class Unexpected(Exception):
    pass


def check(function):
    _checks.append(function)
    return function


def expect(condition, why):
    if not condition:
        raise Unexpected(why)


def run_all():
    failed = sum(not _passes(function) for function in _checks)
    print(f"{len(_checks) - failed} passed, {failed} failed", flush=True)
    sys.exit(1 if failed or not _checks else 0)


def _passes(function):
    try:
        function()
    except Unexpected as unexpected:
        print(f"FAILED {function.__name__}: {unexpected}", flush=True)
        return False
    except Exception as error:
        print(f"FAILED {function.__name__}: {type(error).__name__}: {error}", flush=True)
        traceback.print_exc()
        return False
    print(f"ok {function.__name__}", flush=True)
    return True
