"""The native scan: a small Java source for Spark, in a jar beside this file. Where it is, and how it is made.

    python -m warren.workers.spark.native        makes the jar, where a JDK is found; nothing else is needed for it

The Java files (java/warren/spark) are compiled against PySpark's own jars. `scripts/setup` does it, and a wheel that is
made afterwards has the jar. Without one everything is read by Python's source.

Crash points: the jar is written beside its name, and renamed: there is a whole one, or none.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from warren.engine.errors import Error

SOURCES = Path(__file__).resolve().with_name("java")
JAR = Path(__file__).resolve().with_name("warren-native.jar")
#: the class of `format("warren")`, which hands over to Python's source what is not native
SOURCE = "warren.spark.WarrenSource"
#: the oldest Java that Spark runs on
RELEASE = 17
SERVICE = "META-INF/services/org.apache.spark.sql.sources.DataSourceRegister"
MANIFEST = "META-INF/MANIFEST.MF"
#: all warnings are errors; PySpark's jars name other jars, which are not there
FLAGS = ("--release", str(RELEASE), "-Xlint:all,-path", "-Werror", "-proc:none", "-encoding", "UTF-8")
COMPILE_S = 300.0
_TIME = (1980, 1, 1, 0, 0, 0)  # the same files make the same jar


class NativeMissing(Error):
    """There is no jar of the native scan, or none can be made; the message says what to do."""


def jar() -> Path | None:
    """Return the jar, if there is one that was made for this PySpark."""
    return None if missing() else JAR


def missing() -> str:
    """Say why there is no native scan, and what to do; empty: there is one."""
    try:
        with zipfile.ZipFile(JAR) as found:
            manifest = found.read(MANIFEST).decode()
    except FileNotFoundError:
        return (
            "the native scan was not made here: install a JDK (Debian: `apt-get install openjdk-17-jdk-headless`), and "
            "run `scripts/setup`, or `python -m warren.workers.spark.native`; scan=python does without"
        )
    except (OSError, zipfile.BadZipFile, KeyError) as problem:
        return f"the native scan cannot be used: {JAR}: {problem}; remove this file, and run scripts/setup"
    made_for = manifest.partition("Spark-Version: ")[2].split("\r\n", 1)[0]
    if made_for != _spark():
        return (
            f"the native scan was made for PySpark {made_for}, and this is {_spark()}: run "
            "`python -m warren.workers.spark.native` with a JDK; scan=python does without"
        )
    return ""


def _spark() -> str:
    return importlib.metadata.version("pyspark")


def spark_jars() -> Path:
    """Return the folder of Spark's jars."""
    home = os.environ.get("SPARK_HOME")
    if home:
        return Path(home, "jars")
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise NativeMissing("PySpark is not installed: pip install 'warren[spark]'")
    return Path(found.origin).with_name("jars")


def compiler() -> str | None:
    """Return the Java compiler, of JAVA_HOME or on the PATH; None: there is none."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("javac", path=str(Path(home, "bin"))) if home else None
    return found or shutil.which("javac")


def sources() -> list[Path]:
    """Return the Java files."""
    return sorted(SOURCES.glob("warren/spark/*.java"))


def state() -> str:
    """Return a hash of all that the jar is made of."""
    digest = hashlib.sha256(f"{_spark()} {FLAGS}".encode())
    for path in sources():
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def compile_into(folder: Path) -> None:
    """Compile all Java files into a folder. Raises NativeMissing, with the compiler's words."""
    javac = compiler()
    if javac is None:
        raise NativeMissing(
            "there is no Java compiler here: install a JDK (Debian: `apt-get install openjdk-17-jdk-headless`)"
        )
    command = [javac, *FLAGS, "-cp", f"{spark_jars()}/*", "-d", str(folder), *map(str, sources())]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise NativeMissing(f"{javac} does not compile the native scan: {problem}") from problem
    if done.returncode:
        raise NativeMissing(f"{javac} does not compile the native scan:\n{done.stdout}{done.stderr}")


def build() -> Path:
    """Make the jar, if what it is made of has changed, and return it. Raises NativeMissing."""
    made_of = state()
    try:
        with zipfile.ZipFile(JAR) as found:
            if f"Warren-Sources: {made_of}".encode() in found.read(MANIFEST).replace(b"\r\n ", b""):
                return JAR
    except (OSError, zipfile.BadZipFile, KeyError):
        pass  # there is none that can be used: it is made
    with tempfile.TemporaryDirectory(dir=JAR.parent, prefix=".native-") as place:
        folder = Path(place, "classes")
        folder.mkdir()
        compile_into(folder)
        beside = Path(place, JAR.name)
        _pack(beside, folder, made_of)
        beside.replace(JAR)
    return JAR


def _pack(path: Path, folder: Path, made_of: str) -> None:
    half = len(made_of) // 2  # lines of a manifest have 72 bytes at most
    manifest = (
        f"Manifest-Version: 1.0\r\nSpark-Version: {_spark()}\r\n"
        f"Warren-Sources: {made_of[:half]}\r\n {made_of[half:]}\r\n\r\n"
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr(zipfile.ZipInfo(MANIFEST, _TIME), manifest)
        made.writestr(zipfile.ZipInfo(SERVICE, _TIME), f"{SOURCE}\n")
        for compiled in sorted(folder.rglob("*.class")):
            name = compiled.relative_to(folder).as_posix()
            made.writestr(zipfile.ZipInfo(name, _TIME), compiled.read_bytes(), zipfile.ZIP_DEFLATED)


def main() -> None:
    """Make the jar, and say where it is; exit code 1 with the reason if that is not possible."""
    try:
        sys.stdout.write(f"{build()}\n")
    except NativeMissing as problem:
        sys.exit(str(problem))


if __name__ == "__main__":
    main()
