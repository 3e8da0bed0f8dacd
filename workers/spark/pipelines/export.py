"""`export`: the messages of topics as Parquet, by topic and date; each once, however often a run is killed or repeated.

    OUT/topic=flights/date=2013-01-01/<from>-<to>-<n>.parquet
    OUT/_warren_export.json       up to which position of the log all messages are there
    OUT/_warren_staging/          what a run writes before it counts

A run exports the records at positions [from, to) of the log: `from` is where the last run ended, `to` the end of the
log's last commit when it begins. So a second run adds what came since, and without anything new it writes nothing.

Invariant: files that begin with a position below the state's are whole and counted; others are not counted yet.
Crash points: while Spark writes (the next run removes the staging folder), between two renames (it removes files whose
`from` is not below the state's position), after the state was replaced (nothing is left to do).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from warren.engine.catalog.topics import TopicDeclaration
from warren.engine.errors import DirectoryInUse, StoreError, TopicNotFound, UsageError
from warren.engine.kernel import atomic_file, segment
from warren.engine.saying import counted, shown
from warren.workers.spark.files.directory import Directory
from warren.workers.spark.files.log import committed_end
from warren.workers.spark.pipelines.rows import NOTED, SOUND, files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STATE, STAGING, FORMAT_VERSION = "_warren_export.json", "_warren_staging", 1
_NAME = re.compile(r"([0-9]{20})-([0-9]{20})-[0-9]{5}\.parquet")
COLUMNS = (
    *("topic", "queue", "offset", "timestamp", "born_timestamp", "key", "tag", "headers", "value", "log_position"),
)


class State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a folder has."""

    format_version: int
    node_id: int
    #: names; none: all topics that are declared when a run begins
    topics: tuple[str, ...]
    #: the next run begins here
    position: int
    records: int


class Exported(NamedTuple):
    """What a run did. `records`: by topic; `damaged`: ranges of the log that hold no record, where records were."""

    start: int
    end: int
    records: dict[str, int]
    files: int
    removed: int
    damaged: int
    total: int


def export(spark: SparkSession, path: str, to: str, topics: Sequence[str] = (), *, skip_lost: bool = False) -> Exported:
    """Export what came since the last run into the same folder; all there is, when it is the first. `skip_lost`: go on
    where retention removed messages that were never exported.

    Raises UsageError (the folder is of another export), TopicNotFound, DirectoryInUse, StoreError.
    """
    directory = Directory.read(path)
    if directory.nameless:
        raise StoreError(f"the names of topics are not known: {directory.nameless}")
    wanted = _declared(directory, topics)
    folder = Path(to).absolute()
    with _locked(folder):
        first, end = committed_end(directory)
        state = _state(folder, directory, tuple(sorted(topics)), first)
        start = state.position
        if start < first:
            if not skip_lost:
                raise StoreError(
                    f"the log of {directory.path} begins at position {first:,}, and {folder} has messages up to "
                    f"{start:,}: retention removed what lay between, and it was never exported. Go on without it: "
                    "skip_lost=True (--skip-lost)"
                )
            start = first
        if start > end:
            raise StoreError(
                f"{folder} has messages up to position {start:,}, and the log of {directory.path} ends at {end:,}: it "
                "is an older copy of the directory, or messages were lost. Export it into another folder"
            )
        removed = _clear(folder, start)
        if start == end or not wanted:
            return Exported(start, end, {}, 0, removed, 0, state.records)
        counts, damaged = _write(spark, path, folder / STAGING, wanted, start, end)
        made = _publish(folder, start, end)
        total = state.records + sum(counts.values())
        _save(folder, msgspec.structs.replace(state, position=end, records=total))
    return Exported(start, end, counts, made, removed, damaged, total)


def records(spark: SparkSession, path: str, topics: Sequence[TopicDeclaration], start: int, end: int) -> DataFrame:
    """The rows of the log that an export has, and those of damaged ranges."""
    names = ",".join(topic.name for topic in topics)
    options = {"startingPosition": start, "endingPosition": end, "topics": names}
    return files(spark, path, "log", *COLUMNS, "topic_id", "kind", "status", **options)


