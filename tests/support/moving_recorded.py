"""`python -m support.moving_recorded BASE DIR WORKERS`: copy a data directory, durably, and move its queues, recorded
(warren.tools.crash.recording). The note `copied` parts the two."""

import os
import sys
from pathlib import Path

from warren.engine.catalog.catalog import Catalog
from warren.engine.catalog.node_directory import NodeDirectory, changed_settings
from warren.tools.crash.recording import note
from warren.workers.node.moves import Mover

from support.heard import Heard


def copy(base: Path, to: Path) -> None:
    os.mkdir(to)
    for entry in sorted(base.iterdir()):
        if entry.is_dir():
            copy(entry, to / entry.name)
        elif entry.is_file():
            with open(to / entry.name, "wb") as file:
                file.write(entry.read_bytes())
                file.flush()
                os.fsync(file.fileno())
    descriptor = os.open(to, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def move(directory: Path, workers: int) -> Catalog:
    """The moves of a start with so many workers."""
    node = NodeDirectory(directory).read()
    settings = changed_settings(node.settings, {"workers": workers}).checked()
    said = Heard()
    catalog = Mover(directory, node.node_id, settings, Catalog.load(directory), said).run()
    assert not any("not moved" in line for line in said), said
    return catalog


if __name__ == "__main__":
    copy(Path(sys.argv[1]), Path(sys.argv[2]))
    note(b"copied")
    move(Path(sys.argv[2]), int(sys.argv[3]))
