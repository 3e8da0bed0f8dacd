"""The process that plans for the native scan: it asks the same readers as Python's source does, and puts their
answers into lines of JSON. Started by the Java source (java/warren/spark/Planner.java) in the driver, and in an
executor where a message does not check out.

    python -m warren.workers.spark.native_planner

A line asks: `{"ask": what, "number": n, …}`; a line answers: `{"number": n, "answer": …}`, or `{"number": n, "error":
kind, "message": words}`. Questions are answered side by side, as each takes as long as it takes.

Invariant: nothing is decided here. Options, schema, offsets, limits, holds and what counts as a loss are those of
`format("warren")`; how Java reads a range follows from the range alone.
Crash points: it ends when its input does, so with its JVM, however that ends; the node takes back what it held. When it
is killed itself, what it held is taken back, too, and the query ends with an error: a stream goes on from its
checkpoint, whose offsets are the same for both scans.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TextIO

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.errors import Error, UsageError
from warren.engine.kernel.paths import TOPICS
from warren.workers.spark.data_source import WarrenDataSource
from warren.workers.spark.hosts import elsewhere, host_name
from warren.workers.spark.topic_options import TopicReadOptions
from warren.workers.spark.topic_plan import Topics
from warren.workers.spark.topic_source import Held, TopicBatchReader, TopicPartition, TopicStreamReader

#: questions that are answered side by side: those of queries that run at the same time
ASKED_MAX = 16

Question = Mapping[str, Any]
Reader = DataSourceReader | DataSourceStreamReader
#: limits of a micro-batch, as java/warren/spark/TopicStream.java names them
LIMITS: Mapping[str, Callable[[int], ReadLimit]] = {
    "all": lambda _most: ReadAllAvailable(),
    "max_rows": ReadMaxRows,
    "min_rows": ReadMinRows,
    "max_bytes": ReadMaxBytes,
}


class Planner:
    """What was opened, by numbers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers: dict[int, Reader] = {}
        #: by batches, by the numbers of their readers, and by numbers of their own
        self._held: dict[int, Held] = {}
        self._opened = 0
        self._answers: dict[str, Callable[[Question], Any]] = {
            "native": is_native,
            "schema": self._schema,
            "open": self._open,
            "partitions": self._partitions,
            "hold": self._hold,
            "initial": lambda asked: text(self._stream(asked).initialOffset()),
            "limit": lambda asked: limit_of(self._stream(asked).getDefaultReadLimit()),
            "available_now": self._available_now,
            "latest": self._latest,
            "report": lambda asked: text(self._stream(asked).reportLatestOffset()),
            "commit": lambda asked: self._stream(asked).commit(json.loads(asked["offset"])),
            "metrics": lambda asked: behind(self._stream(asked).reportLatestOffset(), json.loads(asked["offset"])),
            "stop": self._stop,
            "explain": explain,
            "elsewhere": lambda asked: elsewhere(asked["path"], asked["node"], asked["found"], asked["planned_on"]),
        }

    def answer(self, asked: Question) -> Any:
        """Answer a question; raises what its reader raises."""
        return self._answers[asked["ask"]](asked)

    def _schema(self, asked: Question) -> str:
        return _source(asked).schema().json()

    def _open(self, asked: Question) -> int:
        schema = StructType.fromJson(json.loads(asked["schema"]))
        reader: Reader
        if asked["kind"] == "stream":
            reader = _source(asked).streamReader(schema)
        else:
            reader = _source(asked).reader(schema)
        with self._lock:
            self._opened += 1
            self._readers[self._opened] = reader
            return self._opened

    def _reader(self, asked: Question) -> Reader:
        with self._lock:
            found = self._readers.get(asked["reader"])
        if found is None:
            raise Error("the planner that this read was opened in has ended: start the query again")
        return found

    def _stream(self, asked: Question) -> TopicStreamReader:
        reader = self._reader(asked)
        assert isinstance(reader, TopicStreamReader)
        return reader

    def _partitions(self, asked: Question) -> list[dict[str, Any]]:
        reader = self._reader(asked)
        if isinstance(reader, TopicStreamReader):
            parts = reader.partitions(json.loads(asked["start"]), json.loads(asked["end"]))
            return ranges(reader.options, parts)
        assert isinstance(reader, TopicBatchReader)
        held = Held(kept=True)
        try:
            found = ranges(reader.options, reader.planned(held))
        except BaseException:
            held.release()
            raise
        with self._lock:
            self._held[asked["reader"]] = held
        return found

    def _hold(self, asked: Question) -> int:
        held = Held(kept=True)
        parts = [
            TopicPartition(
                each["topic"], each["incarnation"], each["queue"], each["start"], each["end"], each["planned_on"]
            )
            for each in asked["ranges"]
        ]
        held.hold_planned(TopicReadOptions.parse(asked["options"]), parts)
        with self._lock:
            self._opened += 1
            self._held[self._opened] = held
            return self._opened

    def _available_now(self, asked: Question) -> None:
        reader: SupportsTriggerAvailableNow = self._stream(asked)
        reader.prepareForTriggerAvailableNow()

    def _latest(self, asked: Question) -> str | None:
        limit = LIMITS[asked["limit"]](asked["most"])
        return text(self._stream(asked).latestOffset(json.loads(asked["start"]), limit))

    def _stop(self, asked: Question) -> None:
        with self._lock:
            reader = self._readers.pop(asked["reader"], None)
            held = self._held.pop(asked["reader"], None)
        if held is not None:
            held.release()
        if isinstance(reader, DataSourceStreamReader):
            reader.stop()


