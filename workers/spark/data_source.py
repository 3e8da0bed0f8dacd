"""`format("warren")`: which reader or writer a set of options asks for."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from warren.workers.spark.queue_options import QueueReadOptions
from warren.workers.spark.queue_source import QueueReader, QueueStreamReader
from warren.workers.spark.schema import check_schema, row_schema
from warren.workers.spark.sink import DirectStreamWriter, DirectWriter
from warren.workers.spark.sink_options import SinkOptions
from warren.workers.spark.tables import is_table, keeping, kept, plain_options
from warren.workers.spark.transactional_options import TransactionalOptions, is_transactional
from warren.workers.spark.transactional_sink import TransactionalStreamWriter, TransactionalWriter


class WarrenDataSource(DataSource):
    """`format("warren")`; see docs/spark.md for the options."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._is_table = is_table(options)
        self._given = plain_options(options)

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(…)`."""
        return "warren"

    def schema(self) -> StructType:
        """Return the row's schema, as the options say."""
        options = QueueReadOptions.parse(self._given)
        schema = row_schema(value=options.include_value, headers=options.include_headers)
        return keeping(schema, self._given) if self._is_table else schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch."""
        check_schema(schema)
        return QueueReader(QueueReadOptions.parse(kept(schema, self._given)), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream."""
        check_schema(schema)
        return QueueStreamReader(QueueReadOptions.parse(kept(schema, self._given)), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the writer of a batch."""
        if is_transactional(self._given):
            return TransactionalWriter(TransactionalOptions.parse(self._given), schema, overwrite)
        return DirectWriter(SinkOptions.parse(self._given), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Return the writer of a stream."""
        if is_transactional(self._given):
            return TransactionalStreamWriter(TransactionalOptions.parse(self._given), schema, overwrite)
        return DirectStreamWriter(SinkOptions.parse(self._given), schema, overwrite)
