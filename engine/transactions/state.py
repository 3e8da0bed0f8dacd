"""The state of a sink: what it has committed, whose batches it takes, and what is committed and not everywhere yet.

    DIR/transactions/<sink>/state      `{"crc32": …, "sink": {…}}`, replaced as a whole (engine/kernel/atomic_file.py)

The CRC is over the bytes of the inner map. A state that was read may not be durable: its writer may have been killed
between the rename and the sync of the directory. So who finds a batch pending in it writes it again before it appends
anything (sink.py).
"""

from __future__ import annotations

import secrets
import zlib
from pathlib import Path

import msgspec

from warren.engine.errors import CorruptRecord, FormatVersionError, LimitError, StoreError
from warren.engine.kernel import atomic_file, data_files
from warren.engine.kernel.formats import SINK_VERSION
from warren.engine.saying import shown, undecoded
from warren.engine.transactions.folder import SinkFolder
from warren.engine.transactions.parts import Destination, Part

#: runs of a query that are remembered, and writes that are no streams
RUNS_KEPT = WRITES_KEPT = 64
#: bytes of a state that is written, and of one that is read
STATE_BYTES_MAX = 256 << 20
READ_BYTES_MAX = STATE_BYTES_MAX + (1 << 20)
#: batches whose seals are remembered: so many does Spark keep in a checkpoint
SEALS_KEPT = 100


class Roller(msgspec.Struct, frozen=True):
    """The client that appends: what it has submitted is executed, whatever becomes of it."""

    slot: int
    epoch: int
    pid: int
    start_time: int


class Place(msgspec.Struct):
    """How far a batch is in one destination."""

    destination: Destination
    messages: int  #: of the batch
    done: int = 0  #: of them confirmed
    start: int = 0  #: topics: the offset behind those, at least; what is there of the rest lies from here on


class Pending(msgspec.Struct):
    """A batch that is committed and not everywhere yet."""

    number: int  #: of the transaction, in the life of the sink
    owner: str  #: the query, or the id of a write that is no stream
    batch: int | None  #: None: it is no stream's
    parts: tuple[Part, ...]
    places: list[Place]
    roller: Roller | None
    committed: float  #: seconds since 1970
    progressed: float  #: when `places` was written last: what is not in it was appended later

    @property
    def messages(self) -> int:
        return sum(place.messages for place in self.places)

    @property
    def done(self) -> int:
        return sum(place.done for place in self.places)


class Stream(msgspec.Struct):
    """The query whose batches the sink takes."""

    query: str
    batch: int = -1  #: the last one that is committed
    runs: list[str] = []  #: the newest last: that has the sink
    seals: dict[int, str] = {}  #: of the newest batches: what tells each from another one of its number


class State(msgspec.Struct):
    """All that is known of a sink."""

    format_version: int
    node_id: int
    sink: str
    incarnation: str  #: tells it from one of the same name that was forgotten
    number: int = 0  #: of the last transaction
    stream: Stream | None = None
    former: list[Stream] = []  #: queries from which others took the sink, the newest last: one may take it back
    pending: Pending | None = None
    writes: list[str] = []  #: the newest that are no streams and are finished
    messages: int = 0  #: of all that are finished
    bytes: int = 0
    committed: float = 0.0

    @classmethod
    def new(cls, node_id: int, sink: str) -> State:
        return cls(SINK_VERSION, node_id, sink, secrets.token_hex(8))


class _Outer(msgspec.Struct):
    crc32: int
    sink: msgspec.Raw


class _Version(msgspec.Struct):
    format_version: int


def load(folder: SinkFolder, node_id: int | None) -> State | None:
    """The state; None: the sink has none yet. `node_id`: the node that it must be of. Raises StoreError and its
    kinds.
    """
    try:
        content = data_files.read(folder.state, anyones=True, most=READ_BYTES_MAX)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise atomic_file.explain(error, f"cannot read {folder.state}") from error
    state = decode(folder.state, content)
    if state.sink != folder.name or (node_id is not None and state.node_id != node_id):
        raise StoreError(
            f"{folder.state} is of sink {shown(state.sink)} of node {state.node_id:016x}: somebody put it there; "
            "put it back, or move it away"
        )
    return state


def decode(path: Path, content: bytes) -> State:
    """Raises CorruptRecord, FormatVersionError."""
    advice = (
        "nobody can say which batches this sink has committed: put the file back from a copy of now, or look into the "
        "topics and queues for the newest batch, and then start anew with `warren transactions DIR --forget SINK "
        "--force`"
    )
    try:
        outer = msgspec.json.decode(content, type=_Outer)
        raw = bytes(outer.sink)
        if zlib.crc32(raw) != outer.crc32:
            raise CorruptRecord(path, 0, f"crc32 {outer.crc32}", str(zlib.crc32(raw)), advice)
        version = msgspec.json.decode(raw, type=_Version).format_version
        if version > SINK_VERSION:
            raise FormatVersionError(f"{path} has version {version}; this Warren reads up to {SINK_VERSION}: upgrade")
        return msgspec.json.decode(raw, type=State)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptRecord(path, 0, "the state of a sink", undecoded(error), advice) from error


def save(folder: SinkFolder, state: State) -> None:
    """Make it the durable state. Raises LimitError, StoreError and its kinds; SyncFailed: it may be the state, or
    may not."""
    raw = msgspec.json.encode(state)
    content = b'{"crc32":%d,"sink":%s}\n' % (zlib.crc32(raw), raw)
    if len(content) > STATE_BYTES_MAX:
        raise LimitError(
            f"sink {folder.name!r} would have to remember {len(content):,} bytes of a batch, and a sink remembers at "
            f"most {STATE_BYTES_MAX:,}: write to fewer destinations, or from fewer partitions, at once"
        )
    atomic_file.replace(folder.state, content, folder.file_mode)
