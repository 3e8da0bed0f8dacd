"""Options of topics: each mistake is an error that names the option, before a node is asked."""

import pytest
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from warren.engine.errors import InvalidName, UsageError
from warren.workers.spark.data_source import WarrenDataSource
from warren.workers.spark.topic_options import Bound, Selection, TopicReadOptions, check_one_kind
from warren.workers.spark.topic_schema import topic_row_schema

SOURCE = {"path": "/data", "subscribe": "flights"}
MOMENT = "1767225600000"


def test_defaults() -> None:
    options = TopicReadOptions.parse(SOURCE)
    assert options.selection == Selection("subscribe", ("flights",))
    assert options.for_batch().start == Bound("startingOffsets", "earliest")
    assert options.for_batch().end == Bound("endingOffsets", "latest")
    assert options.for_stream().start == Bound("startingOffsets", "latest")
    assert (options.include_value, options.include_headers, options.fail_on_data_loss) == (True, False, True)
    assert options.trigger_delay_s == 15 * 60


def test_what_is_read() -> None:
    def selected(**given: str) -> Selection:
        return TopicReadOptions.parse({"path": "/data", **given}).selection

    assert selected(subscribe=" a, b ,a,").names == ("a", "b")
    assert selected(subscribePattern="a.*").pattern == "a.*"
    assert selected(assign='{"a": [2, 0], "b": [1]}').partitions == {"a": (0, 2), "b": (1,)}
    assert check_one_kind({"SUBSCRIBE": "a"})
    assert not check_one_kind({"queue": "a", "subscribe": ""})


def test_where_it_begins_and_ends() -> None:
    def start(**given: str) -> Bound | None:
        return TopicReadOptions.parse({**SOURCE, **given}).start

    assert start(startingOffsets="Latest") == Bound("startingOffsets", "latest")
    numbers = Bound("startingOffsets", "offsets", {"flights": {0: 23, 1: 4}})
    assert start(startingOffsets='{"flights": {"0": 23, "1": 4}}') == numbers
    assert numbers.fixed
    unfixed = start(startingOffsets='{"flights": {"0": 23, "1": -2}}')
    assert unfixed is not None
    assert not unfixed.fixed
    assert start(startingTimestamp=MOMENT) == Bound("startingTimestamp", "time", time_ms=int(MOMENT))
    times = start(startingOffsetsByTimestamp=f'{{"flights": {{"0": {MOMENT}}}}}')
    assert times == Bound("startingOffsetsByTimestamp", "times", {"flights": {0: int(MOMENT)}})


def test_texts_and_times() -> None:
    options = TopicReadOptions.parse(
        {**SOURCE, "tags": "UA, B6", "keys": '["a,b", "c"]', "timestampFrom": "0", "minOffsetsPerTrigger": "5"}
        | {"maxTriggerDelay": "90s"}
    )
    assert (options.tags, options.keys, options.since_ms) == (("UA", "B6"), ("a,b", "c"), 0)
    assert options.trigger_delay_s == 90


@pytest.mark.parametrize(
    ("told", "seconds"), [("500ms", 0.5), ("15m", 900), ("2 h", 7200), ("1d", 86400), ("250", 0.25)]
)
def test_times_have_units(told: str, seconds: float) -> None:
    given = {**SOURCE, "minOffsetsPerTrigger": "5", "maxTriggerDelay": told}
    assert TopicReadOptions.parse(given).trigger_delay_s == seconds


