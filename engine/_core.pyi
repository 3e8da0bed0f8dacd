"""Stub of the C extension warren.engine._core. Each part of the core has its own section."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Generic, Literal, Self, final, overload

from typing_extensions import Buffer, TypeVar

_Durability = Literal["none", "written", "synced"]
_Result = TypeVar("_Result", covariant=True, default=None)

# ==== kernel: binding/kernel.c =======================================================================================

LAYOUT_HASH: int
"""engine/kernel/protocol.py's, as the C core was built."""

def crc32c(data: Buffer, seed: int = 0, /) -> int:
    """CRC32C; `seed` is the CRC of what went before."""

def copy_crc32c(to: Buffer, data: Buffer, seed: int = 0, /) -> int:
    """Copy `data` to the start of `to`; returns the CRC32C of what was copied."""

def copy_crc32c_table(to: Buffer, data: Buffer, seed: int = 0, /) -> int:
    """The same without the processor's instruction."""

def large_check(folder: int, node_id: int, id: bytes, /) -> tuple[int, int, str]:
    """All of the file of a large message is read: its length with metadata, the length of these, what is wrong with it
    ("": nothing). Raises OSError."""

def crc32(data: Buffer, seed: int = 0, /) -> int:
    """CRC-32 (IEEE 802.3), as zlib.crc32; `seed` is the CRC of what went before."""

def copy_crc32(to: Buffer, data: Buffer, seed: int = 0, /) -> int:
    """Copy `data` to the start of `to`; returns the CRC-32 of what was copied."""

def copy_crc32_table(to: Buffer, data: Buffer, seed: int = 0, /) -> int:
    """The same without the processor's instruction."""

def frame_encode(
    kind: int,
    id: Buffer,
    flags: int,
    client_epoch: int,
    sequence: int,
    extra: int,
    meta_length: int,
    body: Buffer,
    salt: int,
    /,
) -> bytes: ...
def frame_pad(size: int, salt: int, last: bool = False, /) -> bytes: ...
def frame_check(buffer: Buffer, at: int, salt: int, /) -> tuple[int, int, int, bytes, int, int, int, int] | str:
    """(total, kind, flags, id, client_epoch, sequence, extra, meta_length), or the reason why there is no frame."""

def frame_behind(buffer: Buffer, at: int, salt: int, /) -> int:
    """Where valid frames go on behind byte `at`, which holds none; 0: nowhere."""

def frame_scan(buffer: Buffer, salt: int, start: int, /) -> tuple[bytes, int, str]:
    """(packed wr_frame_row array, end, reason): see engine/kernel/frame.py."""

def file_header_pack(
    kind: int, node_id: int, owner: int, file: int, salt: int, created_ns: int, low: int = ..., high: int = ..., /
) -> bytes:
    """The header page; with `low` and `high` that of a collected file, which stands for these positions."""

def file_header_check(page: Buffer, kind: int, node_id: int, owner: int, file: int, /) -> tuple[str | None, int]:
    """(None, salt) when good, else (reason, 0)."""

def image_read(region: Buffer, images_n: int, file_bytes: int, file: int, offset: int, size: int, /) -> bytes | None:
    """Bytes of a file that some image holds, or None."""

# ==== lists of the store's files: binding/file_list.c ================================================================

@final
class FileList:
    """What a file of the store holds, without the bodies (store/file_list.h). It does not change once Python has it."""

    @property
    def file(self) -> int: ...
    @property
    def salt(self) -> int: ...
    @property
    def used(self) -> int:
        """End of the last frame."""
    @property
    def messages(self) -> int: ...
    @property
    def message_bytes(self) -> int: ...
    @property
    def controls(self) -> int: ...
    @property
    def runs(self) -> int: ...
    @property
    def vouched(self) -> int:
        """Bytes of the file of which a frame says that they were synced; 0 in a list that no scan made."""
    @property
    def damaged(self) -> int:
        """Damaged parts that the scan which made the list skipped, also when it was read from a list file since."""
    @property
    def damage(self) -> list[tuple[int, int, str]]:
        """Damaged parts that a scan skipped: (from, to, reason). Empty in a list from a list file."""
    @property
    def waters(self) -> dict[int, int]:
        """High water of each client epoch."""
    def encode(self, node_id: int, owner: int, /) -> bytes:
        """The bytes of its list file."""
    def items(self) -> list[tuple[bytes, int, int, int, int, int]]:
        """All ids in the order of the file: (id, offset, total, extra, meta_length, kind)."""
    def verify(self, buffer: Buffer, /) -> tuple[list[tuple[bytes, int, int, int, str]], int]:
        """Ids whose frames are not in a file's bytes: ([(id, offset, total, kind, reason)] of 4096, how many)."""

def decode_list(buffer: Buffer, node_id: int, owner: int, file: int, salt: int, file_bytes: int, /) -> FileList | str:
    """The list in a list file, or the reason why it is none of this file."""

def rewrite_list(list: FileList, buffer: Buffer, to: Buffer, salt: int, /) -> int:
    """Copy the frames that a list names from a file's bytes to another file's, with its salt; returns the end there."""

def scan_list(file: int, salt: int, buffer: Buffer, /) -> tuple[FileList, str]:
    """The list of a file's bytes, and why the scan ended at its `used`: "end", "zeros", or what is wrong there."""

# ==== kernel: the log ================================================================================================

@final
class Log:
    """The append side of a segment file (kernel/log.h), for tools and tests. One thread, and one for run_committer."""

    def __new__(cls, buffer: Buffer, images_n: int, file_bytes: int, may_sync: bool = True) -> Self: ...
    def offer(self, fd: int, file: int, salt: int, header: Buffer, /) -> None:
        """The log owns `fd` from now on. OSError(EBUSY): a next file is there already (then it does not)."""

    def append_frame(
        self,
        kind: int,
        id: Buffer,
        flags: int,
        client_epoch: int,
        sequence: int,
        extra: int,
        meta_length: int,
        body: Buffer,
        sync: bool,
        /,
    ) -> tuple[int, int] | None:
        """(file, offset), or None when it must wait for a file or an image. OSError: EMSGSIZE, or the log's failure."""

    def append_run(
        self,
        kind: int,
        id: Buffer,
        flags: int,
        client_epoch: int,
        sequence: int,
        extra: int,
        meta_length: int,
        body: Buffer,
        sync: bool,
        count: int,
        /,
    ) -> int:
        """Append up to `count` such frames with rising sequences; how many went in before it must wait."""

    def seal(self, sync: bool, /) -> bool:
        """Post what was appended; False when the batch queue is full."""

    def state(self) -> dict[str, int]: ...
    def run_committer(self) -> None: ...
    def stop(self) -> None: ...
    def quiesce(self, timeout_s: float, /) -> bool: ...
    def close(self) -> None:
        """RuntimeError while the committer runs."""

# ==== end of kernel ==================================================================================================

# ==== message store: binding/store_server.c, binding/copy.c, binding/bare_store_client.c =============================

STORE_EVENT_FILE: int
STORE_EVENT_SLOTS: int
STORE_EVENT_INDEX: int
STORE_EVENT_EMPTY: int
STORE_EVENT_FAILED: int
STORE_EVENT_STOP: int
STORE_EVENT_TIMER: int
STORE_EVENT_SWEPT: int
STORE_EVENT_KICK: int
STORE_EVENT_LIST: int
STORE_EVENT_EXTENT: int

def populate(buffer: Any, /) -> None:
    """Touch every page of a writable buffer now, without the GIL."""

@final
class Collection:
    """Copies what is needed of neighbouring files into a new one (engine/store/copy.h)."""

    def __new__(
        cls,
        superblock: Buffer,
        summary: Buffer,
        server: int,
        sources: Sequence[tuple[int, FileList, int, bool]],
        fd: int,
        file_bytes: int,
        node_id: int,
        file: int,
        salt: int,
        low: int,
        high: int,
        created_ns: int,
    ) -> Self:
        """`sources`: (descriptor, list, last position, keep every control frame), by position. fd -1: only check."""

    def step(self, bytes: int, /) -> bool:
        """Go on for about so many bytes; True when all is written. OSError: E2BIG (see fits), ESTALE (try again), …"""

    def fits(self) -> int:
        """After E2BIG: so many of the sources fit."""

    def counts(self) -> dict[str, int]: ...
    def damage(self) -> list[tuple[bytes, int, int, int, str, int]]:
        """(id, file, offset, total, reason, kind) of each needed record that is damaged."""

    def take_list(self) -> FileList:
        """The list of the output; nothing can be done with this collection after it."""

    def close(self) -> None:
        """Let go of all memory."""

