"""Goal: a work queue of asyncio does what the standard library's own tests ask of asyncio.Queue.

Method: the installed `test.test_asyncio.test_queues` runs against `node.work_queue` of warren.aio, pickled and not
durable. What asks a worker is awaited here and is not there, so the source of these tests is read, and an `await` put
before put_nowait, get_nowait, qsize, empty, full and the making of a queue. What is left out says why.
"""

import ast
import asyncio
import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import warren.aio

try:
    from test.test_asyncio import test_queues as standard
except ImportError:
    pytest.skip(
        "this Python came without the tests of its library (Debian: libpython3-testsuite)", allow_module_level=True
    )

pytestmark = pytest.mark.integration

CLASSES = ("QueueBasicTests", "QueueGetTests", "QueuePutTests", "_QueueJoinTestMixin")
INSIDE = "looks into asyncio.Queue, or at what it shows of its inside"
TURNS = "counts turns of the event loop: a put or get here takes as long as its worker takes"
CANCELLED = "a put that was cancelled while it waited may be stored here"
LEFT_OUT = {
    "test_repr": INSIDE,
    "test_str": INSIDE,
    "test_format": INSIDE,
    "test_generic_alias": "typing.Generic makes its own kind of alias",
    "test_get_with_putters": INSIDE,
    "test_cancelled_getters_not_being_held_in_self_getters": INSIDE,
    "test_cancelled_puts_not_being_held_in_self_putters": INSIDE,
    "test_maxsize": TURNS,
    "test_put_cancelled": TURNS,
    "test_put_cancelled_race": TURNS,
    "test_get_cancel_drop_many_pending_readers": TURNS,
    "test_why_are_putters_waiting": TURNS,
    "test_blocking_put_wait": TURNS,
    "test_put_cancel_drop": CANCELLED,
    "test_cancelled_put_silence_value_error_exception": CANCELLED,
    "test_float_maxsize": "a maxsize is a whole number",
}
AWAITED = ("put_nowait", "get_nowait", "qsize", "empty", "full")


class Awaits(ast.NodeTransformer):
    """Puts `await` before what is awaited here."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        if not node.name.startswith("test_"):
            return node
        return ast.AsyncFunctionDef(**{field: getattr(node, field) for field in node._fields})

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.func, ast.Attribute):
            return node
        attribute, of = node.func.attr, node.func.value
        if attribute in AWAITED:
            return ast.Await(node)
        if attribute == "q_class" or (attribute == "Queue" and isinstance(of, ast.Name) and of.id == "asyncio"):
            return ast.Await(ast.Call(ast.Name("_make", ast.Load()), node.args, node.keywords))
        if attribute == "assertRaises" and len(node.args) > 1:
            return ast.Await(ast.Call(ast.Name("_raises", ast.Load()), node.args, node.keywords))
        if attribute == "call_later":
            later, *given = node.args
            return ast.Call(node.func, [later, ast.Name("_begin", ast.Load()), *given], node.keywords)
        return node


async def _raises(error: type[BaseException], call: Callable[..., Any], *args: Any) -> None:
    async def called() -> None:
        found = call(*args)
        if inspect.isawaitable(found):
            await found

    with pytest.raises(error):
        await called()


def with_awaits(make: Callable[..., Awaitable[Any]]) -> dict[str, Any]:
    """The classes of tests, with queues that `make` makes."""
    tree = Awaits().visit(ast.parse(Path(standard.__file__).read_text()))
    tasks: set[asyncio.Task[Any]] = set()

    def begin(call: Callable[..., Any], *args: Any) -> None:
        tasks.add(asyncio.get_running_loop().create_task(call(*args)))

    names: dict[str, Any] = {"__name__": standard.__name__, "_make": make, "_raises": _raises, "_begin": begin}
    exec(compile(ast.fix_missing_locations(tree), standard.__file__, "exec"), names)
    return names


def cases_of(name: str) -> list[str]:
    return [test for test in vars(getattr(standard, name)) if test.startswith("test_")]


@pytest.mark.parametrize(
    ("name", "test"), [(name, test) for name in CLASSES for test in cases_of(name) if test not in LEFT_OUT]
)
def test_the_standard_tests_of_a_queue(directory: Path, name: str, test: str) -> None:
    async def main() -> None:
        async with warren.aio.attach(directory) as node:

            async def make(maxsize: int = 0) -> Any:
                return await node.work_queue(f"std-{uuid4().hex[:8]}", maxsize, serializer="pickle", durable=False)

            found = with_awaits(make)
            case = type(name, (found[name], standard.unittest.TestCase), {"runTest": None})()
            async with asyncio.timeout(240):
                await getattr(case, test)()

    asyncio.run(main())


def test_no_case_of_the_standard_library_is_forgotten() -> None:
    """Those of a Python that is installed later are looked at before they are left out."""
    known = {test for name in CLASSES for test in cases_of(name)}
    assert known >= LEFT_OUT.keys()
    others = {name for name, kind in vars(standard).items() if inspect.isclass(kind)} - set(CLASSES)
    assert {name for name in others if not name.startswith(("Lifo", "Priority"))} <= {
        "GenericAlias",
        "QueueJoinTests",  # the mixin, of asyncio.Queue
        "_QueueShutdownTestMixin",  # they look inside; test_aio_faces.py has its own
        "QueueShutdownTests",
    }
    assert len(known) - len(LEFT_OUT) == 18
