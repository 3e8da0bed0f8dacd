"""A process that the supervisor forks: what it does first, and how it ends.

Invariants
  A signal that arrives before the child has let go of the supervisor's handlers waits until it has.
  A child never returns into the supervisor's code, whatever it raises.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

log = logging.getLogger("warren.node")

_HANDLED = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2}


def fork(be_child: Callable[[], int]) -> int:
    """Fork, and return the child's pid. The child ends with the exit code that `be_child` returns, and with 1 when it
    raises. Raises OSError when the system has no room.
    """
    for stream in (sys.stdout, sys.stderr):  # or the child would print what is in their buffers, too
        with contextlib.suppress(OSError, ValueError, AttributeError):  # nobody reads it
            stream.flush()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
    try:
        pid = os.fork()
        if pid == 0:
            _be(be_child, before)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid


def _be(be_child: Callable[[], int], mask: set[signal.Signals | int]) -> NoReturn:
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in _HANDLED:
            signal.signal(number, signal.SIG_DFL)
        # Ctrl-C in a terminal reaches the whole group: the supervisor ends its children in order
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        code = be_child()
    except BaseException:
        log.critical("process %d ends", os.getpid(), exc_info=True)
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
