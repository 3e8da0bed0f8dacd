"""`python -m support.register_recorded DIR register|rewritten|store|failed`: a process is killed when it has written
that files leave a register, and before that is synced, or as the sync has failed; the next one removes these files. To
be recorded (warren.tools.crash.recording); the note `begun` is written when all is there, durably.
"""

import contextlib
import itertools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from warren.engine.kernel import file_register, segment
from warren.engine.kernel.file_register import Entry, FileRegister, Key
from warren.engine.kernel.formats import LISTED_DATA
from warren.engine.store.folder import FILES, key_of
from warren.tools.crash.recording import fail_sync, note

from support.store_folder import NODE, OWNER, A, Folder, M, R, three

KEYS: list[Key] = [(LISTED_DATA, 0, number) for number in range(6)]
LEAVING = KEYS[1:3]


def register(directory: Path) -> FileRegister:
    return FileRegister(directory / "files", NODE, OWNER)


def data_file(directory: Path, key: Key) -> Path:
    return directory / "data" / str(key[2])


def store(directory: Path) -> Folder:
    """Files 0 to 2, and 5, into which 0 and 1 were collected."""
    folder = Folder(directory)
    three(folder)
    folder.start()
    folder.put(5, [*[(M, n) for n in range(20) if n != 4], (A, 5), (R, 14)][:20], positions=(0, 1))
    for number in (0, 1, 2, 5):
        segment.sync_file(folder.file(number))
    return folder


def killed_at_sync(work: Callable[[], None], at: int, fails: bool) -> None:
    """`work` in a process that is killed where it would sync for the `at`-th time, or when that has failed."""
    syncs = itertools.count(1)

    def before(sync: Callable[[int], None], descriptor: int) -> None:
        if next(syncs) == at:
            if fails:
                fail_sync()
                with contextlib.suppress(OSError):
                    sync(descriptor)
            os.kill(os.getpid(), signal.SIGKILL)
        sync(descriptor)

    child = os.fork()
    if not child:
        fsync, fdatasync = os.fsync, os.fdatasync
        os.fsync = lambda descriptor: before(fsync, descriptor)
        os.fdatasync = lambda descriptor: before(fdatasync, descriptor)
        work()
        os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])


def main(directory: Path, what: str) -> None:
    directory.mkdir()
    if what == "store":
        folder = store(directory)
        files, leaving = FileRegister(directory / FILES, NODE, OWNER), [key_of(0), key_of(1)]
    else:
        files, leaving = register(directory), LEAVING
        (directory / "data").mkdir()
        for key in KEYS:
            data_file(directory, key).touch()
        files.begin({key: Entry(1, 0) for key in KEYS}, [directory / "data"])
    files.load()
    segment.sync_directory(directory)
    note(b"begun")
    if what == "rewritten":  # killed between the list's name and the sync of that
        file_register.REWRITE_MIN = -1000
    killed_at_sync(lambda: files.note(gone=leaving), 2 if what == "rewritten" else 1, what == "failed")
    if what == "store":
        folder.start()
        return
    files = register(directory)
    files.load()
    files.note(gone=leaving)
    for key in leaving:
        data_file(directory, key).unlink()
    segment.sync_directory(directory / "data")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