@final
class StoreServer:
    """The store server's loop over both stores (engine/store/store.h). `number`: 0 persistent, 1 transient."""

    def __new__(cls, superblock: Buffer, commit_bytes: int, tick_ns: int, spin_ns: int) -> Self: ...
    def open(
        self, number: int, images: Buffer, directory: Buffer, summary: Buffer, index: Buffer, dense: Buffer, /
    ) -> None:
        """Take new, zeroed regions."""

    def set_folder(self, number: int, fd: int, /) -> None:
        """Where the store's files are, for comparing bodies (rule S12); `fd` stays the caller's."""

    def add_extent(self, number: int, region: Buffer, /) -> None:
        """The next extent of the index, zeroed, its pages touched."""

    def inject(self, number: int, pwrite_errno: int, fdatasync_errno: int, /) -> None:
        """For tests: the committer's next system calls fail with these; 0 is the real system."""

    def add_file(self, number: int, file: int, bytes: int, low: int, high: int, /) -> None:
        """A file that exists, at start, and its positions. OSError(EBUSY): its row of the summary is taken."""

    def apply_list(
        self, number: int, file_list: FileList, cursor: int = 0, /
    ) -> tuple[int, Literal["index", "extent"] | None]:
        """Replay a file from `cursor` on. None: done; else grow the hash part, or add an extent, and call again."""

    def take_list(self, number: int, /) -> FileList | None:
        """The list of a file that was rolled and is durable."""

    def current_list(self, number: int, /) -> FileList | None:
        """The list of the current file, once, after the committer has ended."""

    def leave_current(self, number: int, /) -> bool:
        """Go over to the next file; False: there is none, or nothing was written to the current one."""

    def log_mark(self, number: int, /) -> int:
        """What has been appended until now, for log_durable."""

    def log_durable(self, number: int, mark: int, /) -> bool:
        """What had been appended at `mark` is durable; else a sync is on its way. Ask again in a later round."""

    def pinned(self, number: int, /) -> list[int]:
        """The files whose removes and added references are needed: records that they speak of may be there."""

    def lock_files(self, number: int, files: Sequence[int], /) -> bool:
        """All or none; False: one is unknown, current, locked, or may be replayed, or a worker has not resynced."""

    def unlock_files(self, number: int, files: Sequence[int], ghosts: bool, /) -> None: ...
    def collected(self, number: int, file: int, used: int, low: int, high: int, /) -> None:
        """The output of a collection takes its place. OSError(EBUSY) as for add_file."""

    def swing(self, number: int, file_list: FileList, sources: Sequence[int], cursor: int, /) -> int:
        """Entries of the output's list that lie in a source lie in the output; returns where to go on, -1: done."""

    def drop_entries(self, number: int, file: int, file_list: FileList, cursor: int, /) -> int:
        """Drop the entries of a locked file; returns where to go on, -1: done. RuntimeError: one is held."""

    def drop_lost(self, number: int, ids: Sequence[bytes], /) -> int:
        """Records found damaged: their entries go; returns how many were held."""

    def client_dying(self, store: int, slot: int, generation: int, until: int, /) -> None:
        """The client is about to remove what it wrote to this store (both): its death point is now.

        Commands below `until` are masked (up to the next OP_STORE_TERMINATE): a message that comes late does nothing.
        """

    def note_lost(self, number: int, messages: int, /) -> None:
        """Messages that a start found to be lost."""

    def finish(self, number: int, /) -> int:
        """Make sums from entries and files; returns how many entries had no file and were dropped."""

    def offer(self, number: int, fd: int, file: int, salt: int, header: Buffer, /) -> None:
        """The next file; the store owns `fd` unless OSError is raised."""

    def replace_index(self, number: int, region: Buffer, /) -> None: ...
    def take_gone(self, number: int, /) -> list[int]:
        """Empty files that go: they are locked. Retire them, remove them, then file_gone."""

    def file_gone(self, number: int, file: int, /) -> None: ...
    def attach(
        self,
        slot: int,
        generation: int,
        client_epoch: int,
        region: Buffer,
        holder: int,
        epoch0: int,
        epoch1: int,
        starting: bool,
        /,
    ) -> None: ...
    def close_slot(self, slot: int, /) -> None: ...
    def detach(self, slot: int, /) -> bool:
        """True when the region may go; False: try again later."""

    def slots_seen(self, version: int, /) -> None: ...
    def freeze(self) -> None:
        """Execute nothing any more but what was submitted until now: the rest is the next server's."""

    def set_draining(self, on: bool, /) -> None: ...
    def set_unserved(self, on: bool, /) -> None: ...
    def run(self, max_ns: int, /) -> int:
        """Serve until something needs Python (STORE_EVENT_… bits), a signal, or max_ns. Without the GIL."""

    def kick(self) -> None:
        """From another thread: let run() return."""

    def all_durable(self) -> bool:
        """True when everything submitted is executed, written and synced; asks for what is missing."""

    def commit_run(self, number: int, /) -> None:
        """The committer's whole life, on its own thread."""

    def stop(self, number: int, /) -> None:
        """Let commit_run end."""

    def water(self, number: int, client_epoch: int, /) -> int: ...
    def look(self, number: int, /) -> dict[str, int]: ...

@final
class StoreClient:
    """One client's side of one store, bare (engine/store/client.h): for tests and tools."""

    def __new__(
        cls, superblock: Buffer, region: Buffer, slot: int, generation: int, client_epoch: int, server: int
    ) -> Self: ...
    def set_regions(self, images: Buffer, directory: Buffer, summary: Buffer, directory_fd: int, /) -> None: ...
    def set_other(self, slot: int, generation: int, region: Buffer, /) -> None: ...
    def write_many(self, messages: list[tuple[bytes, bytes]], flags: int, submit: bool, /) -> int:
        """Returns the horizon that covers them. OSError(EAGAIN): ring, arena or directory bucket full."""

    def write_batch(self, first: bytes, bodies: Sequence[bytes], flags: int, submit: bool, /) -> int:
        """One OP_STORE_WRITE_MANY of ids that count up from `first`; as write_many."""

    def write_owned(self, id: bytes, position: int, length: int, owner_tag: int, flags: int, /) -> int: ...
    def remove(self, ids: list[bytes], /) -> tuple[int, int]:
        """(horizon, how many writes were eliminated)."""

    def command(self, op: int, flags: int, id: bytes, ids: list[bytes], /) -> int:
        """Any other command; returns its sequence."""

    def result(self, sequence: int, /) -> int: ...
    def reply(self) -> bytes: ...
    def read(self, id: bytes, /) -> bytes | None: ...
    def wait(self, horizon: str, sequence: int, timeout_ns: int, /) -> bool: ...
    def horizon(self, name: str, /) -> int: ...
    def evicted(self) -> int: ...
    def load(self, first: int, body: Buffer, flags: int, batch: int, seconds_ns: int, /) -> int:
        """Write counted ids as fast as it goes; returns how many."""

# ==== client: binding/client_type.c, binding/queue_handle_type.c, binding/sleeper.c, binding/queue_poll.c ============

COLUMNS_VALUES: int
COLUMNS_PLACES: int
COLUMNS_METAS: int
LEVEL_NONE: int
LEVEL_WRITTEN: int
LEVEL_SYNCED: int
HOOK_CHECK: int
HOOK_EPOCH: int
HOOK_EVICTED: int
HOOK_FROZEN: int
HOOK_STOPPING: int
HOOK_FAILED: int
HOOK_TIMED_OUT: int
HOOK_CATALOG: int
HOOK_HOT: int
HOOK_SILENT: int
HOOK_LARGE: int
THE_ANSWER: str
ANSWER_MS: int
WANT_PROCESSED: int
WANT_HEAD: int
WANT_DELIVERY: int
POLL_EMPTY: int
POLL_SLOW: int
POLL_STALE: int
POLL_UNBORN: int
POLL_NO_ROOM: int
FOR_ROOM: int
FOR_CONFIRM: int
FOR_REPLY: int
FOR_DELIVERY: int

class AttachmentLost(Exception):
    """This attachment is over: make another one and call again. Nothing was submitted."""

# ==== client: binding/sleeper.c ======================================================================================

def wait_any(clients: list[Client], shared: list[Client], seen: int, seconds: float, waitv: bool, /) -> list[Client]:
    """Sleep until wants of these clients are met, they have ended, or are in a new kind of trouble; returns those.

    `shared`: those of them that others than an event loop are told of.
    Returns early when waiter_kicks() is not `seen` any more. `waitv`: use futex_waitv if the kernel has it.
    """

def waiter_kicks() -> int: ...
def waiter_kick() -> None: ...
def waiter_forked() -> None: ...

# ==== client: binding/confirm.c ======================================================================================

def set_confirm_face(
    add_done_callback: Callable[[Confirm, Callable[[Confirm], object]], None],
    future: Callable[[Confirm], Future[None]],
    /,
) -> None: ...

@final
class Confirm(Generic[_Result]):
    """The promise of one or several writes, like a concurrent.futures.Future. Its result is None; that of an append to
    a topic is the Position, or a list of them."""

    def wait(self, timeout: float | None = None) -> None:
        """Return when it is confirmed at its durability.

        Raises TimedOut, PeerLost, SyncFailed, ClosedError, QueueFull, QueueNotFound, TopicNotFound, MessageTooLarge.
        """

    def result(self, timeout: float | None = None) -> _Result:
        """The same as wait, and what it is a promise of."""

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait, and return the error, or None if it was confirmed. Raises TimedOut."""

    def done(self) -> bool:
        """Whether result() would answer at once: confirmed, or failed for good. Never waits."""

    def cancel(self) -> bool:
        """Always False: a submitted message cannot be recalled."""

    def cancelled(self) -> bool:
        """False."""

    def add_done_callback(self, fn: Callable[[Confirm[_Result]], object], /) -> None:
        """Call fn(confirm) when it is done, in a thread of Warren's; immediately if it is done already."""

    def future(self) -> Future[_Result]:
        """A concurrent.futures.Future of it, for concurrent.futures.wait and asyncio.wrap_future."""

    def waits_for(self) -> tuple[int, int, int] | None:
        """(server, level, sequence) that must be passed first; None: confirmed."""

    def untaken(self) -> list[tuple[int, int, int]] | None:
        """What a node that was stopped never took: (server, index of the first message, how many); None: it is not
        known, or not over.
        """

    @property
    def core(self) -> Client: ...
    @property
    def duplicate(self) -> bool:
        """It is confirmed, and a message was dropped because its id was seen within the deduplication window."""

# ==== topics: binding/position.c, binding/topic_handle.c =============================================================

@final
class Position:
    """Where a message of a topic lies. With durability `none` it is final only when the message is written."""

    def __new__(cls, queue: int, offset: int, physical_offset: int, message_id: str) -> Self: ...
    @property
    def queue(self) -> int:
        """The queue of the topic that the message is in."""

    @property
    def offset(self) -> int:
        """Its number in that queue, from 0."""

    @property
    def physical_offset(self) -> int:
        """Where its record begins in the log, in bytes."""

    @property
    def message_id(self) -> str:
        """Its id, for Topic.find_id."""

