"""Options are checked before anything runs: each mistake has an error of the right class that names the option."""

import os

import pytest

from warren.engine.errors import UsageError
from warren.workers.spark.queue_options import QueueReadOptions
from warren.workers.spark.sink_options import SinkOptions

SOURCE = {"path": "/data", "queue": "orders"}


def test_defaults() -> None:
    options = QueueReadOptions.parse(SOURCE)
    assert options.subscription == "spark-orders"
    assert (options.include_value, options.include_headers, options.fail_on_data_loss) == (True, False, True)
    assert options.offsets_per_trigger_max is None


def test_names_ignore_case_as_spark_does() -> None:
    options = QueueReadOptions.parse({"PATH": "/data", "Queue": "orders", "maxoffsetspertrigger": "7"})
    assert options.offsets_per_trigger_max == 7


@pytest.mark.parametrize(
    ("given", "path"), [("file:/data/x", "/data/x"), ("file:///data/x", "/data/x"), ("data", os.path.abspath("data"))]
)
def test_path_is_made_absolute(given: str, path: str) -> None:
    assert QueueReadOptions.parse({**SOURCE, "path": given}).path == path


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ({"queue": "orders"}, UsageError, "path"),
        ({"path": "/data"}, UsageError, "queue"),
        ({**SOURCE, "maxOffsetPerTrigger": "7"}, UsageError, "maxOffsetsPerTrigger"),
        ({**SOURCE, "maxOffsetsPerTrigger": "0"}, UsageError, "whole number"),
        ({**SOURCE, "maxOffsetsPerTrigger": "many"}, UsageError, "whole number"),
        ({**SOURCE, "includeValue": "yes"}, UsageError, "true or false"),
        ({**SOURCE, "timeout": "-1"}, UsageError, "seconds"),
        ({**SOURCE, "timeout": "nan"}, UsageError, "seconds"),
        ({**SOURCE, "queue": "q" * 255}, UsageError, "subscription"),
        ({**SOURCE, "path": "hdfs://elsewhere/data"}, UsageError, "this machine"),
        ({"path": "/data"}, UsageError, "'queue', or for topics one of 'subscribe'"),
        ({**SOURCE, "kafka.bootstrap.servers": "x:1"}, UsageError, "is of Kafka's connector"),
        ({**SOURCE, "startingOffsets": "earliest"}, UsageError, "'startingOffsets' is for reading topics"),
    ],
)
def test_source_mistakes(given: dict[str, str], error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        QueueReadOptions.parse(given)


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ({**SOURCE, "exchange": "events"}, UsageError, "goes to one of them"),
        ({**SOURCE, "topic": "flights"}, UsageError, "goes to one of them"),
        ({"path": "/data", "topic": "flights", "routingKey": "a"}, UsageError, "routingKey"),
        ({**SOURCE, "routingKey": "a.b"}, UsageError, "routingKey"),
        ({**SOURCE, "durability": "certain"}, UsageError, "durability"),
        ({**SOURCE, "sinkId": "s"}, UsageError, "'sinkId' goes with delivery=transactional"),
        ({**SOURCE, "delivery": "perhaps"}, UsageError, "direct or transactional"),
        ({"queue": "orders"}, UsageError, "path"),
    ],
)
def test_sink_mistakes(given: dict[str, str], error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        SinkOptions.parse(given)


def test_sparks_own_options_are_let_through() -> None:
    SinkOptions.parse({**SOURCE, "checkpointLocation": "/somewhere"})
