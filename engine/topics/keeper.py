"""The groups of readers of a topic worker: it answers their requests, and keeps what they commit.

What is committed is a record of OFFSETS_TOPIC in the log, synced before the answer leaves. A snapshot of all offsets
(`topics/groups`, snapshots.py) says from where the log has to be read for more, so a start is short; it is written
after changes and after each SNAPSHOT_LOG_BYTES of log, whatever is in them.

    groups.py    one group: members, who has which queue, who is fenced
    group_rows.py   what members see of a change, in shared memory
    sessions.py  which members were silent for too long
    offsets.py   records and snapshot as bytes
    control.py   the requests

Invariants
  A snapshot holds all that is committed below its position. It may hold more: what it has from behind it comes again
  by the log, in order, or was never answered.
  Nothing is appended by a worker while there is a snapshot that ends behind the log, or holds an offset that does.
  A start takes no offset above the end of its queue: of what power took, nobody was told that it is durable.
  Before anything else is done, and before the answer leaves, a group's row says that it has changed.
Crash points: those of snapshots.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from logging import ERROR, WARNING
from pathlib import Path
from typing import Any

import msgspec

from warren.engine import _core
from warren.engine.errors import Error, Fenced, LimitError, TopicNotFound, UsageError
from warren.engine.kernel import atomic_file
from warren.engine.kernel.refusal import Refusal
from warren.engine.saying import Say, counted, quoted
from warren.engine.topics import control, offsets
from warren.engine.topics.formats import OFFSETS_TOPIC
from warren.engine.topics.group_rows import GroupRow, GroupRows
from warren.engine.topics.groups import RELEASE_S, Committed, Group, Member
from warren.engine.topics.offsets import Key, Offsets
from warren.engine.topics.sessions import Sessions
from warren.engine.topics.snapshots import Snapshot, Unreadable

SNAPSHOT_S = 1.0  #: between two snapshots
SNAPSHOT_LOG_BYTES = 64 << 20  #: of log without any change, which the next start would read
#: what a list of names needs in a reply beside them, and for each
_NAMES_MARGIN, _NAME_MARGIN = 64, 5


@dataclass(frozen=True)
class Log:
    """What a start found of the log."""

    position: int  #: where it ends
    first: int  #: where its first file begins; 0: it has none


@dataclass
class Keeper:
    """All groups of a node."""

    server: _core.TopicServer
    path: Path  #: of the snapshot
    node: bytes
    reply_bytes: int
    #: how many queues a topic has that is served now; None: it is not there
    queues_of: Callable[[int], int | None]
    say: Say
    release_s: float = RELEASE_S
    topic_of: Callable[[int], object] = int  #: the name of a topic
    waits: bool = False  #: a request waits for room in the log
    #: who answers requests that are about no group
    others: dict[type[control.Request], Callable[[Any], tuple[control.Answer, int]]] = field(default_factory=dict)
    _offsets: Offsets = field(default_factory=dict)
    _groups: dict[Key, Group] = field(default_factory=dict)
    _rows: dict[Key, GroupRow] = field(default_factory=dict)  # of those with members

    def __post_init__(self) -> None:
        self._shown = GroupRows(self.server)
        self._sessions = Sessions(self.server)
        self._generation = 0  # of groups that were forgotten, at most: one of that name gives none of theirs again
        self._epoch = 0
        self._settled_at = 0.0
        self._changed = False
        self._saved_at = 0.0  # when a snapshot was begun last
        self._needed = False  # the file must be written before the log goes on
        self._told: dict[Key, int] = {}  # position behind a record with all offsets of a group
        self.snapshot: Snapshot[offsets.All] = Snapshot(
            self.path, "offsets of groups", self._encode, self.server.kick, self.say
        )

    # -- start --------------------------------------------------------------------------------------------------

    def load(self, log: Log) -> None:
        """Take up what was committed, between the server's settle and begin. Raises StoreError."""
        with atomic_file.explained(f"cannot read {self.path}"):
            found = self._read_snapshot(log)
        with atomic_file.file_explained(f"cannot read the log of topics for {self.path}"):
            if found is None or not self._read_log(found, log):
                found = offsets.All() if found is None else found
                self._needed = True
                self._read_all(found, log)
        self._offsets = found.offsets
        self._needed |= self.snapshot.saved > log.position  # what is appended there from now on is not in it
        self._changed = self.snapshot.saved != log.position

    def _read_snapshot(self, log: Log) -> offsets.All | None:
        """None: there is none. Raises OSError."""
        decode = partial(offsets.decode_snapshot, self.node)
        found = self.snapshot.read(decode, bool(log.position), log.first)
        if found is not None:
            self.snapshot.saved = found.position
        return found

    def _read_log(self, found: offsets.All, log: Log) -> bool:
        """Take up what the log has behind a snapshot; false: it does not fit to it. Raises OSError."""
        if found.position >= log.position:
            return True  # what lay between was not synced, and nobody was told of it
        return self._walk(found, False, found.position, found.epoch, found.number) == log.position

    def _read_all(self, found: offsets.All, log: Log) -> None:
        end = self._walk(found, True, log.first, 0, 0) if log.position else 0
        if end != log.position:
            self.say(
                f"the log of topics could be read for offsets of groups up to position {end} only: what groups "
                "committed behind it counts as not done, and is delivered again",
                ERROR,
            )

    def _walk(self, found: offsets.All, anew: bool, position: int, epoch: int, number: int) -> int:
        wrong = 0

        def take(body: bytes) -> None:
            nonlocal wrong
            try:
                offsets.apply(found.offsets, body)
            except Unreadable:
                wrong += 1

        end = self.server.system_records(OFFSETS_TOPIC.encode(), anew, position, epoch, number, take)
        if wrong:
            self.say(f"{counted(wrong, 'record')} of {OFFSETS_TOPIC} in the log of topics cannot be read", ERROR)
        return end

    def begin(self, epoch: int) -> None:
        """The server has begun, in this epoch of its log. Raises StoreError."""
        self._epoch = epoch
        for key, committed in list(self._offsets.items()):
            if self.queues_of(key[0]) is None:
                del self._offsets[key]
                self._changed = True
            else:
                self._bring_down(key[0], committed)
        if self._needed:
            self.snapshot.save(self._all())
            self._changed = False

    def serve_under(self, epoch: int) -> None:
        """This is the worker's epoch, which no other one has had."""
        self._shown.epoch = epoch

    def wait_for_members(self, now: float) -> None:
        """Clients were there before this worker: readers of them may be members."""
        self._settled_at = now + self.release_s

    def _bring_down(self, topic: int, committed: dict[int, Committed]) -> None:
        ends = self.server.ends(topic)
        for queue, (generation, offset) in list(committed.items()):
            if queue < len(ends) and offset <= ends[queue]:
                continue
            self._needed = True  # the queue will have other messages there
            if queue < len(ends):
                committed[queue] = Committed(generation, ends[queue])
            else:
                del committed[queue]

    # -- the snapshot -------------------------------------------------------------------------------------------

    def _all(self) -> offsets.All:
        """Of now: copied, because a thread writes it."""
        counters = self.server.counters()
        copied = {key: dict(committed) for key, committed in self._offsets.items()}
        return offsets.All(counters["sealed"], self._epoch, counters["number"], copied)

    def _encode(self, copied: offsets.All) -> bytes:
        return offsets.encode_snapshot(self.node, copied)

    def _save(self, now: float) -> None:
        if not self.snapshot.may_write(now) or now < self._saved_at + SNAPSHOT_S:
            return
        if self._changed or self.server.counters()["sealed"] >= self.snapshot.saved + SNAPSHOT_LOG_BYTES:
            self._changed, self._saved_at = False, now
            self.snapshot.want(self._all())

    # -- retention ----------------------------------------------------------------------------------------------

    def needed(self, first: int) -> int:
        """From where on the log is needed when its files below `first` shall go: the snapshot's place. If that is
        further back, another one is written soon.
        """
        if self.snapshot.saved < first:
            self._changed = True
        return max(self.snapshot.saved, 0)

    def carry(self, first: int) -> int | None:
        """What is committed stands in the log from `first` on, too: so it outlives the loss of the snapshot. Where the
        last of it ends, 0: it stood there; None: there is no room in the log now.
        """
        self._told = {key: end for key, end in self._told.items() if key in self._offsets}
        for key, committed in self._offsets.items():
            if committed and self._told.get(key, 0) <= first:
                try:
                    self._told[key] = self._append(key, committed)
                except control.NoRoom:
                    return None
        return max(self._told.values(), default=0)

    def take(self) -> None:
        """Hear of snapshots that the thread has written."""
        self._changed |= not self.snapshot.take()

    def end(self) -> None:
        """Stop the writer's thread."""
        self.snapshot.end()

    def close(self) -> None:
        """The log is synced, and nobody is served any more: write the last snapshot."""
        self.snapshot.close(self._last)

    def _last(self) -> offsets.All | None:
        self._forget_topics()
        if not self._changed and not self.snapshot.refused and self.snapshot.saved == self.server.counters()["sealed"]:
            return None
        return self._all()

    # -- time ---------------------------------------------------------------------------------------------------

    def on_timer(self, now: float) -> None:
        """Some times a second."""
        self.take()
        self._forget_topics()
        self._expire(now)
        for key, group in list(self._groups.items()):
            if group.waits:
                group.tick(now)
            self._tell(key)
        self._save(now)

    def _expire(self, now: float) -> None:
        """Remove members that were silent for too long."""
        self._sessions.pass_time(now)
        for key, member, why in self._sessions.over():
            self._sessions.end(key, member)
            group = self._groups.get(key)
            if group is not None:
                group.expire(member, why, now)
                self._tell(key)
            reader = f"a reader of topic {self.topic_of(key[0])!r}, group {key[1]!r} (client in slot {member.slot})"
            self.say(f"{reader} lost its queues: {why}", WARNING)

    def _forget_topics(self) -> None:
        """Groups go with their topic."""
        for key in [key for key in {**self._groups, **self._offsets} if self.queues_of(key[0]) is None]:
            self._changed |= self._offsets.pop(key, None) is not None
            self._groups.pop(key, None)
            self._sessions.forget(key)
            self._tell(key)

    def clients_changed(self, slots: set[tuple[int, int]], now: float) -> None:
        """Those of the clients that are attached: (slot, generation)."""
        self._sessions.keep(slots)
        for key, group in list(self._groups.items()):
            group.keep(slots, now)
            self._tell(key)

    def _tell(self, key: Key) -> None:
        """Something may have changed in a group: its members see that. One of which nothing is worth keeping goes."""
        group = self._groups.get(key)
        if group is not None and group.members:
            row = self._rows.get(key)
            if row is None:
                row = self._rows[key] = GroupRow(key[0])
            self._shown.show(row, group.generation)
        elif (left := self._rows.pop(key, None)) is not None:
            self._shown.take(left)
        if group is not None and group.empty:
            self._generation = max(self._generation, group.generation)
            del self._groups[key]

    # -- requests -----------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Answer the requests that are there."""
        if self.waits:
            self.waits = False
            self.server.pending(_core.TOPIC_EVENT_CONTROL, False)
        while (request := self.server.control_next()) is not None:
            slot, generation, content = request
            until = 0
            answer: control.Answer | Refusal
            ok = True
            try:
                answer, until = self._answer(control.decode(content), slot, generation, time.monotonic())
            except control.NoRoom:
                self.server.control_later(slot)
                self.server.pending(_core.TOPIC_EVENT_CONTROL, True)  # until the next call
                self.waits = True
                return
            except Error as error:
                ok, answer = False, Refusal(type(error).__name__, str(error))
            except (msgspec.MsgspecError, RecursionError, ValueError, OverflowError) as error:
                ok, answer = False, Refusal("UsageError", f"not a control request: {error!r}")
            except OSError as error:
                ok, answer = False, Refusal("SyncFailed", f"the log of topics failed: {error.strerror}")
            reply = msgspec.msgpack.encode(answer)
            if len(reply) > self.reply_bytes:
                ok, until = False, 0
                refusal = LimitError.__name__, f"the answer has {len(reply):,} bytes: raise the setting reply_bytes"
                reply = msgspec.msgpack.encode(Refusal(*refusal))
            self.server.control_answer(slot, reply, ok, until)

    def _answer(self, request: control.Request, slot: int, generation: int, now: float) -> tuple[control.Answer, int]:
        """(answer, up to where the log must be synced before it leaves). Raises Error, OSError, control.NoRoom."""
        queues = self.queues_of(request.topic)
        if queues is None:
            raise TopicNotFound(f"there is no topic with the id {request.topic}, or it was deleted")
        if isinstance(request, control.ListGroups):
            return self._names(request), 0
        if (other := self.others.get(type(request))) is not None:
            return other(request)
        assert isinstance(request, _OF_A_GROUP)
        key = request.topic, request.group
        group = self._group(key, queues)
        try:
            match request:
                case control.SyncGroup() | control.CommitOffsets() | control.LeaveGroup():
                    return self._serve_member(key, group, Member(slot, generation, request.member), request, now)
                case control.SeekGroup():
                    return control.Done(), self._seek(key, group, request, now)
                case control.DeleteGroup():
                    return control.Done(), self._delete(key, group)
                case control.DescribeGroup():
                    return self._described(key, group), 0
        finally:
            self._tell(key)

    def _serve_member(
        self, key: Key, group: Group, member: Member, request: _OfMember, now: float
    ) -> tuple[control.Answer, int]:
        if isinstance(request, control.SyncGroup) and request.rejoin:
            group.sync(member, (), (), now)
        try:
            group.check(member, ())
            self._sessions.heard(key, member)
            if not group.settled(now):
                self._take_up(key, group, member, request, now)
            until = self._commit(key, group, member, request.commits)
        except Fenced:
            if isinstance(request, control.LeaveGroup):
                self._leave(key, group, member, now)
            raise
        if isinstance(request, control.SyncGroup):
            group.sync(member, (), request.released, now)
            own = self._sessions.begin(key, member, request.session_s, request.poll_s)
            self._tell(key)
            return self._assigned(key, group, member, own), until
        if isinstance(request, control.LeaveGroup):
            self._leave(key, group, member, now)
        return control.Done(), until

    def _take_up(self, key: Key, group: Group, member: Member, request: _OfMember, now: float) -> None:
        """A request to the worker before this one says, too, what was its member's."""
        held = [(queue, of) for queue, of, _offset in request.commits]
        if isinstance(request, control.SyncGroup):
            held += request.held
        group.sync(member, held, (), now)
        if isinstance(request, control.CommitOffsets):
            self._sessions.begin(key, member, None, request.poll_s)  # until it asks which row is its own

    def _leave(self, key: Key, group: Group, member: Member, now: float) -> None:
        group.leave(member, now)
        self._sessions.end(key, member)

    def _group(self, key: Key, queues: int) -> Group:
        group = self._groups.get(key)
        if group is None:
            committed = self._offsets.get(key, {})
            group = Group(queues, self._settled_at, self.release_s, committed, self._generation)
            self._groups[key] = group
        return group

    def _append(self, key: Key, committed: dict[int, Committed]) -> int:
        """Where the record ends. Raises OSError, control.NoRoom."""
        end = self.server.append_system(OFFSETS_TOPIC.encode(), offsets.encode(key, committed))
        if end is None:
            raise control.NoRoom
        self._changed = True
        return end

    def _commit(self, key: Key, group: Group, member: Member, commits: list[control.Commit]) -> int:
        group.check(member, commits)
        if not commits:
            return 0
        committed = {queue: Committed(generation, offset) for queue, generation, offset in commits}
        self._check_offsets(key[0], committed)
        end = self._append(key, committed)
        group.offsets = self._offsets.setdefault(key, {})
        group.offsets.update(committed)
        return end

    def _check_offsets(self, topic: int, committed: dict[int, Committed]) -> None:
        ends = self.server.ends(topic)
        for queue, (_generation, offset) in committed.items():
            if queue >= len(ends):
                raise UsageError(f"the topic has {len(ends)} queues: there is no queue {queue}")
            if offset > ends[queue]:
                raise UsageError(f"queue {queue} ends at offset {ends[queue]}: {offset} cannot be committed")

    def _seek(self, key: Key, group: Group, request: control.SeekGroup, now: float) -> int:
        if group.members and not request.force:
            raise UsageError(f"group {quoted(key[1])} has members: close its readers, or give force=True (--force)")
        if not request.offsets:
            raise UsageError("no offsets are given")
        committed = {queue: Committed(group.generation + 1, offset) for queue, offset in request.offsets}
        self._check_offsets(key[0], committed)
        end = self._append(key, committed)
        group.offsets = self._offsets.setdefault(key, {})
        group.offsets.update(committed)
        group.seek(now)
        return end

    def _delete(self, key: Key, group: Group) -> int:
        if group.members:
            raise UsageError(f"group {quoted(key[1])} has members: close its readers first")
        end = self._append(key, {}) if key in self._offsets else 0
        self._offsets.pop(key, None)
        self._groups.pop(key, None)
        return end

    # -- answers ------------------------------------------------------------------------------------------------

    def _assigned(self, key: Key, group: Group, member: Member, own: tuple[int, int]) -> control.Assigned:
        given = [
            (queue, generation, group.offsets[queue].offset if queue in group.offsets else -1)
            for queue, generation in group.given(member)
        ]
        row = self._rows[key]
        return control.Assigned(group.generation, given, group.to_give_back(member), row.number, row.stamp, *own)

    def _described(self, key: Key, group: Group) -> control.Described:
        members = group.members
        places = {member: place for place, member in enumerate(members)}
        owners = [-1 if (owner := group.owner(queue)) is None else places[owner] for queue in range(group.queues)]
        found = [group.offsets[queue].offset if queue in group.offsets else -1 for queue in range(group.queues)]
        told = [(member.slot, member.number, self._sessions.age(key, member)) for member in members]
        return control.Described(group.generation, told, owners, found)

    def _names(self, request: control.ListGroups) -> control.Names:
        keys = {*(key for key, group in self._groups.items() if group.members), *self._offsets}
        names = sorted(name for topic, name in keys if topic == request.topic and name > request.after)
        room, taken = self.reply_bytes - _NAMES_MARGIN, 0
        for taken, name in enumerate(names):
            room -= len(name.encode()) + _NAME_MARGIN
            if room < 0:
                return control.Names(names[:taken], True)
        return control.Names(names, False)


_OfMember = control.SyncGroup | control.CommitOffsets | control.LeaveGroup


_OF_A_GROUP = (
    control.SyncGroup,
    control.CommitOffsets,
    control.LeaveGroup,
    control.SeekGroup,
    control.DeleteGroup,
    control.DescribeGroup,
)