@final
class TopicHandle:
    """A topic as an attachment appends to it, by the catalog of a version."""

    def __new__(
        cls,
        client: Client,
        server: int,
        topic: int,
        name_length: int,
        queues: int,
        host: bytes,
        command_bytes: int,
        catalog: int,
        compacted: bool = False,
        /,
    ) -> Self:
        """`command_bytes`: in the log, of the records of one command, if there are several. `compacted`: a message
        without a key is refused."""

    @property
    def topic(self) -> int: ...
    def tell(self, name: str, record_bytes_max: int, record_limit: str, /) -> None:
        """For what it raises: the topic's name; the largest record that its log takes, and by which setting, with what
        to do.
        """

    def append(
        self,
        body: Buffer,
        key: str | Sequence[str] | None,
        tag: str | None,
        properties: dict[str, str] | None,
        queue: int | None,
        born: int | None,
        later: bytes | None,
        level: int,
        timeout: float | None,
        wait: bool,
        /,
    ) -> Position | Confirm[Position]:
        """Append a message; `born`: ms since 1970, None: now; `later`: packed properties that say when it comes."""

    def append_again(
        self,
        body: Buffer,
        properties: bytes,
        queue: int,
        born: int,
        later: bool,
        timeout: float | None,
        /,
    ) -> Position:
        """Append a message with these packed properties, whatever their names; synced when it returns. `later`: they
        say when it comes.
        """

    def prepare(
        self,
        body: Buffer,
        key: str | Sequence[str] | None,
        tag: str | None,
        properties: dict[str, str] | None,
        queue: int | None,
        born: int | None,
        later: None,
        level: int,
        timeout: float | None,
        wait: bool,
        /,
    ) -> Position | Confirm[Position]:
        """The same of a half message."""

    def append_many(
        self,
        bodies: Iterable[Buffer],
        keys: str | Sequence[str | Sequence[str] | None] | None,
        tags: str | Sequence[str | None] | None,
        properties: dict[str, str] | Sequence[dict[str, str] | None] | None,
        queues: int | Sequence[int | None] | None,
        born: int | Sequence[int | None] | None,
        later: bytes | None,
        level: int,
        timeout: float | None,
        wait: bool,
        /,
    ) -> list[Position] | Confirm[list[Position]]:
        """The same of many: one value for all, or a list or tuple with one for each."""

    def append_rows(
        self,
        rows: int,
        bodies: RowTexts,
        keys: RowTexts | None,
        tags: RowTexts | None,
        headers: RowPairs | None,
        queues: RowNumbers | None,
        born: RowNumbers | None,
        delays: RowNumbers | None,
        level: int,
        timeout: float | None,
        wait: bool,
        numbers: int | RowNumbers,
        /,
    ) -> list[Position] | Confirm[list[Position]]:
        """The same of rows of columns. `queues` int32, `born` and `delays` int64 of milliseconds; below 0: none."""

    def check_many(
        self, bodies: Iterable[Buffer], keys: Any, tags: Any, properties: Any, queues: Any, born: Any, later: Any, /
    ) -> None:
        """Raises what append_many would find wrong before it sends anything."""

    def queue_of(self, key: str | Sequence[str], /) -> int: ...
    def turn(self) -> int:
        """The queue of the next messages without a key."""

# ==== client: binding/publish.c ======================================================================================

def plain_headers(headers: object, /) -> bool:
    """Whether this is a dict with str keys of None, bool, int, float, str, bytes, and lists and dicts of these, of just
    these classes: msgpack gives it back as it is. False says only that it is to be looked at."""

#: a buffer (arrays of numpy are told to be none before Python 3.12)
RowNumbers = Any
#: a column of texts: (ends as int32, one more than rows; bytes; a byte for each row, 0 for null, or None)
RowTexts = tuple[RowNumbers, RowNumbers, RowNumbers | None]
#: lists of headers: (ends as int32, valid, names, values, valid pairs, whether values are text)
RowPairs = tuple[RowNumbers, RowNumbers | None, RowTexts, RowTexts, RowNumbers | None, bool]

def row_metadata(
    rows: int,
    exchange: str,
    routing_key: str,
    keys: RowTexts | None,
    headers: RowPairs | None,
    timestamps: RowNumbers | None,
    message_ids: RowTexts | None,
    ids_are_text: bool,
    numbers: int | RowNumbers,
    /,
) -> tuple[bytes, Memory]:
    """Metadata of rows (binding/row_metadata.c) as a column: its ends and bytes. `timestamps`: float64, NaN for none.
    Raises UsageError and MessageTooLarge with the number of the row: `numbers`
    says the first, or those of all (int64)."""

@final
class Route:
    """Where one message goes: [(server, [queue id, ...]), ...], and topics: (topic server, record bytes at most, why,
    [(id, queues, name), ...])."""

    def __new__(
        cls,
        targets: list[tuple[int, list[int]]],
        topics: tuple[int, int, str, list[tuple[int, int, str]]] | None = None,
        /,
    ) -> Self: ...

# ==== client: binding/delivery_type.c ================================================================================

class Delivery:
    """One delivered message."""

    @property
    def body(self) -> bytes: ...
    def view(self) -> memoryview:
        """The body as a read-only memoryview of bytes, without a copy; good for as long as something refers to it."""
    @property
    def meta(self) -> bytes | None: ...
    @property
    def delivery_tag(self) -> int: ...
    @property
    def delivery_count(self) -> int: ...
    @property
    def redelivered(self) -> bool: ...
    @property
    def priority(self) -> int: ...
    @property
    def reason(self) -> int:
        """Why it is a dead letter: 1 rejected, 2 expired, 3 maximum length, 4 delivery_limit; 0: it is none."""
    @property
    def persistent(self) -> bool: ...
    @property
    def settled(self) -> bool:
        """Acked or nacked, or somebody tried to after it had timed out; `browsed`."""
    @property
    def browsed(self) -> bool:
        """It was only looked at (browse, Subscription.read), so it cannot be acked or nacked."""
    @property
    def timed_out(self) -> bool:
        """Its queue's ack_timeout ran out before it was settled: it went back."""
    @property
    def message_id(self) -> bytes:
        """The engine's id, 16 bytes, by whose hex logs name it; the publisher's is properties["message_id"]."""
    @property
    def queue(self) -> Any:
        """The queue it came from."""

    def ack(self, multiple: bool = False) -> None:
        """Ack it; with `multiple`, also everything handed out before it."""

    def nack(self, requeue: bool = True, multiple: bool = False) -> None:
        """Return it to its place in the queue (marked redelivered), or drop it."""
    def nack_until(self, due: int) -> None:
        """As nack(delay=…), but until a time, in milliseconds since 1970."""

# ==== client: binding/client_type.c ==================================================================================

@final
class Client:
    """One attachment of this process to a node. `hook(code, server, what)` mends trouble or raises; when a
    time is up it is told the seconds, too (below 0: not known)."""

    def __new__(
        cls,
        superblock: Buffer,
        region: Buffer,
        slot: int,
        generation: int,
        client_epoch: int,
        hook: Callable[..., None],
        /,
    ) -> Self: ...
    catalog_seen: int
    call_timeout: float | None
    """Seconds that a call without a timeout waits for room, when it does not wait for what becomes of a thing."""
    @property
    def ended(self) -> bool: ...
    @property
    def over(self) -> bool:
        """It has ended, or its node was stopped: what it knows is of the past."""

    @property
    def behind(self) -> bool:
        """The catalog has another version than `catalog_seen`, or cannot be asked any more."""

    @property
    def redelivered_n(self) -> int:
        """Messages handed out that somebody may have had before."""

    @property
    def busy(self) -> int:
        """Threads that wait or read inside; the memory is theirs until they are out."""

    def publish(
        self,
        route: Route,
        body: Buffer,
        level: int,
        meta: bytes | None,
        timeout: float | None,
        wait: bool,
        options: tuple[int, int, bytes | None, bool] | None = None,
        told: tuple[tuple[int, bytes], ...] | None = None,
        /,
    ) -> Confirm | None: ...
    def publish_many(
        self,
        routes: Route | Sequence[Route],
        bodies: Iterable[Buffer],
        level: int,
        metas: bytes | Sequence[bytes | None] | None,
        timeout: float | None,
        wait: bool,
        options: tuple[int, int, bytes | None, bool] | list[tuple[int, int, bytes | None, bool] | None] | None = None,
        told: tuple[tuple[int, bytes], ...] | list[tuple[tuple[int, bytes], ...] | None] | None = None,
        /,
    ) -> Confirm | None: ...
    def publish_rows(
        self,
        routes: Route | tuple[Route, ...],
        rows: int,
        bodies: RowTexts,
        metas: RowTexts | None,
        which: RowNumbers | None,
        extras: tuple[RowNumbers | None, RowNumbers | None, RowNumbers | None, RowNumbers | None] | None,
        level: int,
        timeout: float | None,
        wait: bool,
        numbers: int | RowNumbers,
        /,
    ) -> Confirm | None:
        """Publish rows of columns to queues. `which`: int32, the route of each; `extras`: (expires and due as uint64,
        keys of deduplication, whether each has one)."""
    def control(self, server: int, request: bytes, timeout: float | None, /) -> tuple[int, bytes]: ...
    def barrier(self, server: int, level: int, timeout: float | None, /) -> None: ...
    def wait_delivery(self, server: int, timeout: float | None, /) -> bool:
        """True when messages of the worker lie here or were pushed, or it was restarted; False when time was up."""

    def wait_submitted(self, timeout: float | None, /) -> bool:
        """Wait until all that was submitted is as durable as was asked for; False when time was up."""

    def horizons(self, server: int, /) -> dict[str, int]: ...
    def end(self, error: BaseException | None, /) -> None:
        """Nothing is submitted any more; whoever waits gets `error` (None: AttachmentLost)."""

    def set_large(self, server: int, fd: int, /) -> None:
        """The folder of a worker's large messages; the descriptor is the client's from now on."""

    def set_worker(
        self,
        server: int,
        images: Buffer | None,
        transient_images: Buffer | None,
        journal_fd: int,
        transient_fd: int,
        segments_fd: int,
        epoch: int,
        /,
    ) -> None: ...
    def link_epoch(self, server: int, /) -> int: ...
    def evicted(self, server: int, /) -> int: ...
    def next_id(self) -> bytes: ...
    def watch(self, server: int, kind: int, above: int, /) -> bool:
        """A want for wait_any: that horizon (a level, WANT_HEAD, WANT_DELIVERY) above this. True: met already."""

    def set_doorbell(self, on: bool, /) -> None:
        """The servers ring this client's socket, if they reach it (ipc/core/doorbell.h), and do not wake the thread in
        wait_any for what is watched; False: they wake it again.
        """

    def room(self, server: int, commands: int, bytes: int, largest: int, /) -> tuple[int, int] | None:
        """None: so many commands and bytes of blobs can be prepared at once; else (server, head) to watch."""

    def check(self, server: int, /) -> None:
        """The hook looks whether anybody is left who could answer, as in every wait that takes a second."""

    def lying(self, server: int, /) -> list[int]:
        """Take in what was pushed; ids of the queues of which something lies here."""

    def trouble(self, server: int, purpose: int, /) -> int:
        """What ends a wait for this purpose: a code for the hook, or 0."""
    def deliveries(self, handle: QueueHandle, rows: Buffer, /) -> list[Delivery | None]: ...
    def columns(
        self, handle: QueueHandle, rows: Buffer, wanted: int, name: bytes, /
    ) -> tuple[int, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes]:
        """(rows read, tags, ids, value ends, values, exchange ends, exchanges, routing key ends, routing keys, metadata
        ends, metadata, delivery counts, redelivered). `wanted`: COLUMNS_…; what is not wanted is empty, as are the
        columns of COLUMNS_PLACES when no message has metadata; the routing key of one that has none is `name`.
        """

    def set_store(
        self,
        store: int,
        directory: Buffer,
        summary: Buffer,
        images: Buffer,
        folder: int,
        epoch: int,
        /,
    ) -> None: ...
    def store_dying(self, store: int, /) -> tuple[int, int]: ...
    def store_terminate(self, store: int, since: int, timeout: float | None, /) -> int: ...

