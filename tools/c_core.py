"""The C core for tools that build programs of their own with it: its files, as the folders have them, and objects.

Objects are kept in a folder and compiled again when source, header or flag has changed.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
FLAGS: tuple[str, ...] = ("-std=gnu11", "-UNDEBUG", "-pthread", "-fno-strict-aliasing", "-I.", "-Iengine")
FLAGS += ("-msse4.2",) if platform.machine() in ("x86_64", "AMD64", "i686") else ()
_SIBLING = re.compile(r'^#include "([\w.]+\.[ch])"$', re.MULTILINE)


class BuildError(Exception):
    """A compiler said no; its words are the message."""


def core(*rooms: str) -> list[Path]:
    """C files that need no Python: the carrier's, and those of these rooms of engine/, or of all."""
    found = [*ROOT.glob("ipc/core/*.c"), *(path for room in rooms or "*" for path in ROOT.glob(f"engine/{room}/*.c"))]
    return sorted(path for path in found if path.name != "binding.c" and path.parent.name != "binding")


def run(command: list[str]) -> None:
    """Run a compiler or linker in the root of the checkout. Raises BuildError."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{' '.join(command)}\n{done.stderr}")


def text_of(path: Path) -> str:
    """A C file's text, with those that it includes of its own folder."""
    text = path.read_text()
    return text + "".join(text_of(path.parent / name) for name in _SIBLING.findall(text))


@dataclass(frozen=True)
class Objects:
    """Objects of one compiler and its flags."""

    compiler: str
    flags: tuple[str, ...]
    folder: Path

    def _common(self) -> bytes:
        """What every object depends on."""
        state = hashlib.sha256("\0".join([self.compiler, *self.flags]).encode())
        for room in ("ipc", "engine", "tests"):
            for header in sorted(ROOT.glob(f"{room}/*/*.h")):
                state.update(header.read_bytes())
        return state.digest()

    def compile(self, sources: Iterable[Path]) -> list[Path]:
        """The objects of these files, on all cores. Raises BuildError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        common = self._common()
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return list(pool.map(lambda source: self._compile(source, common), sources))

    def _compile(self, source: Path, common: bytes) -> Path:
        name = "-".join(source.relative_to(ROOT).parts)
        state = hashlib.sha256(common + text_of(source).encode()).hexdigest()[:16]
        target = self.folder / f"{name}.{state}.o"
        if not target.exists():
            for old in self.folder.glob(f"{name}.*.o"):
                old.unlink(missing_ok=True)
            part = target.with_suffix(f".part{os.getpid()}")
            run([self.compiler, *self.flags, "-c", str(source.relative_to(ROOT)), "-o", str(part)])
            part.replace(target)
        return target
