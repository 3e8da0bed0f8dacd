"""Goal: a work queue does what the standard library's own tests ask of queue.Queue.

Method: the installed `test.test_queue` runs against `node.work_queue`, pickled and not durable: a class of the standard
library is inherited, and its queues are new work queues. What is left out, and why:

    LifoQueueTest, PriorityQueueTest    a work queue is first in, first out
    FailingQueueTest                    overrides `_put` and `_get`, which are inside of queue.Queue
    CSimpleQueueTest.test_is_default, test_reentrancy
                                        about the type SimpleQueue itself, written in C
    BaseSimpleQueueTest.test_references puts objects and asks which of them live; a work queue has copies
    the tests of shutdown, from 3.13 on look into the queue, and want shutdown(immediate=True) to empty it, which a
                                        work queue does not (docs/python.md): test_work_queue.py has its own
"""

import queue
from typing import Any
from uuid import uuid4

import pytest

import warren
from warren.workers.faces.work_queue import WorkQueue

try:
    from test import test_queue as standard
except ImportError:
    pytest.skip(
        "this Python came without the tests of its library (Debian: libpython3-testsuite)", allow_module_level=True
    )

pytestmark = pytest.mark.integration


class Queue(WorkQueue[Any]):
    """A work queue of the name that the standard library looks for."""


class SimpleQueue(Queue):
    """The same without task_done, as SimpleQueue is: what was got is done."""

    def get(self, *args: Any, **named: Any) -> Any:
        item = super().get(*args, **named)
        self.task_done()
        return item


def run(case: Any, node: warren.Node, name: str, made_of: type[Queue]) -> None:
    """One test, as unittest would, with queues of this node."""

    def make(maxsize: int = 0) -> Queue:
        made = node.work_queue(f"std-{uuid4().hex[:8]}", maxsize, serializer="pickle", durable=False)
        return made_of(made.queue, made.maxsize, "pickle")

    case.queue, case.type2test = queue, make
    case.setUp()
    getattr(case, name)()


class Standard(standard.QueueTest, standard.unittest.TestCase):
    """QueueTest, of queues that run() makes."""

    __test__ = False

    def setUp(self) -> None:
        standard.BaseQueueTestMixin.setUp(self)

    def runTest(self) -> None:
        raise NotImplementedError


class Simple(standard.BaseSimpleQueueTest, standard.unittest.TestCase):
    """BaseSimpleQueueTest: what it asks of SimpleQueue, Queue does too."""

    __test__ = False

    def runTest(self) -> None:
        raise NotImplementedError


STANDARD = (
    "test_basic",
    "test_queue_task_done",
    "test_queue_join",
    "test_negative_timeout_raises_exception",
    "test_nowait",
    "test_shrinking_queue",
)
SIMPLE = (
    "test_basic",
    "test_negative_timeout_raises_exception",
    "test_order",
    "test_many_threads",
    "test_many_threads_nonblock",
    "test_many_threads_timeout",
)


@pytest.mark.parametrize("name", STANDARD)
def test_the_standard_tests_of_a_queue(node: warren.Node, name: str) -> None:
    run(Standard(), node, name, Queue)


@pytest.mark.parametrize("name", SIMPLE)
def test_the_standard_tests_of_a_simple_queue(node: warren.Node, name: str) -> None:
    run(Simple(), node, name, SimpleQueue)


def test_no_case_of_the_standard_library_is_forgotten() -> None:
    """Those of a Python that is installed later are looked at before they are left out."""
    left_out = {"test_references"}
    for mixin, chosen in ((standard.BaseQueueTestMixin, STANDARD), (standard.BaseSimpleQueueTest, SIMPLE)):
        found = {name for name in vars(mixin) if name.startswith("test_") and "shutdown" not in name}
        assert found == {*chosen} | (found & left_out)