# ==== client: binding/store_type.c ===================================================================================

class StoreFace:
    """The base of `warren.Store`: what is called for each message. See binding/store_type.c."""

    @property
    def transient(self) -> bool: ...
    def __init__(self, client: object, transient: bool) -> None: ...
    @overload
    def write(
        self,
        id: bytes,
        body: Buffer,
        durability: _Durability | None = None,
        wait: Literal[True] = True,
        timeout: float | None = None,
    ) -> None:
        """Write a message. Returns when it is as durable as requested (default: 'synced', transient 'none').

        With wait=False, returns a Confirm at once. Raises UsageError (id), MessageTooLarge, TimedOut,
        PeerLost, SyncFailed.
        """

    @overload
    def write(
        self,
        id: bytes,
        body: Buffer,
        durability: _Durability | None = None,
        *,
        wait: Literal[False],
        timeout: float | None = None,
    ) -> Confirm: ...
    @overload
    def write(
        self,
        id: bytes,
        body: Buffer,
        durability: _Durability | None,
        wait: Literal[False],
        timeout: float | None = None,
    ) -> Confirm: ...
    @overload
    def write(
        self,
        id: bytes,
        body: Buffer,
        durability: _Durability | None = None,
        wait: bool = True,
        timeout: float | None = None,
    ) -> Confirm | None: ...
    @overload
    def write_many(
        self,
        ids: Iterable[bytes] | Buffer,
        bodies: Iterable[Buffer],
        durability: _Durability | None = None,
        wait: Literal[True] = True,
        timeout: float | None = None,
    ) -> None:
        """Write many messages in order, with one Confirm for all. `ids`: a sequence, or one buffer of 16 bytes each.

        Ids that count up (new_ids) go as batches, which cost a fraction.
        """

    @overload
    def write_many(
        self,
        ids: Iterable[bytes] | Buffer,
        bodies: Iterable[Buffer],
        durability: _Durability | None = None,
        *,
        wait: Literal[False],
        timeout: float | None = None,
    ) -> Confirm: ...
    @overload
    def write_many(
        self,
        ids: Iterable[bytes] | Buffer,
        bodies: Iterable[Buffer],
        durability: _Durability | None,
        wait: Literal[False],
        timeout: float | None = None,
    ) -> Confirm: ...
    @overload
    def write_many(
        self,
        ids: Iterable[bytes] | Buffer,
        bodies: Iterable[Buffer],
        durability: _Durability | None = None,
        wait: bool = True,
        timeout: float | None = None,
    ) -> Confirm | None: ...
    def read(self, id: bytes, /) -> bytes | None:
        """The body of a message, or None if there is none. Raises StoreError for a damaged one.

        None, too, after a remove() by this client of the last reference; that of another one may not be executed yet.
        """

    def read_many(self, ids: Iterable[bytes] | Buffer, /) -> list[bytes | None]:
        """The bodies of many messages; None for each that does not exist. Raises StoreError for a damaged one.

        After a remove(): as read.
        """

    def remove(self, ids: Iterable[bytes] | Buffer, timeout: float | None = None) -> int:
        """Remove one reference of each id; returns how many writes were eliminated before they were stored.

        An unknown id is not an error. Removes are executed in order; `barrier()` waits for them.
        """

    def contains(self, id: bytes, timeout: float | None = None) -> bool:
        """Whether the store holds the message, after everything this client did before."""

    def new_id(self) -> bytes:
        """A message id that no other client makes: client epoch, counter."""

    def new_ids(self, count: int, /) -> list[bytes]:
        """Consecutive new ids, for writing batches."""

# ==== client: binding/queue_handle_type.c ============================================================================

@final
class QueueHandle:
    """One queue as one attachment uses it. See binding/queue_handle.c."""

    def __new__(cls, client: Client, server: int, queue: int, owner: object, messages: type[Delivery], /) -> Self: ...
    @property
    def server(self) -> int: ...
    @property
    def queue(self) -> int: ...
    @property
    def owner(self) -> object: ...
    @property
    def unacked(self) -> int: ...
    @property
    def pending(self) -> int: ...
    @property
    def quiet(self) -> bool: ...
    @property
    def usable(self) -> bool: ...
    @property
    def perhaps_gone(self) -> bool: ...
    def put(
        self,
        body: Buffer,
        level: int,
        meta: bytes | None,
        timeout: float | None,
        wait: bool,
        options: tuple[int, int, bytes | None, bool] | None = None,
        /,
    ) -> Confirm | None:
        """`options`: expires | priority << 56, due, key of deduplication, persistent."""

    def put_many(
        self,
        bodies: Iterable[Buffer],
        level: int,
        metas: bytes | Sequence[bytes | None] | None,
        timeout: float | None,
        wait: bool,
        options: tuple[int, int, bytes | None, bool] | list[tuple[int, int, bytes | None, bool] | None] | None = None,
        /,
    ) -> Confirm | None: ...
    exact: bool
    """The worker is never asked for more than somebody waits for."""
    @property
    def nacked(self) -> bool:
        """A message went back since the last get: it is the next one."""
    #: of the queue, in seconds; 0: none. Set before the handle is used
    ack_timeout: float
    def get(self, timeout: float | None, ahead: bool = True, woken: int = 0, /) -> Delivery | None:
        """The next message; None if none came. `woken`, read before: a wake() since then ends a wait, too."""

    def get_many(self, max: int, timeout: float | None, ahead: bool = True, /) -> list[Delivery]: ...
    def begin(self, prefetch: int | None, /) -> int: ...
    def release(self, begun: int | None = None, /) -> None:
        """End consuming: what was not handed out returns. With a number of `begin`: unless there was another since."""

    def tidy(self) -> None:
        """release() if there is a hoard now, and nobody consumes or gets."""

    def hoard(self) -> int:
        """Messages that lie or may come here unasked for 50 ms; -1: a get is under way, or was just now; 0: none."""

    def check_slots(self) -> None:
        """Raises LimitError when all delivery slots of the worker are held here, and nothing else has come."""

    def poll(self, max: int, wanted: int, memory: bool, /) -> list[Delivery] | int:
        """Up to `max` messages that lie here, else a POLL_ code; asks the worker for `wanted`. Never waits."""

    def stop(self) -> int | bool | None:
        """Ask for no more: sequence of the CANCEL, None (nothing was asked for), False (no room for it now)."""

    def leave(self) -> bool:
        """It does not consume alone any more, and has not asked to consume; False: no room to say so now."""

    def adapt(self, window: int, unacked: int, /) -> None:
        """Consume with `window` messages ahead, and at most `unacked` in hand and ahead."""

    def take_back(self) -> int | bool | None:
        """Who consumes asks for no more, and stays a consumer: as `stop`. With a prefetch one message may come still,
        if nothing is held here, and the next poll asks for more again.
        """

    def ask(self) -> bool:
        """What `begin` was given is told to the worker, if it does not know; False: no room to say so now."""

    def again(self) -> int | bool | None:
        """The worker is asked for the same once more: the sequence of that, behind which all has come that was there
        when it executed what was asked before; None (nothing is asked for), False (no room for it now).
        """

    @property
    def came(self) -> int:
        """Deliveries since ever."""

    @property
    def cancelled(self) -> int:
        """Behind so many commands nothing comes of what was asked for before the last `stop` or `take_back`."""

    @property
    def still(self) -> bool:
        """As `quiet`, or all that was asked for has come."""

    def give_back(self, keep: int = 0, /) -> bool:
        """What was not handed out returns to the queue, the last first, but for the first `keep`; False: no room for
        saying so.

        Whoever goes on consuming calls it when the handle is quiet: else later messages may come before these.
        """

    def settle_many(self, messages: Sequence[Delivery], ack: bool, requeue: bool, unseen: bool = False, /) -> None: ...
    def kill(self, reason: str, /) -> None: ...
    @property
    def woken(self) -> int:
        """How often `wake` was called."""

    def wake(self) -> None:
        """Gets that wait raise AttachmentLost once, in their next slice; who still wants a message calls again."""

# ==== end of client ==================================================================================================

# ==== queue worker: binding/queue_engine.c ===========================================================================

TOPIC_EVENT_NEED_FILE: int
TOPIC_EVENT_SLOTS_CHANGED: int
TOPIC_EVENT_CATALOG_CHANGED: int
TOPIC_EVENT_LOG_FAILED: int
TOPIC_EVENT_DISPATCH_FAILED: int
TOPIC_EVENT_FINISHED: int
TOPIC_EVENT_STOP: int
TOPIC_EVENT_KICK: int
TOPIC_EVENT_CONTROL: int
TOPIC_EVENT_TIMER: int

