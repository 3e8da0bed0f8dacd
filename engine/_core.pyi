"""Stub of the C extension warren.engine._core. Each part of the core has its own section."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self, final

from typing_extensions import Buffer

# ==== kernel: binding_kernel.c =======================================================================================

def crc32c(data: Buffer, seed: int = 0, /) -> int:
    """CRC32C; `seed` is the CRC of what went before."""

def copy_crc32c(to: Buffer, data: Buffer, seed: int = 0, /) -> int:
    """Copy `data` to the start of `to`; returns the CRC32C of what was copied."""

def copy_crc32c_table(to: Buffer, data: Buffer, seed: int = 0, /) -> int:
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
def frame_pad(size: int, salt: int, /) -> bytes: ...
def frame_check(buffer: Buffer, at: int, salt: int, /) -> tuple[int, int, int, bytes, int, int, int, int] | str:
    """(total, kind, flags, id, client_epoch, sequence, extra, meta_length), or the reason why there is no frame."""

def frame_scan(buffer: Buffer, salt: int, start: int, /) -> tuple[bytes, int, str]:
    """(packed wr_frame_row array, end, reason): see engine/frame.py."""

def file_header_pack(kind: int, node_id: int, owner: int, file: int, salt: int, created_ns: int, /) -> bytes: ...
def file_header_check(page: Buffer, kind: int, node_id: int, owner: int, file: int, /) -> tuple[str | None, int]:
    """(None, salt) when good, else (reason, 0)."""

def image_read(region: Buffer, images_n: int, file_bytes: int, file: int, offset: int, size: int, /) -> bytes | None:
    """Bytes of a file that some image holds, or None."""

@final
class Log:
    """The append side of a segment file (log.h), for tools and tests. One thread, and one for run_committer."""

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

# ==== message store: binding_store.c =================================================================================

EVENT_FILE: int
EVENT_SLOTS: int
EVENT_INDEX: int
EVENT_EMPTY: int
EVENT_FAILED: int
EVENT_STOP: int
EVENT_TIMER: int
EVENT_SWEPT: int
EVENT_KICK: int

def populate(buffer: Any, /) -> None:
    """Touch every page of a writable buffer now, without the GIL."""

@final
class StoreServer:
    """The store server's loop over both stores (engine/core/store.h). `number`: 0 persistent, 1 transient."""

    def __new__(cls, superblock: Buffer, commit_bytes: int, tick_ns: int, spin_ns: int) -> Self: ...
    def open(self, number: int, images: Buffer, directory: Buffer, summary: Buffer, index: Buffer, /) -> None:
        """Take new, zeroed regions."""

    def inject(self, number: int, pwrite_errno: int, fdatasync_errno: int, /) -> None:
        """For tests: the committer's next system calls fail with these; 0 is the real system."""

    def add_file(self, number: int, file: int, bytes: int, /) -> None:
        """A file that exists, at start. OSError(EBUSY): its row of the summary is taken."""

    def scan_file(self, number: int, file: int, data: Buffer, salt: int, at: int, /) -> tuple[int, int, str]:
        """Apply frames from `at` on: (end, frames, reason); reason `index`: grow the index and go on."""

    def load_rows(self, number: int, rows: Buffer, /) -> None: ...
    def load_pins(self, number: int, file: int, pin_low: int, pin_high: int, /) -> None: ...
    def finish(self, number: int, /) -> int:
        """Make lists and sums from rows and files; returns how many rows had no file and were dropped."""

    def offer(self, number: int, fd: int, file: int, salt: int, header: Buffer, /) -> None:
        """The next file; the store owns `fd` unless OSError is raised."""

    def replace_index(self, number: int, region: Buffer, /) -> None: ...
    def take_gone(self, number: int, /) -> list[int]:
        """Files to unlink."""

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
    def set_draining(self, on: bool, /) -> None: ...
    def run(self, max_ns: int, /) -> int:
        """Serve until something needs Python (EVENT_… bits), a signal, or max_ns. Without the GIL."""

    def kick(self) -> None:
        """From another thread: let run() return."""

    def settle(self) -> bool:
        """True when everything submitted is executed, written and synced; asks for what is missing."""

    def commit_run(self, number: int, /) -> None:
        """The committer's whole life, on its own thread."""

    def stop(self, number: int, /) -> None:
        """Let commit_run end."""

    def live_rows(self, number: int, /) -> bytes: ...
    def water(self, number: int, client_epoch: int, /) -> int: ...
    def look(self, number: int, /) -> dict[str, int]: ...

