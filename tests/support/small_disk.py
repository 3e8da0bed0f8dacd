"""A small disk that is filled and emptied below a node, and what its alarms say: for tests of alarms."""

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from warren.workers.process.control import ControlClient

from support.waiting import wait_until

MIB = 1 << 20
LIMIT = 4 * MIB
LEFT = 2 * MIB


class Disk:
    """A small disk that is filled up to a few bytes, or emptied again."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.directory = place / "node"
        self.ballast = place / "ballast"

    def free(self) -> int:
        found = os.statvfs(self.place)
        return found.f_bavail * found.f_frsize

    def leave(self, size: int) -> None:
        """The node makes files and lets go of files meanwhile: look until it is so. What they took is given back."""

        def left() -> bool:
            lack = size - self.free()
            if lack > 0 and self.ballast.exists():
                os.truncate(self.ballast, max(0, self.ballast.stat().st_size - lack))
            return self._fill(size)

        wait_until(left, 20, what=f"a disk with only {size} bytes free")

    def _fill(self, size: int) -> bool:
        if (more := self.free() - size) > 0:
            with open(self.ballast, "ab") as file:
                try:
                    os.posix_fallocate(file.fileno(), 0, file.tell() + more)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
        return self.free() <= size

    @contextlib.contextmanager
    def kept_full(self, size: int) -> Iterator[None]:
        """Whatever the node lets go of is filled at once, as by a program that writes on. What its files take until
        then it does not get back by removing them: somebody has them open."""
        ended = threading.Event()

        def fill() -> None:
            while not ended.wait(0.001):
                self._fill(size)

        self.leave(size)
        thread = threading.Thread(target=fill)
        thread.start()
        with contextlib.ExitStack() as held:
            held.callback(thread.join)
            held.callback(ended.set)
            for path in self.directory.rglob("*"):
                with contextlib.suppress(FileNotFoundError):  # it went just now
                    if path.is_file() and not path.is_symlink():
                        held.enter_context(open(path, "rb"))
            yield

    def empty(self) -> None:
        self.ballast.unlink(missing_ok=True)


def status(directory: Path) -> dict[str, Any]:
    with ControlClient(directory) as control:
        return control.call("status", timeout=30)


def alarm_row(directory: Path, name: str) -> dict[str, Any] | None:
    return next((row for row in status(directory)["alarm_details"] if row["alarm"] == name), None)


def alarm_on(directory: Path, name: str = "disk") -> dict[str, Any]:
    return wait_until(lambda: alarm_row(directory, name), 20, what=f"alarm {name}")  # type: ignore[return-value]


def filled(disk: Disk) -> dict[str, Any]:
    """Fill the disk, and again if the node lets go of files before it looks; the alarm."""

    def found() -> dict[str, Any] | None:
        disk.leave(LEFT)
        return alarm_row(disk.directory, "disk")

    return wait_until(found, 20, what="alarm disk")  # type: ignore[return-value]


def alarm_off(directory: Path) -> None:
    wait_until(lambda: not status(directory)["alarms"], 20, what="the end of the alarms")


class Later:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.error: BaseException | None = None
        self.answer: Any = None

        def run() -> None:
            try:
                self.answer = call()
            except BaseException as error:  # noqa: BLE001 - looked at by `end`
                self.error = error

        self.thread = threading.Thread(target=run)
        self.thread.start()

    def end(self) -> Any:
        self.thread.join(60)
        assert not self.thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.answer
