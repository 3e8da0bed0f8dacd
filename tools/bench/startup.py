"""`warren bench startup`: what a user waits for before the first message, beside the start of a bare interpreter.

Every sample is a process of its own; what is compared takes turns with `python -c pass` (`limit`). `import warren` and
`open, put` are timed inside their process, so that the interpreter's own start is not in them; `warren --help` is the
whole command. `open, put` opens a node that runs, declares a queue that is there, and puts one message, synced.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from warren.tools.bench.harness import BenchError, Result, cell, percentiles_us, temporary_node

LEAST = 5  #: samples, however short the run is
TIMEOUT_S = 60.0
#: it imports nothing from where it stands
PYTHON = (sys.executable, "-P")
BARE = (*PYTHON, "-c", "pass")
WAITS = ("import warren", "warren --help", "open, put")

_IMPORT = """
import time
began = time.perf_counter_ns()
import warren
print(time.perf_counter_ns() - began)
"""
_OPEN_PUT = """
import sys, time, warren
began = time.perf_counter_ns()
with warren.open(sys.argv[1]) as node:
    node.queue("startup").put(b"first", timeout=60)
    print(time.perf_counter_ns() - began)
"""


def _ran(command: tuple[str, ...]) -> tuple[int, str]:
    """(nanoseconds of the whole process, what it printed)."""
    began = time.perf_counter_ns()
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    took = time.perf_counter_ns() - began
    if done.returncode:
        raise BenchError(f"{' '.join(command[:2])} failed: {done.stderr.strip()[-500:]}")
    return took, done.stdout


def _sample(what: str, directory: Path) -> int:
    if what == "warren --help":
        return _ran((str(Path(PYTHON[0]).with_name("warren")), "--help"))[0]
    program = _IMPORT if what == "import warren" else _OPEN_PUT
    return int(_ran((*PYTHON, "-c", program, str(directory)))[1])


def run_startup(folder: Path, seconds: float, what: str) -> Result:
    """Samples of `what` (one of WAITS) and of a bare interpreter in turn, for `seconds`."""
    with temporary_node(folder) as temporary:
        temporary.node.queue("startup")
        _sample(what, temporary.directory)  # what the first one reads from disk is not what is asked
        _ran(BARE)
        bare: list[int] = []
        samples: list[int] = []
        began = time.monotonic()
        while len(samples) < LEAST or time.monotonic() - began < seconds:
            bare.append(_ran(BARE)[0])
            samples.append(_sample(what, temporary.directory))
        took = time.monotonic() - began
    latency, limit = percentiles_us(samples), percentiles_us(bare)
    assert latency is not None
    assert limit is not None
    return cell(
        f"startup: {what}", 0, "synced" if "put" in what else "none", 1, 1, len(samples), took, latency,
        limit={"name": "start of a bare interpreter", "p50_us": limit["p50"], "messages_per_s": None,
               "bytes_per_s": None},
        ratio_to_limit=round(latency["p50"] / limit["p50"], 3),
    )  # fmt: skip
