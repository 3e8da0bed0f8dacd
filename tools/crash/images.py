"""Crash images: what shared memory looks like when a client dies between two instructions of an operation.

`Stepper` compiles stepper.c with the C core and runs it over a dump of a real node's memory; it returns the images, as
differences. Who applies one to a real node and looks what the server makes of it: tests/crash/test_images.py.
"""

from __future__ import annotations

import os
import platform
import struct
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from warren.ipc.layout import SUPERBLOCK_BYTES
from warren.tools import c_core

FORBIDDEN = 77
#: what a client consists of, and the stores whose client it is
ROOMS = ("kernel", "client", "store")
FLAGS = (*c_core.FLAGS, "-O2", "-Wall", "-Wextra", "-Wshadow")


class SteppingForbidden(Exception):
    """This machine does not let a process single-step its child, or is no x86_64; the message says which."""


@dataclass(frozen=True)
class Image:
    """What differs from the dump after so many instructions: (offset in superblock | region | directory, bytes)."""

    instruction: int
    ranges: tuple[tuple[int, bytes], ...]


@dataclass(frozen=True)
class Stepped:
    """All images of one operation."""

    instructions: int
    images: tuple[Image, ...]


@dataclass(frozen=True)
class Dump:
    """Memory of a real node, and whose client the operation is done for."""

    superblock: bytes
    region: bytes
    directory: bytes
    slot: int
    generation: int
    client_epoch: int

    def split(self, image: Image) -> dict[str, list[tuple[int, bytes]]]:
        """The image's ranges by where they lie: "superblock", "region", "directory"."""
        areas = (
            ("superblock", 0, SUPERBLOCK_BYTES),
            ("region", SUPERBLOCK_BYTES, SUPERBLOCK_BYTES + len(self.region)),
            ("directory", SUPERBLOCK_BYTES + len(self.region), 1 << 62),
        )
        found: dict[str, list[tuple[int, bytes]]] = {name: [] for name, _, _ in areas}
        for offset, data in image.ranges:
            for name, low, high in areas:
                first, last = max(offset, low), min(offset + len(data), high)
                if first < last:
                    found[name].append((first - low, data[first - offset : last - offset]))
        return found


class Stepper:
    """The compiled program, in a folder. Raises SteppingForbidden, BuildError (what the compiler said)."""

    def __init__(self, folder: Path) -> None:
        if platform.machine() != "x86_64":
            raise SteppingForbidden(f"single-stepping is written for x86_64, this is {platform.machine()}")
        self._program = folder / "stepper"
        self._folder = folder
        compiler = os.environ.get("CC", "gcc")
        compiled = c_core.Objects(compiler, FLAGS, c_core.BUILD / "stepper")
        objects = compiled.compile([Path(__file__).with_name("stepper.c"), *c_core.core(*ROOMS)])
        c_core.run([compiler, "-pthread", *map(str, objects), "-lm", "-o", str(self._program)])

    def run(self, dump: Dump, operation: str) -> Stepped:
        """Step one operation (see stepper.c). Raises SteppingForbidden, RuntimeError (what went wrong)."""
        with tempfile.TemporaryDirectory(dir=self._folder) as name:
            image, output = Path(name, "image"), Path(name, "output")
            image.write_bytes(dump.superblock + dump.region + dump.directory)
            numbers = (len(dump.region), len(dump.directory) // 8, dump.slot, dump.generation, dump.client_epoch)
            command = [str(self._program), str(image), *map(str, numbers), operation, str(output)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
            if done.returncode == FORBIDDEN:
                raise SteppingForbidden("ptrace is forbidden here")
            if done.returncode:
                raise RuntimeError(f"stepping {operation}: {done.stderr.strip() or done.returncode}")
            return Stepped(int(done.stdout.split()[0]), tuple(_parsed(output.read_bytes())))


def _parsed(data: bytes) -> list[Image]:
    images = []
    at = 0
    while at < len(data):
        instruction, count = struct.unpack_from("<QQ", data, at)
        at += 16
        ranges = []
        for _ in range(count):
            offset, length = struct.unpack_from("<QQ", data, at)
            ranges.append((offset, data[at + 16 : at + 16 + length]))
            at += 16 + length
        images.append(Image(instruction, tuple(ranges)))
    return images