class TopicServer:
    """Log, links and dispatch of the topic worker (engine/topics/worker.h). Its policy: engine/topics/service.py.

    The order: declare …, look, recover, settle, begin, offer, attach …, serve, run …; then stop_log, stop_dispatch,
    close. One thread calls everything but commit_run, dispatch_run, request_stop and kick.
    """

    def __new__(
        cls,
        superblock: Buffer,
        server: int,
        folder: int,
        ring: int,
        rows: Buffer,
        node: bytes,
        boot: bytes,
        *,
        ring_bytes: int,
        log_file_bytes: int,
        consume_queue_entries: int,
        index_slots: int,
        index_entries: int,
        spin_us: int,
        tick_ms: int,
        commit_bytes: int,
        delayed_max: int,
        halves_max: int,
        half_outcomes: int,
        half_after_ms: int,
        half_interval_ms: int,
        half_checks: int,
    ) -> Self:
        """`folder`: a descriptor of the folder of topics, `ring`: of the ring's region (a page, then ring_bytes); the
        first must stay open. `node`: whose log it is, `boot`: of the machine; 16 bytes each. Raises OSError."""

    def close(self) -> None: ...
    def declare(self, id: int, name: bytes, queues: int, compacted: bool = False, /) -> None:
        """A topic comes. `compacted`: who appends a message without a key is evicted.
        Raises OSError (EEXIST; EINVAL: no such name; ENOSPC: too many rows), MemoryError."""

    def drop(self, id: int, /) -> None:
        """A topic goes, with all that is derived of it. Raises KeyError, MemoryError."""

    def look(self, first: int, /) -> dict[str, Any]:
        """What the log is, from its file `first` on at most, before anything is written: `checkpoint`, its kind;
        `stranger`, the node of the first commit of a file, if it is another one; `shorter`: the last commit that the
        checkpoint knows is not there; `damaged`: one below it is not what was written, which is looked for when the
        start is to make a new checkpoint; `position` of any; `empty`: it begins with no commit; `survived`: by the
        checkpoint, power was not lost since. Raises OSError."""

    def recover(self, first: int, /) -> dict[str, Any]:
        """Walk the log, from its file `first` on at most, and make what is missing of what is derived from it: where
        it ends. Raises OSError."""

    def settle(self) -> None:
        """Make what was found durable, and zeros of what lies behind it. Raises OSError; ValueError: it is damaged,
        or another node's."""

    def system_records(
        self, topic: bytes, anew: bool, position: int, epoch: int, number: int, call: Callable[[bytes], object], /
    ) -> int:
        """Between settle and begin: call with the body of each record of a system topic that lies behind the commit
        (epoch, number), which ends at this position, or (anew) from the log's file on that begins there. Where the walk
        ended. Raises OSError, and what `call` raises."""

    def later_read(self, file: Buffer, /) -> tuple[int, int, int]:
        """Take up a snapshot of what is to come later: (position, epoch, number). Raises ValueError: it is none."""

    def later_walk(self, anew: bool, position: int, epoch: int, number: int, /) -> tuple[int, int]:
        """Between settle and begin: take up what the log says behind it, or (anew) from its file on that begins there:
        (where the walk ended, damaged places that were passed by). Raises OSError, MemoryError."""

    def later_copy(self) -> tuple[int, int, bytes]:
        """What is to come later, as of the last sealed commit: (its end, its number, messages for later_encode)."""

    @staticmethod
    def later_encode(node: bytes, position: int, epoch: int, number: int, messages: bytes, /) -> bytes:
        """A snapshot of that. Any thread."""

    def later_lowest(self) -> int | None:
        """Position of the first record of a message that is to come later."""

    def later_hold(self) -> None:
        """No message comes any more: the server ends."""

    def end_links(self) -> None:
        """From now on no more is taken from the clients than what they have submitted."""

    def behind(self) -> int:
        """How many commands of these are not executed yet."""

    def close_links(self) -> int:
        """After a sync: tell the clients of links that are done with; how many links are not."""

    def halves_read(self, file: Buffer, /) -> tuple[int, int, int]:
        """Take up a snapshot of half messages: (position, epoch, number). Raises ValueError: it is none."""

    def halves_walk(self, anew: bool, position: int, epoch: int, number: int, /) -> tuple[int, int]:
        """As later_walk, of half messages."""

    def halves_snapshot(self, epoch: int, /) -> tuple[int, int, bytes]:
        """Half messages as of the last sealed commit: (its end, its number, the snapshot)."""

    def halves_lowest(self) -> int | None:
        """Position of the first record of a half message that is still needed."""

    def half_decide(self, topic: int, position: int, kind: int, /) -> tuple[int, int, int, int] | None:
        """Finish a half message, if it is not finished: (HALF_… that it is, queue, offset, position of the record that
        says so); None: there is no such one. Raises BlockingIOError (no room now), ValueError (its record cannot be
        read), OSError (the log failed)."""

    def halves_ask(self, topic: int, most: int, /) -> tuple[list[tuple[int, int, int, int]], int | None]:
        """Half messages that are to be asked for now: (position, size, how often asked, next time in ms since 1970) of
        each; and in how many ms there is another one."""

    def halves_of(self, topic: int, position: int, most: int, /) -> list[tuple[int, int, int, int]]:
        """Half messages that are pending, from a position on, as of halves_ask."""

    def begin(self, epoch: int, /) -> None:
        """The log goes on; rows are shown. `epoch`: never lower than that of the commits that were found."""

    def offer(self, fd: int, base: int, /) -> None:
        """The log's file of this position, which the server closes. Raises OSError, and then the caller does."""

    def serve(self, epoch: int, /) -> None:
        """All clients that were there are attached: serve them. Before the threads run. Raises MemoryError."""

    def attach(self, slot: int, generation: int, client_epoch: int, region: Buffer, /) -> None: ...
    def closing(self, slot: int, /) -> None: ...
    def detach(self, slot: int, /) -> bool: ...
    def attached(self) -> list[tuple[int, int, bool, bool, bool]]:
        """(slot, generation, closing, finished, evicted) of each client."""

    def append_system(self, topic: bytes, body: bytes, /) -> int | None:
        """Append a record of a system topic: where it ends, so that it is durable when the log is synced up to there.
        None: there is no room now. Raises OSError."""

    def retain(self, id: int, minima: list[int], /) -> int:
        """Messages of a topic below these offsets, one for each queue, are gone. A ticket: done when counters()
        ["retained"] has come to it, of a checkpoint when ["saved"] has. Raises KeyError, MemoryError."""

    def retain_log(self, first: int, /) -> int:
        """Files of the log below this position may go: a ticket, as of retain. Raises MemoryError."""

    def ends(self, id: int, /) -> list[int]:
        """The offset of the next message of each queue of a topic. Raises KeyError."""

    def tell_group(self, row: int, topic: int, stamp: int, /) -> bool:
        """A group of readers of a topic has changed; stamp 0: the row is no group's any more. False: there is no shared
        memory for it. Raises OSError (no such row)."""

    def give_member(self, row: int, member: int, group: int, called: int, /) -> bool:
        """Give a row to a member of a group of readers, with the time of its last call; member 0 frees it. False:
        shared memory is full. Raises OSError (no such row)."""

    def member(self, row: int, /) -> tuple[int, int]:
        """The beats and calls that a member wrote into its row. Raises OSError (the row was never given)."""

    def control_next(self) -> tuple[int, int, bytes] | None:
        """(slot, generation, request) of a client that waits for an answer."""

    def control_answer(self, slot: int, reply: bytes, ok: bool, until: int, /) -> None:
        """It leaves when the log is synced up to `until`. Raises ValueError."""

    def control_later(self, slot: int, /) -> None:
        """Put the request back: control_next gives it again."""

    def slots_seen(self, version: int, /) -> None: ...
    def catalog_loaded(self, version: int, /) -> None:
        """What clients name and is not known now is refused."""

    def run(self, max_ns: int, until_event: bool = True, /) -> int:
        """Serve; returns TOPIC_EVENT_… bits. Not until_event: returns (TIMER) as soon as there is nothing to do."""

    def commit_run(self) -> None:
        """The life of the committer's thread, until stop_log."""

    def dispatch_run(self) -> None:
        """The life of the dispatcher's thread, until stop_dispatch, or until it failed."""

    def stop_log(self) -> None: ...
    def stop_dispatch(self) -> None: ...
    def request_stop(self) -> None: ...
    def kick(self) -> None: ...
    def pending(self, events: int, on: bool, /) -> None:
        """These events are being handled: do not return for them until they are turned on again."""

    def sync(self, timeout_ns: int, /) -> bool:
        """Commit and sync all that was executed; false: not within that time, or the log has failed."""

    def counters(self) -> dict[str, int]: ...
    @staticmethod
    def wake_all(rows: Buffer, /) -> None:
        """Wake all who sleep on the rows of a server that is dead."""

QUEUE_EVENT_NEED_FILE: int
QUEUE_EVENT_NEED_TRANSIENT_FILE: int
QUEUE_EVENT_SLOTS_CHANGED: int
QUEUE_EVENT_CATALOG_CHANGED: int
QUEUE_EVENT_CONTROL: int
QUEUE_EVENT_FILES_MANY: int
QUEUE_EVENT_FILES_EMPTY: int
QUEUE_EVENT_STORE_EPOCH: int
QUEUE_EVENT_LOG_FAILED: int
QUEUE_EVENT_TIMER: int
QUEUE_EVENT_STOP: int
QUEUE_EVENT_FINISHED: int
QUEUE_EVENT_KICK: int

