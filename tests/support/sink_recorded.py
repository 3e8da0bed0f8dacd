"""`python -m support.sink_recorded DIR BATCHES [PLACE]`: a driver writes batches into a sink, whose topics are a file;
to be recorded (warren.tools.crash.recording). At some syncs the driver is killed, or the sync fails and then it is
killed, and the next driver goes on. `run` is what every driver does, also in the state that a power loss leaves.
"""

import json
import os
import random
import signal
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

from warren.engine.errors import SyncFailed
from warren.engine.kernel import atomic_file
from warren.engine.transactions import parts as parts_module
from warren.engine.transactions import sink as sink_module
from warren.engine.transactions.folder import PartName
from warren.engine.transactions.parts import Destination, PartWriter, Rows
from warren.engine.transactions.sink import Batch, Mark, Sink
from warren.engine.transactions.state import Place, Roller
from warren.tools.crash.recording import fail_sync, note

NODE = 7
QUERY = "11111111-aaaa"
TOPIC = [Destination("topic", "a", 1, queue) for queue in range(2)]


class FileTargets:
    """Topics in one file: a line for each message, with its checksum; a flush syncs it. The first line that is none
    ends it, and what lies behind that is cut off by who opens it."""

    def __init__(self, path: Path) -> None:
        self.messages: list[tuple[int, str, str]] = []  #: queue, mark, body
        made = not path.exists()
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        if made:
            atomic_file.sync_directory(path.parent)
        content = os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)
        self._end = 0
        for line in content.splitlines(keepends=True):
            crc, _, told = line.rstrip(b"\n").partition(b" ")
            if not line.endswith(b"\n") or crc != b"%d" % zlib.crc32(told):
                break
            queue, mark, body = json.loads(told)
            self.messages.append((queue, mark, body))
            self._end += len(line)
        os.ftruncate(self._descriptor, self._end)
        if self._end:  # a log writes again what its last writer's sync may have lost
            atomic_file.write_all(self._descriptor, content[: self._end], 0)
        os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)

    def me(self) -> Roller:
        return Roller(0, 1, os.getpid(), 1)

    def settle(self, roller: Roller) -> None:
        """Nothing is executed later here: a message is written, or never will be."""

    def _log(self, destination: Destination) -> list[tuple[int, str, str]]:
        return [message for message in self.messages if message[0] == destination.queue]

    def begin(self, destination: Destination) -> int:
        return len(self._log(destination))

    def present(self, place: Place, mark: Mark, progressed: float, again: bool) -> tuple[int, int]:
        log = self._log(place.destination)
        begins = mark.property(0)[:-1]
        found = [at for at in range(place.start, len(log)) if log[at][1].startswith(begins)]
        return place.done + len(found), found[-1] + 1 if found else place.start

    def append(self, rows: Rows, mark: Mark, n: int) -> None:
        for body in rows.bodies:
            told = rows.destination.queue, mark.property(n), body.decode()
            raw = json.dumps(told).encode()
            line = b"%d %s\n" % (zlib.crc32(raw), raw)
            atomic_file.write_all(self._descriptor, line, self._end)
            self._end += len(line)
            self.messages.append(told)

    def flush(self) -> dict[Destination, int]:
        os.fsync(self._descriptor)
        return {each: len(self._log(each)) for each in TOPIC}


def rows_of(batch: int, partition: int) -> list[tuple[Destination, str]]:
    """The same each time that Spark makes them."""
    rng = random.Random(f"{batch}/{partition}")
    return [(rng.choice(TOPIC), f"{batch}/{partition}/{n}") for n in range(rng.randrange(1, 9))]


def run(
    directory: Path, batches: int, name: str, tell: Callable[[int], object] = lambda _done: None
) -> list[tuple[int, str, str]]:
    """Write those batches that Spark's log does not have; returns the messages that are there in the end. `tell` is
    told of each batch that Spark's log has."""
    parts_module.ROWS_MAX, sink_module.STEP_BYTES = 2, 20
    log = directory / "spark"
    done = int(log.read_bytes()) if log.exists() else 0
    targets = FileTargets(directory / "topics")
    try:
        for number in range(done, batches):
            batch = Batch(QUERY, number, name)
            sink = Sink(directory, "s", NODE, 5.0)
            staged = []
            if not sink.enter(batch):
                for partition in range(2):
                    with PartWriter(sink.folder, PartName.new(QUERY, number, partition)) as writer:
                        for destination, body in rows_of(number, partition):
                            writer.add(destination, body.encode())
                        staged.append(writer.close())
            sink.commit(batch, staged, targets)
            atomic_file.replace(log, b"%d" % (number + 1))
            tell(number + 1)
    finally:
        targets.close()
    return targets.messages


def killed_at_sync(work: Callable[[], object], at: int, fails: bool) -> None:
    """`work` in a process that is killed where it would sync for the `at`-th time, or when that has failed."""
    child = os.fork()
    if not child:
        real, syncs = os.fsync, 0

        def before(descriptor: int) -> None:
            nonlocal syncs
            syncs += 1
            if syncs == at:
                if not fails:
                    os.kill(os.getpid(), signal.SIGKILL)
                fail_sync()
            real(descriptor)

        os.fsync = before
        try:
            work()
        except SyncFailed:
            os._exit(3)
        except OSError:
            os._exit(4)
        os._exit(0)
    os.waitpid(child, 0)


def tell(done: int) -> None:
    note(b"%d" % done)


def main(directory: Path, batches: int, seed: str) -> None:
    directory.mkdir()
    note(b"0")
    rng = random.Random(seed)
    for number in range(3):
        at, fails = rng.randrange(4, 40), rng.random() < 0.3
        killed_at_sync(lambda name=f"run-{number}": run(directory, batches, name, tell), at, fails)  # type: ignore[misc]
    run(directory, batches, "run-last", tell)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
