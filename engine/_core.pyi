"""Stub of the C extension warren.engine._core. Each part of the core has its own section."""

from typing import Self, final

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
