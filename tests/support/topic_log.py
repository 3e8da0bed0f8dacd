"""What lies in the commit log of a node's topics, read from its files by the tables of the format alone."""

import mmap
from collections.abc import Iterator
from pathlib import Path

import warren
from warren.engine.topics import records
from warren.engine.topics.formats import COMMIT_TOPIC


def log_files(folder: Path) -> list[Path]:
    """The files of a commit log, oldest first, without one that is just being made."""
    return sorted(path for path in folder.iterdir() if path.name.isdecimal())


def logged(directory: Path, topic: str) -> list[records.Record]:
    """The records of all topics that ever had this name, in the order of the log."""
    return [record for record in _records(directory) if record.topic == topic]


def _records(directory: Path) -> Iterator[records.Record]:
    for path in log_files(directory / "topics" / "commitlog"):
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as log:
            at, base = 0, int(path.name)
            while at < len(log):
                found = records.scan(log, at, base + at)
                if found.found is not records.Found.RECORD:
                    assert found.found is not records.Found.BAD, (path, at, found.reason)
                    break
                assert found.record is not None
                if found.record.topic != COMMIT_TOPIC:
                    yield found.record
                at += found.size


def by_queue(found: list[records.Record]) -> dict[int, list[records.Record]]:
    """The records of each queue; their offsets are 0, 1, 2, …."""
    queues: dict[int, list[records.Record]] = {}
    for record in found:
        queues.setdefault(record.queue_id, []).append(record)
    for of_queue in queues.values():
        assert [record.queue_offset for record in of_queue] == list(range(len(of_queue)))
    return queues


def bodies(found: list[records.Record]) -> list[bytes]:
    """The bodies of records."""
    return [record.body for record in found]


def holds(directory: Path, topic: str, positions: list[warren.Position], sent: list[bytes]) -> None:
    """Each body lies where its position says."""
    there = {record.physical_offset: record for record in logged(directory, topic)}
    for position, body in zip(positions, sent, strict=True):
        record = there[position.physical_offset]
        assert (record.queue_id, record.queue_offset, record.body) == (position.queue, position.offset, body)
        assert records.message_id(record.store_host, record.physical_offset) == position.message_id
