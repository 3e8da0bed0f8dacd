"""Model of batches: one command that writes several messages, executed part by part beside other clients and readers.

What is modelled (design note 003, sections 2, 9 and 12)
  client   prepares a batch: record with a flying word for each message (F), a directory row for each group of ids (C);
           submits (S); removes: eliminates its own message while its flying word is WRITTEN, else sends a REMOVE
  server   takes each part (TAKEN), appends its frame, makes the index entry visible, says DONE; serves other clients
           between two parts; deletes the rows when all parts are done; commits; publishes `head`
  kill     any number of frames that were not synced survive, from the front; a new server goes on at the high water
           (sequence, part), puts rows back, and publishes its epoch
  reader   index → row of the id or of its group → record → copy → row again → index again → epoch again

Rings and arenas are large enough here: their reuse is in `store.py`. Files and references across them: `collection.py`.

Invariants: exactly once by part; an eliminated message is never written; confirmed means durable; a reader never misses
a message that is there all the time it reads, and never returns one that was gone for good before it began.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

WRITTEN, TAKEN, DONE, ELIMINATED = range(4)
ALIVE, DEAD, SWEPT = range(3)
DOWN, RECOVERING, READY = range(3)
WHOLE = 99

Row = tuple[int, int, int, str]  # epoch, client, sequence, key: an id, or a group of ids
Value = tuple[int, int, int]  # client, sequence, part: who wrote these bytes


@dataclass(frozen=True)
class Rules:
    """The rules of the protocol; False breaks one."""

    part_by_part: bool = True  #: a replay goes on behind the last part on the disk (else: at the first)
    whole_is_whole: bool = True  #: a part on the disk does not vouch for the parts behind it
    eliminated_by_word: bool = True  #: a part is written only if its own word was WRITTEN or TAKEN
    done_is_said: bool = True  #: DONE when the index entry is visible
    done_after_index: bool = True  #: not before
    lost_done_is_taken: bool = True  #: a new server turns DONE above the water into TAKEN
    lost_before_published: bool = True  #: before it publishes its epoch
    known_done_after_published: bool = True  #: and TAKEN below the water into DONE only after that
    ready_before_work: bool = True  #: a new server executes nothing before its epoch is published
    rows_until_end: bool = True  #: group rows stay until the last part is in the index
    index_again: bool = True  #: a reader that found no row looks into the index again
    epoch_again: bool = True  #: and begins anew if the epoch has changed
    reader_checks_word: bool = True  #: a reader returns only messages whose word is WRITTEN or TAKEN
    head_after_durability: bool = True  #: `head` rises only over what is on disk
    dead_is_drained: bool = True  #: what a dead client had submitted is executed before its rows go


class Command(NamedTuple):
    """A record and its blob."""

    kind: str  # B: batch, W: one message, R: removal
    ids: tuple[str, ...]
    flying: tuple[int, ...]
    epoch: int  # of the directory that has its rows


class Client(NamedTuple):
    """A client and its region."""

    life: int
    at: int
    ring: tuple[Command, ...]
    tail: int
    head: int
    epoch: int  # of the directory that it has mapped


class Frame(NamedTuple):
    """A frame of the log."""

    client: int
    sequence: int
    part: int
    kind: str
    id: str


class Server(NamedTuple):
    """The server's memory, and the log."""

    state: int
    epoch: int
    published: int
    processed: tuple[int, ...]
    part: tuple[int, ...]  # of the command in work
    sealed: tuple[int, ...]
    taken_up: tuple[int, ...]  # tails when the links were taken up
    high: tuple[tuple[int, int], ...]
    busy: int
    step: int
    log: tuple[Frame, ...]
    durable: int
    entries: tuple[tuple[str, int, Value], ...]  # id, references, bytes
    old: tuple[tuple[str, int, Value], ...]  # the index of the server before this one


class Reader(NamedTuple):
    """A reader: how far it is, and what it may not return or miss."""

    left: int
    step: int
    id: str
    epoch: int
    rows: tuple[Row, ...]
    value: Value
    dead: frozenset[Value]
    there: bool
    removals: int


