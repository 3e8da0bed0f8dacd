"""A history of changes of a catalog, the same for the same seed: for tests of its files, and to be recorded.

`python -m support.catalog_history DIRECTORY SEED CHANGES` makes it durable in a directory, and notes each version that
was told (warren.tools.crash.recording). Writers follow each other: the sync of one fails, and it is killed at that.
"""

import contextlib
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from warren.engine.catalog import log as catalog_log
from warren.engine.catalog.catalog import Catalog
from warren.engine.catalog.group_topics import Kind
from warren.engine.errors import UsageError

#: long enough for some changes, so that a history has several logs
LOG_BYTES = 3000
KINDS: tuple[Kind, ...] = ("retry", "dead")
Change = Callable[[Catalog], object]


def changes(seed: int, count: int) -> Iterator[Change]:
    """Changes of every kind, some of many declarations; what one refers to may be gone, then it is refused."""
    rng = random.Random(seed)
    for _ in range(count):
        kind, name, exchange = rng.randrange(18), f"q{rng.randrange(12)}", f"x{rng.randrange(3)}"
        key, type = f"k.{rng.randrange(3)}", rng.choice(["direct", "fanout", "topic", "headers"])
        names = [f"many-{rng.randrange(10**6)}" for _ in range(rng.randrange(1, 60))]
        arguments = rng.choice([{}, {}, {"dead_letter_exchange": ""}, {"expires": 5}, {"auto_delete": True}])
        if kind <= 2:
            yield lambda c, n=name, a=arguments: c.declare_queue(n, workers_n=2, arguments=dict(a))
        elif kind == 3:
            yield lambda c, n=name: c.delete_queue(n)
        elif kind == 4:
            more = {"auto_delete": len(names) % 3 == 0, "internal": len(names) % 7 == 0}
            yield lambda c, x=exchange, t=type, m=more: c.declare_exchange(
                x, type=t, alternate="x0" if x == "x1" else None, **m
            )
        elif kind == 5:
            yield lambda c, x=exchange: c.delete_exchange(x)
        elif kind == 6:
            yield lambda c, n=name, x=exchange, k=key: c.bind(n, x, k)
        elif kind == 7:
            yield lambda c, n=name, x=exchange, k=key: c.unbind(n, x, k)
        elif kind == 8:
            yield lambda c, n=name: c.declare_subscription(n, "s")
        elif kind == 9:
            yield lambda c, n=name, ns=names: c.declare_topic(
                n, queues=len(ns), retention_s=60, by_name=len(ns) % 2 == 0 or None
            )
        elif kind == 10:
            yield lambda c, n=name: c.delete_topic(n)
        elif kind == 11:
            yield lambda c, n=name, ns=names: c.set_topic(n, len(ns), None)
        elif kind == 12:
            of = KINDS[len(names) % 2]
            yield lambda c, n=name, k=of: c.declare_group_topic(k, n, "g", c.topic(n).id)
        elif kind == 13:
            yield lambda c, n=name: c.delete_group_topics(n, "g") or c.topic(n, "it had none")
        elif kind == 14:
            to = f"x{len(names) % 3}"
            yield lambda c, x=exchange, k=key, d=to, a=arguments: c.bind_exchange(d, x, k, a)
        elif kind == 15:
            to = f"x{len(names) % 3}"
            yield lambda c, x=exchange, k=key, d=to: c.unbind_exchange(d, x, k)
        elif kind == 16:
            yield lambda c, n=name, x=exchange, k=key: c.bind_topic(n, x, k)
        else:
            yield lambda c, ns=names: [c.declare_queue(n, workers_n=2) for n in ns]


def states(seed: int, count: int) -> dict[int, bytes]:
    """The catalog at each version that the history tells, as the bytes of a file that stands for itself."""
    catalog = Catalog()
    found = {catalog.version: catalog.encode()}
    for change in changes(seed, count):
        before = catalog.copy()
        try:
            change(catalog)
        except UsageError:
            catalog = before
        found[catalog.version] = catalog.encode()
    return found


def alone(catalog: Catalog) -> bytes:
    """Of a catalog that was read from files: the bytes of one that stands for itself."""
    return catalog.copy().encode()


def killed_as_its_sync_fails(writer: catalog_log.Writer, change: Change) -> None:
    """In a process of its own; one that has nothing to sync ends in good order."""
    from warren.tools.crash import recording

    def fails(descriptor: int) -> None:
        recording.fail_sync()
        with contextlib.suppress(OSError):
            sync(descriptor)
        os.kill(os.getpid(), signal.SIGKILL)

    child, sync = os.fork(), os.fdatasync
    if not child:
        os.fdatasync = fails
        with contextlib.suppress(UsageError):
            writer.change(change)
        os._exit(0)
    os.waitpid(child, 0)


def main() -> None:
    from warren.tools.crash import recording

    directory, seed, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    catalog_log.LOG_BYTES_MIN = LOG_BYTES
    directory.mkdir()
    Catalog().save(directory)
    recording.note(b"1")
    writer = catalog_log.Writer(directory, catalog_log.load(directory))
    for number, change in enumerate(changes(seed, count)):
        if number and number % (count // 3) == 0:  # another writer takes over
            killed_as_its_sync_fails(writer, change)
            writer = catalog_log.Writer(directory, catalog_log.load(directory))
            recording.note(b"%d" % writer.catalog.version)
            writer.tidy()
            continue
        try:
            writer.change(change)
        except UsageError:
            continue
        recording.note(b"%d" % writer.catalog.version)
        writer.tidy()
    writer.close()


if __name__ == "__main__":
    main()
