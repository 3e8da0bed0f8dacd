"""Rows of `format("warren-files")` without Spark: planned, pickled, read, as Spark does it."""

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from warren.workers.spark.files.schema import COLUMNS
from warren.workers.spark.files.source import FilesDataSource, FilesReader


def reader(path: Path, files: str, *columns: str, **options: str) -> FilesReader:
    """A reader of some columns; of none: of all there are."""
    source = FilesDataSource({"path": str(path), "files": files, **options})
    wanted = [c for c in COLUMNS[files] if not columns or c.name in columns]
    made = source.reader(StructType([StructField(c.name, c.spark) for c in wanted]))
    assert isinstance(made, FilesReader)
    return made


def rows(path: Path, files: str, *columns: str, **options: str) -> list[dict[str, Any]]:
    """All rows, each batch checked against the schema."""
    planner = reader(path, files, *columns, **options)
    batches: list[pa.RecordBatch] = []
    for partition in planner.partitions():
        executor = pickle.loads(pickle.dumps(planner))
        for batch in executor.read(pickle.loads(pickle.dumps(partition))):
            assert batch.schema == planner.wanted
            batch.validate(full=True)
            batches.append(batch)
    return pa.Table.from_batches(batches, schema=planner.wanted).to_pylist()  # type: ignore[no-any-return]


def sums(found: list[dict[str, Any]]) -> dict[str, int]:
    """Bytes of the rows of each file."""
    total: dict[str, int] = {}
    for row in found:
        total[row["file"]] = total.get(row["file"], 0) + (row["bytes"] or 0)
    return total


def statuses(found: list[dict[str, Any]]) -> dict[str, int]:
    """How many rows have each status."""
    counts: dict[str, int] = {}
    for row in found:
        counts[row["status"]] = counts.get(row["status"], 0) + 1
    return counts


def flip(path: Path, at: int) -> None:
    """One bit."""
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
