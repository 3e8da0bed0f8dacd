"""The options of `format("warren-files")`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from warren.engine.errors import UsageError
from warren.engine.saying import shown
from warren.workers.spark.files.schema import COLUMNS
from warren.workers.spark.options import BATCH_MAX, COUNT_MAX, Given, absolute

_OPTIONS = (
    "path",
    "files",
    "includeValue",
    "topics",
    "startingPosition",
    "endingPosition",
    "maxPartitionBytes",
    "batchRows",
)
_OF_THE_LOG = ("startingPosition", "endingPosition")


@dataclass(frozen=True)
class FilesOptions:
    """What a read was asked for."""

    path: str
    files: str
    include_value: bool
    #: only these topics; none: all
    topics: frozenset[str]
    #: positions of the log: where a record begins, and behind the last one; None: all there are
    start: int | None
    end: int | None
    partition_bytes: int
    batch_rows: int

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> FilesOptions:
        """Check the options of a read; UsageError says what is wrong."""
        given = Given(options, _OPTIONS, "source")
        files = given.required("files", f"which files to read, of {', '.join(COLUMNS)}")
        if files not in COLUMNS:
            raise UsageError(f'option "files" must be one of {", ".join(COLUMNS)}, not {shown(files)}')
        topics = frozenset(name for name in (given.text("topics") or "").split(",") if name)
        if topics and files not in ("log", "consumequeue"):
            raise UsageError(f'option "topics" goes with files=log and files=consumequeue, not with files={files}')
        start, end = (given.count(name, COUNT_MAX, 0) for name in _OF_THE_LOG)
        if files != "log" and (start, end) != (None, None):
            raise UsageError(f"options {' and '.join(_OF_THE_LOG)} go with files=log, not with files={files}")
        return cls(
            path=absolute(given.required("path", "the data directory of a Warren node, running or not")),
            files=files,
            include_value=given.flag("includeValue", False),
            topics=topics,
            start=start,
            end=end,
            partition_bytes=given.number("maxPartitionBytes", 64 << 20, COUNT_MAX),
            batch_rows=given.number("batchRows", 50_000, BATCH_MAX),
        )
