"""The files of a worker's large messages: `large/<id>`, one for each message that is too large for shared memory.

Publishers make them (engine/kernel/large.h), consumers read them, the worker removes them. The core counts who needs
one (engine/queues/large.h). Nothing but the journal and the segments says which ones are needed: there is no list.

Who removes a file
    its last entry has gone                       the worker, when the frames that say so are synced
    no queue took the message                     the same
    its publisher died or failed, and nobody will
    ever speak of it; or a worker was killed
    between those frames and the removal          a look, of the next start, when a client has gone, and now and then

A look takes files that the core does not know, and which nobody is publishing now: it gets their locks, which a
publisher has until its commands are submitted. It keeps the locks until the worker has executed all that those
publishers had submitted by then. What the core does not know even now, nobody will ever speak of.

Crash points (a kill at any instruction)
    before a file is removed   the next start finds it, and nobody who holds it
    after                      it is gone; its entry had gone before, durably
    in a look                  nothing was done; the locks go with the process
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from logging import ERROR, WARNING

from warren.engine import _core
from warren.engine.errors import StoreError
from warren.engine.kernel import data_files, quarantine, segment
from warren.engine.queues.folder import Folder
from warren.engine.queues.helpers import IndexKeeper
from warren.engine.queues.options import Options
from warren.engine.queues.recovered import Recovered
from warren.engine.saying import counted
from warren.ipc.superblock import FREE

LOOK_S = 60.0  #: between two looks for which there is no reason
SOON_S = 1.0  #: a client has gone: then those that go with it are seen at once
LOCKED_MOST = 64  #: files that one look has open
ID_BYTES = 16
#: why something in the place of a file cannot be opened: a link, a folder, another user's, a socket
_NOT_OURS = (errno.ELOOP, errno.EISDIR, errno.EACCES, errno.EPERM, errno.ENXIO)


def id_of(name: str) -> bytes | None:
    """The message whose file has this name; None: it is none of ours."""
    try:
        found = bytes.fromhex(name)
    except ValueError:
        return None
    return found if len(found) == ID_BYTES and found.hex() == name else None


def client_epoch_of(id: bytes) -> int:
    """Whose message it is: the epoch of the client that published it."""
    return int.from_bytes(id[:8], "big")


def ids_in(folder: Folder) -> list[bytes]:
    """The messages that have files. Raises OSError."""
    try:
        names = os.listdir(folder.large)
    except FileNotFoundError:
        return []  # of a directory that was made before there were any
    return [id for name in names if (id := id_of(name)) is not None]


def link(source: Folder, target: Folder, id: bytes) -> None:
    """The same file for another worker. A file that is not there was lost before. Raises OSError."""
    old, new = source.large / id.hex(), target.large / id.hex()
    with contextlib.suppress(FileExistsError, FileNotFoundError):  # an attempt that was killed has made it
        try:
            data_files.link(old, new)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.EXDEV):
                raise
            unfinished = segment.unfinished_path(new)
            data_files.unlink(unfinished, missing_ok=True)
            with (
                data_files.reading(old, anyones=True) as whole,
                data_files.writing(unfinished, os.O_CREAT | os.O_EXCL) as copy,
            ):
                shutil.copyfileobj(whole, copy)
            segment.sync_file(unfinished)
            data_files.rename(unfinished, new)


@dataclass
class _Suspect:
    """A file that nobody knows, locked; how far its publisher's commands have to be executed first."""

    id: bytes
    descriptor: int
    until: int = 0

    @property
    def epoch(self) -> int:
        return client_epoch_of(self.id)

    def let_go(self) -> None:
        os.close(self.descriptor)