@final
class StoreClient:
    """One client's side of one store, bare (engine/core/storeclient.h): for tests and tools."""

    def __new__(
        cls, superblock: Buffer, region: Buffer, slot: int, generation: int, client_epoch: int, server: int
    ) -> Self: ...
    def set_regions(
        self, images: Buffer, directory: Buffer, summary: Buffer, index: Buffer, directory_fd: int, /
    ) -> None: ...
    def set_other(self, slot: int, generation: int, region: Buffer, /) -> None: ...
    def write_many(self, messages: list[tuple[bytes, bytes]], flags: int, submit: bool, /) -> int:
        """Returns the horizon that covers them. OSError(EAGAIN): ring, arena or directory bucket full."""

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

# ==== client: binding_client.c, binding_consumer.c, binding_storeface.c ==============================================

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

class SessionLost(Exception):
    """This attachment is over: make another one and call again. Nothing was submitted."""

@final
class Confirm:
    """The promise of one or several writes, like a concurrent.futures.Future whose result is None."""

    def wait(self, timeout: float | None = None) -> None:
        """Return when it is confirmed at its durability. Raises TimedOut, PeerLost, SyncFailed, ClosedError."""

    def result(self, timeout: float | None = None) -> None:
        """The same as wait."""

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait, and return the error, None when it was confirmed. Raises TimedOut."""

    def done(self) -> bool:
        """Whether it is confirmed. Never waits."""

@final
class Route:
    """Where one message goes: [(server, [queue id, ...]), ...]."""

    def __new__(cls, targets: list[tuple[int, list[int]]], /) -> Self: ...

class Delivery:
    """One delivered message."""

    @property
    def body(self) -> bytes: ...
    @property
    def meta(self) -> bytes | None: ...
    @property
    def delivery_tag(self) -> int: ...
    @property
    def delivery_count(self) -> int: ...
    @property
    def redelivered(self) -> bool: ...
    @property
    def settled(self) -> bool: ...
    @property
    def message_id(self) -> bytes: ...
    @property
    def queue(self) -> Any:
        """The queue that it came from."""

    def ack(self, multiple: bool = False) -> None:
        """Done with it; with `multiple` with all handed out before it, too."""

    def nack(self, requeue: bool = True, multiple: bool = False) -> None:
        """Not done: back to its place in the queue (marked redelivered), or dropped."""

@final
class Client:
    """One attachment of this process to a node. `hook(code, server, what)` mends trouble or raises."""

    def __new__(
        cls,
        superblock: Buffer,
        region: Buffer,
        slot: int,
        generation: int,
        client_epoch: int,
        hook: Callable[[int, int, str], None],
        /,
    ) -> Self: ...
    catalog_seen: int
    @property
    def ended(self) -> bool: ...
    @property
    def busy(self) -> int:
        """Threads that wait or read inside; the memory is theirs until they are out."""

    def publish(
        self, route: Route, body: Buffer, level: int, meta: bytes | None, timeout: float | None, wait: bool, /
    ) -> Confirm | None: ...
    def publish_many(
        self,
        routes: Route | Sequence[Route],
        bodies: Iterable[Buffer],
        level: int,
        metas: bytes | Sequence[bytes | None] | None,
        timeout: float | None,
        wait: bool,
        /,
    ) -> Confirm | None: ...
    def control(self, server: int, request: bytes, timeout: float | None, /) -> tuple[int, bytes]: ...
    def barrier(self, server: int, level: int, timeout: float | None, /) -> None: ...
    def settle(self, timeout: float | None, /) -> bool:
        """Wait until all that was submitted is as durable as was asked for; False when time was up."""

    def horizons(self, server: int, /) -> dict[str, int]: ...
    def end(self, error: BaseException | None, /) -> None:
        """Nothing is submitted any more; whoever waits gets `error` (None: SessionLost)."""

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
    def deliveries(self, handle: QueueHandle, rows: Buffer, /) -> list[Delivery | None]: ...
    def columns(
        self, handle: QueueHandle, rows: Buffer, /
    ) -> tuple[int, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes]:
        """(rows read, tags, ids, value offsets, values, metadata offsets, metadata, delivery counts, redelivered)."""

    def set_store(
        self,
        store: int,
        directory: Buffer,
        index: Buffer,
        summary: Buffer,
        images: Buffer,
        folder: int,
        epoch: int,
        index_generation: int,
        /,
    ) -> None: ...
    def store_write(
        self,
        store: int,
        ids: Sequence[bytes],
        bodies: Sequence[Buffer],
        level: int,
        timeout: float | None,
        wait: bool,
        /,
    ) -> Confirm | None: ...
    def store_write_one(
        self, store: int, id: bytes, body: Buffer, level: int, timeout: float | None, wait: bool, /
    ) -> Confirm | None: ...
    def store_remove(self, store: int, ids: Sequence[bytes], timeout: float | None, /) -> int: ...
    def store_contains(self, store: int, id: bytes, timeout: float | None, /) -> bool: ...
    def store_read(self, store: int, id: bytes, /) -> bytes | None: ...

@final
class QueueHandle:
    """One queue as one attachment uses it. See binding_consumer.c."""

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
    def usable(self) -> bool: ...
    def put(
        self, body: Buffer, level: int, meta: bytes | None, timeout: float | None, wait: bool, /
    ) -> Confirm | None: ...
    def put_many(
        self,
        bodies: Iterable[Buffer],
        level: int,
        metas: bytes | Sequence[bytes | None] | None,
        timeout: float | None,
        wait: bool,
        /,
    ) -> Confirm | None: ...
    def get(self, timeout: float | None, /) -> Delivery | None: ...
    def get_many(self, max: int, timeout: float | None, /) -> list[Delivery]: ...
    def begin(self, prefetch: int, /) -> None: ...
    def release(self) -> None: ...
    def hoard(self) -> int:
        """Messages that lie or may come here unasked for 50 ms; -1: a get is under way, or was just now; 0: none."""

    def settle_many(self, messages: Sequence[Delivery], ack: bool, requeue: bool, /) -> None: ...
    def kill(self, reason: str, /) -> None: ...

# ==== end of client ==================================================================================================

# ==== queue worker: binding_queue.c ==================================================================================

@final
class QueueEngine:
    """Queues, consumers and the journals of one queue worker (core/queue.h). Its policy: engine/queue.py.

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
        """Serve; returns EVENT_… bits. Not until_event: returns (TIMER) as soon as there is nothing to do."""

    def commit_run(self, transient: bool, /) -> None:
        """The life of a committer thread, until stop_logs."""

    def stop_logs(self) -> None: ...
    def request_stop(self) -> None: ...
    def kick(self) -> None: ...
    def offer(self, transient: bool, fd: int, file: int, salt: int, header: Buffer, /) -> None: ...
    def begin_journal(self) -> None:
        """Have the current file begun and synced, so that older files may go even if nothing is published."""

    def pending(self, events: int, on: bool, /) -> None:
        """These events are being handled: do not return for them until they are turned on again."""

    def declare(self, id: int, durable: bool, ghost: bool = False, /) -> None: ...
    def drop(self, id: int, /) -> None: ...
    def queues(self) -> list[int]: ...
    def ghosts(self) -> list[tuple[int, int, int]]: ...
    def attach(self, slot: int, generation: int, client_epoch: int, region: Buffer, /) -> None: ...
    def closing(self, slot: int, /) -> None: ...
    def detach(self, slot: int, /) -> bool: ...
    def attached(self) -> list[tuple[int, int, bool, bool, bool]]:
        """(slot, generation, closing, finished, evicted)."""

    def slots_seen(self, version: int, /) -> None: ...
    def catalog_loaded(self, version: int, /) -> None: ...
    def begin(self, epoch: int, /) -> None: ...
    def freeze(self, on: bool, /) -> None: ...
    def set_store(self, store: int, epoch: int, directory: Buffer | None, /) -> None: ...
    def control_next(self) -> tuple[int, int, int, bytes, int] | None:
        """(slot, client epoch, sequence + 1, request, high water) of a waiting request."""

    def control_answer(self, slot: int, reply: Buffer, ok: bool, durable: bool, /) -> None: ...
    def control_later(self, slot: int, /) -> None: ...
    def stats(self, queue: int, /) -> tuple[int, int, int, int, int, int, int, int, int]:
        """(ready, unacked, alpha, beta, gamma, delta, bytes, base, next)."""

    def purge(self, queue: int, below: int, unacked: bool, /) -> int: ...
    def browse(self, queue: int, start: int, count: int, ready_only: bool, /) -> tuple[bytes, int]: ...
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
    def export_file(self, file: int, /) -> bytes: ...
    def flushed(self, file: int, rows: Buffer, /) -> int: ...
    def segment_acks(self, file: int, /) -> bytes: ...
    def data_files(self) -> dict[int, int]: ...
    def forget_data_file(self, file: int, /) -> None: ...
    @staticmethod
    def encode_entries(rows: Buffer, salt: int, /) -> bytes: ...
    def sync(self, timeout_ns: int, /) -> bool: ...
    def position(self) -> tuple[int, int]: ...
    def settled(self) -> bool:
        """Everything that happened is on disk."""

    def counters(self) -> dict[str, int]: ...
    def high(self, client_epoch: int, /) -> int: ...

# ==== end of queue worker ============================================================================================
