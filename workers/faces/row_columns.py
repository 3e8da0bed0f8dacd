"""Rows of an Arrow batch that are to be messages, as the core takes columns: buffers, without an object for each row.

Columns (canonical names): `value`, and where they are there `key`, `tag`, `message_id` (binary or string), `partition`
(integer), `headers` (list of structs with key and value), `timestamp`, `born_timestamp` (timestamp), `priority`
(integer), `ttl`, `delay` (seconds, or a duration). Anything else is left alone.

Errors name the row, by the number that its caller gave it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from warren.engine.catalog import metadata
from warren.engine.errors import UsageError
from warren.engine.saying import shown

if TYPE_CHECKING:
    from warren.engine._core import RowPairs, RowTexts

_Number = TypeVar("_Number", bound=np.generic)
#: the longest ttl or delay of a message of a queue
_DELAY_S_MAX = 1e9
#: the first moment, in microseconds since 1970, that no datetime can say: the year 10000
_TIME_US_END = 253_402_300_800_000_000
_PER_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}


class Rows:
    """Rows of one batch that go to one place. Columns are made into what the core takes when they are asked for."""

    def __init__(self, batch: pa.RecordBatch, numbers: int | npt.NDArray[np.int64] = 0) -> None:
        """`numbers`: of the rows, for errors: the first, or those of all."""
        self.batch = batch
        self.count: int = batch.num_rows
        self.numbers = numbers
        self._there = {name: place for place, name in enumerate(batch.schema.names)}

    def number(self, row: int) -> int:
        """The number of a row, for errors."""
        return self.numbers + row if isinstance(self.numbers, int) else int(self.numbers[row])

    def taken(self, rows: npt.NDArray[np.int64]) -> Rows:
        """Some of the rows, by their place among these."""
        numbers = rows + self.numbers if isinstance(self.numbers, int) else self.numbers[rows]
        return Rows(self.batch.take(pa.array(rows)), np.ascontiguousarray(numbers, np.int64))

    def column(self, name: str) -> pa.Array | None:
        """A column; None: it is not there, or has nothing but nulls."""
        place = self._there.get(name)
        if place is None:
            return None
        found = self.batch.column(place)
        return None if found.null_count == self.count and self.count else found

    def refuse(self, wrong: pa.Array, reason: Callable[[Any], str], of: str) -> None:
        """Raise UsageError when `wrong` is true of a row: its number, and `reason` of its value in column `of`."""
        if not pc.any(wrong, skip_nulls=True).as_py():
            return
        row = pc.index(wrong, pa.scalar(True)).as_py()
        column = self.column(of)
        raise UsageError(f"row {self.number(row)}: {reason(None if column is None else _value(column[row]))}")

    def refuse_any(self, name: str, reason: str) -> None:
        """Raise UsageError when a row has a value in a column."""
        found = self.column(name)
        if found is not None:
            self.refuse(found.is_valid(), lambda value: f"{reason}, not {shown(value)}", name)

    # -- as the core takes them -------------------------------------------------------------------------------------

    def values(self) -> RowTexts:
        """Bodies. Raises UsageError for a null."""
        found = self.batch.column(self._there["value"])
        if found.null_count:
            row = pc.index(found.is_null(), pa.scalar(True)).as_py()
            raise UsageError(
                f"row {self.number(row)}: its value is null; a message needs a body: filter such rows out, or coalesce"
            )
        return texts(found)

    def texts(self, name: str) -> RowTexts | None:
        """A column of binary or strings."""
        found = self.column(name)
        return None if found is None else texts(found)

    def headers(self) -> RowPairs | None:
        """Headers: a list that is null is none, and an empty list is one."""
        found = self.column("headers")
        return None if found is None else pairs(found)

    def partitions(self) -> npt.NDArray[np.int32] | None:
        """Queues of a topic, -1 where none is given. Raises UsageError for what is below 0."""
        found = self.column("partition")
        if found is None:
            return None
        found = found.cast(pa.int64())
        wrong = pc.or_(pc.less(found, 0), pc.greater(found, (1 << 31) - 1))
        self.refuse(wrong, lambda value: f"there is no partition {value}: they are numbered from 0", "partition")
        return _numbers(found.fill_null(-1), np.int32)

    def born_us(self) -> pa.Array | None:
        """When the message was made, in microseconds since 1970: `born_timestamp`, or where it is null `timestamp`.
        Raises UsageError for what is before 1970, or behind the year 9999.
        """
        there = [found for name in ("born_timestamp", "timestamp") if (found := self.column(name)) is not None]
        if not there:
            return None
        found = pc.coalesce(
            *[item.cast(pa.timestamp("us", item.type.tz), safe=False).cast(pa.int64()) for item in there]
        )
        wrong = pc.or_(pc.less(found, 0), pc.greater_equal(found, _TIME_US_END))
        names = " or ".join(name for name in ("born_timestamp", "timestamp") if self.column(name) is not None)
        self.refuse(wrong, lambda _value: f"its {names} must be from the year 1970 to 9999", "value")
        return found

    def milliseconds(self, name: str, most_s: float = _DELAY_S_MAX) -> pa.Array | None:
        """A column of seconds or durations, in whole milliseconds. Raises UsageError for what is none."""
        found = self.column(name)
        if found is None:
            return None
        if pa.types.is_duration(found.type):
            seconds = pc.divide(found.cast(pa.int64()).cast(pa.float64(), safe=False), _PER_SECOND[found.type.unit])
        else:
            seconds = found.cast(pa.float64(), safe=False)  # large numbers lose their last digits, and are refused
        good = pc.and_(pc.greater_equal(seconds, 0.0), pc.less_equal(seconds, most_s))
        self.refuse(
            pc.invert(good),
            lambda value: f"its {name} must be a number of seconds from 0 to {most_s:.0f}, not {shown(value)}",
            name,
        )
        return pc.round(pc.multiply(seconds, 1000.0)).cast(pa.int64())

    def priorities(self) -> npt.NDArray[np.uint64] | None:
        """Priorities, 0 where none is given. Raises UsageError."""
        found = self.column("priority")
        if found is None:
            return None
        found = found.cast(pa.int64())
        wrong = pc.or_(pc.less(found, 0), pc.greater(found, metadata.PRIORITY_MAX))
        most = metadata.PRIORITY_MAX
        self.refuse(wrong, lambda value: f"its priority must be from 0 to {most}, not {shown(value)}", "priority")
        return _numbers(found.fill_null(0), np.uint64)


def _value(found: pa.Scalar) -> object:
    """A value for an error; what Python cannot say is said by Arrow."""
    try:
        return found.as_py()
    except (ValueError, OverflowError):  # durations and times beyond Python's
        return found.cast(pa.int64()).as_py()


def texts(found: pa.Array) -> RowTexts:
    """A column of binary or strings (32-bit or large) as the core takes it."""
    kind = found.type
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        found = found.cast(pa.large_binary()).cast(pa.binary())
    elif not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
        found = found.cast(pa.binary())
    rows = len(found)
    _bits, ends, content = found.buffers()
    first = 4 * found.offset
    return memoryview(ends)[first : first + 4 * (rows + 1)], content if content is not None else b"", _valid(found)


def pairs(found: pa.Array) -> RowPairs:
    """A column of lists of structs (key, value) as the core takes it."""
    if pa.types.is_large_list(found.type):
        found = found.cast(pa.list_(found.type.value_field))
    entries = found.values
    fields = {item.name.lower(): place for place, item in enumerate(entries.type)}
    values = entries.field(fields["value"])
    kind = values.type
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    ends = np.ascontiguousarray(found.offsets.to_numpy(), np.int32)
    names = texts(entries.field(fields["key"])) if len(entries) else _NO_TEXTS
    return ends, _valid(found), names, texts(values) if len(entries) else _NO_TEXTS, _valid(entries), is_text


_NO_TEXTS: RowTexts = (bytes(4), b"", None)


def _valid(found: pa.Array) -> npt.NDArray[np.uint8] | None:
    if not found.null_count:
        return None
    return np.asarray(found.is_valid().to_numpy(zero_copy_only=False)).astype(np.uint8)


def _numbers(found: pa.Array, kind: type[_Number]) -> npt.NDArray[_Number]:
    made: npt.NDArray[_Number] = np.ascontiguousarray(found.to_numpy(zero_copy_only=False), kind)
    return made