MISTAKES = [
    ({"subscribe": "flights"}, "path"),
    ({"path": "/data"}, "give one of the options"),
    ({**SOURCE, "subscribePattern": "f.*"}, "subscribe and subscribePattern"),
    ({**SOURCE, "subscribe": " , "}, "names of topics"),
    ({"path": "/data", "subscribePattern": "f("}, "no regular expression"),
    ({"path": "/data", "assign": "flights"}, "must be JSON"),
    ({"path": "/data", "assign": "{}"}, "must be JSON"),
    ({"path": "/data", "assign": '{"flights": []}'}, "partitions of a topic"),
    ({"path": "/data", "assign": '{"flights": [-1]}'}, "partitions of a topic"),
    ({"path": "/data", "assign": '{"flights": [true]}'}, "partitions of a topic"),
    ({"path": "/data", "assign": '{"flights": [1, 1]}'}, "twice"),
    ({"path": "/data", "assign": '{"flights": [1], "flights": [2]}'}, "a name twice"),
    ({**SOURCE, "startingOffset": "earliest"}, "unknown option 'startingoffset'"),
    ({**SOURCE, "startingOffsets": "first"}, "must be JSON"),
    ({**SOURCE, "startingOffsets": '{"flights": 7}'}, "numbers by partition"),
    ({**SOURCE, "startingOffsets": '{"flights": {"0": true}}'}, "numbers by partition"),
    ({**SOURCE, "startingOffsets": '{"flights": {"a": 1}}'}, "no numbers"),
    ({**SOURCE, "startingOffsets": '{"flights": {"1": 1, "01": 1}}'}, "twice"),
    ({**SOURCE, "startingOffsets": '{"flights": {"0": -3}}'}, "-1 .latest. or -2"),
    ({**SOURCE, "startingOffsets": "earliest", "startingTimestamp": MOMENT}, "give one of the options startingOffsets"),
    ({**SOURCE, "startingTimestamp": "yesterday"}, "milliseconds"),
    ({**SOURCE, "startingTimestamp": "1767225600"}, "looks like seconds"),
    ({**SOURCE, "startingOffsetsByTimestamp": '{"flights": {"0": -1}}'}, "milliseconds"),
    ({**SOURCE, "startingOffsetsByTimestampStrategy": "latest"}, "neither is given"),
    ({**SOURCE, "startingTimestamp": MOMENT, "startingOffsetsByTimestampStrategy": "first"}, "error or latest"),
    ({**SOURCE, "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "above"),
    ({**SOURCE, "maxTriggerDelay": "5m"}, "minOffsetsPerTrigger"),
    ({**SOURCE, "minOffsetsPerTrigger": "9", "maxTriggerDelay": "soon"}, "500ms"),
    ({**SOURCE, "maxBytesPerTrigger": "0"}, "whole number"),
    ({**SOURCE, "timestampFrom": MOMENT, "timestampTo": MOMENT}, "before 'timestampTo'"),
    ({**SOURCE, "tags": "a,,b"}, "none of them empty"),
    ({**SOURCE, "tags": ",".join("abcde"[n % 5] * (n + 1) for n in range(65))}, "65 texts"),
    ({**SOURCE, "tags": "[1]"}, "list of texts"),
    ({**SOURCE, "tags": "["}, "JSON list"),
    ({**SOURCE, "keys": "a b"}, "no spaces"),
    ({**SOURCE, "groupId": "g", "groupIdPrefix": "p"}, "one of the options 'groupId'"),
    ({**SOURCE, "includeHeaders": "yes"}, "true or false"),
    ({**SOURCE, "subscription": "s"}, "unknown option 'subscription'"),
]


@pytest.mark.parametrize(("given", "told"), MISTAKES)
def test_mistakes(given: dict[str, str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        TopicReadOptions.parse(given)


def test_a_group_has_a_name_that_groups_can_have() -> None:
    with pytest.raises(InvalidName, match="group name"):
        TopicReadOptions.parse({**SOURCE, "groupId": "a group"})


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"maxOffsetsPerTrigger": "5"}, "'maxOffsetsPerTrigger' is for streams"),
        ({"groupId": "g"}, "'groupId' is for streams"),
        ({"startingOffsets": "latest"}, "cannot begin at the latest"),
        ({"startingOffsets": '{"flights": {"0": -1}}'}, "cannot begin at the latest"),
        ({"endingOffsets": "earliest"}, "cannot end at the earliest"),
        ({"endingOffsets": '{"flights": {"0": -2}}'}, "cannot end at the earliest"),
        ({"startingTimestamp": MOMENT, "endingTimestamp": "1767225500000"}, "is behind 'endingTimestamp'"),
    ],
)
def test_what_a_batch_has_not(given: dict[str, str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        WarrenDataSource({**SOURCE, **given}).reader(topic_row_schema())


@pytest.mark.parametrize("option", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(option: str) -> None:
    value = {"endingOffsets": "latest", "endingTimestamp": MOMENT}.get(option, f'{{"flights": {{"0": {MOMENT}}}}}')
    with pytest.raises(UsageError, match=f"{option}' is for batches"):
        WarrenDataSource({**SOURCE, option: value}).streamReader(topic_row_schema())


def test_a_read_is_of_a_queue_or_of_topics() -> None:
    with pytest.raises(UsageError, match="'queue' and 'subscribe'"):
        WarrenDataSource({**SOURCE, "queue": "orders"}).schema()


def test_the_row_has_what_is_asked_for() -> None:
    names = WarrenDataSource({**SOURCE, "includeValue": "false", "includeHeaders": "true"}).schema().fieldNames()
    assert names == [
        "key", "topic", "partition", "offset", "timestamp", "born_timestamp", "tag", "msg_id", "headers",
    ]  # fmt: skip
    assert WarrenDataSource({**SOURCE, "includeTimestampType": "true"}).schema().fieldNames()[-1] == "timestampType"


@pytest.mark.parametrize(
    ("field", "told"),
    [
        (StructField("delivery_count", IntegerType()), "no column 'delivery_count'"),
        (StructField("value", StringType()), "is binary, not string"),
        (StructField("key", BinaryType(), nullable=False), "can be null"),
    ],
)
def test_schemas_that_cannot_be(field: StructField, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        WarrenDataSource(SOURCE).reader(StructType([field]))


def test_names_of_columns_ignore_case_as_spark_does() -> None:
    schema = StructType([StructField("OFFSET", LongType()), StructField("Key", BinaryType())])
    assert WarrenDataSource(SOURCE).reader(schema) is not None
