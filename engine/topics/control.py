"""Control requests of the topic worker (OP_CONTROL): of readers of a group, and of those who prepare half messages.
engine/topics/keeper.py answers, halves.py what is about half messages.

A request is a msgpack map with its operation's name as `op`; each operation is one class here, and has one class of
answers. The asking side (workers/client) makes requests of these classes and reads answers by them. A refusal is a
`Refusal` instead, with RESULT_ERROR; an empty one says that the log failed.

Invariant: the answer to a commit of offsets leaves when its record in the log is synced. A request without an answer is
asked again of the next worker: executing it twice is executing it once.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from warren.engine.topics.groups import GENERATION_MAX

_Queue = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
_Generation = Annotated[int, msgspec.Meta(ge=0, lt=GENERATION_MAX)]
_Offset = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Seconds = Annotated[float, msgspec.Meta(gt=0)] | None
_Group = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_%|.-]{1,255}$")]
#: of a queue: the generation in which it was given
Held = tuple[_Queue, _Generation]
#: of a queue: the generation in which it was given, and the offset of the first message that is not done
Commit = tuple[_Queue, _Generation, _Offset]


class Request(msgspec.Struct, tag_field="op", forbid_unknown_fields=True):
    """`topic`: id of the topic that the operation is about."""

    topic: int


class SyncGroup(Request, tag="sync_group"):
    """A reader says that it is a member, and asks which queues are its own: `Assigned`. The first one joins.

    `member`: a number that its client has drawn. `held`: queues that were given to it, which counts with a worker that
    has just been restarted. `commits` are committed first; then `released` are given back. `session_s`, `poll_s`: after
    so much silence of its process, or without a call, it loses its queues; None: never. `rejoin`: it knows that it has.
    Raises Fenced: nothing was committed, nor given back; SessionExpired, until it asks with `rejoin`.
    """

    group: _Group
    member: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
    held: list[Held] = []
    commits: list[Commit] = []
    released: list[_Queue] = []
    session_s: _Seconds = None
    poll_s: _Seconds = None
    rejoin: bool = False


class CommitOffsets(Request, tag="commit_offsets"):
    """A member has done all messages before these offsets: `Done`, durable. All counts, or nothing. `poll_s`: as of
    SyncGroup, for a worker that does not know the member yet. Raises Fenced, SessionExpired.
    """

    group: _Group
    member: int
    commits: list[Commit]
    poll_s: _Seconds = None


class LeaveGroup(Request, tag="leave_group"):
    """A member goes, and commits before: `Done`. Raises Fenced: it is gone all the same."""

    group: _Group
    member: int
    commits: list[Commit] = []


class SeekGroup(Request, tag="seek_group"):
    """Set a group's offsets from outside: `Done`, durable. With `force` also under its members, which are fenced."""

    group: _Group
    offsets: list[tuple[_Queue, _Offset]]
    force: bool = False


class DeleteGroup(Request, tag="delete_group"):
    """Forget a group without members and its offsets: `Done`, durable."""

    group: _Group


class ListGroups(Request, tag="list_groups"):
    """Names of the topic's groups, in order, from the one behind `after` on: `Names`."""

    after: str = ""


class DescribeGroup(Request, tag="describe_group"):
    """What is known of a group: `Described`. One that is not known has no members and no offsets."""

    group: _Group


_Place = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class FinishHalf(Request, tag="finish_half"):
    """Commit or roll back the half message at a position of the log: `Finished` says what became of it, durable. If it
    was finished before, nothing is done, and that is told. Raises HalfNotFound.
    """

    position: _Place
    commit: bool


class CheckHalves(Request, tag="check_halves"):
    """A client answers for half messages of this topic that were left behind; which of them it is to answer for now,
    `most` at most: `ToCheck`. Nobody else is asked about these for some time.
    """

    most: Annotated[int, msgspec.Meta(ge=1, le=65536)]


class ListHalves(Request, tag="list_halves"):
    """Half messages of the topic that are pending, from a position on, in the order of the log: `Halves`."""

    position: _Place = 0


class Assigned(msgspec.Struct):
    """`given`: (queue, generation, committed offset, −1: none) of each queue that is the member's; `give_back`: queues
    that are its own until it has given them back; `generation`: of the group. `row`, `stamp`: where the group's stamp
    stands in shared memory (group_rows.py; −1: nowhere), and of which one this answer is. `own_row`, `own_number`:
    where the member says that it is there (sessions.py; −1: nowhere, so it asks by the clock).
    """

    generation: int
    given: list[tuple[int, int, int]]
    give_back: list[int]
    row: int = -1
    stamp: int = 0
    own_row: int = -1
    own_number: int = 0


class Done(msgspec.Struct):
    """It is done, and durable."""


class Names(msgspec.Struct):
    """Names of groups; `more`: there are others behind them."""

    names: list[str]
    more: bool


class Described(msgspec.Struct):
    """`members`: (slot of the client, number, seconds since its last call) in the order in which they came; `owners`,
    `offsets`: for each queue the place of its owner in `members`, and the committed offset; −1: none.
    """

    generation: int
    members: list[tuple[int, int, float]]
    owners: list[int]
    offsets: list[int]


class Pending(msgspec.Struct, array_like=True):
    """A half message: where its record lies, and its bytes; how often it was asked for; when it is asked for next, in
    milliseconds since 1970.
    """

    position: int
    size: int
    asked: int
    due: int


class Finished(msgspec.Struct):
    """`kind`: HALF_… (formats.py); of a committed one `queue` and `offset`; `position`: of the record that says so."""

    kind: int
    queue: int
    offset: int
    position: int


class ToCheck(msgspec.Struct):
    """Half messages to answer for; `again_s`: when the client is to ask which others."""

    halves: list[Pending]
    again_s: float


class Halves(msgspec.Struct):
    """Half messages; `more`: there may be others behind them."""

    halves: list[Pending]
    more: bool


class NoRoom(Exception):
    """The log has no room for the answer's record now: the request is asked for again."""


Answer = Assigned | Done | Names | Described | Finished | ToCheck | Halves

decode = msgspec.msgpack.Decoder(
    SyncGroup
    | CommitOffsets
    | LeaveGroup
    | SeekGroup
    | DeleteGroup
    | ListGroups
    | DescribeGroup
    | FinishHalf
    | CheckHalves
    | ListHalves
).decode
