"""The tasks of `warren bench celery`: empty ones. Each process of the pool counts them in a file of its own, in memory
that is mapped, so that whoever measures can look while it runs. WARREN_BENCH_BROKER says where they are.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import time
from pathlib import Path

from celery import Celery

import warren.celery  # noqa: F401 - the scheme warren://

COUNTER = struct.Struct("<Qd")  #: how many, and when the last one ended (CLOCK_MONOTONIC)

app = Celery("bench", broker=os.environ.get("WARREN_BENCH_BROKER", "memory://"))
app.conf.update(task_ignore_result=True, broker_connection_retry_on_startup=True, worker_hijack_root_logger=False)

_mapped: tuple[int, mmap.mmap] | None = None


def _counter() -> mmap.mmap:
    global _mapped
    if _mapped is None or _mapped[0] != os.getpid():
        path = Path(os.environ["WARREN_BENCH_COUNTS"], str(os.getpid()))
        with path.open("w+b") as file:
            file.write(COUNTER.pack(0, 0.0))
            file.flush()
            _mapped = os.getpid(), mmap.mmap(file.fileno(), COUNTER.size)
    return _mapped[1]


@app.task(name="empty")  # type: ignore[untyped-decorator]  # Celery has no types
def empty() -> None:
    """Nothing, counted."""
    counter = _counter()
    COUNTER.pack_into(counter, 0, COUNTER.unpack_from(counter)[0] + 1, time.monotonic())


def publish(tasks: int) -> float:
    """Send so many; how many a second."""
    empty.delay()  # connects, and declares
    began = time.monotonic()
    for _number in range(tasks - 1):
        empty.delay()
    return (tasks - 1) / (time.monotonic() - began)


if __name__ == "__main__":
    print(publish(int(sys.argv[1])))