class LargeFiles:
    """What a worker does with them."""

    def __init__(self, engine: _core.QueueEngine, options: Options, index: IndexKeeper) -> None:
        self._engine = engine
        self._options = options
        self._index = index
        self._look_at = 0.0  # at the start
        self._looking = False
        self._suspects: list[_Suspect] = []
        self._stay: list[bytes] = []  # those that could not be removed

    def compare(self, recovered: Recovered) -> None:
        """At a start: messages without their files are lost, and counted. Raises StoreError."""
        folder = self._options.folder
        try:
            there = ids_in(folder)
        except OSError as error:
            raise StoreError(f"cannot read {folder.large}: {error}") from error
        if lost := self._engine.large_missing(b"".join(there)):
            recovered.lost += lost
            what = f"files are missing: {counted(lost, 'message')} lost"
            self._options.say(f"damaged: {folder.large}: {what}", ERROR)
            quarantine.note(folder.path, quarantine.Entry(folder.large.name, 0, 0, what, lost))

    def look_soon(self) -> None:
        """A client has gone, and may have left files."""
        self._look_at = min(self._look_at, time.monotonic() + SOON_S)

    def on_timer(self, now: float) -> None:
        gone = self._engine.large_gone()
        if ids := self._stay + [gone[at : at + ID_BYTES] for at in range(0, len(gone), ID_BYTES)]:
            self._stay = []
            self._remove(ids)
        if self._suspects:
            self._judge()
        elif now >= self._look_at and not self._looking:
            self._look()

    def end(self) -> None:
        """The worker stops; all that happened is on disk, if it can be."""
        gone = self._engine.large_gone()
        _remove(self._options.folder, self._stay + [gone[at : at + ID_BYTES] for at in range(0, len(gone), ID_BYTES)])
        self.close()

    def close(self) -> None:
        """Let go of what a look has."""
        for suspect in self._suspects:
            suspect.let_go()
        self._suspects = []

    def _remove(self, ids: list[bytes]) -> None:
        def then(result: list[bytes] | StoreError) -> None:
            if isinstance(result, StoreError):
                self._options.say(
                    f"cannot remove a file in {self._options.folder.large}; trying again: {result}", WARNING
                )
                self._stay += ids
            else:
                self._stay += result

        self._index.ask(lambda: _remove(self._options.folder, ids), then)

    def _look(self) -> None:
        self._looking = True
        self._look_at = time.monotonic() + LOOK_S

        def listed(found: list[bytes] | StoreError) -> None:
            if isinstance(found, StoreError):
                self._looking = False
                self._options.say(f"cannot look for files that nobody needs: {found}", WARNING)
                return
            strange = [id for id in found if not self._engine.large_known(id)]
            if len(strange) > LOCKED_MOST:
                self.look_soon()
            if strange:
                self._index.ask(lambda: _locked(self._options.folder, strange[:LOCKED_MOST]), locked)
            else:
                self._looking = False

        def locked(result: tuple[list[_Suspect], bool] | StoreError) -> None:
            self._looking = False
            if isinstance(result, StoreError):
                self._options.say(f"cannot look for files that nobody needs: {result}", WARNING)
                return
            found, busy = result
            if busy:
                self.look_soon()
            superblock = self._options.superblock
            epochs = {view.client_epoch for view in superblock.slots() if view.state != FREE}
            for suspect in found:
                link = self._engine.link_of(suspect.epoch)
                if link is None and suspect.epoch in epochs:
                    suspect.let_go()  # this worker does not serve it yet, or no more: at another look
                    continue
                suspect.until = link[1] if link is not None else 0
                self._suspects.append(suspect)

        self._index.ask(lambda: ids_in(self._options.folder), listed)

    def _judge(self) -> None:
        """Of those whose publishers' commands are executed it is known now whether anybody speaks of them."""
        waiting, strays = [], []
        for suspect in self._suspects:
            link = self._engine.link_of(suspect.epoch)
            if link is not None and link[0] < suspect.until:
                waiting.append(suspect)
            elif self._engine.large_known(suspect.id):
                suspect.let_go()
            else:
                strays.append(suspect)
        self._suspects = waiting
        if not strays:
            return

        def job() -> list[bytes]:
            try:
                return _remove(self._options.folder, [suspect.id for suspect in strays])
            finally:
                for suspect in strays:
                    suspect.let_go()

        def then(result: list[bytes] | StoreError) -> None:
            if isinstance(result, StoreError):
                self._options.say(f"files that nobody needs stay: {result}", WARNING)
            else:
                self._options.say(f"{counted(len(strays), 'file')} removed that no message needs")

        self._index.ask(job, then)


def _remove(folder: Folder, ids: Iterable[bytes]) -> list[bytes]:
    """Remove files; those that cannot be."""
    stay = []
    for id in ids:
        try:
            data_files.unlink(folder.large / id.hex())
        except FileNotFoundError:
            continue
        except OSError:
            stay.append(id)
    return stay


def _locked(folder: Folder, ids: Iterable[bytes]) -> tuple[list[_Suspect], bool]:
    """Those that nobody is publishing, locked; and whether there are others, which may be published, or be looked at by
    another worker that has a link. Raises OSError."""
    found, busy = [], False
    for id in ids:
        try:
            descriptor = data_files.open(folder.large / id.hex(), os.O_RDONLY, anyones=True)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno in _NOT_OURS:  # a member of the group put it there
                continue
            raise
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            busy = True
            continue
        if not os.fstat(descriptor).st_nlink:  # its publisher took it away, and may have made another one
            os.close(descriptor)
            continue
        found.append(_Suspect(id, descriptor))
    return found, busy
