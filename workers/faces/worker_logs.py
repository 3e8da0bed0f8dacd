"""What the processes of a worker log, for the program that started them: it has the handlers.

Invariants
  Nothing here blocks a process: records wait in a bounded queue for a thread that sends them, and what finds no room
  there is counted, and said later.
  A process that configures logging itself, at the root, keeps its records.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import threading
from multiprocessing.connection import Connection

#: records that wait in a process at most, and characters of a message or a traceback
WAITING_MOST = 1000
TEXT_MOST = 100_000
#: how long a process that ends waits for its last records to be taken
LAST_S = 2.0

_PASSED = ("name", "levelno", "levelname", "created", "msecs", "pathname", "filename", "module", "lineno", "funcName")
_PASSED_OF_PROCESS = ("thread", "threadName", "process", "processName")


class Sender(logging.Handler):
    """The handler of the logger `warren` in a process."""

    def __init__(self, to: Connection) -> None:
        super().__init__()
        self._to = to
        self._waiting: queue.Queue[bytes | None] = queue.Queue(WAITING_MOST)
        self._lost = 0
        self._thread = threading.Thread(target=self._send, name="warren-logs", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Send it, unless this process writes it itself."""
        if logging.getLogger().handlers:
            return
        text = record.getMessage()
        if self._lost:
            text += f" (log records before it that were dropped: {self._lost})"
        trace = logging.Formatter().formatException(record.exc_info) if record.exc_info else None
        fields = {name: getattr(record, name) for name in (*_PASSED, *_PASSED_OF_PROCESS)}
        fields |= {"msg": text[:TEXT_MOST], "exc_text": trace and trace[-TEXT_MOST:]}
        try:
            self._waiting.put_nowait(json.dumps(fields).encode())
            self._lost = 0
        except queue.Full:
            self._lost += 1

    def _send(self) -> None:
        with contextlib.suppress(OSError):  # the program has gone: nobody reads
            while (packed := self._waiting.get()) is not None:
                self._to.send_bytes(packed)

    def finish(self) -> None:
        """Send what waits, if that does not take long."""
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=LAST_S)
        self._thread.join(LAST_S)


def level() -> int:
    """The level from which on this program wants records of `warren`."""
    return logging.getLogger("warren").getEffectiveLevel()


def forward(to: Connection, wanted: int) -> Sender:
    """Send the records of this process from now on."""
    sender = Sender(to)
    logger = logging.getLogger("warren")
    if logger.level == logging.NOTSET:
        logger.setLevel(wanted)
    logger.addHandler(sender)
    return sender


def relay(source: Connection) -> threading.Thread:
    """A thread that logs what a process sends, until that has ended."""

    def read() -> None:
        with source, contextlib.suppress(EOFError, OSError):  # it has ended
            while True:
                record = logging.makeLogRecord(json.loads(source.recv_bytes()))
                logger = logging.getLogger(record.name)
                if logger.isEnabledFor(record.levelno):
                    logger.handle(record)

    thread = threading.Thread(target=read, name="warren-logs", daemon=True)
    thread.start()
    return thread
