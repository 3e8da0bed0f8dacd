"""What ends a program's code from outside, wherever it is just then: Ctrl-C, no memory, the handler of a signal.

All else that code raises while it reads an item is about the item. SystemExit, too: pickled items can call sys.exit,
and a queue must not be blocked by that. But a program may end itself by sys.exit in its handler of SIGTERM.
"""

from __future__ import annotations

import signal
from types import CodeType


def is_interrupt(error: BaseException) -> bool:
    """Whether it came from outside of the code that it ended."""
    if isinstance(error, (KeyboardInterrupt, MemoryError)):
        return True
    handlers = _handlers()
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False


def _handlers() -> set[CodeType]:
    """The code of all handlers of signals that are written in Python."""
    found = set()
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        handler = getattr(handler, "func", handler)  # functools.partial
        for function in (handler, getattr(handler, "__call__", None)):  # noqa: B004  # an object that can be called
            code = getattr(function, "__code__", None)
            if isinstance(code, CodeType):
                found.add(code)
    return found
