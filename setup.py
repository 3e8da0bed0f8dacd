"""What pyproject.toml cannot say: the packages of the mapped folders, and the C extensions, from what is there.

Each extension is one binding and the C files free of CPython below it:
    warren.ipc._core      ipc/core/*.c
    warren.engine._core   engine/*/*.c, of which binding/ knows CPython, and ipc/core/*.c without ipc's binding
An include names the room ("store/index.h"), or the folder of the carrier ("ipc/core/port.h").
A new .c file needs no entry anywhere. A folder without a binding yields no extension.
"""

import hashlib
import os
import platform
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, find_namespace_packages, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
os.chdir(ROOT)

# WARREN_WERROR=0 is for who builds with a compiler newer than ours, and meets a warning that we have not met.
FLAGS = ["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Wshadow", "-UNDEBUG", "-pthread", "-fno-strict-aliasing"]
FLAGS += ["-fvisibility=hidden"]  # calls inside an extension are direct, and may be inlined
FLAGS += ["-Werror"] if os.environ.get("WARREN_WERROR", "1") != "0" else []
FLAGS += ["-msse4.2"] if platform.machine() in ("x86_64", "AMD64", "i686") else []

HEADERS = sorted(str(path.relative_to(ROOT)) for folder in ("ipc", "engine") for path in ROOT.glob(f"{folder}/*/*.h"))


def packages() -> list[str]:
    """Return the dotted names of all packages: each mapped folder, and every subfolder of it that has an __init__."""
    mapping: dict[str, str] = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
    return [
        name
        for package, folder in mapping.items()
        for name in [package, *(f"{package}.{below}" for below in find_namespace_packages(folder))]
        if Path(folder, *name.removeprefix(package).split("."), "__init__.py").exists()
    ]


def sources(folder: str, *, binding: bool) -> list[str]:
    """Return the C files of a folder, its bindings among them or not."""
    found = sorted(path.relative_to(ROOT) for path in ROOT.glob(f"{folder}/*/*.c"))
    return [str(path) for path in found if binding or path.name != "binding.c"]


def extensions() -> list[Extension]:
    """Return an extension for each folder that has a binding."""
    wanted = {
        "ipc": sources("ipc", binding=True),
        "engine": sources("engine", binding=True) + sources("ipc", binding=False),
    }
    return [
        Extension(
            f"warren.{folder}._core",
            files,
            include_dirs=[".", "engine"],
            depends=[*HEADERS, "setup.py"],
            extra_compile_args=FLAGS,
            extra_link_args=["-pthread"],
        )
        for folder, files in wanted.items()
        if files
    ]


class BuildCore(build_ext):
    """build_ext that compiles on all cores, each file once for both extensions, and only what has changed."""

    def build_extensions(self) -> None:
        compile_all = self.compiler.compile

        def compile_one(source: str, output_dir: str, options: dict[str, Any]) -> list[str]:
            target = Path(self.compiler.object_filenames([source], output_dir=output_dir)[0])
            stamp = target.with_suffix(".made-from")
            inputs = hashlib.sha256(b"\0".join(Path(path).read_bytes() for path in [source, *HEADERS, "setup.py"]))
            made_from = f"{inputs.hexdigest()} {FLAGS} {options}"
            if target.exists() and stamp.exists() and stamp.read_text() == made_from:
                return [str(target)]
            stamp.unlink(missing_ok=True)
            compile_all([source], output_dir=output_dir, **options)
            stamp.write_text(made_from)
            return [str(target)]

        def compile_each(files: list[str], output_dir: str = "", **options: Any) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                done = pool.map(lambda source: compile_one(source, output_dir, options), files)
                return [target for targets in done for target in targets]

        self.compiler.compile = compile_each
        super().build_extensions()


setup(packages=packages(), ext_modules=extensions(), cmdclass={"build_ext": BuildCore})
