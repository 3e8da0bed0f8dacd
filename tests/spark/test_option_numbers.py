"""Numbers in options: plain ASCII digits within a bound that the error names, in each option of each source and sink.

Method: the options that each of them knows are taken from it, so that one that is added must be said here to be a
number or not.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from warren.engine.errors import UsageError
from warren.workers.cli.main import warren
from warren.workers.spark import queue_options, sink_options, topic_options, transactional_options
from warren.workers.spark.files import options as files_options
from warren.workers.spark.options import SECONDS_MAX


class Kind(NamedTuple):
    """A source or sink: how its options are read, those that it knows, and some that it needs."""

    parse: Callable[[Mapping[str, str]], Any]
    known: tuple[str, ...]
    needed: dict[str, str]


KINDS = {
    "queue": Kind(
        queue_options.QueueReadOptions.parse, queue_options._SOURCE_OPTIONS, {"path": "/data", "queue": "orders"}
    ),
    "topics": Kind(
        topic_options.TopicReadOptions.parse,
        topic_options._OPTIONS,
        {"path": "/data", "subscribe": "flights", "minOffsetsPerTrigger": "1"},
    ),
    "files": Kind(files_options.FilesOptions.parse, files_options._OPTIONS, {"path": "/data", "files": "log"}),
    "sink": Kind(sink_options.SinkOptions.parse, sink_options._SINK_OPTIONS, {"path": "/data", "queue": "orders"}),
    "transactional": Kind(
        transactional_options.TransactionalOptions.parse,
        transactional_options._OPTIONS,
        {"path": "/data", "topic": "flights", "delivery": "transactional", "sinkId": "copy"},
    ),
}

WHOLE = {
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxPartitionBytes",
    "batchRows",
    "batchBytes",
    "startingPosition",
    "endingPosition",
}
TIMES = {"timeout", "maxTriggerDelay", "startingTimestamp", "endingTimestamp", "timestampFrom", "timestampTo"}
#: numbers in JSON, which have tests of their own below
BY_PARTITION = {"startingOffsets", "endingOffsets", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp", "assign"}
NO_NUMBERS = {
    "path",
    "queue",
    "exchange",
    "topic",
    "subscription",
    "subscribe",
    "subscribePattern",
    "startingOffsetsByTimestampStrategy",
    "files",
    "topics",
    "tags",
    "keys",
    "includeValue",
    "includeHeaders",
    "includeTimestampType",
    "failOnDataLoss",
    "groupId",
    "groupIdPrefix",
    "scan",
    "mount",
    "host",
    "routingKey",
    "durability",
    "mandatory",
    "delivery",
    "perHost",
    "sinkId",
    "takeOver",
}

NEVER = (
    "1_0",
    "१२",
    "１２",
    "²",
    "+7",
    "-7",
    "7,5",
    "0x10",
    "1e3",
    "nan",
    "inf",
    "many",
    "1 0",
    "1\n",
    str(1 << 63),
    str(1 << 64),
    str(1 << 70),
    "9" * 5000,
)


def options_of(names: set[str]) -> list[Any]:
    return [
        pytest.param(told, name, id=f"{kind}-{name}")
        for kind, told in KINDS.items()
        for name in told.known
        if name in names
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_each_option_is_known_here(kind: str) -> None:
    sorts = (WHOLE, TIMES, BY_PARTITION, NO_NUMBERS)
    for name in KINDS[kind].known:
        assert sum(name in sort for sort in sorts) == 1, f"is {name} a number?"


@pytest.mark.parametrize(("kind", "option"), options_of(WHOLE | TIMES))
def test_what_is_no_number(kind: Kind, option: str) -> None:
    for value in NEVER:
        with pytest.raises(UsageError, match=f"option '{option}' must be .+, not "):
            kind.parse({**kind.needed, option: value})


@pytest.mark.parametrize(("kind", "option"), options_of(WHOLE))
def test_bounds_are_named_and_kept(kind: Kind, option: str) -> None:
    with pytest.raises(UsageError) as refused:
        kind.parse({**kind.needed, option: str(1 << 70)})
    bounds = re.search(r"from (\d+) to (\d+), in digits", str(refused.value))
    assert bounds is not None
    least, most = int(bounds[1]), int(bounds[2])
    for value in (least, most):
        kind.parse({**kind.needed, option: str(value)})
    with pytest.raises(UsageError, match=f"option '{option}'"):
        kind.parse({**kind.needed, option: str(most + 1)})
    if least:
        with pytest.raises(UsageError, match=f"option '{option}'"):
            kind.parse({**kind.needed, option: str(least - 1)})


@pytest.mark.parametrize(("kind", "option"), options_of({"timeout"}))
def test_seconds(kind: Kind, option: str) -> None:
    for value, found in (("7", 7.0), ("0.25", 0.25), (".5", 0.5), ("3.", 3.0), (str(SECONDS_MAX), SECONDS_MAX)):
        assert kind.parse({**kind.needed, option: value}).timeout_s == found
    for value in ("0", "0.0", ".", str(SECONDS_MAX + 1), f"{SECONDS_MAX}.5"):
        with pytest.raises(UsageError, match=f"'timeout' must be a number of seconds above 0, to {SECONDS_MAX}, in"):
            kind.parse({**kind.needed, option: value})


@pytest.mark.parametrize("option", sorted(BY_PARTITION))
def test_numbers_by_partition(option: str) -> None:
    kind = KINDS["topics"]
    needed = {name: value for name, value in kind.needed.items() if option != "assign" or name != "subscribe"}
    within = '{"flights": [%s]}' if option == "assign" else '{"flights": {"0": %s}}'
    for number in ("9" * 23, "1e400", "1e3", "NaN", "Infinity", "1_0", "१२", "-7", "true", "9" * 5000):
        with pytest.raises(UsageError, match=f"option '{option}'"):
            kind.parse({**needed, option: within % number})
    with pytest.raises(UsageError, match=f"option '{option}'"):  # deeper than Python's reader of JSON goes
        kind.parse({**needed, option: "[" * 100_000})
    if option != "assign":
        for partition in ("1_0", "१", "-1", " 1", "9" * 12):
            with pytest.raises(UsageError, match="partitions that are no numbers"):
                kind.parse({**needed, option: f'{{"flights": {{"{partition}": 1767225600000}}}}'})


@pytest.mark.parametrize("option", ["tags", "keys"])
def test_lists_that_are_too_deep(option: str) -> None:
    with pytest.raises(UsageError, match=f"option '{option}'"):
        KINDS["topics"].parse({**KINDS["topics"].needed, option: "[" * 100_000})


RATE = ["spark", "run", "republish", "/nowhere", "--from-queue", "a", "--to-queue", "b", "--rate"]
ROWS = ["demo", "--rows"]
TIMEOUT = ["transactions", "/nowhere", "--timeout"]


@pytest.mark.parametrize("line", [RATE, ROWS, TIMEOUT], ids=lambda line: line[-1])
@pytest.mark.parametrize("value", ["1_0", "१२", "nan", "inf", "1e400", "9" * 5000])
def test_numbers_of_commands(line: list[str], value: str) -> None:
    found = CliRunner().invoke(warren, [*line, value])
    assert found.exit_code == 2, found.output
    assert line[-1] in found.output
