"""Large messages beside a raw log: each put is synced, and taken and acked afterwards.

    python -m warren.tools.bench.large DIRECTORY [--size-mib N …] [--repeat N] [--bytes-mib N]

The raw log is what no broker can beat with one file: a file that has its blocks, written in pieces of 1 MiB, and one
fdatasync for each message. The sides take turns; medians, and the ratio of each turn's two rates, are shown.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import warren
from warren.tools.bench.harness import temporary_node

MIB = 1 << 20
TIMEOUT_S = 120.0


def raw_log(folder: Path, size: int, count: int) -> float:
    """MiB a second of a raw log of `count` messages."""
    piece = os.urandom(MIB)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as log:
        os.posix_fallocate(log.fileno(), 0, size * count)
        began = time.monotonic()
        for number in range(count):
            for at in range(0, size, MIB):
                os.pwrite(log.fileno(), piece[: min(MIB, size - at)], number * size + at)
            os.fdatasync(log.fileno())
        return size * count / MIB / (time.monotonic() - began)


def queue(source: warren.Queue, body: bytes, count: int) -> tuple[float, float]:
    """MiB a second of puts that are synced, and of gets that are acked."""
    began = time.monotonic()
    for _ in range(count):
        source.put(body, durability="synced", timeout=TIMEOUT_S)
    put = time.monotonic()
    for _ in range(count):
        source.get(timeout=TIMEOUT_S).ack()
    return tuple(len(body) * count / MIB / took for took in (put - began, time.monotonic() - put))  # type: ignore[return-value]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="warren.tools.bench.large", description="Large messages beside a raw log.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--size-mib", type=int, action="append", help="of a body (16 and 64)")
    parser.add_argument("--repeat", type=int, default=5, help="turns (5)")
    parser.add_argument("--bytes-mib", type=int, default=256, help="written by each side in a turn (256)")
    chosen = parser.parse_args()
    folder: Path = chosen.directory
    sizes = [size * MIB for size in chosen.size_mib or (16, 64)]
    with temporary_node(folder, message_bytes_max=max(sizes) + 65536) as temporary:
        source = temporary.node.queue("large")
        for size in sizes:
            body, count = os.urandom(size), max(1, chosen.bytes_mib * MIB // size)
            queue(source, body, 1)
            turns = [(raw_log(folder, size, count), *queue(source, body, count)) for _ in range(chosen.repeat)]
            raw, put, got = (statistics.median(column) for column in zip(*turns, strict=True))
            ratio = statistics.median(turn[1] / turn[0] for turn in turns)
            print(
                f"{size // MIB} MiB: raw log {raw:.0f} MiB/s; put, synced {put:.0f} MiB/s ({ratio:.2f} of it); "
                f"get and ack {got:.0f} MiB/s",
                flush=True,
            )


if __name__ == "__main__":
    main()