@final
class QueueEngine:
    """Queues, consumers, journals of one queue worker (engine/queues/queue.h). Its policy: engine/queues/service.py.

    One thread calls everything but commit_run, request_stop and kick.
    """

    def __new__(
        cls,
        superblock: Buffer,
        server: int,
        images: Buffer,
        timages: Buffer,
        stats: Buffer,
        region: Buffer | None,
        slot: int,
        generation: int,
        client_epoch: int,
        images_n: int,
        file_bytes: int,
        spin_us: int,
        tick_ms: int,
        commit_bytes: int,
        journal_files_max: int,
    ) -> Self:
        """`region`: the worker's own client region towards the stores; None: no stores (tests)."""

    def close(self) -> None: ...
    def run(self, max_ns: int, until_event: bool = True, /) -> int:
        """Serve; returns QUEUE_EVENT_… bits. Not until_event: returns (TIMER) as soon as there is nothing to do."""

    def commit_run(self, transient: bool, /) -> None:
        """The life of a committer thread, until stop_logs."""

    def stop_logs(self) -> None: ...
    def request_stop(self) -> None: ...
    def kick(self) -> None: ...
    def offer(self, transient: bool, fd: int, file: int, salt: int, header: Buffer, /) -> None: ...
    def open_pages(self, segments: int, spill: int, node_id: int, memory_bytes: int, /) -> None:
        """Page rows out beyond memory_bytes; they come back from this folder, those of transient messages from the file
        `spill`, which is empty. The descriptors are the engine's, unless it raises OSError."""

    def page_out(self, queue: int, chunk: int, /) -> bool:
        """Page out 1024 rows (tests); false when they have to stay, or are out already."""

    def check(self) -> None:
        """Assert the invariants of every queue (tests): the process ends where one does not hold."""

    def begin_journal(self) -> None:
        """Have the current file begun and synced, so that older files may go even if nothing is published."""

    def pending(self, events: int, on: bool, /) -> None:
        """These events are being handled: do not return for them until they are turned on again."""

    def declare(self, id: int, durable: bool, past: bool = False, letters: bool = False, /) -> None:
        """`letters`: it holds dead letters."""

    def set_policy(
        self,
        queue: int,
        *,
        message_ttl_ms: int | None = None,
        max_length: int | None = None,
        max_length_bytes: int | None = None,
        deduplication_ms: int = 0,
        delivery_limit: int | None = None,
        dead_letters: int = 0,
        max_priority: int = 0,
        reject_publish: bool = False,
        single_active: bool = False,
        refused_die: bool = False,
    ) -> None:
        """What the queue is declared to do; once, while it is empty. 0, and None of a limit: none. `dead_letters`: id
        of their queue.
        """

    def set_ack_timeout(self, queue: int, ms: int, /) -> None:
        """What is held for longer goes back; once, while nothing is delivered from the queue."""

    def policy_counts(self, queue: int, /) -> tuple[int, int, int, int, int, int]:
        """(delayed, expired, dropped, dead_lettered, refused, duplicates); all but the first since the start."""

    def drop(self, id: int, /) -> None: ...
    def queues(self) -> list[int]: ...
    def past_queues(self) -> list[tuple[int, int, int]]:
        """Queues that only frames of the past name: (id, queue whose claims they hold or 0, entries)."""

    def attach(self, slot: int, generation: int, client_epoch: int, region: Buffer, /) -> None: ...
    def closing(self, slot: int, /) -> None: ...
    def detach(self, slot: int, /) -> bool: ...
    def attached(self) -> list[tuple[int, int, bool, bool, bool]]:
        """(slot, generation, closing, finished, evicted)."""

    def slots_seen(self, version: int, /) -> None: ...
    def catalog_loaded(self, version: int, /) -> None: ...
    def begin(self, epoch: int, /) -> None: ...
    def freeze(self, on: bool, /) -> None: ...
    def end_links(self) -> None:
        """From now on no more is taken from the clients than what they have submitted."""

    def behind(self) -> int:
        """How many commands of these are not executed yet."""

    def close_links(self) -> int:
        """After a sync: tell the clients of links that are done with; how many links are not."""

    def set_store(self, store: int, epoch: int, directory: Buffer | None, /) -> None: ...
    def control_next(self) -> tuple[int, int, int, bytes, int] | None:
        """(slot, client epoch, sequence + 1, request, high water) of a waiting request."""

    def control_answer(self, slot: int, reply: Buffer, ok: bool, durable: bool, /) -> None: ...
    def control_later(self, slot: int, /) -> None: ...
    def stats(self, queue: int, /) -> tuple[int, int, int, int, int, int, int, int, int]:
        """(ready, unacked, alpha, beta, gamma, delta, bytes, base, next)."""

    def waiting(self, queue: int, /) -> int:
        """Messages that nobody has received: ready, or delivered ahead and not handed out yet."""

    def join(self, queue: int, slot: int, exclusive: bool, /) -> tuple[int, int]:
        """May the client of a slot consume? A WR_JOIN_ (queues/exclusive.h), and the slot of who is in the way."""

    def purge(self, queue: int, below: int, unacked: bool, /) -> int: ...
    def browse(self, queue: int, start: int, count: int, ready_only: bool, /) -> tuple[bytes, int]: ...
    def spans(self, queue: int, start: int, count: int, /) -> tuple[bytes, int]: ...
    def measure(self, queue: int, start: int, end: int, bytes_max: int, one: bool, /) -> tuple[int, int, bool]: ...
    def move(
        self,
        source: int,
        target: int,
        max_messages: int,
        max_bytes: int,
        redelivered: bool,
        client_epoch: int,
        sequence: int,
        /,
    ) -> tuple[int, int] | None:
        """(start, end) in the target; None: the journal has no room now."""

    def replay(self, data: Buffer, file: int, salt: int, at: int, /) -> tuple[int, int, str]:
        """(end, frames, reason)."""

    def ids_end(self, end: int, /) -> None:
        """The catalog never gave a queue id from here on. Before `replay`."""

    def unknown(self) -> list[int]:
        """Such ids that replayed frames name."""

    def gap(self) -> None:
        """Frames are missing before those that are replayed next."""

    def drop_lost(self, file: int, size: int, /) -> int:
        """The messages with bodies behind byte `size` of a data file go; how many. Before `recovered`."""

    def lost(self, queue: int, more: int = 0, /) -> int:
        """Messages of a queue that were lost to damage; `more` of them are added."""

    def load_segment(self, queue: int, segment: int, entries: Buffer, salt: int, /) -> tuple[int, int]:
        """(live, bad)."""

    def recovered(self, clean: bool, /) -> None: ...
    def replayed_claim(self, client_epoch: int, sequence: int, /) -> tuple[int, int] | None: ...
    def terms(self, queue: int, /) -> bytes: ...
    def set_terms(self, queue: int, next: int, rows: Buffer, /) -> None: ...
    def files(self, transient: bool, /) -> list[tuple[int, int]]:
        """(file, entries that need it), the oldest first."""

    def may_delete(self, file: int, /) -> bool: ...
    def drop_first(self, transient: bool, /) -> None: ...
    def export_file(self, file: int, into: bytearray, /) -> int:
        """The rows (wr_segment_row) of what is alive of a journal file, into `into`, which grows; how many bytes."""

    def export_queue(self, queue: int, first: int, count: int, /) -> tuple[bytes, int]:
        """(rows of what is alive from sequence `first` on, where to go on); at the end: the queue's next sequence."""

    def keys(self, queue: int, /) -> bytes:
        """What its window of deduplication holds, as rows of a KEYS frame."""

    def set_keys(self, rows: Buffer, /) -> None: ...
    def flushed(self, file: int, rows: Buffer, /) -> int: ...
    def segment_acks(self, file: int, /) -> bytes: ...
    def early_acks(self) -> bytes: ...
    def large_gone(self) -> bytes:
        """Ids of large messages whose files may go, 16 bytes each; they leave the list."""

    def large_known(self, id: bytes, /) -> bool:
        """Whether an entry needs the file of a large message, or it is on its way out."""

    def large_missing(self, there: bytes, /) -> int:
        """At a start: of the large messages these alone have files. How many messages are lost."""

    def link_of(self, client_epoch: int, /) -> tuple[int, int] | None:
        """(next, tail) of a client: its commands below are executed, submitted; None: it has no link here."""
    def data_files(self) -> dict[int, int]: ...
    def forget_data_file(self, file: int, /) -> None: ...
    @staticmethod
    def encode_entries(rows: Buffer, salt: int, /) -> bytes: ...
    @staticmethod
    def check_entries(entries: Buffer, salt: int, queue: int, first: int, /) -> bytes:
        """What entries of a segment are, from sequence `first` on, one byte each: 0 empty, 1 a message, 2 neither."""

    @staticmethod
    def look_at_rows(rows: Buffer, /) -> tuple[int, int, bool]:
        """(how many have their body in the journal file; bytes of their frames; whether each frame is named once).
        If not, the bytes are those of the longest run of different frames."""

    @staticmethod
    def place_rows(rows: Buffer, file: int, /) -> None:
        """Bodies that lie in the journal file lie at the same offsets of this data file."""

    @staticmethod
    def groups_of_rows(rows: Buffer, /) -> list[tuple[int, int, int, int]]:
        """(queue, segment, first row, end), as the rows come: queue by queue, by rising sequence."""

    @staticmethod
    def write_rows(fd: int, rows: Buffer, first: int, end: int, salt: int, /) -> None:
        """Encode the rows of one segment and write them to their places, neighbours in one write."""

    def sync(self, timeout_ns: int, /) -> bool: ...
    def position(self) -> tuple[int, int]: ...
    def tokens(self) -> tuple[int, int]:
        """The batch that what happens now belongs to, and the last one that is synced."""

    def all_durable(self) -> bool:
        """Everything that happened is on disk."""

    def counters(self) -> dict[str, int]: ...
    def unreadable(self, told: int, /) -> list[tuple[int, int, int, int, int, int, bytes]]:
        """(queue, sequence, location, file, offset, frame length, id) of the last messages that consumers found
        damaged, of which `told` are known."""

    def high(self, client_epoch: int, /) -> int: ...

# ==== end of queue worker ============================================================================================

# ==== the formats of topics: binding/topics.c ========================================================================
# What is refused is a ValueError whose text is one word of the core's; engine/topics/records.py has the sentences.

def record_size(sys_flag: int, topic: int, properties: int, body: int, /) -> int:
    """Bytes of a record, from the lengths of its parts."""

def topic_record_bytes_max(ring_bytes: int, file_bytes: int, /) -> int:
    """Bytes of the largest record that a log takes, by the sizes of its ring and of its files."""

def record_encode(
    queue_id: int,
    flag: int,
    queue_offset: int,
    physical_offset: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
    reconsume_times: int,
    prepared_transaction_offset: int,
    topic: Buffer,
    properties: Buffer,
    body: Sequence[Buffer],
    /,
) -> bytes:
    """One record; a host is its 8 or 20 bytes, the body the parts one behind the other."""

def record_blank(left: int, /) -> bytes:
    """The 8 bytes that say that the `left` bytes up to the end of a file are empty."""

def record_scan(
    buffer: Buffer, at: int, position: int, checks: int, /
) -> tuple[
    int,
    int,
    str,
    tuple[int, int, int, int, int, int, int, int, bytes, int, bytes, int, int, int, int, bytes, bytes] | None,
]:
    """(1 record, 2 blank, 3 end, 4 bad; size; word; fields) of what begins at `at`; checks: 1 texts, 2 body.

    Fields: magic, body_crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp, born_host,
    store_timestamp, store_host, reconsume_times, prepared_transaction_offset, place and length of the body from `at`
    on, topic, properties.
    """

def properties_encode(properties: dict[str, str], /) -> bytes: ...
def properties_decode(properties: Buffer, /) -> dict[str, str]: ...
def properties_known(properties: Buffer, /) -> tuple[list[bytes], bytes | None, bytes | None]:
    """(the keys of KEYS, TAGS, UNIQ_KEY)."""

def property_value(properties: Buffer, name: str, /) -> bytes | None:
    """The value of a name, of its last property."""

