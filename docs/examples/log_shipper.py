"""A log shipper with back-pressure: a program that logs 300 lines into a queue of at most 50 waits while it is full.
Run it: python docs/examples/log_shipper.py (it makes a node in ./examples-data, and a file shipped.log)"""

import logging
import threading
from pathlib import Path

import warren

LINES, MOST = 300, 50


class QueueHandler(logging.Handler):
    """Puts what is logged into a queue. When that is full, who logs waits for the shipper."""

    def __init__(self, lines: "warren.WorkQueue[bytes]") -> None:
        super().__init__()
        self.lines = lines
        self.was_full = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record).encode()
        try:
            self.lines.put_nowait(line)
        except warren.QueueFull:
            self.was_full.set()
            self.lines.put(line)  # returns when there was a place, and the line is on the disk


def ship(lines: warren.Queue, file: Path) -> None:
    """Append to the file, then ack: a shipper that is killed ships a batch twice, and loses nothing."""
    left = LINES
    with file.open("wb") as out:
        while left > 0:
            batch = lines.get_many(20, timeout=60)
            out.write(b"".join(message.body + b"\n" for message in batch))
            out.flush()
            lines.ack(batch)
            left -= len(batch)


def shop(log: logging.Logger) -> None:
    for number in range(LINES):
        log.info("order %d", number)


with warren.open("examples-data") as node:
    handler = QueueHandler(node.work_queue("log-lines", maxsize=MOST))
    log = logging.getLogger("shop")
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    program = threading.Thread(target=shop, args=(log,))
    program.start()
    handler.was_full.wait()  # here the shipper comes late; it could be another process
    print("full at", handler.lines.qsize(), "lines")
    ship(handler.lines.queue, Path("shipped.log"))
    program.join()
in_order = Path("shipped.log").read_text().splitlines() == [f"order {number}" for number in range(LINES)]
print(f"all shipped, in order: {in_order}")
