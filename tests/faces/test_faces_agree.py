"""Goal: whoever knows the blocking interface knows that of asyncio: the same names, the same parameters.

Method: the public names of objects of both, and the parameters of their methods, are compared. What differs is listed
here with its reason, and nothing is listed that does not differ.
"""

import asyncio
import inspect
from pathlib import Path
from typing import Any, Literal, get_origin

import pytest

import warren
import warren.aio

pytestmark = pytest.mark.integration

LOOP = "a node belongs to an event loop; functions there are coroutine functions"
AWAITED = "a Confirm of asyncio is awaited: `await confirm` returns or raises"
NEVER_BLOCKS = "a task waits, or it does not with timeout=0: as asyncio.Queue, there is no block"
LINE = "tasks of a node share what was delivered ahead, so an exact get would not be"
#: names that only one of the two has
NAMES = {
    "Confirm": dict.fromkeys(
        ("result", "exception", "cancel", "cancelled", "add_done_callback", "future", "waits_for", "untaken", "core"),
        AWAITED,
    ),
    "module": {
        "ProcessWorker": "processes have no event loop in common",
        "Replayed": "a replay of asyncio answers with the same class",
        "Consumer": "consume() of asyncio is an object that can be left with `async with`; the other is a generator",
        "QueueEmpty": "in warren.aio also an asyncio.QueueEmpty",
        "QueueFull": "in warren.aio also an asyncio.QueueFull",
        "ShutDown": "in warren.aio also an asyncio.QueueShutDown, from Python 3.13 on",
    },
}
#: parameters that only one of the two has
PARAMETERS = {
    "Node.worker": {"processes": LOOP, "prefetch": "as many are taken as are handled at a time"},
    "Node.serve": {"prefetch": "as many are taken as are handled at a time"},
    "Queue.get": {"ahead": LINE},
    "Queue.get_many": {"ahead": LINE},
    "WorkQueue.get": {"ahead": LINE, "block": NEVER_BLOCKS},
    "WorkQueue.put": {"block": NEVER_BLOCKS},
}


def is_shared(found: object) -> bool:
    """Errors, and what type checkers are told of arguments, are the same for both."""
    return get_origin(found) is Literal or (isinstance(found, type) and issubclass(found, (Exception, dict)))


def names_of(one: object) -> set[str]:
    """Methods, properties and attributes for everybody."""
    return {name for name in {*dir(one), *getattr(one, "__dict__", ())} if not name.startswith("_")}


def parameters_of(call: Any) -> set[str]:
    """Names of the parameters; those of a TypedDict one by one."""
    found: set[str] = set()
    for name, parameter in inspect.signature(call).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            (told,) = getattr(inspect.get_annotations(call, eval_str=True)[name], "__args__", (None,))
            found |= set(getattr(told, "__annotations__", {name: None}))
        else:
            found.add(name)
    return found


async def pairs(node: warren.Node, name: str) -> list[tuple[str, object, object]]:
    """What a program holds, of both interfaces."""

    async def handle(_message: warren.aio.Message) -> None:
        """Nothing is handled."""

    mine = await warren.aio.attach(node.directory)
    try:
        queue, other = node.queue(name), await mine.queue(name)
        queue.put_many([b"1", b"2"])
        confirm, promise = queue.put(b"3", wait=False), await other.put(b"4", wait=False)
        found = [
            ("Node", node, mine),
            ("Queue", queue, other),
            ("Message", queue.get(timeout=30), await other.get(timeout=30)),
            ("Confirm", confirm, promise),
            ("WorkQueue", node.work_queue(name), await mine.work_queue(name)),
            ("Store", node.store(), mine.store()),
            ("Topic", node.topic(name), await mine.topic(name)),
            ("Reader", node.topic(name).reader(), (await mine.topic(name)).reader()),
            ("Subscription", queue.subscription("s"), await other.subscription("s")),
            ("Worker", node.worker(queue, print), await mine.worker(other, handle)),
        ]
        confirm.wait(60)
        await promise
        return found
    finally:
        await mine.close()


@pytest.fixture
def both(node: warren.Node, name: str) -> list[tuple[str, object, object]]:
    return asyncio.run(pairs(node, name))


def test_they_have_the_same_names(both: list[tuple[str, object, object]]) -> None:
    for kind, blocking, awaited in both:
        differing = names_of(blocking) ^ names_of(awaited)
        assert differing == NAMES.get(kind, {}).keys(), kind
    shared = {name for name in warren.__all__ if is_shared(getattr(warren, name))} - set(warren.aio.__all__)
    differing = (set(warren.__all__) - shared - {"__version__"}) ^ set(warren.aio.__all__)
    assert differing == NAMES["module"].keys() - {"QueueEmpty", "QueueFull", "ShutDown"}
    for name in ("QueueEmpty", "QueueFull", "ShutDown"):
        assert issubclass(getattr(warren.aio, name), getattr(warren, name))


def test_their_methods_have_the_same_parameters(both: list[tuple[str, object, object]]) -> None:
    compared = 0
    for kind, blocking, awaited in both:
        for name in sorted(names_of(blocking) & names_of(awaited)):
            one, other = getattr(blocking, name), getattr(awaited, name)
            if kind == "Message" or not callable(one) or isinstance(one, type):
                continue
            try:
                differing = parameters_of(one) ^ parameters_of(other)
            except ValueError:  # written in C, and says nothing of its parameters
                assert kind == "Confirm"
                continue
            assert differing == PARAMETERS.get(f"{kind}.{name}", {}).keys(), f"{kind}.{name}"
            compared += 1
    assert compared > 70


def test_each_exception_has_a_reason() -> None:
    assert all(len(reason) > 10 for listed in (*NAMES.values(), *PARAMETERS.values()) for reason in listed.values())


def test_a_function_with_coroutines_is_awaited(both: list[tuple[str, object, object]]) -> None:
    """What waits for a server in the blocking interface never blocks the event loop."""
    plain = {
        "Node": {"store"},
        "Queue": {"consume"},
        "Topic": {"reader"},
        "Confirm": {"done"},
        "WorkQueue": {"task_done", "shutdown"},
        "Worker": {"stop"},
    }
    for kind, _blocking, awaited in both:
        if kind == "Message":
            continue
        called = {name for name in names_of(awaited) if callable(getattr(awaited, name))}
        calls = {name for name in called if not isinstance(getattr(awaited, name), type)}
        found = {
            name
            for name in calls
            if not inspect.iscoroutinefunction(getattr(awaited, name))
            and not inspect.isasyncgenfunction(getattr(awaited, name))
            and not isinstance(getattr(awaited, name), (warren.aio.Queue, Path))
        }
        assert found == plain.get(kind, set()), kind