class State(NamedTuple):
    """Everything."""

    clients: tuple[Client, ...]
    server: Server
    rows: frozenset[Row]
    reader: Reader
    dead: frozenset[Value]  # eliminated, or removed: may not be returned to who begins to read now
    removals: int
    server_kills: int
    client_kills: int
    broken: str


NOBODY: Value = (-1, -1, -1)
IDLE = Reader(0, 0, "", 0, (), NOBODY, frozenset(), False, 0)


@dataclass(frozen=True)
class BatchModel:
    """Programs of the clients: ("B", "xy") a batch, ("W", "x"), ("R", "x"), ("S", "")."""

    programs: tuple[tuple[tuple[str, str], ...], ...]
    groups: tuple[str, ...] = ("xy", "z")
    reads: str = ""  #: ids that a reader may ask for, one a read
    server_kills: int = 1
    client_kills: int = 0
    rules: Rules = Rules()

    def start(self) -> State:
        zeros = (0,) * len(self.programs)
        server = Server(READY, 1, 1, zeros, zeros, zeros, zeros, ((0, 0),) * len(zeros), -1, 0, (), 0, (), ())
        client = Client(ALIVE, 0, (), 0, 0, 1)
        reader = IDLE._replace(left=1 if self.reads else 0)
        return State(
            (client,) * len(zeros),
            server,
            frozenset(),
            reader,
            frozenset(),
            0,
            self.server_kills,
            self.client_kills,
            "",
        )

    # -- helpers ----------------------------------------------------------------------------------------------------

    @staticmethod
    def _with(s: State, k: int, client: Client) -> State:
        return s._replace(clients=(*s.clients[:k], client, *s.clients[k + 1 :]))

    @staticmethod
    def _word(client: Client, sequence: int, part: int, word: int) -> Client:
        command = client.ring[sequence]
        flying = (*command.flying[:part], word, *command.flying[part + 1 :])
        ring = (*client.ring[:sequence], command._replace(flying=flying), *client.ring[sequence + 1 :])
        return client._replace(ring=ring)

    def _keys(self, command: Command) -> frozenset[str]:
        if command.kind == "W":
            return frozenset(command.ids)
        return frozenset(group for group in self.groups if set(group) & set(command.ids))

    @staticmethod
    def _entry(index: tuple[tuple[str, int, Value], ...], id: str) -> tuple[int, Value]:
        return next(((n, value) for name, n, value in index if name == id), (0, NOBODY))

    @staticmethod
    def _put(
        index: tuple[tuple[str, int, Value], ...], id: str, n: int, value: Value
    ) -> tuple[tuple[str, int, Value], ...]:
        return tuple(sorted((*(row for row in index if row[0] != id), (id, n, value))))

    def _there(self, s: State, id: str) -> bool:
        """Is the message submitted, and not removed, nor about to be?"""
        for k, client in enumerate(s.clients):
            for sequence in range(client.head, len(client.ring)):
                if client.ring[sequence][:2] == ("R", (id,)) and not self._executed(s, k, sequence, 0):
                    return False  # it may be in an index that died with its server, and not in the log
        if self._entry(s.server.entries, id)[0] > 0:
            return True
        for k, client in enumerate(s.clients):
            for sequence in range(client.head, client.tail):
                command = client.ring[sequence]
                if command.kind == "R" or client.life == SWEPT:
                    continue
                if command.epoch != s.server.published and sequence >= s.server.taken_up[k]:
                    continue  # submitted between two servers: its rows lie in a dead directory until it is executed
                for part, name in enumerate(command.ids):
                    if name == id and command.flying[part] != ELIMINATED and not self._executed(s, k, sequence, part):
                        return True
        return False

    @staticmethod
    def _executed(s: State, k: int, sequence: int, part: int) -> bool:
        return any(frame[:3] == (k, sequence, part) for frame in s.server.log)

    # -- steps ----------------------------------------------------------------------------------------------------

    def steps(self, s: State) -> Iterator[tuple[str, State]]:
        for k, client in enumerate(s.clients):
            if client.life == ALIVE:
                yield from self._client(s, k, client)
                if s.client_kills:
                    dead = self._with(s, k, client._replace(life=DEAD))
                    yield f"~kill client {k}", dead._replace(client_kills=s.client_kills - 1)
        if s.server.state == DOWN:
            yield self._restart(s)
        else:
            yield from self._work(s)
            if s.server_kills:
                yield from self._kill(s)
        yield from self._read(s)

    def _client(self, s: State, k: int, client: Client) -> Iterator[tuple[str, State]]:
        if client.at == len(self.programs[k]):
            return
        op, ids = self.programs[k][client.at]
        done = client._replace(at=client.at + 1)
        if op == "S":
            yield f"client {k} submits", self._with(s, k, done._replace(tail=len(client.ring)))
            return
        if len(client.ring) == client.tail:  # the epoch is compared before each submission, never within one
            done = done._replace(epoch=s.server.published)
        sequence = len(client.ring)
        if op == "R":
            for number in range(client.head, sequence):
                command = client.ring[number]
                if command.kind == "R" or ids not in command.ids:
                    continue
                part = command.ids.index(ids)
                if command.flying[part] == WRITTEN:
                    after = self._with(s, k, self._word(done, number, part, ELIMINATED))
                    dead = s.dead | {(k, number, part)}
                    yield f"client {k} eliminates {ids}", after._replace(dead=dead, removals=s.removals + 1)
                    return
            command = Command("R", (ids,), (), done.epoch)
        else:
            command = Command(op, tuple(ids), (WRITTEN,) * len(ids), done.epoch)
        after = self._with(s, k, done._replace(ring=(*client.ring, command)))
        rows = s.rows
        if op != "R":
            rows |= {(done.epoch, k, sequence, key) for key in self._keys(command)}
        yield f"client {k} prepares {op} {ids}", after._replace(rows=rows)

    def _kill(self, s: State) -> Iterator[tuple[str, State]]:
        server = s.server
        for kept in range(server.durable, len(server.log) + 1):
            log = server.log[:kept]
            down = server._replace(
                state=DOWN, busy=-1, step=0, log=log, durable=kept, old=server.entries, entries=self._replay(log),
                processed=(), part=(), sealed=(), high=(), taken_up=tuple(client.tail for client in s.clients),
            )  # fmt: skip
            gone = self._gone(log) | {
                value for value in s.dead if s.clients[value[0]].ring[value[1]].flying[value[2]] == ELIMINATED
            }
            reader = s.reader._replace(dead=s.reader.dead & gone)
            after = s._replace(server=down, dead=gone & s.dead, reader=reader, server_kills=s.server_kills - 1)
            yield f"~kill server, {kept} frames survive", after

    def _replay(self, log: tuple[Frame, ...]) -> tuple[tuple[str, int, Value], ...]:
        index: tuple[tuple[str, int, Value], ...] = ()
        for frame in log:
            n, value = self._entry(index, frame.id)
            if frame.kind == "R":
                index = self._put(index, frame.id, n - 1, value)
            else:
                index = self._put(index, frame.id, n + 1, value if n else (frame.client, frame.sequence, frame.part))
        return index

    def _gone(self, log: tuple[Frame, ...]) -> frozenset[Value]:
        """Bytes that these frames have written and removed."""
        index: tuple[tuple[str, int, Value], ...] = ()
        gone = set()
        for frame in log:
            n, value = self._entry(index, frame.id)
            if frame.kind == "R":
                index = self._put(index, frame.id, n - 1, value)
                if n == 1:
                    gone.add(value)
            else:
                mine = (frame.client, frame.sequence, frame.part)
                if n:
                    gone.add(mine)
                index = self._put(index, frame.id, n + 1, value if n else mine)
        return frozenset(gone)

    def _restart(self, s: State) -> tuple[str, State]:
        server = s.server
        high = [(0, 0)] * len(s.clients)
        for frame in server.log:
            part = frame.part + 1 if self.rules.whole_is_whole and frame.kind == "B" else WHOLE
            high[frame.client] = max(high[frame.client], (frame.sequence + 1, part))
        heads = tuple(client.head for client in s.clients)
        epoch = server.epoch + 1
        rows = {row for row in s.rows if row[0] in (server.published, epoch)}
        after = s
        for k, client in enumerate(s.clients):
            for sequence in range(client.head, client.tail):
                command = client.ring[sequence]
                if client.life == SWEPT or command.kind == "R":
                    continue
                rows |= {(epoch, k, sequence, key) for key in self._keys(command)}
                if self.rules.lost_before_published:
                    client = self._normal(client, sequence, high[k], True)
                if not self.rules.known_done_after_published:
                    client = self._normal(client, sequence, high[k], False)
            after = self._with(after, k, client)
        started = server._replace(
            state=RECOVERING,
            epoch=epoch,
            processed=heads,
            part=(0,) * len(heads),
            sealed=heads,
            high=tuple(high),
            taken_up=tuple(client.tail for client in s.clients),
        )
        return "server starts", after._replace(server=started, rows=frozenset(rows))

    def _normal(self, client: Client, sequence: int, high: tuple[int, int], lost: bool) -> Client:
        """DONE whose frame was lost is TAKEN (lost), TAKEN whose frame is there is DONE."""
        for part, word in enumerate(client.ring[sequence].flying):
            known = (sequence + 1, part + 1) <= high
            if lost and word == DONE and not known and self.rules.lost_done_is_taken:
                client = self._word(client, sequence, part, TAKEN)
            if not lost and word == TAKEN and known and self.rules.done_is_said:
                client = self._word(client, sequence, part, DONE)
        return client

    def _work(self, s: State) -> Iterator[tuple[str, State]]:
        server = s.server
        if server.state == RECOVERING:
            yield self._publish(s)
            if self.rules.ready_before_work:
                return
        if server.busy >= 0:
            yield self._part(s, server.busy)
        else:
            for k, client in enumerate(s.clients):
                if client.life != SWEPT and server.processed[k] < client.tail:
                    yield self._part(s, k)
        if server.durable < len(server.log) or server.sealed != server.processed:
            yield "server commits", s._replace(server=server._replace(durable=len(server.log), sealed=server.processed))
        limits = server.sealed if self.rules.head_after_durability else server.processed
        for k, client in enumerate(s.clients):
            if client.life != SWEPT and client.head < limits[k]:
                yield f"server publishes head {k}", self._with(s, k, client._replace(head=limits[k]))
            drained = client.head == client.tail or not self.rules.dead_is_drained
            if client.life == DEAD and drained and server.busy != k:
                rows = frozenset(row for row in s.rows if row[:2] != (server.epoch, k))
                yield f"server sweeps {k}", self._with(s, k, client._replace(life=SWEPT))._replace(rows=rows)

    def _publish(self, s: State) -> tuple[str, State]:
        server = s.server
        after = s
        for k, client in enumerate(s.clients):
            for sequence in range(client.head, client.tail):
                if client.life != SWEPT and client.ring[sequence].kind != "R":
                    client = self._normal(client, sequence, server.high[k], False)
            after = self._with(after, k, client)
        return "server publishes its epoch", after._replace(server=server._replace(state=READY, published=server.epoch))

    def _part(self, s: State, k: int) -> tuple[str, State]:
        """One step of the command in work: take a part, append it, show it, say so, or end the command."""
        server, client = s.server, s.clients[k]
        sequence, part = server.processed[k], server.part[k]
        command = client.ring[sequence]
        if command.kind == "R":
            return self._remove(s, k, sequence, command.ids[0])
        if part == len(command.ids):
            rows = s.rows - {(server.epoch, k, sequence, key) for key in self._keys(command)}
            return f"server ends {k}:{sequence}", s._replace(server=self._next(server, k), rows=rows)
        on = server._replace(busy=-1, step=0, part=(*server.part[:k], part + 1, *server.part[k + 1 :]))
        text = f"{k}:{sequence} part {part}"
        id = command.ids[part]
        mine = (k, sequence, part)
        word = command.flying[part]
        if server.step == 0:
            if word in (WRITTEN, DONE):  # DONE: only where a new server did not say TAKEN before
                client = self._word(client, sequence, part, TAKEN)
            known = (sequence + 1, part + 1) <= server.high[k]
            if known:
                client = s.clients[k]
            if not self.rules.part_by_part:
                known = sequence + 1 < server.high[k][0]
            if word == ELIMINATED and self.rules.eliminated_by_word:
                known = True
            if known:
                return f"server skips {text}", s._replace(server=on)
            return f"server takes {text}", self._with(s, k, client)._replace(server=server._replace(busy=k, step=1))
        if server.step == 1:
            rows = s.rows
            if not self.rules.rows_until_end:
                rows -= {(server.epoch, k, sequence, key) for key in self._keys(command) if id in key}
            if not self.rules.done_after_index and self.rules.done_is_said:
                client = self._word(client, sequence, part, DONE)
            broken = "a part is executed twice" if self._executed(s, *mine) else s.broken
            if word == ELIMINATED:
                broken = "an eliminated message is written"
            log = (*server.log, Frame(k, sequence, part, command.kind, id))
            return f"server appends {text}", self._with(s, k, client)._replace(
                server=server._replace(log=log, step=2), rows=rows, broken=broken
            )
        if server.step == 2:
            n, value = self._entry(server.entries, id)
            index = self._put(server.entries, id, n + 1, value if n else mine)
            dead = s.dead
            step = server._replace(entries=index, step=3)
            rows = s.rows
            if command.kind == "W":  # no other command comes between the entry and the end of a single write
                step = self._next(step, k)
                rows = rows - {(server.epoch, k, sequence, id)}
            if n:
                dead |= {mine}
            return f"server shows {text}", s._replace(server=step, dead=dead, rows=rows)
        if self.rules.done_is_said and self.rules.done_after_index:
            client = self._word(client, sequence, part, DONE)
        return f"server has done {text}", self._with(s, k, client)._replace(server=on)

    def _remove(self, s: State, k: int, sequence: int, id: str) -> tuple[str, State]:
        server = s.server
        n, value = self._entry(server.entries, id)
        known = (sequence + 1, 1) <= server.high[k]
        dead, removals = s.dead, s.removals
        after = self._next(server, k)
        if n and not known:
            after = after._replace(
                log=(*server.log, Frame(k, sequence, 0, "R", id)), entries=self._put(server.entries, id, n - 1, value)
            )
            if n == 1:
                dead, removals = dead | {value}, removals + 1
        return f"server removes {k}:{sequence}", s._replace(server=after, dead=dead, removals=removals)

    @staticmethod
    def _next(server: Server, k: int) -> Server:
        return server._replace(
            busy=-1, step=0, part=(*server.part[:k], 0, *server.part[k + 1 :]),
            processed=(*server.processed[:k], server.processed[k] + 1, *server.processed[k + 1 :]),
        )  # fmt: skip

    # -- reader -----------------------------------------------------------------------------------------------------

    def _index_of(self, s: State, epoch: int) -> tuple[tuple[str, int, Value], ...]:
        """The index that a reader sees which has mapped the regions of an epoch."""
        server = s.server
        return server.entries if epoch == server.epoch and server.state != DOWN else server.old

    def _read(self, s: State) -> Iterator[tuple[str, State]]:
        reader, server = s.reader, s.server
        idle = IDLE._replace(left=reader.left)
        if reader.step == 0:
            if reader.left:
                for id in sorted(set(self.reads)):
                    begun = Reader(0, 1, id, server.published, (), NOBODY, s.dead, self._there(s, id), s.removals)
                    yield f"~reader begins {id}", s._replace(reader=begun)
        elif reader.step in (1, 4):  # the index, first and last
            n, value = self._entry(self._index_of(s, reader.epoch), reader.id)
            if n:
                yield "~reader finds the entry", self._returns(s, value, idle)
            elif reader.step == 1:
                keys = {reader.id, *(group for group in self.groups if reader.id in group)}
                rows = tuple(sorted(row for row in s.rows if row[0] == reader.epoch and row[3] in keys))
                found = reader._replace(step=2, rows=rows)
                if not rows:
                    found = reader._replace(step=4 if self.rules.index_again else 5)
                yield f"~reader finds {len(rows)} rows", s._replace(reader=found)
            else:
                yield "~reader finds nothing", s._replace(reader=reader._replace(step=5))
        elif reader.step == 2:  # a record
            _, k, sequence, _ = reader.rows[0]
            command = s.clients[k].ring[sequence]
            others = reader._replace(rows=reader.rows[1:])
            if not others.rows:
                others = others._replace(step=4 if self.rules.index_again else 5)
            part = command.ids.index(reader.id) if reader.id in command.ids else -1
            if part < 0 or (command.flying[part] in (DONE, ELIMINATED) and self.rules.reader_checks_word):
                yield "~reader passes a row", s._replace(reader=others)
            else:
                yield "~reader copies", s._replace(reader=reader._replace(step=3, value=(k, sequence, part)))
        elif reader.step == 3:  # the row again
            if reader.rows[0] in s.rows:
                yield "~reader finds the row", self._returns(s, reader.value, idle)
            else:
                others = reader._replace(rows=reader.rows[1:], step=2)
                if not others.rows:
                    others = others._replace(step=4 if self.rules.index_again else 5)
                yield "~reader finds the row gone", s._replace(reader=others._replace(value=NOBODY))
        elif reader.step == 5:
            if reader.epoch != server.published and self.rules.epoch_again:
                yield "~reader begins anew", s._replace(reader=reader._replace(step=1, epoch=server.published))
            else:
                missed = reader.there and reader.removals == s.removals and self._there(s, reader.id)
                broken = f"a reader misses {reader.id}" if missed else s.broken
                yield "~reader ends", s._replace(reader=idle, broken=broken)

    @staticmethod
    def _returns(s: State, value: Value, idle: Reader) -> State:
        broken = "a reader gets what was gone before it began" if value in s.reader.dead else s.broken
        return s._replace(reader=idle, broken=broken)

    # -- invariants --------------------------------------------------------------------------------------------------

    def wrong(self, s: State) -> str | None:
        if s.broken:
            return s.broken
        durable = {frame[:3] for frame in s.server.log[: s.server.durable]}
        for k, client in enumerate(s.clients):
            for sequence in range(client.head):
                for part, word in enumerate(client.ring[sequence].flying):
                    if word != ELIMINATED and (k, sequence, part) not in durable:
                        return "a message was confirmed and is not durable"
        return None

    def rest(self, s: State) -> str | None:
        server = s.server
        for k, client in enumerate(s.clients):
            if client.life == DEAD:
                return f"client {k} is dead and was never swept"
            if client.life == ALIVE and (client.at < len(self.programs[k]) or client.head != client.tail):
                return f"client {k} hangs"
            for sequence in range(client.tail):
                for part, word in enumerate(client.ring[sequence].flying):
                    if word != ELIMINATED and not self._executed(s, k, sequence, part):
                        return f"{k}:{sequence} part {part} was submitted and never executed"
        if any(row[0] == server.epoch for row in s.rows):
            return "a directory row is left"
        return None


def _program(text: str) -> tuple[tuple[str, str], ...]:
    return tuple((word[0], word[1:]) for word in text.split())


#: name → model
STANDARD = {
    "elimination, torn anywhere": BatchModel((_program("Bxyz S Ry Rz S"),), server_kills=1),
    "elimination, client killed": BatchModel((_program("Bxy S Ry S"),), server_kills=1, client_kills=1),
    "a reader, and a client that removes": BatchModel((_program("Bxy S"), _program("Rx S")), reads="x", server_kills=1),
    "a reader, and a client that writes": BatchModel((_program("Bxy S"), _program("Wx S")), reads="x", server_kills=0),
}

#: larger ones
DEEP = {
    "two kills, torn anywhere": BatchModel((_program("Bxyz S Ry S"),), server_kills=2),
    "a client that writes and removes": BatchModel(
        (_program("Bxy S"), _program("Wx S Rx S")), reads="x", server_kills=1
    ),
    "two batches": BatchModel((_program("Bxy S"), _program("Bxy S Rx S")), server_kills=1),
    "clients killed": BatchModel((_program("Bxy S Ry S"), _program("Rx S")), reads="x", server_kills=1, client_kills=1),
}