def _write(
    spark: SparkSession, path: str, staging: Path, topics: Sequence[TopicDeclaration], start: int, end: int
) -> tuple[dict[str, int], int]:
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    seen = Observation("export")
    ids = [topic.id for topic in topics]  # a topic that was deleted and made again is another one
    ours = (f.col("kind") == "record") & f.col("topic_id").isin(ids)
    frame = records(spark, path, topics, start, end).observe(
        seen,
        f.sum(f.when(f.col("status").isin([*SOUND, *NOTED]), 0).otherwise(1)).alias("damaged"),
        *(
            f.sum(f.when(ours & (f.col("topic_id") == topic.id), 1).otherwise(0)).alias(f"t{topic.id}")
            for topic in topics
        ),
    )
    days = f.floor(f.unix_millis("timestamp") / 86_400_000).cast("int")  # UTC, whatever the session's time zone is
    frame = frame.where(ours).select(*COLUMNS, f.date_add(f.lit("1970-01-01").cast("date"), days).alias("date"))
    frame.write.partitionBy("topic", "date").mode("overwrite").parquet(str(staging))
    found = seen.get
    counts = {topic.name: int(found.get(f"t{topic.id}") or 0) for topic in topics}
    return {name: count for name, count in counts.items() if count}, int(found.get("damaged") or 0)


def _publish(folder: Path, start: int, end: int) -> int:
    """Give the files of the staging folder their names, durably."""
    staging = folder / STAGING
    made = sorted(path for path in staging.rglob("part-*.parquet"))
    touched = set()
    with atomic_file.file_explained(f"cannot write to {folder}"):
        for number, path in enumerate(made):
            place = folder / path.parent.relative_to(staging)
            if not place.exists():
                place.mkdir(parents=True)
                touched |= {place.parent, folder}
            segment.sync_file(path)
            path.rename(place / f"{start:020d}-{end:020d}-{number:05d}.parquet")
            touched.add(place)
        for place in touched:
            segment.sync_directory(place)
        shutil.rmtree(staging)
    return len(made)


def _clear(folder: Path, start: int) -> int:
    """Remove what a run left that did not end; how many files had their names already."""
    with atomic_file.file_explained(f"cannot clear {folder}"):
        shutil.rmtree(folder / STAGING, ignore_errors=True)
        left = [path for path in folder.glob("topic=*/date=*/*") if _from(path) >= start]
        for path in left:
            path.unlink()
    return len(left)


def _from(path: Path) -> int:
    found = _NAME.fullmatch(path.name)
    return int(found[1]) if found else -1


def _declared(directory: Directory, names: Sequence[str]) -> list[TopicDeclaration]:
    known = {topic.name: topic for topic in directory.topics}
    for name in names:
        if name not in known:
            raise TopicNotFound(
                f"there is no topic {shown(name)} in {directory.path}; it has {counted(len(known), 'topic')}"
                f"{': ' + ', '.join(sorted(known)[:20]) if known else ''}"
            )
        if "," in name:
            raise UsageError(f"the name of topic {shown(name)} has a comma: export all topics, without naming them")
    return [known[name] for name in names] if names else sorted(known.values(), key=lambda topic: topic.name)


# ---- the folder -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with atomic_file.file_explained(f"cannot make {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DirectoryInUse(f"another export writes to {folder}: wait until it ends") from error
        yield
    finally:
        os.close(descriptor)


def _state(folder: Path, directory: Directory, topics: tuple[str, ...], first: int) -> State:
    """What the folder has; a new one has nothing yet. Raises UsageError, StoreError."""
    path = folder / STATE
    try:
        found = msgspec.json.decode(path.read_bytes(), type=State)
    except FileNotFoundError:
        if others := [item.name for item in folder.iterdir()]:
            raise UsageError(
                f"{folder} has other files ({', '.join(sorted(others)[:3])}), and is no folder of an export: "
                "give a new one"
            ) from None
        found = State(FORMAT_VERSION, directory.node_id, topics, first, 0)
        _save(folder, found)
        return found
    except msgspec.MsgspecError as error:
        raise StoreError(f"{path} is damaged ({error}): export into another folder") from error
    if found.format_version != FORMAT_VERSION:
        raise StoreError(f"{path} was written by a newer Warren: export with that one, or into another folder")
    if found.node_id != directory.node_id:
        raise UsageError(
            f"{folder} has messages of another node ({found.node_id:012x}, and {directory.path} is "
            f"{directory.node_id:012x}): give another folder"
        )
    if found.topics != topics:
        had = ", ".join(found.topics) or "all topics"
        raise UsageError(
            f"{folder} is an export of {had}, and now it would be of {', '.join(topics) or 'all topics'}: "
            "give another folder"
        )
    return found


def _save(folder: Path, state: State) -> None:
    # read by whoever may read the rest: Spark makes its files as the umask says
    atomic_file.replace(folder / STATE, msgspec.json.encode(state) + b"\n", 0o666)
