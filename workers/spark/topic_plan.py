"""What a read of topics is about, as the node has it now: topics, partitions, offsets, what is missing.

Used where Spark plans, and where it reads. Nothing is kept between two calls of Spark but the node's client, so what
is planned holds what an executor needs to see that it reads the very same topic.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from warren.engine.catalog.group_topics import is_declared
from warren.engine.catalog.topics import TopicDeclaration
from warren.engine.errors import DataLoss, StoreError, TimedOut, TopicNotFound, UsageError
from warren.engine.saying import counted, shown
from warren.workers.faces import topic_groups
from warren.workers.faces.node import client_of
from warren.workers.faces.topic_files import TopicFiles
from warren.workers.faces.topic_reading import TopicReading
from warren.workers.faces.topic_scans import TopicScans
from warren.workers.spark.client import node_of
from warren.workers.spark.hosts import files_at, node_name, runs_here
from warren.workers.spark.topic_offsets import Place
from warren.workers.spark.topic_options import EARLIEST, LATEST, Bound, TopicReadOptions

if TYPE_CHECKING:
    from warren.workers.client.client import Client

log = logging.getLogger(__name__)

#: how many names an error shows
NAMES_SHOWN = 20


class _Node:
    """Topics of a node that runs here, by this process's client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.node_id = client.attachment().superblock.node_id

    def topics(self) -> Mapping[str, TopicDeclaration]:
        return self._client.catalog().topics

    def reading(self, topic: TopicDeclaration) -> TopicReading:
        return TopicReading(self._client, topic)


