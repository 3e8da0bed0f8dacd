"""Rows of Arrow tables as messages of a topic: such as a program makes, and such as `read_arrow` gives.

What was read is appended as it was: a string of keys is taken apart at its spaces, the column `properties` may hold
names that have a meaning of their own in the log (told.c), and columns that say where a message lay are left alone.
Only what says how often a message was tried (retried.py), or which transaction appended it, stays behind: the copy is a
new message.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from warren.engine import _core
from warren.engine.errors import MessageTooLarge, UsageError
from warren.engine.topics.formats import PROPERTIES_BYTES_MAX
from warren.workers.client.retried import OF_RETRIES
from warren.workers.client.told import Told

COLUMNS = ("value", "key", "tag", "queue", "born_timestamp", "headers", "properties")
#: properties that a copy has not, as engine/binding/append_rows.c
LEFT_BEHIND = OF_RETRIES | {"WARREN_SINK"}
#: of what `read_arrow` gives: where a message lay
LEFT_OUT = frozenset({"offset", "timestamp", "message_id"})


def rows_of(data: Any, queue: int | None) -> tuple[list[bytes], Told]:
    """The messages in a table, a record batch, or what Arrow can make a table of; `queue`: of all, instead of the
    column. Raises UsageError.
    """
    table = _table(data)
    unknown = [name for name in table.column_names if name not in COLUMNS and name not in LEFT_OUT]
    if unknown or "value" not in table.column_names:
        wrong = f"column {unknown[0]!r} is none of a message" if unknown else "the column 'value' is missing"
        raise UsageError(f"append_arrow: {wrong}: it takes {', '.join(COLUMNS)}, of which value is needed")
    if len(set(table.column_names)) != len(table.column_names):
        raise UsageError("append_arrow: a column is there twice")
    keys = _listed(
        table, "key", lambda kind: _is_text(kind) or (_is_list(kind) and _is_text(kind.value_type)), "strings"
    )
    if keys is not None:
        keys = [_apart(key) if isinstance(key, str) and " " in key else key for key in keys]
    queues = _listed(table, "queue", pa.types.is_integer, "integers") if queue is None else queue
    told = Told(keys, _listed(table, "tag", _is_text, "strings"), _properties_of(table), queues, _born(table))
    return _values(table["value"]), told


def _apart(keys: str) -> list[str] | str:
    """Keys with spaces between them, as a log has them."""
    return [key for key in keys.split(" ") if key] or keys


def _table(data: Any) -> pa.Table:
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    try:
        return pa.table(data)
    except (TypeError, ValueError, pa.ArrowInvalid) as error:
        raise UsageError(f"append_arrow takes a pyarrow Table or RecordBatch, not {type(data).__name__}") from error


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or _is_view(kind, "is_string_view")


def _is_view(kind: pa.DataType, name: str) -> bool:
    check = getattr(pa.types, name, None)  # newer than the oldest pyarrow that we take
    return check is not None and bool(check(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return (
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or _is_view(kind, "is_binary_view")
    )


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _wrong(name: str, kind: pa.DataType, wanted: str) -> UsageError:
    return UsageError(f"append_arrow: the column {name!r} must hold {wanted}, not {kind}")


def _values(column: pa.ChunkedArray) -> list[bytes]:
    if column.null_count:
        row = next(number for number, value in enumerate(column) if not value.is_valid)
        raise UsageError(f"append_arrow: row {row} has no value: leave it out, or give b'' for an empty body")
    if _is_text(column.type):
        return [text.encode() for text in column.to_pylist()]
    if not _is_bytes(column.type):
        raise _wrong("value", column.type, "binary or strings")
    values: list[bytes] = column.to_pylist()
    return values


def _listed(table: pa.Table, name: str, fits: Any, wanted: str) -> list[Any] | None:
    if name not in table.column_names or pa.types.is_null(table[name].type):
        return None
    column = table[name]
    if not fits(column.type):
        raise _wrong(name, column.type, wanted)
    values: list[Any] = column.to_pylist()
    return values


def _born(table: pa.Table) -> list[int | None] | None:
    if "born_timestamp" not in table.column_names:
        return None
    column = table["born_timestamp"]
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
    elif not pa.types.is_integer(column.type):
        raise _wrong("born_timestamp", column.type, "timestamps, or integers of milliseconds since 1970")
    values: list[int | None] = column.to_pylist()
    for row, value in enumerate(values):
        if value is not None and value < 0:
            raise UsageError(f"append_arrow: born_timestamp of row {row} is before 1970")
    return values


def _properties_of(table: pa.Table) -> list[Any] | None:
    """Headers, or properties that were read: these are packed here, with all their names."""
    if "properties" not in table.column_names:
        return _headers(table, "headers")
    if "headers" in table.column_names:
        raise UsageError("append_arrow: headers and properties are the same: give one of these columns")
    read = _headers(table, "properties")
    return None if read is None else [None if row is None else _packed(number, row) for number, row in enumerate(read)]


def _packed(number: int, read: dict[str, str]) -> bytes:
    for name in read:
        if name in ("KEYS", "TAGS"):
            raise UsageError(f"append_arrow: row {number}: {name} is no property: give it as key or tag")
    try:
        return _core.properties_encode({name: text for name, text in read.items() if name not in LEFT_BEHIND})
    except TypeError:
        raise UsageError(f"append_arrow: row {number}: a property is null: leave it out") from None
    except ValueError as error:
        size = sum(len(name.encode()) + len(text.encode()) + 2 for name, text in read.items())
        if size > PROPERTIES_BYTES_MAX:
            raise MessageTooLarge(
                f"append_arrow: row {number}: its properties have {size} bytes, and may have {PROPERTIES_BYTES_MAX}"
            ) from None
        raise UsageError(f"append_arrow: row {number}: its properties cannot be written: {error}") from None


def _headers(table: pa.Table, name: str) -> list[dict[str, str] | None] | None:
    if name not in table.column_names or pa.types.is_null(table[name].type):
        return None
    column = table[name]
    if not _are_headers(column.type):
        raise _wrong(name, column.type, "maps, or lists of structs with key and value, of strings")
    found: list[dict[str, str] | None] = []
    for number, row in enumerate(column.to_pylist()):
        pairs = row if row is None or pa.types.is_map(column.type) else [(pair["key"], pair["value"]) for pair in row]
        found.append(None if pairs is None else _properties(number, pairs))
    return found


def _are_headers(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return _is_text(kind.key_type) and _is_text(kind.item_type)
    if not _is_list(kind) or not pa.types.is_struct(kind.value_type):
        return False
    fields = list(kind.value_type)
    return {item.name for item in fields} == {"key", "value"} and all(_is_text(item.type) for item in fields)


def _properties(row: int, pairs: list[tuple[str, str]]) -> dict[str, str]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise UsageError(f"append_arrow: row {row} has a header twice")
    return found
