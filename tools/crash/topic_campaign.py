"""Kill campaign of topics: `python -m warren.tools.crash topics --kills N --seed S`. How kills are chosen: campaign.py.

Appenders, readers, makers of topics and a probe (topic_actors.py) work on a node whose log files, consume queues and
index files are small, so that all of them roll all the time. One topic more is compacted all the time
(compacted_actors.py), and two more have half messages (half_actors.py). Actors, the topic worker, the supervisor, the
store and the queue workers are killed and stopped at random; the topic worker also at its crash points, while it
recovers, and while it makes a pass over the compacted topic.

Violations, beside those of topic_judge.py, compacted_judge.py and half_judge.py
  what a reader finds at any time is not what a message says of itself, has holes, a wrong order, or goes back
  what was confirmed cannot be read, or found by a key, its time or its id, by whoever asks afterwards, in any process
  a topic that was made again shows something of before
  at the end: a look-up by key, tag, time or id gives anything but what the records say
  at the end: a half message that is pending cannot be committed, or rolled back; or is there then twice, or is not
  in the files (topic_files.py): a unit or a key that is missing, stale or doubled; `warren check` finds a problem
  in files of newest messages (compacted_files.py): anything but what the log says

The log keeps all its files here from the first message of a topic without retention on: so it says what each file of
newest messages has to have. On a slow machine the first files have only messages of the compacted topic, and go.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import warren
from warren.engine.catalog.catalog import Catalog
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.errors import Error
from warren.tools.crash import compacted_actors, half_actors
from warren.tools.crash.campaign import SETTINGS, Campaign
from warren.tools.crash.compacted_files import NewestFile, newest_in, unlike_log
from warren.tools.crash.compacted_judge import Changes, Kept, judge_newest, unlike_the_log
from warren.tools.crash.half_judge import PUT_ASIDE, Halves, judge_halves, judge_outcomes, outcomes_of
from warren.tools.crash.points import OF_TOPICS
from warren.tools.crash.report import Report
from warren.tools.crash.topic_actors import FIND_MAX, GROUP, GROUP_RELEASE_S, GROUP_TOPIC, PROBE_TOPIC
from warren.tools.crash.topic_files import differences
from warren.tools.crash.topic_judge import Logs, There, Topics, judge, judge_group
from warren.tools.crash.topic_log import SYSTEM, BadFileError, Logged, walked
from warren.tools.crash.topic_messages import TAGS, TOPICS, parsed
from warren.tools.crash.victims import Node
from warren.workers.cli.check import verify

#: look-ups of each kind at the end
LOOKS = 400
ROLES = ("appender", "group", "reader", "maker", "topic-probe")
NEWEST_ROLES = ("newest-appender", "newest-reader")
HALF_ROLES = ("half-preparer", "half-checker", "half-reader")
#: crash points on the way of passes and half messages, which this load comes to all the time
OF_THIS_LOAD = ("compact_written", "compact_renamed", "retain_raised", "topic_half_finished")
#: how long a kill waits for a pass that it can meet
PASS_WAIT_S = 2.0


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
    #: of the compacted topic
    newest_confirmed: int = 0
    newest_looks: int = 0
    newest_keys: int = 0  #: compared at the end
    newest_gone: int = 0  #: of them those that tombstones took away
    newest_there: int = 0
    passes: int = 0  #: that gave a file of newest messages another content, as far as they were seen
    killed_in_pass: int = 0
    #: of half messages
    prepared: int = 0
    halves_committed: int = 0
    halves_rolled_back: int = 0
    halves_put_aside: int = 0
    halves_checked: int = 0
    halves_asked: int = 0
    halves_pending: int = 0

    def _sums(self) -> list[str]:
        there = f"{self.received:,} there, {self.unconfirmed_there:,} of them never confirmed"
        none = f"of durability none {self.moved:,} elsewhere than said, {self.excused:,} gone with the node"
        seen = f"{self.seen:,} ranges that they read are still the same"
        newest = (
            f"{self.newest_confirmed:,} confirmed; {self.newest_keys:,} keys compared, of which {self.newest_gone:,}"
            f" are gone, {self.newest_there:,} messages there; {self.newest_looks:,} looks; {self.passes:,} passes"
            f" seen, {self.killed_in_pass:,} kills in one"
        )
        halves = (
            f"{self.prepared:,} prepared, {self.halves_committed:,} committed, {self.halves_rolled_back:,} rolled back,"
            f" {self.halves_put_aside:,} put aside, {self.halves_pending:,} pending; {self.halves_asked:,} answers"
            f" finished {self.halves_checked:,}"
        )
        return [
            f"topics: {self.confirmed:,} confirmed, {there}; {none}",
            f"readers: {self.reads:,} right answers, {seen}; {self.rounds:,} topics made again",
            f"group: {self.committed:,} committed",
            f"compacted: {newest}",
            f"half messages: {halves}",
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
        # so that passes are always due, take a while, and end at their keys
        "retention_check_s": 0.1,
        "compaction_dirty": 0.01,
        "compaction_keys": 10,
        "compaction_tombstone_s": compacted_actors.TOMBSTONE_S,
        "compaction_bytes_per_s": 1 << 19,
        "half_after_s": half_actors.AFTER_S,
        "half_interval_s": half_actors.INTERVAL_S,
        "half_checks_max": half_actors.CHECKS_MAX,
        "half_outcomes_kept": 1_000_000,
    }
    actor_module: ClassVar[str] = "warren.tools.crash.topic_actors"
    actor_roles: ClassVar[tuple[tuple[str, int], ...]] = (
        ("appender", 3), ("group", 3), ("reader", 2), ("maker", 1), ("topic-probe", 1),
        ("newest-appender", 2), ("newest-reader", 2), ("half-preparer", 2), ("half-checker", 1), ("half-reader", 1),
    )  # fmt: skip
    weights: ClassVar[dict[tuple[str, str], int]] = {
        ("kill", "appender"): 5,
        ("kill", "reader"): 2,
        ("kill", "group"): 3,
        ("kill", "maker"): 1,
        ("kill", "newest-appender"): 2,
        ("kill", "newest-reader"): 1,
        ("kill", "half-preparer"): 3,
        ("kill", "half-checker"): 1,
        ("kill", "half-reader"): 1,
        ("kill", "pass"): 3,
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
        ("stop", "half-checker"): 1,
        ("stop", "topics"): 1,
        ("stop", "supervisor"): 1,
    }
    points_more: ClassVar[tuple[str, ...]] = OF_TOPICS * 4 + OF_THIS_LOAD * 10
    report_of: ClassVar[type[Report]] = TopicReport
    report: TopicReport
    #: what the logs say, once they were compared
    _changes: Changes | None = None
    _halves: Halves | None = None

    def _prepare(self, observer: warren.Node) -> None:
        for name, queues in TOPICS.items():
            observer.topic(name, queues=queues)
        observer.topic(PROBE_TOPIC, queues=1)
        newest = observer.topic(compacted_actors.TOPIC, queues=compacted_actors.QUEUES, compacted=True)
        for name, queues in half_actors.TOPICS.items():
            observer.topic(name, queues=queues)
        declared = Catalog.load(self.directory).topics
        self._newest_folder = self.directory / "topics" / "compacted" / str(declared[newest.name].id)
        self._newest_files: dict[str, tuple[int, int]] = {}
        self._node.watch()

    def _sizes(self) -> str:
        files = self.directory / "topics"
        counted = {
            name: sum(len(folders) + len(names) for _path, folders, names in os.walk(files / name))  # some go meanwhile
            for name in ("commitlog", "consumequeue", "index")
        }
        return ", ".join(f"{count} in {name}" for name, count in counted.items())

    # -- passes over the compacted topic --------------------------------------------------------------------------

    def _count(self) -> None:
        super()._count()
        for queue in range(compacted_actors.QUEUES):
            try:
                found = (self._newest_folder / str(queue)).stat()
            except FileNotFoundError:
                continue
            made = found.st_ino, found.st_mtime_ns
            self.report.passes += self._newest_files.get(str(queue)) != made
            self._newest_files[str(queue)] = made

    def _hit(self, node: Node, what: str, role: str) -> None:
        if role != "pass":
            super()._hit(node, what, role)
            return
        deadline = time.monotonic() + PASS_WAIT_S
        while not self._in_pass():
            if time.monotonic() > deadline:
                return
            self._count()
            time.sleep(0.002)
        time.sleep(self.rng.random() ** 2 * 0.2)
        in_pass = self._in_pass()
        if self._kill(node, "topics"):
            self.report.killed_in_pass += in_pass

    def _in_pass(self) -> bool:
        """Whether a file of newest messages is being written, or was left by who was killed at it."""
        return any(self._newest_folder.glob("*.new"))

    # -- the end --------------------------------------------------------------------------------------------------

    def _drain(self, node: warren.Node) -> None:
        """End the actors, and wait until the worker is done with all that they left in their rings."""
        self._end_actors((*ROLES, *NEWEST_ROLES, *HALF_ROLES))
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
            self._compare_newest(node)
            self._compare_halves(node)
        except Error as error:
            report.violations.append(f"the comparison failed: {type(error).__name__}: {error}")
            return
        report.confirmed, report.excused, report.moved = verdict.confirmed, verdict.excused, verdict.moved
        report.unconfirmed_there = verdict.unconfirmed_there
        report.received = sum(len(records) for queues in there.values() for records in queues)

    def _everything(self, node: warren.Node, topics: Mapping[str, int] = TOPICS) -> Topics:
        """All records of these topics, by offset."""
        return {
            name: [list(self._read(node.topic(name), queue)) for queue in range(queues)]
            for name, queues in topics.items()
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

    # -- the compacted topic ----------------------------------------------------------------------------------------

    def _compare_newest(self, node: warren.Node) -> None:
        report, changes = self.report, Changes()
        for role in NEWEST_ROLES:
            for entry in self._entries(role):
                changes.take(entry)
        report.violations += changes.complaints
        report.errors.update(changes.errors)
        topic = node.topic(compacted_actors.TOPIC)
        try:
            there = [list(compacted_actors.read_on(topic, queue)) for queue in range(topic.queues)]
            ended, tombstone_s = time.monotonic(), compacted_actors.TOMBSTONE_S
            verdict = judge_newest(there, changes, ended=ended, tombstone_s=tombstone_s)
            report.violations += [f"{topic.name}: {text}" for text in verdict.wrong]
            self._look_for_newest(topic, there)
        except ValueError as error:
            report.violations.append(f"{topic.name}: {error}")
            return
        report.newest_confirmed, report.newest_looks = changes.confirmed, changes.looks
        report.newest_keys, report.newest_gone, report.newest_there = verdict.keys, verdict.gone, verdict.there
        self._changes = changes

    def _look_for_newest(self, topic: warren.Topic, there: Sequence[Sequence[Kept]]) -> None:
        """Each key leads to the newest message that was read of it, and each id to its message. Passes go on meanwhile:
        older ones, and tombstones that had their time, may be gone.
        """
        newest = {record.keys: record for records in there for record in records}
        for record in newest.values():
            keys = record.keys[:1]
            found = [one for one in topic.find(keys[0], limit=FIND_MAX) if one.keys == record.keys]
            by_id = topic.find_id(record.message_id)
            if record.tombstone and (by_id is None or not found):
                continue
            key = f"key {record.keys} of {topic.name}"
            self._wrong(f"the newest of {key}", record.position, found[0].physical_offset if found else None)
            self._wrong(f"the id of {key}", record.position, None if by_id is None else by_id.physical_offset)

    # -- half messages ----------------------------------------------------------------------------------------------

    def _compare_halves(self, node: warren.Node) -> None:
        report, halves = self.report, Halves()
        for role in HALF_ROLES:
            for entry in self._entries(role):
                halves.take(entry)
        report.violations += halves.complaints
        report.errors.update(halves.errors)
        pending = {name: self._pending(node.topic(name)) for name in half_actors.TOPICS}
        there = self._everything(node, half_actors.TOPICS)
        verdict = judge_halves(there, pending, halves)
        report.violations += verdict.wrong
        self._compare_look_ups(node, there)
        report.prepared, report.halves_pending = verdict.prepared, verdict.pending
        report.halves_committed, report.halves_rolled_back = verdict.committed, verdict.rolled_back
        report.halves_checked, report.halves_asked = verdict.checked, halves.questions
        self._finish_all(node, pending, halves)
        self._halves = halves

    def _pending(self, topic: warren.Topic) -> dict[str, str]:
        """Token → id of those that are listed."""
        found: dict[str, str] = {}
        for half in topic.halves(half_actors.LISTED_MAX):
            message = parsed(half.body)
            if message is None or (message.topic, message.keys) != (topic.name, half.keys) or message.token in found:
                self.report.violations.append(
                    f"wrong: half message {half.message_id} is {half.keys} {half.body[:60]!r}"
                )
                continue
            found[message.token] = half.message_id
        return found

    def _finish_all(self, node: warren.Node, pending: Mapping[str, Mapping[str, str]], halves: Halves) -> None:
        """What is pending can still be committed, and is there once then, and rolled back, and is nowhere."""
        for name, ids in pending.items():
            topic = node.topic(name)
            for number, (token, id) in enumerate(ids.items()):
                half = halves.by_token.get(token)
                if half is None:
                    continue  # it was complained of
                if number % 2:
                    topic.half(id).rollback()
                    half.rollbacks, half.rolled_back = half.rollbacks + 1, True
                else:
                    at = topic.half(id).commit()
                    half.commits += 1
                    half.committed.add((at.queue, at.offset, at.physical_offset))
            self._wrong(f"half messages of {name} that are pending", [], topic.halves())
        left: dict[str, dict[str, str]] = {name: {} for name in pending}
        self.report.violations += judge_halves(self._everything(node, half_actors.TOPICS), left, halves).wrong

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
        newest_id, queues_n = topics[compacted_actors.TOPIC]
        try:
            log = list(walked(folder / "commitlog"))
            records = [record for record in log if record.topic not in SYSTEM]
            files = newest_in(folder / "compacted", {newest_id: queues_n})
            minima = {place: file.end for place, file in files.items()}
            slots = self.settings["index_slots"]
            report.violations += differences(folder, topics, slots, minima=minima, records=records)
            newest = [record for record in records if record.topic_id == newest_id]
            queues = [[record for record in newest if record.queue == queue] for queue in range(queues_n)]
            self._compare_newest_files(files, queues)
            self._compare_outcomes(log)
        except BadFileError as error:
            report.violations.append(f"files: {error}")
        report.violations += [f"warren check: {text}" for text in verify(NodeDirectory(self.directory)).problems]

    def _compare_newest_files(
        self, files: Mapping[tuple[int, int], NewestFile], queues: Sequence[Sequence[Logged]]
    ) -> None:
        """`queues`: all that the log has of each."""
        for (_id, queue), file in files.items():
            name, log = f"{compacted_actors.TOPIC}/{queue}", queues[queue]
            maximum = log[-1].offset + 1 if log else file.end
            self.report.violations += unlike_log(name, file, maximum, log, compacted_actors.TOMBSTONE_S * 1000)
        if self._changes is not None:
            tokens = [{record.offset: record.properties.get("token", "") for record in log} for log in queues]
            self.report.violations += unlike_the_log(self._changes.seen, tokens)

    def _compare_outcomes(self, log: Sequence[Logged]) -> None:
        """What the log says of half messages."""
        if self._halves is None:
            return
        prepared, outcomes = outcomes_of(log)
        self.report.violations += judge_outcomes(prepared, outcomes, self._halves, ())
        self.report.halves_put_aside = sum(outcome.kind == PUT_ASIDE for outcome in outcomes)


def _positions(wanted: Sequence[There], found: Sequence[warren.Record]) -> tuple[list[int], list[int]]:
    return [record.position for record in wanted], [record.physical_offset for record in found]