def _source(asked: Question) -> WarrenDataSource:
    """Return Python's source for a read's options, also those of a table in SQL, without the one that led here."""
    options = {name: value for name, value in asked["options"].items() if not name.lower().endswith("scan")}
    return WarrenDataSource(options)


def is_native(asked: Question) -> bool:
    """Return whether a read of topics is native: unless the option says otherwise, or one of them is compacted.
    UsageError: it cannot be, and the option says that it has to.
    """
    options = TopicReadOptions.parse(asked["options"])
    if options.scan == "python":
        return False
    compacted = [topic.name for topic in Topics(options, "planner").found().values() if topic.compacted]
    if compacted and options.scan == "native":
        raise UsageError(_compacted(compacted[0]))
    return not compacted


def _compacted(name: str) -> str:
    return (
        f"topic {name!r} is compacted: the newest messages of its keys lie in files of their own, which the native "
        "scan does not read; option scan=python does"
    )


def text(offset: Mapping[str, Any] | None) -> str | None:
    """Return an offset as Python's source has it in a checkpoint: Spark compares such texts."""
    return None if offset is None else json.dumps(offset)


def limit_of(limit: ReadLimit) -> dict[str, Any]:
    """Return a limit as Java has it."""
    if isinstance(limit, ReadMaxRows):
        return {"limit": "max_rows", "most": limit.max_rows}
    if isinstance(limit, ReadMinRows):
        return {"limit": "min_rows", "most": limit.min_rows}
    if isinstance(limit, ReadMaxBytes):
        return {"limit": "max_bytes", "most": limit.max_bytes}
    return {"limit": "all", "most": 0}


def behind(latest: Mapping[str, Any] | None, consumed: Mapping[str, Any]) -> dict[str, Any]:
    """Return how many offsets of the partitions are not consumed, by the names of Spark's connector for Kafka."""
    left = [
        max(0, end - consumed.get(topic, {}).get(partition, end))
        for topic, ends in (latest or {}).items()
        for partition, end in ends.items()
        if partition != "id"
    ]
    if not left:
        return {}
    return {
        "minOffsetsBehindLatest": min(left),
        "maxOffsetsBehindLatest": max(left),
        "avgOffsetsBehindLatest": sum(left) / len(left),
    }


def ranges(options: TopicReadOptions, parts: Iterable[InputPartition]) -> list[dict[str, Any]]:
    """Return parts of a read as Java reads them: with all that the files need to be read (Range.java)."""
    topics = Topics(options, "planner")
    mounted = options.mount if topics.by_files else None
    settings = NodeDirectory(mounted or options.path).read().settings
    alike = {
        "path": options.path,
        "mount": options.mount,
        "topics": TOPICS,
        "log_file_bytes": settings.log_file_bytes,
        "consume_queue_entries": settings.consume_queue_entries,
        "tags": options.tags or None,
        "keys": options.keys or None,
        "since": options.since_ms,
        "until": options.until_ms,
        "planned_on": host_name(),
        "preferred": [options.host] if options.host else [] if mounted else None,
    }
    found = []
    for part in parts:
        if not isinstance(part, TopicPartition):
            continue
        topic = topics.same(part.topic, part.incarnation)
        if topic is None:
            continue
        if topic.compacted:
            raise UsageError(_compacted(topic.name))
        found.append(
            alike
            | {
                "topic": part.topic,
                "incarnation": part.incarnation,
                "id": topic.id,
                "queue": part.partition,
                "start": part.start,
                "end": part.end,
            }
        )
    return found


def explain(asked: Question) -> int:
    """Return the offset at which a range goes on whose message at `offset` does not check out in Java, by reading on
    with Python's reader: that same offset, if the message is there; a later one, if messages are gone and the options
    allow that; the range's end, if no more are there. Raises what is wrong otherwise: DataLoss, CorruptRecord …
    """
    options = {**asked["options"], "batchRows": "1"}
    body = [StructField("value", BinaryType())] if asked["body"] else []  # without it, Python does not sum it either
    schema = StructType([StructField("offset", LongType()), *body])
    reader = TopicBatchReader(TopicReadOptions.parse(options), schema)
    place = asked["topic"], asked["incarnation"], asked["queue"]
    part = TopicPartition(*place, asked["offset"], asked["end"], asked["planned_on"])
    for batch in reader.read(part):
        return int(batch.column(0)[0].as_py())
    return int(asked["end"])


def serve(questions: TextIO, answers: TextIO, planner: Planner) -> None:
    """Answer until there are no more questions."""
    lock = threading.Lock()

    def answer(line: str) -> None:
        asked = json.loads(line)
        told: dict[str, Any] = {"number": asked["number"]}
        try:
            told["answer"] = planner.answer(asked)
        except Exception as problem:  # noqa: BLE001 - whoever asked is told, whatever it is
            if not isinstance(problem, Error):
                traceback.print_exc()
            told |= {"error": type(problem).__name__, "message": str(problem)}
        with lock:
            answers.write(json.dumps(told) + "\n")
            answers.flush()

    with ThreadPoolExecutor(ASKED_MAX, "question") as pool:
        for line in questions:
            pool.submit(answer, line)


def main() -> None:
    """Serve on standard input and output; what else is printed goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.stdin, answers, Planner())


if __name__ == "__main__":
    main()
