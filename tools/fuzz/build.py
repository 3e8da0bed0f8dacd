"""Builds fuzz targets: the C core without its bindings, a target, and what drives it, under AddressSanitizer and UBSan.

Two ways: clang with libFuzzer (long runs, guided by coverage), any gcc with `standalone.c` (a corpus and its mutations,
in tests). Objects are kept in `build/fuzz/<compiler>` (tools/c_core.py).
"""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from warren.tools import c_core

HERE = c_core.ROOT / "tools" / "fuzz"
WORK = c_core.BUILD / "fuzz"

FLAGS = (*c_core.FLAGS, "-O1", "-g", "-fno-omit-frame-pointer", "-Itools/fuzz", "-Itests", "-fno-sanitize-recover=all")
#: compiler → flags of compiling, flags of linking, sources beside the target
WAYS = {
    "clang": (["-fsanitize=address,undefined,fuzzer-no-link"], ["-fsanitize=address,undefined,fuzzer"], []),
    "gcc": (
        ["-fsanitize=address,undefined", "-Wall", "-Wextra", "-Wshadow", "-Wno-unused-function", "-Werror"],
        ["-fsanitize=address,undefined"],
        [HERE / "standalone.c"],
    ),
}


def targets() -> list[str]:
    """Names of all targets."""
    found = (path for path in HERE.glob("*.c") if path.stem != "standalone")
    return sorted(path.stem for path in found if "LLVMFuzzerTestOneInput" in c_core.text_of(path))


def build(compiler: str, names: list[str]) -> dict[str, Path]:
    """Return the program of each target, built as needed. Raises BuildError."""
    compiling, linking, more = WAYS[compiler]
    folder = WORK / compiler
    compiled = c_core.Objects(compiler, (*FLAGS, *compiling), folder)
    objects = compiled.compile([*c_core.core(), *more])
    mains = compiled.compile([HERE / f"{name}.c" for name in names])

    def link(pair: tuple[str, Path]) -> Path:
        name, main = pair
        inputs = [main, *objects]
        stamp = hashlib.sha256("\0".join(map(str, inputs)).encode()).hexdigest()[:16]
        program = folder / f"{name}-{stamp}"
        if not program.exists():
            for old in folder.glob(f"{name}-" + "?" * 16):
                old.unlink(missing_ok=True)
            part = program.with_suffix(f".part{os.getpid()}")
            c_core.run([compiler, "-pthread", *linking, *map(str, inputs), "-lm", "-o", str(part)])
            part.replace(program)
        return program

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(names, pool.map(link, zip(names, mains, strict=True)), strict=True))
