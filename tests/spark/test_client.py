"""Under which name a worker of Spark is seen: with its application, and in a cluster its executor."""

import os
import subprocess
import sys

import pytest

from warren.workers.spark import client

_WORKER = "from warren.workers.spark.client import client_name; print(client_name('executor'))"
#: a process with the arguments of an executor's JVM, which begins a worker as Spark's daemon does
_EXECUTOR = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', sys.argv[1]]).returncode)"


def test_the_drivers_workers_have_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(client.APPLICATION_VARIABLE, "my job")
    assert client.client_name("planner") == f"spark-my_job-planner-{os.getpid()}"


def test_workers_of_a_cluster_have_that_of_their_executor() -> None:
    environment = {**os.environ, client.APPLICATION_VARIABLE: "a" * 60}
    executor = [sys.executable, "-c", _EXECUTOR, _WORKER, "--executor-id", "17", "--cores", "1"]
    said = subprocess.run(executor, env=environment, capture_output=True, text=True, timeout=60, check=True).stdout
    name = said.strip()
    assert len(name) == client.NAME_BYTES_MAX
    assert name.startswith("spark-aaa")
    assert "-executor-17-" in name
