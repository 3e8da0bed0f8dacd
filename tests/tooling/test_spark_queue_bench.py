"""Goal: what Spark's benchmarks share measures what it says: sides take turns, the repeating source has all rows."""

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from warren.tools.bench.spark_limit import Repeating, RepeatingStreamReader, columns, in_turn, ratio
from warren.tools.bench.spark_queue import COLUMNS, rows_of


def test_sides_take_turns_and_warm_up() -> None:
    told: list[str] = []

    def side(name: str, seconds: float) -> float:
        told.append(name)
        return seconds

    found = in_turn({"a": lambda: side("a", 2.0), "b": lambda: side("b", 1.0)}, rounds=2)
    assert "".join(told) == "abbaab"
    assert found == {"a": [2.0, 2.0], "b": [1.0, 1.0]}
    assert ratio(found, "a", "b") == 0.5


def test_the_limit_has_as_many_rows_as_asked_for() -> None:
    schema = columns(*COLUMNS)
    assert schema.names == list(COLUMNS)
    source = Repeating({"rows": "1003", "size": "5", "batchRows": "100", "partitions": "3"})
    reader = source.reader(schema)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert sum(batch.num_rows for batch in batches) == 1003
    assert max(batch.num_rows for batch in batches) == 100
    assert all(batch.column(name).null_count == 0 for batch in batches for name in COLUMNS)


def test_a_stream_of_it_ends() -> None:
    reader = RepeatingStreamReader({"rows": "10"}, columns("offset"))
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadMaxRows(4)) == {"next": 4}
    end = reader.latestOffset(start, ReadAllAvailable())
    assert sum(part.value for part in reader.partitions(start, end)) == 10
    assert reader.latestOffset(end, ReadAllAvailable()) == end


def test_runs_are_of_about_a_second() -> None:
    assert rows_of(100) == 1_000_000
    assert rows_of(1024) == 204_800
    assert rows_of(1 << 30) == 10_000
