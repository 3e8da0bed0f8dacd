"""DataFrames of files, and what their statuses mean to people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warren.engine.errors import UsageError
from warren.workers.spark.files.schema import COLUMNS
from warren.workers.spark.options import absolute

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: nothing is wrong
SOUND = frozenset({"ok", "none"})
#: nothing is lost, and worth knowing: what an unclean stop leaves, what does not belong here, what went meanwhile
NOTED = frozenset({"uncommitted", "torn", "foreign", "unfinished", "gone", "flipped_bit"})


def is_problem(status: str) -> bool:
    """Whether bytes with this status are not what was written."""
    return status not in SOUND and status not in NOTED


def files(spark: SparkSession, path: str, kind: str, *columns: str, **options: object) -> DataFrame:
    """Rows of a kind of files, with these columns alone: others are never made."""
    from pyspark.sql.types import StructField, StructType

    known = {column.name: column.spark for column in COLUMNS[kind]}
    if unknown := [name for name in columns if name not in known]:
        raise UsageError(f"files={kind} has no column {', '.join(unknown)}; its columns are {', '.join(known)}")
    read = spark.read.format("warren-files").option("path", absolute(path)).option("files", kind)
    for name, value in options.items():
        if value is not None:
            read = read.option(name, str(value))
    return read.schema(StructType([StructField(name, known[name]) for name in columns])).load()
