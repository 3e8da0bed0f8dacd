"""Goal: what lies outside of a data directory stays as it is, whatever part of a path in it is a link (rule N21).

Method: each call is given paths with a link as their last part, and with one before; the directory itself is reached
through a link, by a descriptor, and as the current directory. The C twin: data_files_test.c.
"""

import errno
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from warren.engine.errors import StoreError
from warren.engine.kernel import atomic_file, data_files


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "file").write_bytes(b"hers")
    return folder


@pytest.fixture
def inside(tmp_path: Path, outside: Path) -> Path:
    """A data directory that is reached through a link, with links in it."""
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "data").symlink_to(real)
    directory = tmp_path / "data"
    data_files.is_root(directory)
    (real / "queues").mkdir()
    (real / "queues" / "own").write_bytes(b"own")
    (real / "link").symlink_to(outside / "file")
    (real / "folder").symlink_to(outside)
    return directory


CALLS: dict[str, Callable[[Path, Path], object]] = {
    "read": lambda path, _own: data_files.read(path),
    "open to write": lambda path, _own: data_files.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    "open of anybody": lambda path, _own: data_files.open(path, os.O_RDONLY, anyones=True),
    "open a folder": lambda path, _own: data_files.open_folder(path.parent if path.name == "file" else path),
    "make a folder": lambda path, _own: data_files.make_folder(path),
    "link to": lambda path, own: data_files.link(own, path),
    "sync": lambda path, _own: atomic_file.sync_directory(path.parent if path.name == "file" else path),
}
BELOW: dict[str, Callable[[Path, Path], object]] = {
    "unlink": lambda path, _own: data_files.unlink(path),
    "rename to": lambda path, own: data_files.rename(own, path),
    "rename from": data_files.rename,
    "set a mode": lambda path, _own: data_files.set_mode(path, 0o666),
    "remove a tree": lambda path, _own: data_files.remove_tree(path),
    "remove a folder": lambda path, _own: data_files.remove_folder(path),
}


def unharmed(outside: Path) -> None:
    assert [path.name for path in outside.iterdir()] == ["file"]
    assert (outside / "file").read_bytes() == b"hers"
    assert stat.S_IMODE((outside / "file").stat().st_mode) != 0o666


@pytest.mark.parametrize("call", [*CALLS, *BELOW])
def test_no_link_is_followed(inside: Path, outside: Path, call: str) -> None:
    own = inside / "queues" / "own"
    paths = [inside / "folder" / "file", *([inside / "link"] if call in CALLS else [])]
    for path in paths:
        with pytest.raises(OSError, match=r"symbolic link|exists|Not a directory"):
            (CALLS | BELOW)[call](path, own)
        unharmed(outside)
    assert own.read_bytes() == b"own"


def test_a_link_is_named_with_its_owner(inside: Path) -> None:
    for path in (inside / "link", inside / "folder" / "file"):
        with pytest.raises(OSError, match="is a symbolic link of user ") as caught:
            data_files.read(path)
        assert caught.value.errno == errno.ELOOP
        assert caught.value.filename == str(path)


def test_what_is_a_link_itself_goes_or_is_replaced(inside: Path, outside: Path) -> None:
    atomic_file.replace(inside / "link", b"new")
    assert not (inside / "link").is_symlink()
    (inside / "again.new").symlink_to(outside / "file")
    atomic_file.replace(inside / "again", b"new")
    data_files.unlink(inside / "folder")
    data_files.unlink(inside / "folder", missing_ok=True)
    unharmed(outside)


def test_a_tree_goes_with_its_links_alone(inside: Path, outside: Path) -> None:
    (inside / "queues" / "link").symlink_to(outside)
    data_files.remove_tree(inside / "queues")
    assert not (inside / "queues").exists()
    unharmed(outside)


def test_ways_to_a_directory(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is a link, a descriptor, the current directory, a folder that is open."""
    descriptor = data_files.open_folder(inside)
    try:
        monkeypatch.chdir(inside)
        for path in (inside / "queues" / "own", f"/proc/self/fd/{descriptor}/queues/own", "queues/own"):
            assert data_files.read(path) == b"own"
        for path in (inside / "folder" / "file", f"/proc/self/fd/{descriptor}/folder/file", "folder/file"):
            with pytest.raises(OSError, match="symbolic link"):
                data_files.read(path)
        opened = data_files.open("queues/own", os.O_RDONLY, folder=descriptor)
        os.close(opened)
        for path in ("../outside/file", "queues/../../outside/file", f"/proc/self/fd/{descriptor}/../outside/file"):
            with pytest.raises(OSError, match="never leads up"):
                data_files.unlink(path)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("what", ["fifo", "folder", "socket"])
def test_what_is_no_file_is_refused_at_once(inside: Path, what: str) -> None:
    path = inside / f"a {what}"
    {"fifo": lambda: os.mkfifo(path), "folder": path.mkdir, "socket": lambda: os.mknod(path, stat.S_IFSOCK)}[what]()
    for flags in (os.O_RDONLY, os.O_WRONLY):
        with pytest.raises(OSError, match=re.escape(str(path))):
            data_files.open(path, flags)


def test_a_file_of_another_user_is_refused_before_it_is_cut(inside: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("giving a file away needs root")
    path = inside / "queues" / "own"
    os.chown(path, 61_201, 61_201)
    with pytest.raises(PermissionError, match=r"belongs to user 61201, and the directory to user root \(0\)"):
        data_files.open(path, os.O_WRONLY | os.O_TRUNC)
    assert path.read_bytes() == b"own"
    with atomic_file.file_explained("cannot read"), pytest.raises(PermissionError):
        data_files.read(path)
    assert data_files.read(path, anyones=True) == b"own"


def test_a_folder_beside_a_directory_is_where_the_user_has_it(tmp_path: Path, outside: Path) -> None:
    """A report, say: its folder may be a link, and the file is none."""
    (tmp_path / "reports").symlink_to(outside)
    atomic_file.replace(tmp_path / "reports" / "one", b"x")
    assert (outside / "one").read_bytes() == b"x"
    (outside / "two.new").symlink_to(outside / "file")
    atomic_file.replace(tmp_path / "reports" / "two", b"x")
    assert (outside / "file").read_bytes() == b"hers"
    with pytest.raises(StoreError, match="cannot write"):
        atomic_file.replace(tmp_path / "none" / "one", b"x")
