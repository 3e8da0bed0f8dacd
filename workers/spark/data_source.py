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

from warren.engine.errors import UsageError
from warren.workers.spark import native
from warren.workers.spark.queue_options import QueueReadOptions
from warren.workers.spark.queue_source import QueueReader, QueueStreamReader
from warren.workers.spark.schema import check_schema, row_schema
from warren.workers.spark.sink import DirectStreamWriter, DirectWriter
from warren.workers.spark.sink_options import SinkOptions
from warren.workers.spark.tables import is_table, keeping, kept, plain_options
from warren.workers.spark.topic_options import TopicReadOptions, check_one_kind
from warren.workers.spark.topic_schema import check_topic_schema, topic_row_schema
from warren.workers.spark.topic_source import TopicBatchReader, TopicStreamReader
from warren.workers.spark.transactional_options import TransactionalOptions, is_transactional
from warren.workers.spark.transactional_sink import TransactionalStreamWriter, TransactionalWriter


class WarrenDataSource(DataSource):
    """`format("warren")`; see docs/spark.md for the options."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._is_table = is_table(options)
        self._given = plain_options(options)
        self._committing = False

    def __setstate__(self, state: dict[str, object]) -> None:
        # What commits the batches of a stream gets a copy of what planned it.
        self.__dict__.update(state, _committing=True)

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(…)`."""
        return "warren"

    def schema(self) -> StructType:
        """Return the row's schema, as the options say."""
        if check_one_kind(self._given):
            topics = self._topics(self._given)
            schema = topic_row_schema(
                value=topics.include_value,
                headers=topics.include_headers,
                timestamp_type=topics.include_timestamp_type,
            )
        else:
            queue = QueueReadOptions.parse(self._given)
            schema = row_schema(value=queue.include_value, headers=queue.include_headers)
        return keeping(schema, self._given) if self._is_table else schema

    def _topics(self, given: Mapping[str, str]) -> TopicReadOptions:
        """Options of a read of topics, which comes here when it is not native. UsageError: it has to be."""
        options = TopicReadOptions.parse(given)
        if options.scan == "native":
            raise UsageError(
                f"option 'scan': {native.missing() or 'this session has no native scan: warren.spark.register adds it'}"
            )
        return options

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch."""
        given = kept(schema, self._given)
        if check_one_kind(given):
            check_topic_schema(schema)
            return TopicBatchReader(self._topics(given).for_batch(), schema)
        check_schema(schema)
        return QueueReader(QueueReadOptions.parse(given), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream."""
        given = kept(schema, self._given)
        if check_one_kind(given):
            check_topic_schema(schema)
            return TopicStreamReader(self._topics(given).for_stream(), schema)
        check_schema(schema)
        return QueueStreamReader(QueueReadOptions.parse(given), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the writer of a batch."""
        if not self._given:  # Spark gives no options of a table to who writes into it
            raise UsageError(
                "a table of Warren is for reading: write a DataFrame with .write.format('warren') and the option 'path'"
            )
        if is_transactional(self._given):
            return TransactionalWriter(TransactionalOptions.parse(self._given), schema, overwrite)
        return DirectWriter(SinkOptions.parse(self._given), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Return the writer of a stream."""
        if is_transactional(self._given):
            return TransactionalStreamWriter(
                TransactionalOptions.parse(self._given), schema, overwrite, self._committing
            )
        return DirectStreamWriter(SinkOptions.parse(self._given), schema, overwrite, self._committing)


class WarrenPythonDataSource(WarrenDataSource):
    """The same, where `format("warren")` is the native scan's, which hands over to this one what is not native."""

    @classmethod
    def name(cls) -> str:
        """Return the name by which Java finds it (java/warren/spark/WarrenSource.java)."""
        return "warren-python"
