"""The machine's own limits, measured by a small C program (limits.c says exactly what it does).

    python -m warren.tools.bench.limits DIRECTORY [--size-bytes N] [--seconds S]

The program is compiled when first wanted, into the environment's own directory; outside of an environment, into a
temporary directory, each time.
"""

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("limits.c")
READS = Path(__file__).with_name("preads.c")
FLAGS = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-pthread"]
if platform.machine() in {"x86_64", "AMD64"}:
    FLAGS.append("-msse4.2")


def measure(directory: str | os.PathLike[str], size_bytes: int, seconds: float) -> dict[str, Any]:
    """Measure the limits in `directory`, with records of `size_bytes`, in about `seconds` (8 is a good value).

    Returns `{"append": {"name", "messages_per_s", "bytes_per_s", "direct"}, "append_recycled": {the same},
    "fsync_latency_us": {"p50", "p99", "p999", "direct"}, "fsync_latency_recycled_us": {the same},
    "ring": {"records_per_s"}, "wake_us": {"p50", "p99", "p999"}, "spin_us": {the same}, "memcpy_bytes_per_s"}`.
    Raises RuntimeError, with what the compiler or the program said, when there is no compiler or no room in
    `directory` (at most 6 GiB, and at most half of what is free); nothing stays behind there.
    """
    if size_bytes < 1 or seconds <= 0:
        raise ValueError(f"size_bytes and seconds must be positive, not {size_bytes} and {seconds}")
    found = {}
    for line in _run_program([os.fspath(directory), str(size_bytes), str(seconds)]).splitlines():
        figures = json.loads(line)
        found[figures.pop("what")] = figures
    for key, blocks in (("append", "a fresh file"), ("append_recycled", "blocks written before")):
        how = "O_DIRECT" if found[key]["direct"] else "buffered, as O_DIRECT is refused here"
        found[key]["name"] = f"raw append + fdatasync per MiB, {blocks}, {how}"
    return {
        "append": found["append"],
        "append_recycled": found["append_recycled"],
        "fsync_latency_us": found["fsync"],
        "fsync_latency_recycled_us": found["fsync_recycled"],
        "ring": found["ring"],
        "wake_us": found["wake"],
        "spin_us": found["spin"],
        "memcpy_bytes_per_s": found["memcpy"]["bytes_per_s"],
    }


def measure_append(directory: str | os.PathLike[str], size_bytes: int, seconds: float) -> dict[str, Any]:
    """The raw log alone, in a fresh file: messages, seconds, messages_per_s, bytes_per_s, direct, cpu_s."""
    return dict(
        json.loads(_run_program([os.fspath(directory), str(size_bytes), str(seconds), "append"]).splitlines()[0])
    )


def measure_memcpy(directory: str | os.PathLike[str], seconds: float) -> float:
    """Bytes a second of a copy of memory; nothing is written in `directory`."""
    return float(json.loads(_run_program([os.fspath(directory), "1", str(seconds), "memcpy"]))["bytes_per_s"])


def measure_reads(files: Sequence[Path], length: int, seconds: float) -> float:
    """Reads per second of a loop of pread in C, `length` bytes at random places of these files."""
    answer = _run_program([str(length), str(seconds), *map(str, files)], READS)
    return float(json.loads(answer)["reads_per_s"])


def _run_program(arguments: list[str], source: Path = SOURCE) -> str:
    if sys.prefix == sys.base_prefix or not os.access(sys.prefix, os.W_OK):
        with tempfile.TemporaryDirectory(prefix="limits-") as folder:
            return _output_of([_compiled(source, Path(folder)), *arguments])
    kept = Path(sys.prefix, "limits")
    kept.mkdir(exist_ok=True)
    return _output_of([_compiled(source, kept), *arguments])


def _compiled(source: Path, folder: Path) -> str:
    """Return the program's path, compiled from this very source; an unfinished one is never seen under that name."""
    digest = hashlib.sha256(source.read_bytes() + " ".join(FLAGS).encode()).hexdigest()
    program = folder / f"{source.stem}-{digest[:16]}"
    if not program.exists():
        unfinished = folder / f"{program.name}.{os.getpid()}"
        _output_of([os.environ.get("CC", "gcc"), *FLAGS, str(source), "-o", str(unfinished)])
        unfinished.replace(program)
    return str(program)


def _output_of(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise RuntimeError(f"no {command[0]} to compile the limits with: apt-get install gcc libc6-dev") from None
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def main() -> None:
    """Print the limits as one JSON object."""
    parser = argparse.ArgumentParser(prog="warren.tools.bench.limits", description="Measure this machine's own limits.")
    parser.add_argument("directory", nargs="?", default=".")
    parser.add_argument("--size-bytes", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=8.0)
    options = parser.parse_args()
    print(json.dumps(measure(options.directory, options.size_bytes, options.seconds), indent=2))


if __name__ == "__main__":
    main()
