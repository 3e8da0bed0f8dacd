"""Control requests of the topic worker: what readers of a group ask it (OP_CONTROL). engine/topics/keeper.py answers.

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
    has just been restarted. `commits` are committed first; then `released` are given back. Raises Fenced: nothing was
    committed, nor given back.
    """

    group: _Group
    member: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
    held: list[Held] = []
    commits: list[Commit] = []
    released: list[_Queue] = []


class CommitOffsets(Request, tag="commit_offsets"):
    """A member has done what lies before these offsets: `Done`, durable. All counts, or nothing. Raises Fenced."""

    group: _Group
    member: int
    commits: list[Commit]


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


class Assigned(msgspec.Struct):
    """`given`: (queue, generation, committed offset, −1: none) of each queue that is the member's; `give_back`: queues
    that are its own until it has given them back; `generation`: of the group. `row`, `stamp`: where the group's stamp
    stands in shared memory (group_rows.py; −1: nowhere), and of which one this answer is.
    """

    generation: int
    given: list[tuple[int, int, int]]
    give_back: list[int]
    row: int = -1
    stamp: int = 0


class Done(msgspec.Struct):
    """It is done, and durable."""


class Names(msgspec.Struct):
    """Names of groups; `more`: there are others behind them."""

    names: list[str]
    more: bool


class Described(msgspec.Struct):
    """`members`: (slot of the client, number) in the order in which they came; `owners`, `offsets`: for each queue the
    place of its owner in `members`, and the committed offset; −1: none.
    """

    generation: int
    members: list[tuple[int, int]]
    owners: list[int]
    offsets: list[int]


Answer = Assigned | Done | Names | Described

decode = msgspec.msgpack.Decoder(
    SyncGroup | CommitOffsets | LeaveGroup | SeekGroup | DeleteGroup | ListGroups | DescribeGroup
).decode