def text_good(text: Buffer, /) -> bool:
    """Whether bytes may be a topic, a name or a value: UTF-8, none below 3."""

def property_reserved(name: str, /) -> bool:
    """Whether a property of a record has a meaning of its own by this name."""

def tags_code(tag: Buffer, /) -> int:
    """Java's hashCode of UTF-8 text, sign-extended."""

def key_hash(topic: Buffer, key: Buffer, /) -> int:
    """Hash of `topic#key`, 0 … 2^31 - 1."""

def unit_put(units: Buffer, n: int, physical_offset: int, size: int, tags_code: int, /) -> None:
    """Write the n-th unit of a consume queue."""

def unit_get(units: Buffer, n: int, /) -> tuple[int, int, int] | None:
    """(physical_offset, size, tags_code) of the n-th unit; None: it is not there."""

def message_host(node: bytes, /) -> bytes:
    """The host of what a node stores, which its ids begin with; `node`: as of names.node_bytes."""

def message_id(store_host: bytes, physical_offset: int, /) -> str: ...
def message_id_parse(text: str, /) -> tuple[bytes, int]:
    """(store host, physical_offset)."""

def topics_snapshot(kind: str, node: bytes, file: Buffer, /) -> tuple[int, int]:
    """(position, how much is in it) of a snapshot of messages that come later ("later") or of half messages ("halves").
    Raises ValueError: what is wrong with it.
    """

def topics_examine(
    root: int,
    node: bytes,
    boot: bytes,
    log_file_bytes: int,
    consume_queue_entries: int,
    index_slots: int,
    index_entries: int,
    topics: tuple[tuple[int, bytes, int], ...],
    limit: int,
    reached: int,
    synced: tuple[str, int] | None,
    bases: tuple[int, ...],
    progress: Callable[[int], object],
    /,
) -> tuple[
    list[tuple[int, int, int, bool]], list[tuple[str, int, int, str]], dict[str, int], list[tuple[int, int, int, int]]
]:
    """Read the log, the consume queues and the key index below `root` (engine/topics/examine.h). `bases`: of the first
    file of each part of the log that has no gap. `topics`: (id, name, queues). `synced`: newest file of the index and
    its entries, plus 1, if only those count. `reached`: up to there the log was whole.

    Of each part (where it ends, number and newest store time of its last commit, whether no commit lies behind); what
    is wrong: (file, how much of it, place of the first, why); counts; minima of queues that checkpoint and log told,
    where they are not 0: (topic, queue, minimum, the first offset below it that the log has, else the minimum). Raises
    OSError.
    """

def topics_rebuild(
    root: int,
    node: bytes,
    boot: bytes,
    log_file_bytes: int,
    consume_queue_entries: int,
    index_slots: int,
    index_entries: int,
    topics: tuple[tuple[int, bytes, int], ...],
    first: int,
    progress: Callable[[int], object],
    /,
) -> tuple[int, int]:
    """Make consume queues, key index and checkpoint again from the log: messages, keys. Raises OSError."""

def topics_newest(
    root: int,
    node: bytes,
    boot: bytes,
    log_file_bytes: int,
    consume_queue_entries: int,
    index_slots: int,
    index_entries: int,
    topic: int,
    name: bytes,
    queue: int,
    end: int,
    first: int,
    old: int,
    to: int,
    made: int,
    progress: Callable[[int], object],
    /,
) -> int:
    """The file of the newest messages of a queue below the offset `end`, made again into the descriptor `to`: from the
    log, whose first file begins at `first`, and from what the file `old` (a descriptor; -1: none) has of before.
    Returns how many messages. Raises OSError; EUCLEAN: log or file are damaged.
    """

def topics_survey(
    root: int,
    node: bytes,
    boot: bytes,
    log_file_bytes: int,
    consume_queue_entries: int,
    index_slots: int,
    index_entries: int,
    position: int,
    epoch: int,
    number: int,
    anew: bool,
    progress: Callable[[int], object],
    /,
) -> tuple[int, int, int, int, bool, bool, int, list[tuple[int, int, int, int]]]:
    """Walk the log from a position on, behind the commit of this epoch and number; `anew`: from the begin of a file.
    (where the sound commits end; epoch, number and newest store time of the last one; whether a commit behind says that
    more was synced; whether another node's follows; below which position retention may have removed files; of each
    queue (topic, queue, first offset, behind the last)). Raises OSError.
    """

def topics_next_commit(
    root: int,
    node: bytes,
    boot: bytes,
    log_file_bytes: int,
    consume_queue_entries: int,
    index_slots: int,
    index_entries: int,
    position: int,
    epoch: int,
    number: int,
    /,
) -> tuple[int, int, int, int] | None:
    """The first commit of this node at or behind a position that is later than that one, as far as files follow each
    other: (where to walk on; epoch and number of the commit before; from where to search, if nothing is sound there).
    None: there is none. Raises OSError.
    """

def topics_preview(
    root: int,
    node: bytes,
    boot: bytes,
    log_file_bytes: int,
    consume_queue_entries: int,
    index_slots: int,
    index_entries: int,
    first: int,
    /,
) -> dict[str, Any]:
    """What a start looks at before it writes anything, the log beginning at `first`: what the checkpoint is, its
    position, first, epoch and number, and whether the log is shorter than that, another node's, or empty. Raises
    OSError.
    """

def mount_number(fd: int, /) -> int:
    """Which mount a file lies in, while the machine runs; 0: the system does not say (before Linux 6.8)."""

def topics_checkpoint(
    root: int,
    node: bytes,
    boot: bytes,
    log_file_bytes: int,
    consume_queue_entries: int,
    index_slots: int,
    index_entries: int,
    /,
) -> tuple[str, dict[str, Any] | None]:
    """What the checkpoint is (good, none, damaged, newer, foreign, settings) and, if it is good, what it says."""

@final
class KeyIndex:
    """A file of the key index in a buffer, aligned to 8 bytes (topics/key_index.h). One writer, any readers."""

    def __new__(cls, buffer: Buffer, slots: int, entries: int, writable: bool = True) -> Self: ...
    def put(self, key_hash: int, physical_offset: int, store_timestamp: int, /) -> bool:
        """False: it is full. ValueError: it is damaged."""
    def truncate(self, end: int, /) -> None:
        """Take out the entries of records at or behind `end`; no reader may look on."""
    def find(
        self, key_hash: int, since: int, until: int, ordered: bool, limit: int, /
    ) -> tuple[list[tuple[int, int, int, int]], str]:
        """([(number, physical_offset, store time from, to)], newest first; "end", "found" at the limit, or what is
        damaged).
        """
    def header(self) -> tuple[int, int, int, int, int, int]:
        """begin and end timestamp, begin and end offset, hash_slot_count, index_count."""
    def close(self) -> None: ...

@final
class Memory(Buffer):
    """Bytes of the core, read-only."""

    def __len__(self) -> int: ...

Columns = tuple[
    int,
    int,
    int,
    int,
    Memory,
    Memory,
    Memory,
    Memory,
    Memory,
    Memory,
    Memory,
    Memory,
    Memory,
    Memory,
    Memory,
    Memory,
    Memory,
    Memory,
    Memory,
    Memory,
    Memory,
    Memory,
    Memory,
]
"""Rows, keys and tags that are None, rows without properties, then buffers of Arrow's layout, which are empty for what
is not wanted (binding/topic_columns.h).
"""
#: columns of a scan, to be added
WANT_OFFSET: int
WANT_TIMESTAMP: int
WANT_BORN_TIMESTAMP: int
WANT_KEY: int
WANT_TAG: int
WANT_VALUE: int
WANT_ID: int
WANT_PROPERTIES: int
_Damage = tuple[str, int, str, str]
"""File below the topics' folder, position in it, expected, found."""
#: words of the first number of an answer
READ_STATUSES: tuple[str, ...]

@final
class Record:
    """One message of a topic. Records that were read together share their memory: one that is kept keeps it all."""

    def __new__(cls, record: Buffer, /) -> Self:
        """A copy, of its bytes as they lie in the log. ValueError: they are none."""

    @property
    def queue(self) -> int:
        """Queue of the topic."""

    @property
    def offset(self) -> int:
        """Offset in its queue."""

    @property
    def physical_offset(self) -> int:
        """Position in the node's log of topics, bytes."""

    @property
    def key(self) -> str | None:
        """Its first key."""

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys."""

    @property
    def tag(self) -> str | None:
        """Its tag; None: it has none."""

    @property
    def body(self) -> bytes:
        """The bytes that were appended."""

    @property
    def properties(self) -> dict[str, str]:
        """Names and values, beside keys and tag."""

    @property
    def timestamp(self) -> int:
        """When it was stored, milliseconds since 1970."""

    @property
    def born_timestamp(self) -> int:
        """When it was sent, as its producer said, milliseconds since 1970."""

    @property
    def message_id(self) -> str:
        """Its id, 32 hexadecimal digits: find_id finds it."""

    @property
    def reconsume_times(self) -> int:
        """How often it was delivered and failed before."""

def log_rows(buffer: Buffer, at: int, position: int, checks: int, /) -> tuple[Memory, int, int, int, str]:
    """(log_row records of engine/kernel/rows.py, end, what begins there as of record_scan, size of a blank one, word).
    The buffer's first byte is byte `position` of the log; it has less than 4 GiB.
    """

def gather(buffer: Buffer, places: Buffer, lengths: Buffer, /) -> tuple[Memory, Memory]:
    """Parts of a buffer, given as u32, one behind the other: (where each ends, as Arrow has it, the bytes)."""

def property_pairs(buffer: Buffer, places: Buffer, lengths: Buffer, /) -> tuple[Memory, Memory, Memory, Memory, Memory]:
    """Properties of records but KEYS and TAGS: (ends of the lists, ends of names, names, ends of values, values)."""

def topic_hold(superblock: Buffer, slot: int, word: int, /) -> None:
    """The client of this slot holds what lies in the log of topics at position word - 1 and behind it; 0: nothing."""

def topic_close(rows: Buffer, superblock: Buffer, position: int, /) -> tuple[int, int] | None:
    """Messages below a position are about to be removed; 0: none are. (Lowest position that is held, whose slot)."""

@final
class TopicWatch:
    """What a member of a group of readers looks at before each message, and where it says that its process runs."""

    def __new__(cls, rows: Buffer, row: int, stamp: int, member_row: int, member: int) -> Self:
        """`rows`: the region, held until close. Rows from the number of rows on: it has none. Raises ValueError."""

    def beat(self, calls: int, /) -> None:
        """The process runs, and the program has called so often; nothing if the row is another member's by now."""

    def changed(self) -> bool:
        """Whether the group has another stamp by now, or this was closed."""

    def close(self) -> None: ...

