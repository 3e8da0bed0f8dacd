"""Stub of the C extension warren.ipc._core: atomics and sleeping on shared memory, off the hot paths."""

from typing import Any

# Every function takes a writable buffer and a byte offset; the offset must be aligned and inside (ValueError).
def load32(buffer: Any, offset: int, /) -> int: ...
def load64(buffer: Any, offset: int, /) -> int: ...
def store32(buffer: Any, offset: int, value: int, /) -> None: ...
def store64(buffer: Any, offset: int, value: int, /) -> None: ...
def add32(buffer: Any, offset: int, value: int, /) -> int:
    """Fetch-add; returns the value before."""

def add64(buffer: Any, offset: int, value: int, /) -> int:
    """Fetch-add; returns the value before."""

def or64(buffer: Any, offset: int, value: int, /) -> int:
    """Fetch-or; returns the value before."""

def and64(buffer: Any, offset: int, value: int, /) -> int:
    """Fetch-and; returns the value before."""

def cas64(buffer: Any, offset: int, expected: int, value: int, /) -> bool:
    """Compare-and-swap; True when it was done."""

def futex_wait(buffer: Any, offset: int, expected: int, timeout_ns: int, /) -> int:
    """Sleep while the word is `expected`; returns 0 (woken or changed) or an errno. Releases the GIL."""

def futex_wake(buffer: Any, offset: int, /) -> None: ...
def bell_ring(buffer: Any, offset: int, /) -> bool:
    """Wake the owner of a sleep word if it sleeps (design note 001, section 2)."""

def segment_create(size: int, uid: int, gid: int, /) -> int:
    """Make a System V segment of zero bytes and attach it nowhere; its id. Mode 0600; with a `gid` that is not -1,
    0660, and it belongs to `uid` and that group. Raises OSError.
    """

def region_name(superblock: Any, what: str, server: int, generation: int, /) -> str:
    """The name of a region of a server (ipc/core/names.h)."""
