"""Model of the message store's protocol: ring, flying word, directory, index, log, head; clients, server, a reader.

What is modelled (design note 001, sections 2 and 4; rules S2, S4, S5, S10)
  client   prepares a write: blob and record with flying = WRITTEN (F), directory row (C); submits by raising
           `tail` (S); removes: eliminates what is still WRITTEN, else sends a REMOVE; asks CONTAINS
  server   takes a record, appends a frame (the index row is visible with it), deletes the directory row, commits,
           publishes `head`; after a kill a new server reads the durable frames, takes each link up at `head`, puts
           directory rows back for what is under way, and publishes its epoch
  reader   directory word → record → blob → check, any of it while the others go on
  kills    of the server and of clients between any two steps; the server sweeps what a dead client left

What is not: files, rolls, references by queue workers (see stored.py), several rows of one bucket, torn words. A
frame is written by one step, because the log hands only whole batches to the disk; `durable` counts what survives.

Invariants: `wrong` and `rest` below. Each rule of `Rules` can be broken; tests/crash/test_model.py shows that
every one is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

NONE, WRITTEN, TAKEN, ELIMINATED = range(4)
ALIVE, DEAD, GONE, MISLED = range(4)
DOWN, RECOVERING, READY = range(3)
UNKNOWN, YES, NO = range(3)

#: an operation of a client's program: ("W", id), ("R", id), ("Q", id), or ("S", "") which submits what is prepared
Op = tuple[str, str]


@dataclass(frozen=True)
class Rules:
    """The rules of the protocol; False breaks one."""

    head_after_durability: bool = True  #: `head` rises only over what is on disk
    reuse_after_head: bool = True  #: record and blob are reused only when `head` has passed (else: when processed)
    row_before_head: bool = True  #: the directory row goes before `head` passes
    row_after_index: bool = True  #: the directory row goes after the index row is visible
    flying_before_submit: bool = True  #: F before S
    row_before_submit: bool = True  #: C before S
    high_water: bool = True  #: a replayed command that is on disk is skipped
    taken_is_processed: bool = True  #: a replayed record that a dead server had taken is executed
    dead_is_drained: bool = True  #: what a dead client had submitted is executed before the sweep
    dead_is_swept: bool = True  #: rows of a dead client are deleted
    reader_checks_head: bool = True  #: a blob counts only if `head` has not passed its command after the copy
    rows_are_put_back: bool = True  #: a new server inserts rows for what is under way before it publishes its epoch
    own_ring_is_read: bool = True  #: who finds no row looks into its own ring (its row may lie in a dead directory)


class Record(NamedTuple):
    """A command in a ring."""

    kind: str
    id: str
    blob: int
    flying: int
    result: int


class Asked(NamedTuple):
    """What the model remembers of a command, whatever becomes of its record."""

    kind: str
    id: str
    value: tuple[int, int]
    eliminated: bool
    epoch: int  # of the directory that got its row


class Client(NamedTuple):
    """A client: private state, its region, and the memory of the model."""

    life: int
    at: int  # next operation of its program
    sub: int  # step inside the operation
    next: int  # sequence to prepare next
    tail: int
    head: int
    told: int  # commands below were submitted, and the submission has returned
    epoch: int  # directory it has mapped
    blobs: tuple[int, ...]  # commands that hold the arena's blobs, oldest first
    blob_next: int
    ring: tuple[Record | None, ...]
    arena: tuple[tuple[int, int] | None, ...]  # a body is (client, operation that wrote it)
    asked: tuple[Asked, ...]


class Frame(NamedTuple):
    """A frame of the log."""

    client: int
    sequence: int
    kind: str  # W: message or reference, R: removal
    id: str
    value: tuple[int, int]


class Server(NamedTuple):
    """The server: memory that dies with it, and the log."""

    state: int
    epoch: int  # of its directory
    published: int  # epoch that clients see
    processed: tuple[int, ...]
    high: tuple[int, ...]
    taken_up: tuple[int, ...]  # tails when the links were taken up
    sealed: tuple[int, ...]  # what a finished commit lets `head` rise to
    busy: int  # client whose command is in work, -1 if none
    step: int
    log: tuple[Frame, ...]
    durable: int


class Reader(NamedTuple):
    """A reader in another process: what it copied so far."""

    left: int
    step: int
    epoch: int
    word: tuple[int, int, int, str]
    blob: int
    value: tuple[int, int] | None


class State(NamedTuple):
    """Everything."""

    clients: tuple[Client, ...]
    server: Server
    rows: frozenset[tuple[int, int, int, str]]  # (epoch, client, sequence, id)
    reader: Reader
    server_kills: int
    client_kills: int


NO_WORD = (-1, -1, -1, "")


@dataclass(frozen=True)
class StoreModel:
    """Clients with fixed programs, one server, one reader; how many kills and reads; ring and arena."""

    programs: tuple[tuple[Op, ...], ...]
    server_kills: int = 1
    client_kills: int = 0
    reads: int = 0
    ring: int = 2
    arena: int = 1
    rules: Rules = Rules()

    # -- helpers ----------------------------------------------------------------------------------------------------

    def start(self) -> State:
        n = len(self.programs)
        client = Client(ALIVE, 0, 0, 0, 0, 0, 0, 1, (), 0, (None,) * self.ring, (None,) * self.arena, ())
        zeros = (0,) * n
        server = Server(READY, 1, 1, zeros, zeros, zeros, zeros, -1, 0, (), 0)
        reader = Reader(self.reads, 0, 0, NO_WORD, 0, None)
        return State((client,) * n, server, frozenset(), reader, self.server_kills, self.client_kills)

    def _with(self, state: State, k: int, client: Client) -> State:
        return state._replace(clients=(*state.clients[:k], client, *state.clients[k + 1 :]))

    def _record(self, client: Client, sequence: int) -> Record:
        record = client.ring[sequence % self.ring]
        assert record is not None
        return record

    def _put(self, client: Client, sequence: int, record: Record) -> Client:
        at = sequence % self.ring
        return client._replace(ring=(*client.ring[:at], record, *client.ring[at + 1 :]))

    def _reusable(self, state: State, k: int) -> int:
        return state.clients[k].head if self.rules.reuse_after_head else state.server.processed[k]

    @staticmethod
    def references(log: tuple[Frame, ...], id: str) -> int:
        """References of an id, as the index says after these frames."""
        return sum(1 if frame.kind == "W" else -1 for frame in log if frame.id == id)

    # -- steps ----------------------------------------------------------------------------------------------------

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        for k, client in enumerate(state.clients):
            if client.life == ALIVE:
                yield from self._client_steps(state, k, client)
                if state.client_kills:
                    dead = self._with(state, k, client._replace(life=DEAD))
                    yield f"~kill client {k}", dead._replace(client_kills=state.client_kills - 1)
        if state.server.state == DOWN:
            yield from self._restart(state)
        else:
            yield from self._server_steps(state)
            if state.server_kills:
                server = state.server
                server = server._replace(
                    state=DOWN, busy=-1, step=0, log=server.log[: server.durable],
                    processed=(), high=(), taken_up=(), sealed=(),
                )  # fmt: skip
                yield "~kill server", state._replace(server=server, server_kills=state.server_kills - 1)
        yield from self._reader_steps(state)

    def _client_steps(self, state: State, k: int, client: Client) -> Iterator[tuple[str, State]]:
        if client.at == len(self.programs[k]):
            return
        kind, id = self.programs[k][client.at]
        done = client._replace(at=client.at + 1, sub=0)
        if kind == "S":
            yield from self._submit(state, k, client, done)
            return
        if client.next == client.tail and client.epoch != state.server.published:
            client = client._replace(epoch=state.server.published)  # compared before each batch, never within one
            done = done._replace(epoch=client.epoch)
        if kind == "W" and client.sub == 1:
            row = (client.epoch, k, client.next - 1, id)
            yield f"client {k} C {id}", self._with(state, k, done)._replace(rows=state.rows | {row})
            return
        if kind == "R":
            mine = [row for row in state.rows if row[0] == client.epoch and row[1] == k and row[3] == id]
            for _, _, sequence, _ in mine:
                if sequence < client.head:
                    continue
                record = self._record(client, sequence)
                if record.id == id and record.flying == WRITTEN:
                    after = self._put(done, sequence, record._replace(flying=ELIMINATED))
                    asked = list(after.asked)
                    asked[sequence] = asked[sequence]._replace(eliminated=True)
                    yield f"client {k} eliminates {id}", self._with(state, k, after._replace(asked=tuple(asked)))
                    return
        free = self._reusable(state, k) if state.server.state != DOWN else client.head
        if client.next - free >= self.ring:
            return  # waits for room
        sequence = client.next
        value = (k, client.at)
        after = done._replace(next=sequence + 1, asked=(*client.asked, Asked(kind, id, value, False, client.epoch)))
        if kind == "W":
            blobs = tuple(command for command in client.blobs if command >= free)
            if len(blobs) == self.arena:
                return
            at = client.blob_next % self.arena
            after = after._replace(
                blobs=(*blobs, sequence),
                blob_next=client.blob_next + 1,
                arena=(*client.arena[:at], value, *client.arena[at + 1 :]),
            )
            flying = WRITTEN if self.rules.flying_before_submit else NONE
            after = self._put(after, sequence, Record(kind, id, at, flying, UNKNOWN))
            if self.rules.row_before_submit:
                after = after._replace(at=client.at, sub=1)
            yield f"client {k} F {id}", self._with(state, k, after)
        else:
            after = self._put(after, sequence, Record(kind, id, 0, NONE, UNKNOWN))
            yield f"client {k} prepares {kind} {id}", self._with(state, k, after)

    def _submit(self, state: State, k: int, client: Client, done: Client) -> Iterator[tuple[str, State]]:
        if client.sub == 0:
            yield f"client {k} S", self._with(state, k, client._replace(tail=client.next, sub=1))
            return
        late = range(client.told, client.next)
        if client.sub == 1 and not self.rules.flying_before_submit:
            after = client._replace(sub=2)
            for sequence in late:
                record = self._record(client, sequence)
                if record.kind == "W" and record.flying == NONE:
                    after = self._put(after, sequence, record._replace(flying=WRITTEN))
            yield f"client {k} F after S", self._with(state, k, after)
            return
        asks = any(client.asked[sequence].kind == "Q" for sequence in late)
        if asks and (state.server.state == DOWN or state.server.processed[k] < client.tail):
            return  # waits for the answer: a later elimination would overtake the question
        rows = state.rows
        if not self.rules.row_before_submit:
            rows |= {(client.epoch, k, s, client.asked[s].id) for s in late if client.asked[s].kind == "W"}
        for sequence in late:
            if client.asked[sequence].kind == "Q" and self._wrong_answer(client, k, self._record(client, sequence)):
                done = done._replace(life=MISLED)
        yield f"client {k} returns", self._with(state, k, done._replace(told=client.tail))._replace(rows=rows)

    def _restart(self, state: State) -> Iterator[tuple[str, State]]:
        server = state.server
        high = [0] * len(state.clients)
        if self.rules.high_water:
            for frame in server.log:
                high[frame.client] = max(high[frame.client], frame.sequence + 1)
        heads = tuple(client.head for client in state.clients)
        tails = tuple(client.tail for client in state.clients)
        server = server._replace(
            state=RECOVERING, epoch=server.epoch + 1, processed=heads, high=tuple(high), taken_up=tails, sealed=heads
        )
        mapped = {client.epoch for client in state.clients if client.life == ALIVE} | {state.reader.epoch}
        rows = {row for row in state.rows if row[0] in mapped}
        for k, client in enumerate(state.clients):
            for sequence in range(client.head, client.tail if self.rules.rows_are_put_back else 0):
                record = self._record(client, sequence)
                if client.life != GONE and record.kind == "W" and record.flying != ELIMINATED:
                    rows.add((server.epoch, k, sequence, record.id))
        yield "server starts", state._replace(server=server, rows=frozenset(rows))

    def _server_steps(self, state: State) -> Iterator[tuple[str, State]]:
        server = state.server
        if server.state == RECOVERING:
            yield "server is ready", state._replace(server=server._replace(state=READY, published=server.epoch))
        if server.busy >= 0:
            yield self._work(state, server.busy)
        else:
            for k, client in enumerate(state.clients):
                if client.life != GONE and server.processed[k] < client.tail:
                    yield self._take(state, k)
        if server.durable < len(server.log) or server.sealed != server.processed:
            committed = server._replace(durable=len(server.log), sealed=server.processed)
            yield "server commits", state._replace(server=committed)
        limits = server.sealed if self.rules.head_after_durability else server.processed
        for k, client in enumerate(state.clients):
            if client.life == GONE:
                continue
            if client.head < limits[k]:
                yield f"server publishes head {k}", self._with(state, k, client._replace(head=limits[k]))
            late = {row for row in state.rows if row[0] == server.epoch and row[1] == k and row[2] < client.head}
            if late and not self.rules.row_before_head:
                yield f"server deletes old rows {k}", state._replace(rows=state.rows - late)
            drained = client.head == client.tail or not self.rules.dead_is_drained
            if client.life == DEAD and drained and server.busy != k:
                rows = state.rows
                if self.rules.dead_is_swept:
                    rows = frozenset(row for row in rows if (row[0], row[1]) != (server.epoch, k))
                yield f"server sweeps {k}", self._with(state, k, client._replace(life=GONE))._replace(rows=rows)

    def _take(self, state: State, k: int) -> tuple[str, State]:
        """Look at the next record of a link: what is to be done with it is decided by one compare-and-swap."""
        server, client = state.server, state.clients[k]
        sequence = server.processed[k]
        record = self._record(client, sequence)
        skip = sequence < server.high[k]
        if record.kind == "W":
            if record.flying == WRITTEN:
                client = self._put(client, sequence, record._replace(flying=TAKEN))
            elif record.flying != TAKEN or not self.rules.taken_is_processed:
                skip = True  # eliminated
        step = 2 if skip and record.kind != "Q" else 1
        after = self._with(state, k, client)._replace(server=server._replace(busy=k, step=step))
        return f"server takes {k}:{sequence}", after

    def _work(self, state: State, k: int) -> tuple[str, State]:
        server, client = state.server, state.clients[k]
        sequence = server.processed[k]
        record = self._record(client, sequence)
        row = (server.epoch, k, sequence, record.id)
        finished = server._replace(
            busy=-1, step=0, processed=(*server.processed[:k], sequence + 1, *server.processed[k + 1 :])
        )
        if server.step == 1:
            log = server.log
            rows = state.rows
            after = finished if record.kind != "W" else server._replace(step=2)
            if record.kind == "W":
                value = client.arena[record.blob]
                assert value is not None
                log = (*log, Frame(k, sequence, "W", record.id, value))
                if not self.rules.row_after_index:
                    after = finished
            elif record.kind == "R" and self.references(log, record.id) > 0:
                log = (*log, Frame(k, sequence, "R", record.id, (k, -1)))
            elif record.kind == "Q":
                result = YES if self.references(log, record.id) > 0 else NO
                client = self._put(client, sequence, record._replace(result=result))
            if not self.rules.row_after_index and row in rows:  # the row goes first, the index row follows
                return "server deletes row", state._replace(rows=rows - {row})
            return f"server works {k}:{sequence}", self._with(state, k, client)._replace(
                server=after._replace(log=log), rows=rows
            )
        rows = state.rows - {row} if self.rules.row_before_head else state.rows
        return f"server ends {k}:{sequence}", state._replace(server=finished, rows=rows)

    def _reader_steps(self, state: State) -> Iterator[tuple[str, State]]:
        reader = state.reader
        idle = Reader(reader.left, 0, 0, NO_WORD, 0, None)
        if reader.step == 0:
            if reader.left:
                opened = idle._replace(left=reader.left - 1, step=1, epoch=state.server.published)
                yield "~reader begins", state._replace(reader=opened)
        elif reader.step == 1:
            for row in state.rows:
                if row[0] == reader.epoch:
                    yield f"~reader finds {row}", state._replace(reader=reader._replace(step=2, word=row))
            yield "~reader finds nothing", state._replace(reader=idle)
        else:
            _, k, sequence, id = reader.word
            client = state.clients[k]
            if reader.step == 2:
                record = client.ring[sequence % self.ring]
                if record is None or record.kind != "W" or record.id != id or record.flying == ELIMINATED:
                    yield "~reader sees another record", state._replace(reader=idle)
                else:
                    yield "~reader sees the record", state._replace(reader=reader._replace(step=3, blob=record.blob))
            elif reader.step == 3:
                copied = reader._replace(step=4, value=client.arena[reader.blob])
                yield "~reader copies", state._replace(reader=copied)
            elif reader.step == 4:
                valid = reader.word in state.rows and (not self.rules.reader_checks_head or client.head <= sequence)
                if valid and reader.value is not None and self.id_of(reader.value) != id:
                    yield "~reader returns foreign bytes", state._replace(reader=reader._replace(step=5))
                else:
                    yield "~reader ends", state._replace(reader=idle)

    def id_of(self, value: tuple[int, int]) -> str:
        """The id under which a body was written."""
        return self.programs[value[0]][value[1]][1]

    # -- invariants --------------------------------------------------------------------------------------------------

    def wrong(self, state: State) -> str | None:
        server = state.server
        if state.reader.step == 5:
            return "a reader got foreign bytes"
        found = set()
        for frame in server.log:
            if (frame.client, frame.sequence) in found:
                return "a command was executed twice"
            found.add((frame.client, frame.sequence))
            if frame.kind == "W" and self.id_of(frame.value) != frame.id:
                return "foreign bytes were stored"
            if frame.kind == "W" and state.clients[frame.client].asked[frame.sequence].eliminated:
                return "an eliminated message was written"
        durable = {(frame.client, frame.sequence) for frame in server.log[: server.durable]}
        for k, client in enumerate(state.clients):
            for sequence in range(client.head):
                asked = client.asked[sequence]
                if asked.kind != "Q" and not asked.eliminated and (k, sequence) not in durable:
                    return "a command was confirmed and is not durable"
            if client.life == MISLED:
                return "CONTAINS does not say what held when it was asked"
            if client.life != ALIVE:
                continue
            if server.state == READY:
                wrong = self._hidden(state, k, client)
                if wrong:
                    return wrong
        return None

    def _wrong_answer(self, client: Client, k: int, record: Record) -> bool:
        before = [op for op, id in self.programs[k][: client.at] if id == record.id]
        return record.result != (YES if before.count("W") > before.count("R") else NO)

    def _hidden(self, state: State, k: int, client: Client) -> str | None:
        """Does the client own a submitted, unremoved message that nobody, or not even itself, can find?"""
        server = state.server
        told = client.asked[: client.told]
        for id in {asked.id for asked in told}:
            removed = sum(1 for asked in client.asked if asked.id == id and asked.kind == "R")
            mine = [s for s, a in enumerate(told) if a.id == id and a.kind == "W" and not a.eliminated][removed:]
            if not mine or self.references(server.log, id) > 0:
                continue
            if any(row[0] == server.published and row[3] == id for row in state.rows):
                continue
            for sequence in mine:
                if told[sequence].epoch == server.published or sequence < server.taken_up[k]:
                    return f"a reader cannot find {id}, which client {k} wrote"
            ring = [
                self._record(client, s) for s in range(client.head, client.tail if self.rules.own_ring_is_read else 0)
            ]
            if not any(record.kind == "W" and record.id == id and record.flying != ELIMINATED for record in ring):
                return f"client {k} cannot read {id}, which it wrote"
        return None

    def rest(self, state: State) -> str | None:
        server = state.server
        for k, client in enumerate(state.clients):
            if client.life == DEAD:
                return f"client {k} is dead and was never swept"
            if client.life == ALIVE and client.at < len(self.programs[k]):
                return f"client {k} hangs"
            if client.life == ALIVE and client.head != client.tail:
                return f"client {k} was not confirmed"
            for sequence in range(client.tail):
                asked = client.asked[sequence]
                executed = any((frame.client, frame.sequence) == (k, sequence) for frame in server.log)
                if asked.kind != "Q" and not asked.eliminated and not executed:
                    return f"command {k}:{sequence} was submitted and never executed"
        if any(row[0] == server.epoch for row in state.rows):
            return "a directory row is left"
        return None


def _program(text: str) -> tuple[Op, ...]:
    """`Wx S Rx S` as a program."""
    return tuple((word[0], word[1:]) for word in text.split())


#: name → model; all of them take some seconds
STANDARD = {
    "batches, two kills of the server": StoreModel(
        (_program("Wx Wy S Rx S"),), server_kills=2, client_kills=1, arena=2
    ),
    "contains between write and remove": StoreModel(
        (_program("Wx S Qx S Rx S"),), server_kills=2, client_kills=1, ring=4
    ),
    "a reader beside reuse of the arena": StoreModel((_program("Wx S Wy S"),), server_kills=1, client_kills=1, reads=1),
    "two clients, one id": StoreModel((_program("Wx S Rx S"), _program("Wx S"))),
}

#: larger ones, for a minute or two
DEEP = {
    "two clients, kills of both sides": StoreModel(
        (_program("Wx S Rx S Wy S"), _program("Wx S")), server_kills=1, client_kills=1
    ),
    "write, remove, write again": StoreModel((_program("Wx S Rx S Wx S"),), server_kills=1, client_kills=1, arena=2),
    "a reader beside a client that removes": StoreModel((_program("Wx S Rx S Wy S"),), server_kills=1, reads=1),
}