def compacted_check(
    fd: int, node: bytes, topic: int, queue: int, name: bytes, to: int, made: int, end: int, /
) -> tuple[int, list[tuple[int, int, int, str]]]:
    """Read all of a file of newest messages: how many of them are sound, and each damaged place (byte in the file,
    first offset that is lost with it, the offset behind the last one, why). `to`: an empty file that gets what is
    sound and below offset `end`, synced, as one that was made at `made` (milliseconds); -1: none. Raises OSError;
    EUCLEAN: as of compacted_look.
    """

def compacted_empty(fd: int, node: bytes, topic: int, queue: int, name: bytes, end: int, made: int, /) -> None:
    """Write a file of newest messages that has none below offset `end` into an empty file, and sync it. `made`:
    milliseconds since 1970. Raises OSError.
    """

def compacted_look(fd: int, node: bytes, topic: int, queue: int, /) -> dict[str, int]:
    """What a file of the newest messages of a queue says of itself: first, end (offsets), made (milliseconds), bytes,
    records, tombstones, oldest (since when the oldest of them that counts is one; 0: none counts). Raises OSError;
    EUCLEAN: it is damaged, or another node's, topic's or queue's.
    """

class TopicReader:
    """Reads one topic, in one thread at a time. None: there is no such queue, in the regions that it has. An answer is
    (status, next offset, minimum, maximum, what was read, damage).
    """

    def __new__(
        cls,
        root: int,
        id: int,
        name: bytes,
        log_file_bytes: int,
        ring_bytes: int,
        consume_queue_entries: int,
        index_slots: int,
        index_entries: int,
        newest_of: bytes | None = None,
    ) -> Self:
        """`root`: a descriptor of the topics' folder, open as long as this reads. `newest_of`: the topic is compacted,
        and this the node whose files of newest messages count."""

    @property
    def behind(self) -> bool:
        """Whether the last call lacks something that was confirmed before it and is not shown yet: ask again."""

    def begin(self, ring: Buffer, rows: Buffer, /) -> None:
        """Regions of the worker's present incarnation; held until close."""

    def close(self) -> None: ...
    def compact(
        self,
        queue: int,
        old: int,
        start: int,
        end: int,
        synced: int,
        keys_max: int,
        now: int,
        tombstone_ms: int,
        bytes_per_s: int,
        fd: int,
        stop: Buffer,
        /,
    ) -> tuple[int, int, int, int]:
        """A pass over a queue of a compacted topic: what is alive of the file `old` (-1: none) and of the log from
        offset `start` to `end` into the empty file `fd` (topics/compact.h). (offset where it ended, bytes, messages,
        messages that are not in it). Raises OSError; ECANCELED: the first byte of `stop` is not 0 any more; EUCLEAN:
        damage, and where; ESTALE: what is read went meanwhile.
        """

    def bounds(self, queue: int, /) -> tuple[int, int, int] | None:
        """(the first offset, behind the last, how many messages there are)."""

    def delayed(self) -> int | None:
        """Messages of the topic that are to come later."""

    def halves(self) -> int | None:
        """Half messages of the topic that are neither committed nor rolled back."""

    def half(self, position: int, size: int, /) -> Record | Literal[False] | None:
        """The record of a half message of the topic; False: it is not there."""

    def wait(self, queue: int, seen: int, seconds: float, /) -> bool | None:
        """Whether the maximum is above `seen`; False also when a signal came."""

    def wait_any(
        self, queues: Sequence[int], seen: Sequence[int], row: int, stamp: int, seconds: float, /
    ) -> int | None:
        """The place of the first queue whose maximum is not what was seen; -1: time is up, or a signal came; -2: the
        group with this row has another stamp."""

    def read(
        self, queue: int, offset: int, end: int, records_max: int, bytes_max: int, tags: tuple[bytes, ...], /
    ) -> tuple[int, int, int, int, list[Record], _Damage | None] | None: ...
    def columns(
        self, queue: int, offset: int, end: int, records_max: int, bytes_max: int, /
    ) -> tuple[int, int, int, int, Columns, _Damage | None] | None: ...
    def scan(
        self,
        queue: int,
        offset: int,
        end: int,
        records_max: int,
        bytes_max: int,
        tags: tuple[bytes, ...],
        keys: tuple[bytes, ...],
        since: int,
        until: int,
        want: int,
        /,
    ) -> tuple[int, int, int, int, Columns, _Damage | None] | None:
        """The columns that `want` adds up (WANT_…), of messages that fit: there may be none, whatever the status says.
        Ids are bytes, times are microseconds.
        """

    def span(self, queue: int, offset: int, end: int, bytes_max: int, /) -> tuple[int, int] | None:
        """(the offset up to which records have `bytes_max` bytes of log at most, how many they have)."""

    def seek(self, queue: int, when: int, upper: bool, /) -> int | None:
        """-1: no message is so old."""

    def find(
        self, key: bytes, since: int, until: int, limit: int, strict: bool, /
    ) -> tuple[list[Record], _Damage | None] | None: ...
    def find_id(self, message_id: str, /) -> tuple[list[Record], _Damage | None] | None:
        """ValueError: no id."""

    def first_time(self, queue: int, /) -> int | None:
        """When the first message that is there was stored; None: also if there is none."""

    def offset_of(self, queue: int, position: int, /) -> int | None:
        """The first offset whose message lies at a position of the log or behind it; the maximum, if there is none."""

    def position_of(self, queue: int, offset: int, /) -> int | None:
        """Where the first message at an offset or behind it lies in the log; -1: there is none."""

    def excess(self, queues: int, size: int, /) -> list[int] | None:
        """Where the queues 0 … queues - 1 begin without the oldest messages of them together, of `size` bytes in the
        log; the newest one stays."""

    def closing(self) -> int:
        """The position of the log below which messages are about to be removed; 0: none are."""

# ==== AMQP: binding/amqp_reader.c ====================================================================================

@final
class AmqpReader:
    """The frames of one connection as its client sends them. It is done after its first FAULT.

    `assembling_max`: bytes of messages that may be begun and not ended at a time, 0: 16 times body_max.
    """

    def __new__(cls, frame_max: int, body_max: int, assembling_max: int = 0) -> Self: ...
    frame_max: int
    """The largest frame that is taken; of its payload, too, as RabbitMQ does it: 8 bytes more than there should be."""
    @property
    def kept(self) -> int:
        """Bytes of frames and messages that have not come as a whole; bodies count as announced."""
    @property
    def came(self) -> int:
        """The same, of bodies what has come of them."""
    def read(self, data: Buffer, /) -> list[tuple[Any, ...]]:
        """What these bytes complete, in order; the first elements are those of engine/amqp/spec.py:

        (METHOD, channel, method id, arguments), (PUBLISH, channel, exchange, routing key, flags, [properties], [body]),
        (HEARTBEAT,), (REFUSED, channel, reply code, text, class id, method id),
        (FAULT, reply code, text, class id, method id, channel).

        Arguments are a tuple or, when there is a table with fields among them, bytes for `amqp_arguments`.
        """
    @staticmethod
    def bodies_apart(on: bool, /) -> None:
        """Whether the memory of large bodies goes back to the system with each of them; of all readers."""
    def leave_out(self) -> None:
        """This side closes the connection: drop bodies that are begun, and leave out all others."""
    def closing(self, channel: int, /) -> None:
        """This side has closed a channel: its messages are left out until channel.close, channel.close-ok or
        channel.open comes, as methods of it are that come before."""

# ==== AMQP: binding/amqp_frames.c ====================================================================================

def amqp_method(channel: int, id: int, arguments: tuple[Any, ...], /) -> bytes:
    """A frame with a method. UsageError: an argument has no place in it."""

def amqp_content(
    channel: int, id: int, arguments: tuple[Any, ...], properties: bytes, body: Buffer, frame_max: int, /
) -> bytes:
    """The frames of a method with a content."""

def amqp_deliver(
    channel: int,
    consumer_tag: str,
    first_delivery_tag: int,
    deliveries: Iterable[Delivery],
    frame_max: int,
    other: Callable[[bytes | None], tuple[str, str, bytes]],
    /,
) -> bytes:
    """The frames of basic.deliver of each message. `other(meta)` is asked for (exchange, routing key, properties) of
    those that did not come by AMQP (None: without metadata), once for equal ones that follow each other; delivery
    mode and priority are added."""

def amqp_shed(deliveries: list[Delivery], /) -> None:
    """Let go of the bodies and metadata of messages, which can still be settled: their body is empty afterwards."""

# ==== AMQP: binding/amqp_prepare.c ===================================================================================

def amqp_prepare(
    exchange: str, key: str, properties: list[bytes], now_ms: int, /
) -> tuple[
    bytes | list[bytes | None] | None,
    tuple[int, int, bytes | None, bool] | list[tuple[int, int, bytes | None, bool] | None],
    list[tuple[int, int]],
]:
    """(metas, options, odd) of messages that came by AMQP, as Client.publish_many takes them: one for all, or a list.
    `odd`: (index, why: bits ODD_… of engine/amqp/spec.py) of those that Python has to look at. ODD_SIZE: properties
    have no room in metadata; there are none of it."""

# ==== AMQP: binding/amqp_values.c ====================================================================================

def amqp_arguments(id: int, data: Buffer, /) -> tuple[Any, ...]:
    """The arguments of a method that AmqpReader gave as bytes. UsageError: they are damaged."""

def amqp_table(data: Buffer, at: int = 0, /) -> dict[str, Any]:
    """The field table that lies there, behind 4 bytes of length. UsageError: there is none."""

def amqp_table_bytes(table: Mapping[str, Any], /) -> bytes:
    """A field table, with its length. UsageError: a value has no place in it."""

def amqp_properties(data: Buffer, plain: bool = False, /) -> dict[str, Any]:
    """The properties of a content header (flags and values), by name. `plain`: headers of None, bool, int, float, str,
    bytes, list and dict alone. UsageError: these are none."""

def amqp_properties_bytes(properties: dict[str, Any], /) -> bytes:
    """Properties as they stand in a content header; None: left out. UsageError: one has no place there."""
