"""`scan`: what is in the files of a directory: records and bytes by kind and status, file by file."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

from warren.engine.errors import UsageError
from warren.engine.saying import shown
from warren.workers.spark.pipelines.rows import files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: what a scan reads: all bytes once
KINDS = ("store", "journal", "queues", "log", "consumequeue", "keyindex")


class Line(NamedTuple):
    """Rows of one file that are of one kind and status."""

    files: str
    file: str
    kind: str
    status: str
    records: int
    bytes: int


def check_kinds(kinds: Sequence[str]) -> None:
    """Raise UsageError for what is no kind of files to scan."""
    if strange := [kind for kind in kinds if kind not in KINDS]:
        raise UsageError(f"{shown(strange[0])} is no kind of files to scan; they are {', '.join(KINDS)}")


def rows(spark: SparkSession, path: str, kinds: Sequence[str] = KINDS) -> DataFrame:
    """A row for everything in these kinds of files: files, file, kind, status, bytes."""
    from pyspark.sql import functions as f

    check_kinds(kinds)
    each = [
        files(spark, path, kind, "file", "kind", "status", "bytes").select(f.lit(kind).alias("files"), "*")
        for kind in kinds
    ]
    return reduce(lambda one, other: one.unionAll(other), each)


def summed(found: DataFrame) -> DataFrame:
    """Records and bytes by file, kind and status."""
    from pyspark.sql import functions as f

    by = ("files", "file", "kind", "status")
    return found.groupBy(*by).agg(f.count("*").alias("records"), f.coalesce(f.sum("bytes"), f.lit(0)).alias("bytes"))


def scan(spark: SparkSession, path: str, kinds: Sequence[str] = KINDS) -> list[Line]:
    """Read all of these files. Raises UsageError, NodeNotRunning (no data directory)."""
    found = summed(rows(spark, path, kinds)).collect()
    return sorted(Line(*row) for row in found)
