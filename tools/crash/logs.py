"""Logs that survive the death of their writer at any point, and how a node's number is found."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from warren.engine.catalog.node_directory import NodeDirectory


class Log:
    """An append-only log: one `write` for each entry, so a kill leaves whole lines and at most one torn last one."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, *lines: str) -> None:
        """Append whole lines with one write."""
        data = ("\n".join(lines) + "\n").encode()
        written = os.write(self._fd, data)
        if written != len(data):
            raise OSError(f"a log took {written} of {len(data)} bytes")

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def error(self, error: Exception) -> None:
        """Note an error that was lived through."""
        self.write(f"e {type(error).__name__}: {error}".replace("\n", " "))


class Tails:
    """What is new in logs that others write: whole lines, each handed out once."""

    def __init__(self, folder: Path, pattern: str) -> None:
        self._folder, self._pattern = folder, pattern
        self._at: dict[Path, int] = {}

    def lines(self) -> Iterator[list[str]]:
        """The words of each line that was written since."""
        for path in sorted(self._folder.glob(self._pattern)):
            with open(path, "rb") as file:
                file.seek(self._at.get(path, 0))
                data = file.read()
            whole = data.rfind(b"\n") + 1
            self._at[path] = self._at.get(path, 0) + whole
            for line in data[:whole].decode(errors="replace").split("\n")[:-1]:
                yield line.split(" ")


def shared_id_of(directory: Path) -> int:
    """The number that names the shared objects of a directory's node."""
    return NodeDirectory(directory).shared_id


def node_epoch_of(directory: Path) -> int:
    """How often the node of a directory began anew."""
    return int(json.loads((directory / "node.json").read_text())["node_epoch"])