class Topics:
    """The topics of a node that a read is about: as the node shows them, or, with the option `mount` where it does not
    run, as its files do. Raises PeerLost, TimedOut, NodeNotRunning, ClosedError everywhere.
    """

    def __init__(self, options: TopicReadOptions, role: str) -> None:
        self.options = options
        files = None if options.mount is None else files_at(options.mount)
        if files is not None and not runs_here(options.path, files, role, options.timeout_s):
            self._place: _Node | TopicFiles = files
        else:
            self._place = _Node(client_of(node_of(options.path, role, options.timeout_s)))

    @property
    def by_files(self) -> bool:
        """Whether the node does not run here, and its files are read at `mount`."""
        return isinstance(self._place, TopicFiles)

    def incarnation(self, topic: TopicDeclaration) -> str:
        """Return what tells this topic from a later one of its name, and this node from another one."""
        return f"{node_name(self._place.node_id)}-{topic.id}"

    def reading(self, topic: TopicDeclaration) -> TopicScans:
        """Return what reads it."""
        return self._place.reading(topic)

    def publish(self, topic: TopicDeclaration, group: str, offsets: Mapping[int, int]) -> None:
        """Show offsets of a group. UsageError: the node does not run here."""
        reading = self.reading(topic)
        if not isinstance(reading, TopicReading):
            raise UsageError(
                "options 'groupId' and 'groupIdPrefix' show offsets at the node, which does not run on this host: "
                "leave them out, or run the driver there"
            )
        topic_groups.publish(reading, group, offsets)

    # -- which topics -------------------------------------------------------------------------------------------

    def found(self) -> dict[str, TopicDeclaration]:
        """Return the topics that are selected and there, by name. UsageError: a partition is not there."""
        selection, there = self.options.selection, self._place.topics()
        if selection.option == "subscribePattern":
            names = [name for name in there if is_declared(name) and re.fullmatch(selection.pattern, name)]
        else:
            names = [name for name in selection.names if name in there]
        found = {name: there[name] for name in sorted(names)}
        for name, partitions in (selection.partitions or {}).items():
            if name in found and max(partitions) >= found[name].queues:
                raise UsageError(
                    f"option 'assign': topic {name!r} has no partition {max(partitions)}: it has "
                    f"{counted(found[name].queues, 'partition')}, from 0 on"
                )
        return found

    def all_found(self) -> dict[str, TopicDeclaration]:
        """The same. TopicNotFound: one that is named is not there."""
        found = self.found()
        missing = [name for name in self.options.selection.names if name not in found]
        if missing:
            names = sorted(name for name in self._place.topics() if is_declared(name))
            told = ", ".join(names[:NAMES_SHOWN]) + (", …" if len(names) > NAMES_SHOWN else "")
            raise TopicNotFound(
                f"option {self.options.selection.option!r}: there is no topic {missing[0]!r} in {self.options.path}; "
                f"topics there: {told or 'none'}"
            )
        return found

    def partitions(self, topic: TopicDeclaration) -> Iterable[int]:
        """Return the partitions of a topic that are selected."""
        assigned = self.options.selection.partitions
        return range(topic.queues) if assigned is None else assigned[topic.name]

    # -- which offsets ------------------------------------------------------------------------------------------

    def resolved(self, bound: Bound, found: Mapping[str, TopicDeclaration], *, end: bool) -> dict[Place, int]:
        """Return the offset that a start, or an end, means in each partition. UsageError: it means none there."""
        if bound.numbers is not None:
            self._check_named(bound, found)
        offsets: dict[Place, int] = {}
        for name, topic in found.items():
            reading = self.reading(topic)
            for partition in self.partitions(topic):
                offsets[name, partition] = self._resolve(bound, reading, partition, end)
        return offsets

    def _check_named(self, bound: Bound, found: Mapping[str, TopicDeclaration]) -> None:
        """What has a number for each partition has one for each that is read, and for no other."""
        numbers = bound.numbers or {}
        unknown = sorted(set(numbers) - set(found))
        if unknown:
            raise UsageError(
                f"option {bound.option!r} names topic {unknown[0]!r}, which is not read: it is not there, or not in "
                f"{self.options.selection}"
            )
        for name, topic in found.items():
            wanted, told = set(self.partitions(topic)), set(numbers.get(name, {}))
            if told != wanted:
                other = sorted(told - wanted)
                raise UsageError(
                    f"option {bound.option!r}: topic {name!r} has no partition {other[0]} that is read"
                    if other
                    else f"option {bound.option!r} must name all partitions that are read: of topic {name!r} it lacks "
                    f"{', '.join(str(partition) for partition in sorted(wanted - told)[:NAMES_SHOWN])}"
                    " (-2 is earliest, -1 is latest)"
                )

    def _resolve(self, bound: Bound, reading: TopicScans, partition: int, end: bool) -> int:
        low, high = reading.offsets(partition)
        name = reading.declared.name
        if bound.kind in ("earliest", "latest"):
            return low if bound.kind == "earliest" else high
        number = bound.time_ms if bound.numbers is None else bound.numbers[name][partition]
        if bound.kind == "offsets":
            if number in (EARLIEST, LATEST):
                return low if number == EARLIEST else high
            if number > high:
                raise UsageError(
                    f"option {bound.option!r}: topic {name!r}, partition {partition} ends at offset {high}: {number} "
                    "is behind that"
                )
            return number
        offset = reading.offset_at(partition, number)
        if offset is not None and offset < high:
            return offset
        if not end and not self.options.latest_if_no_message_is_so_late:
            raise UsageError(
                f"option {bound.option!r}: topic {name!r}, partition {partition} has no message stored at {number} or "
                "later; startingOffsetsByTimestampStrategy=latest begins at the end then"
            )
        return high

    # -- what is missing ----------------------------------------------------------------------------------------

    def checked_start(self, reading: TopicScans, partition: int, start: int, end: int) -> int:
        """Return where a planned range begins: at its start, or, as far as failOnDataLoss=false allows it, behind what
        is gone. DataLoss: messages of it are gone. StoreError: the topic is shorter than the range.
        """
        low, high = reading.offsets(partition)
        high = self.check_end(reading, partition, end, high)
        if start >= low or start >= end or reading.declared.compacted:
            return start
        self.lost(reading.declared.name, partition, start, min(low, end), low)
        return min(low, end)

    def check_end(self, reading: TopicScans, partition: int, end: int, high: int) -> int:
        """Return where a partition ends, that ended at `high`. StoreError: it is shorter than it was."""
        if end > high and self.by_files:  # files follow the node by a second, and it may have run here before
            with contextlib.suppress(TimedOut):
                reading.reach(partition, end, self.options.timeout_s)
            high = reading.offsets(partition)[1]
        if end > high:
            raise StoreError(
                f"topic {reading.declared.name!r}, partition {partition} ends at offset {high}, and offsets up to "
                f"{end} were planned or committed: the data directory is older than the checkpoint. Begin with a new "
                "checkpointLocation"
            )
        return high

    def lost(self, topic: str, partition: int, wanted: int, end: int, minimum: int) -> None:
        """Messages [wanted, end) are gone: DataLoss, or with failOnDataLoss=false a line in the log."""
        text = (
            f"topic {topic!r}, partition {partition}: {counted(end - wanted, 'message')} from offset {wanted} on "
            f"{'is' if end - wanted == 1 else 'are'} gone: the first that is still there has offset {minimum}"
        )
        if self.options.fail_on_data_loss:
            error = DataLoss(
                f"{text}. Keep messages for longer (retention_s, retention_bytes), or read more often; "
                "failOnDataLoss=false goes on without them"
            )
            error.queue, error.wanted, error.minimum = partition, wanted, minimum
            raise error
        log.warning("%s; going on without them, as failOnDataLoss=false says", text)

    def replaced(self, topic: str, expected: str, now: str | None) -> None:
        """A topic was deleted, and perhaps made anew: StoreError, or with failOnDataLoss=false a line in the log."""
        what = "deleted" if now is None else "deleted and made again, or the node is another one"
        text = (
            f"topic {topic!r} was {what}, since its offsets were written down (then {expected}"
            f"{'' if now is None else f', now {now}'})"
        )
        if self.options.fail_on_data_loss:
            raise StoreError(
                f"{text}: they mean other messages, and what was not read is lost. Begin with a new "
                "checkpointLocation; failOnDataLoss=false goes on with what is there"
            )
        log.warning("%s; going on with what is there, as failOnDataLoss=false says", text)

    def same(self, topic: str, expected: str) -> TopicDeclaration | None:
        """Return the topic if it still is this one; else as `replaced`, and None."""
        found = self._place.topics().get(topic)
        now = None if found is None else self.incarnation(found)
        if now == expected:
            return found
        self.replaced(topic, expected, now)
        return None

    def check_partitions(self, topic: TopicDeclaration, offsets: Iterable[int]) -> None:
        """Raise UsageError when the checkpoint has partitions of a topic that the query does not read any more: their
        offsets would leave the checkpoint, and all of them come again when they are read once more.
        """
        left = sorted(set(offsets) - set(self.partitions(topic)))
        if left:
            raise UsageError(
                f"the checkpoint has {counted(len(left), 'partition')} of topic {topic.name!r} that the query does not "
                f"read ({self.options.selection}): {', '.join(map(str, left[:NAMES_SHOWN]))}; a changed query needs a "
                "new checkpointLocation"
            )

    def check_selected(self, topic: str) -> None:
        """Raise UsageError when the checkpoint has a topic that is there and that the query does not read any more."""
        if topic in self._place.topics():
            raise UsageError(
                f"the checkpoint has topic {shown(topic)}, which the query does not read ({self.options.selection}): a "
                "changed query needs a new checkpointLocation"
            )
