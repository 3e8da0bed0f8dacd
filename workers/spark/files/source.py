"""`format("warren-files")`: reads the files of a data directory directly, in parallel, with the node up or down.

A read is planned once: which files there are, and which ranges of them a task reads. Beside a running node each file
is seen as it is when its task reads it; images in shared memory are not read, so the newest milliseconds are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from warren.workers.spark.files import derived, frames, ids, log, queues
from warren.workers.spark.files.directory import Directory, FilesPartition
from warren.workers.spark.files.options import FilesOptions
from warren.workers.spark.files.part_reader import PartReader
from warren.workers.spark.files.schema import arrow_schema, check_schema, row_schema, told

Plan = Callable[[Directory, FilesOptions], list[FilesPartition]]
_KINDS: dict[str, tuple[Plan, type[PartReader]]] = {
    "store": (frames.plan_store, frames.FrameReader),
    "journal": (frames.plan_journal, frames.FrameReader),
    "queues": (queues.plan_entries, queues.EntryReader),
    "messages": (queues.plan_messages, queues.MessageReader),
    "ids": (ids.plan, ids.IdReader),
    "log": (log.plan, log.LogReader),
    "consumequeue": (derived.plan_units, derived.UnitReader),
    "keyindex": (derived.plan_index, derived.IndexReader),
}


class FilesReader(DataSourceReader):
    """Reads files of one kind."""

    def __init__(self, options: FilesOptions, schema: StructType) -> None:
        self.options = options
        self.wanted = arrow_schema(options.files, schema)
        self.directory = Directory.read(options.path)

    def partitions(self) -> Sequence[InputPartition]:
        """Plan: the files that are there now."""
        found: list[InputPartition] = [*_KINDS[self.options.files][0](self.directory, self.options)]
        return found or [FilesPartition()]  # Spark would ask for a partition of its own otherwise

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some parts as Arrow batches; runs in an executor."""
        assert isinstance(partition, FilesPartition)
        if partition.told:
            yield told(self.wanted, partition.told)
        reader = _KINDS[self.options.files][1](self.directory, self.options, self.wanted)
        for part in partition.parts:
            yield from reader.read(part)


class FilesDataSource(DataSource):
    """`format("warren-files")`; see docs/pipelines.md for the options."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(…)`."""
        return "warren-files"

    def schema(self) -> StructType:
        """Return the row's schema, as the options say."""
        options = FilesOptions.parse(self._given)
        return row_schema(options.files, value=options.include_value)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch."""
        options = FilesOptions.parse(self._given)
        check_schema(options.files, schema)
        return FilesReader(options, schema)
