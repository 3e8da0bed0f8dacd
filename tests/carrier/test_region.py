"""Goal: regions are made whole or not at all, belong to their user alone, and go when they should.

Method: each way to make, open and remove one, and each way that this fails, with the errno that callers rely on.
"""

import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from warren.ipc import region
from warren.ipc.region import RegionError


@pytest.fixture
def name() -> Iterator[str]:
    """Name of a region that is gone after the test."""
    chosen = f"/warren-{secrets.token_hex(6)}-test"
    yield chosen
    region.posix_unlink(chosen)


def test_posix_is_shared_and_private_to_the_user(name: str) -> None:
    one = region.posix_create(name, 8192)
    other = region.posix_open(name)
    assert (one.size, len(one.buffer), other.size) == (8192, 8192, 8192)
    assert bytes(one.buffer) == bytes(8192)
    one.buffer[100:104] = b"abcd"
    assert bytes(other.buffer[100:104]) == b"abcd"
    found = os.stat(region.SHM_DIRECTORY + name)
    assert found.st_mode & 0o777 == 0o600
    assert found.st_blocks * 512 >= 8192, "the space must be reserved, or a full tmpfs is a SIGBUS later"
    assert region.posix_owner(name) == os.geteuid()
    one.close()
    other.close()


def test_posix_unlink_leaves_mappings(name: str) -> None:
    one = region.posix_create(name, 4096)
    assert region.posix_unlink(name)
    assert not region.posix_unlink(name)
    one.buffer[0] = 7
    assert one.buffer[0] == 7
    one.close()
    with pytest.raises(RegionError) as caught:
        region.posix_open(name)
    assert caught.value.errno == errno.ENOENT


def test_posix_exists(name: str) -> None:
    one = region.posix_create(name, 4096)
    with pytest.raises(RegionError) as caught:
        region.posix_create(name, 4096)
    assert caught.value.errno == errno.EEXIST
    one.close()


def test_posix_without_space_leaves_nothing(name: str) -> None:
    with pytest.raises(RegionError) as caught:
        region.posix_create(name, 1 << 46)
    assert caught.value.errno in (errno.ENOSPC, errno.EFBIG, errno.ENOMEM)
    assert name in str(caught.value)
    assert region.posix_names(name) == []


def test_posix_half_made_is_not_there(name: str) -> None:
    """A creator killed between shm_open and fallocate leaves a region of no size."""
    descriptor = os.open(region.SHM_DIRECTORY + name, os.O_CREAT | os.O_RDWR, 0o600)
    os.close(descriptor)
    with pytest.raises(RegionError) as caught:
        region.posix_open(name)
    assert caught.value.errno == errno.ENOENT


def test_posix_read_only(name: str) -> None:
    one = region.posix_create(name, 4096)
    view = region.posix_open(name, writable=False)
    with pytest.raises(TypeError):
        view.buffer[0] = 1
    view.close()
    one.close()


def test_posix_names(name: str) -> None:
    for number in (2, 1):
        region.posix_create(f"{name}-{number}", 4096).close()
    assert region.posix_names(name) == [f"{name}-1", f"{name}-2"]
    for number in (1, 2):
        region.posix_unlink(f"{name}-{number}")


def test_close_is_repeatable_and_refused_while_held(name: str) -> None:
    one = region.posix_create(name, 4096)
    held = one.buffer[10:20]
    with pytest.raises(BufferError):
        one.close()
    held.release()
    one.close()
    one.close()


def test_sysv_lives_until_the_last_detach() -> None:
    one = region.sysv_create(4096)
    assert region.sysv_attached(one.id) == 1
    other = region.sysv_attach(one.id)
    assert region.sysv_attached(one.id) == 2
    one.buffer[0:2] = b"hi"
    assert bytes(other.buffer[0:2]) == b"hi"
    assert region.sysv_remove(one.id)
    one.close()
    assert bytes(other.buffer[0:2]) == b"hi"
    other.close()
    assert region.sysv_attached(one.id) == 0
    assert not region.sysv_remove(one.id)
    with pytest.raises(RegionError) as caught:
        region.sysv_attach(one.id)
    assert caught.value.errno in (errno.ENOENT, errno.EINVAL)


def test_sysv_memory_is_taken_at_once_or_with_its_use() -> None:
    def resident(id: int) -> int:
        header, *rows = (line.split() for line in Path("/proc/sysvipc/shm").read_text().splitlines())
        return next(int(row[header.index("rss")]) for row in rows if int(row[header.index("shmid")]) == id)

    size = 64 * 4096
    for touch, expected in ((True, size), (False, 0)):
        one = region.sysv_create(size, touch)
        region.sysv_remove(one.id)
        assert (one.size, resident(one.id)) == (size, expected)
        assert not any(one.buffer)
        one.buffer[-1] = 1
        assert resident(one.id) >= 4096
        one.close()


def test_sysv_attach_count_is_true_after_a_kill() -> None:
    one = region.sysv_create(4096)
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:  # a fork inherits the attachment
        os.write(write_end, b"x")
        os.read(read_end, 0)
        os.kill(os.getpid(), 9)
    os.read(read_end, 1)
    os.waitpid(pid, 0)
    os.close(read_end)
    os.close(write_end)
    assert region.sysv_attached(one.id) == 1
    region.sysv_remove(one.id)
    one.close()


def test_sysv_absurd_size_is_an_error() -> None:
    with pytest.raises(RegionError, match=r"shmmni|shmall"):
        region.sysv_create(1 << 60)


def test_who_has_no_memory_to_ask_does_not_take_a_segment_for_unused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client of another namespace would be swept as dead."""
    made = region.sysv_create(4096)
    try:
        assert region.sysv_attached(made.id) == 1

        def refuse(*_arguments: object) -> None:
            raise MemoryError("Not enough memory")

        with monkeypatch.context() as patched:
            patched.setattr(region.sysv_ipc, "attach", refuse)
            with pytest.raises(region.RegionError, match="Not enough memory"):
                region.sysv_attached(made.id)
    finally:
        region.sysv_remove(made.id)
        made.close()
    assert region.sysv_attached(made.id) == 0
