"""`audit`: what the queues hold, full-outer-joined with what the message store holds, by message id.

Verdicts
  ok       named by a queue, and there
  delta    named and there, but the two differ: another length, several records of one id, or removed there
  orphan   there, and named by no queue: garbage until it is collected, or a message that a program keeps in the store
  lost     named, and not there: the next start drops it and counts it as lost

Exact with the node down. Beside a running node what moved between the two reads looks like a difference; also after a
kill, when a message could be durable before its body, and a body go before its acknowledgement was durable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from warren.workers.spark.files.directory import Directory
from warren.workers.spark.files.ids import BLOCK_BITS, ITEM, MESSAGE, NAMED, NOBODY, REMOVED
from warren.workers.spark.pipelines.rows import files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VERDICTS = ("ok", "delta", "orphan", "lost")
_OK, _DELTA, _ORPHAN, _LOST, _NEITHER = range(5)
_NONE, _MOST = -1, np.iinfo(np.int64).max
TASKS_MIN = 16
#: a row of `compared`
COMPARED = (
    "verdict string, own boolean, queue bigint, file bigint, ids bigint, records bigint, bytes bigint, garbage bigint, "
    "garbage_bytes bigint"
)
_SCHEMA = pa.schema(
    [
        ("verdict", pa.string()),
        ("own", pa.bool_()),
        *((name, pa.int64()) for name in ("queue", "file", "ids", "records", "bytes", "garbage", "garbage_bytes")),
    ]
)
_KEY = np.dtype([("queue", "i8"), ("file", "i8"), ("verdict", "i1"), ("own", "i1")])


class Queue(NamedTuple):
    """Messages of a queue with bodies in the store."""

    queue: str
    verdict: str
    messages: int


class StoreFile(NamedTuple):
    """Records of a file of the store, and their bytes; `garbage`: of those that nobody needs any more."""

    file: int
    records: int
    bytes: int
    garbage: int
    garbage_bytes: int


class Audit(NamedTuple):
    """What was found. `own`: orphans that a program keeps."""

    ids: dict[str, int]
    own: int
    queues: list[Queue]
    files: list[StoreFile]
    running: bool


def compared(ids: DataFrame) -> DataFrame:
    """Sums by verdict, queue and file of the store, from rows id_high, block, items of files=ids (COMPARED).

    Blocks of an id meet in one task, which sorts and sums them; there may be several rows of the same verdict, queue
    and file.
    """
    tasks = max(TASKS_MIN, 4 * ids.rdd.getNumPartitions())  # each holds its part of all ids in memory
    blocks = ids.select("id_high", "block", "items").repartition(tasks, "id_high", "block")
    # by rows and not by mapInArrow, which wants pandas: they are few
    return ids.sparkSession.createDataFrame(blocks.rdd.mapPartitions(_merged), COMPARED)


def _merged(rows: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """All blocks of a task."""
    highs, lows, parts = [], [], []
    for high, block, packed in rows:
        items = np.frombuffer(packed, dtype=ITEM)
        parts.append(items)
        highs.append(np.full(len(items), high, dtype=np.int64))
        lows.append((block << BLOCK_BITS) + items["low"].astype(np.int64))
    if parts:
        found = judged(np.concatenate(highs), np.concatenate(lows), np.concatenate(parts))
        yield from zip(*found.to_pydict().values(), strict=True)


def judged(high: NDArray[np.int64], low: NDArray[np.int64], items: NDArray[np.void]) -> pa.RecordBatch:
    """The verdicts of ids, of each of which all items are here, as sums."""
    order = np.lexsort((low, high))
    high, low, items = high[order], low[order], items[order]
    begins = np.flatnonzero(np.concatenate(([True], (np.diff(high) != 0) | (np.diff(low) != 0))))

    def least(values: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.minimum.reduceat(values, begins)

    def most(values: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.maximum.reduceat(values, begins)

    def total(values: NDArray[Any]) -> NDArray[np.int64]:
        return np.add.reduceat(values.astype(np.int64), begins)

    # signed and wide: what is above every one of them would not fit into theirs
    queue, body_bytes, size, file = (items[n].astype(np.int64) for n in ("queue", "body_bytes", "bytes", "file"))
    is_named, is_there = items["kind"] == NAMED, items["kind"] == MESSAGE
    named, there = total(is_named), total(is_there)
    references = total(np.where(is_named, 0, np.where(items["kind"] == REMOVED, -1, 1)))
    held = total(is_there & (items["holder"] != NOBODY)) > 0
    body = most(np.where(is_there, body_bytes, 0))
    shortest, longest = least(np.where(is_named, body_bytes, _MOST)), most(np.where(is_named, body_bytes, 0))
    size = total(np.where(is_there, size, 0))
    own = (named == 0) & (there > 0) & ~held & (references > 0)
    differs = (there > 1) | (shortest != body) | (longest != body) | (~held & (references <= 0))
    verdict = np.select(
        # a reference to, or a remove of, what was collected long ago is neither
        [(there == 0) & (named == 0), there == 0, named == 0, differs],
        [_NEITHER, _LOST, _ORPHAN, _DELTA],
        _OK,
    )
    keys = np.empty(len(begins), dtype=_KEY)
    keys["verdict"], keys["own"] = verdict, own
    keys["queue"] = np.where(named > 0, least(np.where(is_named, queue, _MOST)), _NONE)
    keys["file"] = np.where(there > 0, most(np.where(is_there, file, _NONE)), _NONE)
    garbage = (verdict == _ORPHAN) & ~own
    return _sums(keys, (np.ones(len(keys)), there, size, there * garbage, size * garbage))


def _sums(keys: NDArray[np.void], values: tuple[NDArray[Any], ...]) -> pa.RecordBatch:
    unique, place = np.unique(keys, return_inverse=True)
    kept = np.flatnonzero(unique["verdict"] != _NEITHER)
    sums = [np.bincount(place, weights=value, minlength=len(unique)).astype(np.int64)[kept] for value in values]
    unique = unique[kept]
    words = pa.DictionaryArray.from_arrays(pa.array(unique["verdict"].astype(np.int32)), pa.array(VERDICTS))
    named = [pa.array(unique[name], mask=unique[name] == _NONE) for name in ("queue", "file")]
    columns = [words.cast(pa.string()), pa.array(unique["own"] != 0), *named, *map(pa.array, sums)]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def audit(spark: SparkSession, path: str) -> Audit:
    """Compare all queues with the message store. Raises UsageError, StoreError, NodeNotRunning (no data directory)."""
    directory = Directory.read(path)
    return summed(compared(files(spark, path, "ids", "id_high", "block", "items")), directory)


def summed(found: DataFrame, directory: Directory) -> Audit:
    """The sums of what `compared` found."""
    names = directory.queue_names()
    counts, own = dict.fromkeys(VERDICTS, 0), 0
    queues: dict[tuple[str, str], int] = {}
    of_files: dict[int, StoreFile] = {}
    for row in found.collect():
        counts[row["verdict"]] += row["ids"]
        own += row["ids"] if row["own"] else 0
        if row["queue"] is not None:
            key = names.get(row["queue"], f"id {row['queue']}"), row["verdict"]
            queues[key] = queues.get(key, 0) + row["ids"]
        if row["file"] is not None:
            of = of_files.get(row["file"], StoreFile(row["file"], 0, 0, 0, 0))
            more = row["records"], row["bytes"], row["garbage"], row["garbage_bytes"]
            of_files[of.file] = StoreFile(of.file, *(a + b for a, b in zip(of[1:], more, strict=True)))
    return Audit(
        counts,
        own,
        sorted(Queue(queue, verdict, messages) for (queue, verdict), messages in queues.items()),
        sorted(of_files.values()),
        directory.running,
    )
