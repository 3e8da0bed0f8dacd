"""Whole files, one after the other, for a start that reads all of them."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from warren.engine.kernel import data_files, segment


def contents(paths: list[Path]) -> Generator[memoryview, None, None]:
    """The bytes of each file, each good until the next is asked for. A thread reads one ahead, into memory that is used
    again: reading costs as much as what is done with the bytes. Raises OSError."""
    if not paths:
        return
    buffers = [memoryview(segment.scan_memory(*paths)) for _ in range(min(2, len(paths)))]

    def read(n: int) -> memoryview:
        with data_files.reading(paths[n]) as file:
            view, got = buffers[n % 2], 0
            while got < len(view) and (more := file.readinto(view[got:])):
                got += more
            return view[:got]

    with ThreadPoolExecutor(1) as reader:
        ahead = reader.submit(read, 0)
        for n in range(len(paths)):
            content = ahead.result()
            if n + 1 < len(paths):
                ahead = reader.submit(read, n + 1)
            yield content
