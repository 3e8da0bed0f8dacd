"""What `warren check` says of a file or a folder of the topics."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass
class Found:
    """What a look at a file or a folder found."""

    path: Path
    kind: str
    bytes: int = 0  #: that it has on the disk
    records: int = 0
    problem: str = ""  #: bytes that are not what was written
    note: str = ""  #: no damage, but worth knowing
