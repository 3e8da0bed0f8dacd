"""Kill campaign of topics: `python -m warren.tools.crash topics --kills N --seed S`. How kills are chosen: campaign.py.

Appenders, readers, makers of topics and a probe (topic_actors.py) work on a node whose log files, consume queues and
index files are small, so that all of them roll all the time. They, the topic worker, the supervisor, the store and the
queue workers are killed and stopped at random; the topic worker also at its crash points, and while it recovers.

Violations, beside those of topic_judge.py
  what a reader finds at any time is not what a message says of itself, has holes, a wrong order, or goes back
  what was confirmed cannot be read, or found by a key, its time or its id, by whoever asks afterwards, in any process
  a topic that was made again shows something of before
  at the end: a look-up by key, tag, time or id gives anything but what the records say
  in the files (topic_files.py): a unit or a key that is missing, stale or doubled; `warren check` finds a problem
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import warren
from warren.engine.catalog.catalog import Catalog
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.errors import Error
from warren.tools.crash.campaign import SETTINGS, Campaign
from warren.tools.crash.points import OF_TOPICS
from warren.tools.crash.report import Report
from warren.tools.crash.topic_actors import FIND_MAX, GROUP, GROUP_RELEASE_S, GROUP_TOPIC, PROBE_TOPIC
from warren.tools.crash.topic_files import differences
from warren.tools.crash.topic_judge import Logs, There, Topics, judge, judge_group
from warren.tools.crash.topic_log import BadFileError
from warren.tools.crash.topic_messages import TAGS, TOPICS, parsed
from warren.workers.cli.check import verify

#: look-ups of each kind at the end
LOOKS = 400
ROLES = ("appender", "group", "reader", "maker", "topic-probe")


@dataclass
class TopicReport(Report):
    """What a campaign of topics found. `received`: messages that are there at the end."""

    moved: int = 0
    committed: int = 0
    rounds: int = 0
    keys: int = 0
    looks: int = 0
    log_bytes: int = 0
    unconfirmed_there: int = 0
    seen: int = 0

    def _sums(self) -> list[str]:
        there = f"{self.received:,} there, {self.unconfirmed_there:,} of them never confirmed"
        none = f"of durability none {self.moved:,} elsewhere than said, {self.excused:,} gone with the node"
        seen = f"{self.seen:,} ranges that they read are still the same"
        return [
            f"topics: {self.confirmed:,} confirmed, {there}; {none}",
            f"readers: {self.reads:,} right answers, {seen}; {self.rounds:,} topics made again",
            f"group: {self.committed:,} committed",
            f"at the end: {self.keys:,} keys and {self.looks:,} other look-ups; {self.log_bytes >> 10:,} KiB of log",
        ]


class TopicCampaign(Campaign):
    """A node whose load are topics."""

    settings: ClassVar[dict[str, Any]] = SETTINGS | {
        "workers": 1,
        "log_file_bytes": 1 << 20,
        "topic_ring_bytes": 1 << 20,
        "consume_queue_entries": 300,
        "index_slots": 200,
        "index_entries": 1000,
        "group_release_s": GROUP_RELEASE_S,
    }
    actor_module: ClassVar[str] = "warren.tools.crash.topic_actors"
    actor_roles: ClassVar[tuple[tuple[str, int], ...]] = (
        ("appender", 3), ("group", 3), ("reader", 2), ("maker", 1), ("topic-probe", 1),
    )  # fmt: skip
    weights: ClassVar[dict[tuple[str, str], int]] = {
        ("kill", "appender"): 5,
        ("kill", "reader"): 2,
        ("kill", "group"): 3,
        ("kill", "maker"): 1,
        ("kill", "topics"): 7,
        ("again", "topics"): 3,
        ("end", "topics"): 1,
        ("kill", "supervisor"): 1,
        ("kill", "store"): 1,
        ("kill", "worker"): 1,
        ("several", "node"): 2,
        ("stop", "appender"): 1,
        ("stop", "reader"): 1,
        ("stop", "group"): 1,
        ("stop", "topics"): 1,
        ("stop", "supervisor"): 1,
    }
    points_more: ClassVar[tuple[str, ...]] = OF_TOPICS * 6
    report_of: ClassVar[type[Report]] = TopicReport
    report: TopicReport

    def _prepare(self, observer: warren.Node) -> None:
        for name, queues in TOPICS.items():
            observer.topic(name, queues=queues)
        observer.topic(PROBE_TOPIC, queues=1)
        self._node.watch()

    def _sizes(self) -> str:
        files = self.directory / "topics"
        counted = {
            name: sum(len(folders) + len(names) for _path, folders, names in os.walk(files / name))  # some go meanwhile
            for name in ("commitlog", "consumequeue", "index")
        }
        return ", ".join(f"{count} in {name}" for name, count in counted.items())

    # -- the end --------------------------------------------------------------------------------------------------

    def _drain(self, node: warren.Node) -> None:
        """End the actors, and wait until the worker is done with all that they left in their rings."""
        self._end_actors(ROLES)
        self._wait_for_sweep()

    def _compare(self, node: warren.Node) -> None:
        report = self.report
        logs = Logs()
        for role in ROLES[:-1]:
            for entry in self._entries(role):
                logs.take(entry)
        report.violations += logs.complaints
        report.errors.update(logs.errors)
        report.errors.update(entry[1].rstrip(":") for entry in self._entries("topic-probe") if entry[0] == "e")
        report.reads, report.rounds, report.seen = logs.right, logs.rounds, len(logs.seen)
        self._compare_probes("topic")
        try:
            there = self._everything(node)
            verdict = judge(there, logs, self._node_died_after)
            report.violations += verdict.wrong
            rows = node.topic(GROUP_TOPIC).group(GROUP)["queues"]
            committed = {row["queue"]: row["committed"] or 0 for row in rows}
            report.violations += judge_group(logs, GROUP_TOPIC, committed)
            report.committed = sum(committed.values())
            self._compare_look_ups(node, there)
        except Error as error:
            report.violations.append(f"the comparison failed: {type(error).__name__}: {error}")
            return
        report.confirmed, report.excused, report.moved = verdict.confirmed, verdict.excused, verdict.moved
        report.unconfirmed_there = verdict.unconfirmed_there
        report.received = sum(len(records) for queues in there.values() for records in queues)

    def _everything(self, node: warren.Node) -> Topics:
        """All records of all topics, by offset."""
        return {
            name: [list(self._read(node.topic(name), queue)) for queue in range(queues)]
            for name, queues in TOPICS.items()
        }

    def _read(self, topic: warren.Topic, queue: int) -> Iterator[There]:
        low, high = topic.offsets(queue)
        if low:
            self.report.violations.append(f"lost: {topic.name}/{queue} begins at {low}")
        at = low
        while at < high:
            found = topic.read(queue, at, max=1000, max_bytes=16 << 20)
            for record in found.records:
                message = parsed(record.body)
                said = (topic.name, record.tag or "", tuple(record.keys))
                if message is None or (message.topic, message.tag, message.keys) != said or record.offset != at:
                    self.report.violations.append(
                        f"wrong: {topic.name}/{queue}:{at} is {record.offset}, {said}, {record.body[:60]!r}"
                    )
                    return
                yield There(record.physical_offset, record.timestamp, message, record.message_id)
                at += 1
            if not found.records:
                self.report.violations.append(
                    f"lost: {topic.name}/{queue}:{at} of {high} says {found.status.name}, then {found.next_offset}"
                )
                return

    # -- look-ups ---------------------------------------------------------------------------------------------------

    def _compare_look_ups(self, node: warren.Node, there: Topics) -> None:
        for name, queues in there.items():
            topic = node.topic(name)
            self._look_for_keys(topic, queues)
            for queue, records in enumerate(queues):
                self._look_for_tags(topic, queue, records)
                self._look_for_times(topic, queue, records)
            self._look_for_ids(topic, queues)

    def _wrong(self, what: str, wanted: Any, found: Any) -> None:
        self.report.looks += 1
        if wanted != found:
            self.report.violations.append(f"{what}: {str(found)[:200]}, and should be {str(wanted)[:200]}")

    def _look_for_keys(self, topic: warren.Topic, queues: Sequence[Sequence[There]]) -> None:
        """Every common key, and some that only one message has: exactly its messages, the newest first."""
        by_key: dict[str, list[There]] = defaultdict(list)
        for record in (record for records in queues for record in records):
            for key in record.message.keys:
                by_key[key].append(record)
        alone = [key for key, records in by_key.items() if len(records) == 1]
        chosen = {key for key in by_key if len(by_key[key]) > 1} | set(self.rng.sample(alone, min(LOOKS, len(alone))))
        for key in sorted(chosen):
            records = sorted(by_key[key], reverse=True)
            found = topic.find(key, limit=FIND_MAX)
            self._wrong(f"key {key} of {topic.name}", *_positions(records, found))
            since, until = sorted(self.rng.choice(records).stored for _ in range(2))
            limit = self.rng.choice((1, 3, FIND_MAX))
            within = [record for record in records if since <= record.stored <= until][:limit]
            found = topic.find(key, since=since, until=until, limit=limit)
            self._wrong(f"key {key} of {topic.name} from {since} to {until}, {limit}", *_positions(within, found))
            self.report.keys += 1
        self._wrong(f"a key of {topic.name} that nobody gave", [], topic.find("nobody", limit=9))

    def _look_for_tags(self, topic: warren.Topic, queue: int, records: Sequence[There]) -> None:
        for tag in (*TAGS[:-1], "Bb"):
            wanted = [offset for offset, record in enumerate(records) if record.message.tag == tag]
            found: list[int] = []
            at = 0
            while at < len(records):
                answer = topic.read(queue, at, max=1000, max_bytes=16 << 20, tag=tag)
                found += [record.offset for record in answer.records]
                if answer.next_offset <= at:
                    break
                at = answer.next_offset
            self._wrong(f"tag {tag} of {topic.name}/{queue}", wanted, found)

    def _look_for_times(self, topic: warren.Topic, queue: int, records: Sequence[There]) -> None:
        times = [record.stored for record in records]
        for _ in range(min(LOOKS, 10 * len(times)) // 8):
            when = self.rng.choice(times) + self.rng.choice((-1, 0, 0, 1))
            at = bisect_right(times, when) - 1
            what = f"time {when} of {topic.name}/{queue}"
            self._wrong(f"first from {what}", bisect_left(times, when), topic.offset_at(queue, when))
            self._wrong(f"last until {what}", at if at >= 0 else None, topic.offset_at(queue, when, "upper"))

    def _look_for_ids(self, topic: warren.Topic, queues: Sequence[Sequence[There]]) -> None:
        records = [record for of_queue in queues for record in of_queue]
        for record in self.rng.sample(records, min(LOOKS, len(records))):
            found = topic.find_id(record.message_id)
            self._wrong(f"id {record.message_id}", record.position, None if found is None else found.physical_offset)
            beside = f"{record.message_id[:-16]}{record.position + 1:016X}"
            self._wrong(f"id {beside}, of no record", None, topic.find_id(beside))

    # -- files ------------------------------------------------------------------------------------------------------

    def _compare_files(self) -> None:
        report = self.report
        folder = self.directory / "topics"
        report.log_bytes = sum(path.stat().st_size for path in (folder / "commitlog").iterdir())
        declared = Catalog.load(self.directory).topics
        topics = {topic.name: (topic.id, topic.queues) for topic in declared.values()}
        try:
            report.violations += differences(folder, topics, self.settings["index_slots"])
        except BadFileError as error:
            report.violations.append(f"files: {error}")
        report.violations += [f"warren check: {text}" for text in verify(NodeDirectory(self.directory)).problems]


def _positions(wanted: Sequence[There], found: Sequence[warren.Record]) -> tuple[list[int], list[int]]:
    return [record.position for record in wanted], [record.physical_offset for record in found]
