"""A file system in a file, mounted with a loop device, whose power can be cut. Needs root.

    with LoopImage("ext4", folder) as image:
        ...                       # image.place is where it is mounted
        when = image.cut()        # data that is not on the device by now is lost
        ...                       # end processes that have files open there
        image.mount_again()

ext4 and xfs are shut down (FS_IOC_SHUTDOWN without a flush of the journal): nothing reaches the device from then on. A
sync that is under way then may return 0 for what it lost, so confirms count only if they came before `when`. btrfs
cannot be shut down. Its image is on a separate xfs, and a clone of that file is the device at one moment;
`mount_again` mounts the clone. A freeze would write everything first, and is not a power cut.

Everything is undone at the end, also after an exception: mounts, and with them loop devices. The mounts are in a
separate mount namespace (`own_mounts`): no other process keeps them, and a kill undoes them, too.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

KINDS = ("ext4", "xfs", "btrfs")
BYTES = 320 << 20
#: of the xfs on which the image of a btrfs lies, and its clone
HOST_BYTES = 3 * BYTES
SHUTDOWN, NO_LOG_FLUSH = 0x8004587D, 2
CLONE = 0x40049409
UNMOUNT_S = 30.0
CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 0x40000
_MAKE = {
    "ext4": ("mkfs.ext4", "-q", "-F"),
    "xfs": ("mkfs.xfs", "-q", "-f", "-m", "reflink=1"),
    "btrfs": ("mkfs.btrfs", "-q", "-f"),
}


class ImageError(Exception):
    """No such file system can be made here; the message says why."""


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ImageError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")


def own_mounts() -> None:
    """From now on, mounts of this process are seen by it and its children alone. Raises ImageError."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(CLONE_NEWNS) or library.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None):
        raise ImageError(f"no mounts of its own: {os.strerror(ctypes.get_errno())}")


def _is_attached(image: Path) -> bool:
    """Whether a loop device has the file."""
    files = Path("/sys/block").glob("loop*/loop/backing_file")
    return any(file.read_text().strip() == str(image) for file in files if file.exists())


class _Mount:
    """A file that is mounted at a place."""

    def __init__(self, image: Path, place: Path, kind: str, size: int) -> None:
        """Make it. Raises ImageError."""
        self.image, self.place, self.mounted = image, place, False
        with open(image, "wb") as file:
            file.truncate(size)
        _run(*_MAKE[kind], str(image))
        place.mkdir(exist_ok=True)
        self.mount()

    def mount(self) -> None:
        """Raises ImageError. The loop device goes with the mount."""
        _run("mount", "-o", "loop", str(self.image), str(self.place))
        self.mounted = True

    def unmount(self) -> None:
        """Raises ImageError: somebody has files open there for too long."""
        deadline = time.monotonic() + UNMOUNT_S
        while self.mounted:
            try:
                _run("umount", str(self.place))
            except ImageError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
            else:
                self.mounted = False
        while _is_attached(self.image):
            if time.monotonic() > deadline:
                raise ImageError(f"a loop device keeps {self.image}")
            time.sleep(0.05)


class LoopImage:
    """One file system below a folder of the caller's."""

    def __init__(self, kind: str, folder: Path, size: int = BYTES) -> None:
        self.kind, self.folder, self.size = kind, folder, size
        self.place = folder / "mounted"
        self._host: _Mount | None = None
        self._mount: _Mount | None = None

    def __enter__(self) -> Self:
        if why := refusal(self.kind):
            raise ImageError(why)
        try:
            below = self.folder
            if self.kind == "btrfs":
                self._host = _Mount(self.folder / "host.img", self.folder / "host", "xfs", HOST_BYTES)
                below = self._host.place
            self._mount = _Mount(below / f"{self.kind}.img", self.place, self.kind, self.size)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def cut(self) -> float:
        """Cut the power, and return the time (monotonic clock). Later confirms do not count."""
        assert self._mount is not None
        if self._host is not None:
            clone = self._mount.image.with_suffix(".cut")
            with open(self._mount.image, "rb") as source, open(clone, "wb") as target:
                when = time.monotonic()
                fcntl.ioctl(target.fileno(), CLONE, source.fileno())
            return when
        root = os.open(self.place, os.O_RDONLY | os.O_DIRECTORY)
        try:
            when = time.monotonic()
            fcntl.ioctl(root, SHUTDOWN, struct.pack("=I", NO_LOG_FLUSH))
        finally:
            os.close(root)
        return when

    def mount_again(self) -> None:
        """Mount what the device had when the power was cut. Raises ImageError."""
        assert self._mount is not None
        self._mount.unmount()
        clone = self._mount.image.with_suffix(".cut")
        if clone.exists():
            clone.replace(self._mount.image)
        self._mount.mount()

    def close(self) -> None:
        """Undo the mounts, and remove the images."""
        for mount in (self._mount, self._host):
            if mount is not None:
                mount.unmount()
        self._mount = self._host = None
        for path in self.folder.glob("*.img"):
            path.unlink()


def refusal(kind: str) -> str | None:
    """Why there can be no such file system here; None: there can."""
    if kind not in KINDS:
        return f"{kind} is not one of {', '.join(KINDS)}"
    if os.geteuid() != 0:
        return "only root mounts file systems"
    if not os.path.exists("/dev/loop-control"):
        return "there are no loop devices here (/dev/loop-control)"
    for program in {_MAKE[kind][0], *([_MAKE["xfs"][0]] if kind == "btrfs" else [])}:
        if shutil.which(program) is None:
            return f"{program} is not installed"
    return None
