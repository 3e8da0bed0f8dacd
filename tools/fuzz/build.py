"""Builds fuzz targets: the C core without its bindings, a target, and what drives it, under AddressSanitizer and UBSan.

Two ways: clang with libFuzzer (long runs, guided by coverage), any gcc with `standalone.c` (a corpus and its mutations,
in tests). Objects are kept in `build/fuzz/<compiler>` and compiled again when source, header or flag has changed.
"""

import hashlib
import os
import platform
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "tools" / "fuzz"
WORK = ROOT / "build" / "fuzz"

FLAGS = ["-std=gnu11", "-O1", "-g", "-UNDEBUG", "-pthread", "-fno-strict-aliasing", "-fno-omit-frame-pointer"]
FLAGS += ["-I.", "-Iengine", "-Itools/fuzz", "-Itests", "-fno-sanitize-recover=all"]
FLAGS += ["-msse4.2"] if platform.machine() in ("x86_64", "AMD64", "i686") else []
#: compiler → flags of compiling, flags of linking, sources beside the target
WAYS = {
    "clang": (["-fsanitize=address,undefined,fuzzer-no-link"], ["-fsanitize=address,undefined,fuzzer"], []),
    "gcc": (
        ["-fsanitize=address,undefined", "-Wall", "-Wextra", "-Wshadow", "-Wno-unused-function", "-Werror"],
        ["-fsanitize=address,undefined"],
        [HERE / "standalone.c"],
    ),
}


class BuildError(Exception):
    """A compiler said no; its words are the message."""


def targets() -> list[str]:
    """Names of all targets."""
    found = (path for path in HERE.glob("*.c") if path.stem != "standalone")
    return sorted(path.stem for path in found if "LLVMFuzzerTestOneInput" in _all_of(path))


def _all_of(path: Path) -> str:
    """A target's text, with the target that it includes."""
    text = path.read_text()
    return text + "".join(other.read_text() for other in HERE.glob("*.c") if f'#include "{other.name}"' in text)


def core() -> list[Path]:
    """Sources of the C core that need no Python."""
    found = sorted([*ROOT.glob("ipc/core/*.c"), *ROOT.glob("engine/*/*.c")])
    return [path for path in found if path.name != "binding.c" and path.parent.name != "binding"]


def _run(command: list[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{' '.join(command)}\n{done.stderr}")


def build(compiler: str, names: list[str]) -> dict[str, Path]:
    """Return the program of each target, built as needed."""
    compiling, linking, more = WAYS[compiler]
    folder = WORK / compiler
    folder.mkdir(parents=True, exist_ok=True)
    headers = sorted(
        [*ROOT.glob("ipc/core/*.h"), *ROOT.glob("engine/*/*.h"), *HERE.glob("*.h"), *ROOT.glob("tests/*/*.h")]
    )
    common = hashlib.sha256("\0".join([*FLAGS, *compiling]).encode())
    for header in headers:
        common.update(header.read_bytes())

    def compile_one(source: Path) -> Path:
        state = common.copy()
        # a racing target includes its plain one
        state.update(_all_of(source).encode() if source.parent == HERE else source.read_bytes())
        target = folder / ("-".join(source.relative_to(ROOT).parts) + f".{state.hexdigest()[:16]}.o")
        if not target.exists():
            for old in folder.glob("-".join(source.relative_to(ROOT).parts) + ".*.o"):
                old.unlink(missing_ok=True)
            part = target.with_suffix(f".part{os.getpid()}")
            _run([compiler, *FLAGS, *compiling, "-c", str(source.relative_to(ROOT)), "-o", str(part)])
            part.replace(target)
        return target

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_one, [*core(), *more]))
        mains = list(pool.map(compile_one, [HERE / f"{name}.c" for name in names]))

        def link(pair: tuple[str, Path]) -> Path:
            name, main = pair
            inputs = [main, *objects]
            stamp = hashlib.sha256("\0".join(map(str, inputs)).encode()).hexdigest()[:16]
            program = folder / f"{name}-{stamp}"
            if not program.exists():
                for old in folder.glob(f"{name}-" + "?" * 16):
                    old.unlink(missing_ok=True)
                part = program.with_suffix(f".part{os.getpid()}")
                _run([compiler, "-pthread", *linking, *map(str, inputs), "-lm", "-o", str(part)])
                part.replace(program)
            return program

        return dict(zip(names, pool.map(link, zip(names, mains, strict=True)), strict=True))
