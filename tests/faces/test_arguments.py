"""Goal: whatever is given to a public function, what it raises is an error of Warren's; a wrong argument is a
UsageError that names it, and nothing was done.

Method: one node. Each parameter of each function, of both faces, is given every value of a list of odd ones; those that
have to be refused are named with a word of what is said. Parameters that do not exist stay Python's TypeError.
"""

import asyncio
import collections
import inspect
import operator
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pyarrow as pa
import pytest

import warren
import warren.aio
from warren.engine.catalog.arguments import QueueArguments
from warren.engine.saying import shown

from support.real_node import RealNode
from support.waiting import wait_until

pytestmark = pytest.mark.integration


#: values that are wrong nearly everywhere. None of them makes a call wait: no None and no infinity
class Unspeakable:
    """An object whose repr fails."""

    def __repr__(self) -> str:
        raise RuntimeError("a repr of a program failed")


def nested(depth: int) -> dict[str, Any]:
    """A dict that no recursion gets to the end of."""
    found: dict[str, Any] = {}
    for _level in range(depth):
        found = {"a": found}
    return found


ODD: tuple[Any, ...] = (
    *(True, False, -1, 0, 1.5, float("nan"), 10**400, "x", "", "\ud800", "a\0b", b"x", [], [1], {}, {"a": 1}, object()),
    *("x" * 100_000, 1 << 20_000, nested(50_000), [{"a": ["x" * 10_000] * 100}], Unspeakable(), numpy.array(3)),
)
#: characters that an error has at most, whatever was given
SAID_MAX = 1000
#: True or False, and nothing else
FLAGS = {
    *("durable", "create", "wait", "mandatory", "transient", "ahead", "block", "requeue", "multiple", "persistent"),
    *("processes", "immediate", "compacted"),
}
NO_FLAGS: tuple[Any, ...] = (0, 1, 1.0, "no", "", b"", {}, object(), numpy.True_, numpy.array([1, 2]), Unspeakable())
DIRECTORIES = (5, None, 1.5, b"data", "", "a\0b", "\ud800", ["data"], object())


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with RealNode(tmp_path_factory.mktemp("arguments") / "node", workers=1) as made:
        yield made.directory


@pytest.fixture
def node(directory: Path) -> Iterator[warren.Node]:
    with warren.attach(directory) as attached:
        yield attached


def calls(node: warren.Node) -> Iterator[tuple[str, Callable[..., Any], dict[str, Any]]]:
    """Functions of the blocking face, with what makes a call of each a good one that does not wait."""
    node.queue("odd").put_many([b"%d" % number for number in range(20)])
    node.declare_exchange("odd-topic", "topic")
    queue, tasks, store = node.queue("odd"), node.work_queue("odd-tasks"), node.store()
    claims, topic = queue.subscription("odd"), node.topic("odd")
    id = store.new_id()
    store.write(id, b"body")
    named: dict[Callable[..., Any], dict[str, Any]] = {
        node.queue: {"name": "odd-1"},
        node.work_queue: {"name": "odd-2"},
        node.declare_queues: {"queues": ["odd-3"]},
        node.delete_queues: {"names": []},
        node.delete_queue: {"name": "odd-3"},
        node.declare_exchange: {"name": "odd-exchange"},
        node.bind: {"queue": "odd", "exchange": "odd-topic"},
        node.unbind: {"queue": "odd", "exchange": "odd-topic"},
        node.bind_many: {"bindings": []},
        node.unbind_many: {"bindings": []},
        node.publish: {"body": b"x", "routing_key": "odd", "timeout": 9},
        node.publish_many: {"bodies": [b"x"], "routing_key": "odd", "timeout": 9},
        node.store: {},
        queue.put: {"body": b"x", "timeout": 9},
        queue.put_many: {"bodies": [b"x"], "timeout": 9},
        queue.get_many: {"max": 1, "timeout": 0},
        queue.get: {"timeout": 0},
        queue.browse: {},
        queue.browse_arrow: {},
        queue.subscription: {"name": "odd"},
        queue.bind: {"exchange": "odd-topic"},
        queue.unbind: {"exchange": "odd-topic"},
        queue.ack: {"messages": []},
        queue.nack: {"messages": []},
        queue.consume: {"prefetch": 5, "timeout": 0},
        claims.claim: {"max_messages": 1},
        claims.read: {"start": 0, "end": 2},
        claims.read_arrow: {"start": 0, "end": 2},
        claims.ack: {"upto": 0},
        tasks.put: {"item": b"x", "timeout": 9},
        tasks.get: {"timeout": 0},
        tasks.join: {"timeout": 0},
        store.write: {"id": id, "body": b"x", "timeout": 9},
        store.write_many: {"ids": [id], "bodies": [b"x"], "timeout": 9},
        store.contains: {"id": id, "timeout": 9},
        store.remove: {"ids": [], "timeout": 9},
        store.barrier: {"timeout": 9},
        node.topic: {"name": "odd-topic-1"},
        topic.append: {"body": b"x", "timeout": 9},
        topic.append_many: {"bodies": [b"x"], "timeout": 9},
        topic.append_arrow: {"data": pa.table({"value": [b"x"]}), "timeout": 9},
        topic.read: {"max": 1, "timeout": 0},
        topic.read_arrow: {"start": 0, "end": 1},
        topic.offsets: {},
        topic.offset_at: {"queue": 0, "when": 0},
        topic.find: {"key": "k"},
        topic.find_id: {"message_id": "0" * 32},
        topic.queue_of: {"key": "k"},
        node.delete_exchange: {"name": "odd-exchange"},
        queue.purge: {},
    }
    for call, good in named.items():
        yield call.__qualname__, call, good
    confirm = queue.put(b"x", wait=False)
    assert confirm is not None
    positional: list[Callable[..., Any]] = [store.read, store.read_many, store.new_ids, confirm.wait, confirm.result]
    for call in positional:
        yield call.__qualname__, lambda value, call=call: call(value), {"value": None}


def unlike_warren(called: str, error: BaseException | None) -> list[str]:
    """What is wrong with what a call raised."""
    if error is None:
        return []
    if not isinstance(error, warren.Error):
        return [f"{called}: {type(error).__name__}: {str(error)[:SAID_MAX]}"]
    return [f"{called}: {len(str(error))} characters: {str(error)[:SAID_MAX]}"] if len(str(error)) > SAID_MAX else []


def raised(call: Callable[..., Any], arguments: dict[str, Any]) -> BaseException | None:
    try:
        answer = call(**arguments)
        if inspect.isgenerator(answer):
            list(answer)
    except Exception as error:  # noqa: BLE001 - which ones is the question
        return error
    return None


def test_odd_arguments_raise_only_errors_of_warren(node: warren.Node) -> None:
    wrong: list[str] = []
    tried = 0
    for name, call, good in calls(node):
        for parameter in inspect.signature(call).parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD or parameter.name == "call":
                continue
            for odd in ODD:
                error = raised(call, good | {parameter.name: odd})
                tried += 1
                wrong += unlike_warren(f"{name}({parameter.name}={shown(odd)})", error)
    assert not wrong, "\n".join(wrong)
    assert tried > 1000


@pytest.mark.parametrize("name", [field.name for field in msgspec.structs.fields(QueueArguments)])
def test_odd_arguments_of_a_queue(node: warren.Node, name: str) -> None:
    """The error names the queue and the argument, also for what cannot be sent to the supervisor."""
    wrong: list[str] = []
    refused = 0
    for odd in ODD:
        for declare in (
            lambda odd=odd: node.queue("odd-argued", **{name: odd}),
            lambda odd=odd: node.declare_queues([{"name": "odd-argued", "arguments": {name: odd}}]),
        ):
            error = raised(declare, {})
            if error is None:
                if "odd-argued" in node.queues():
                    node.delete_queue("odd-argued")
                continue
            refused += 1
            wrong += unlike_warren(f"queue({name}={shown(odd)})", error)
            if "odd-argued" not in str(error) or name not in str(error):
                wrong.append(f"queue({name}={shown(odd)}): {error}")
    assert not wrong, "\n".join(wrong)
    assert refused > 20


@pytest.mark.parametrize("given", DIRECTORIES, ids=lambda given: type(given).__name__)
@pytest.mark.parametrize("enter", [warren.attach, warren.open], ids=["attach", "open"])
def test_a_directory_that_is_no_path(enter: Callable[..., warren.Node], given: Any) -> None:
    with pytest.raises(warren.UsageError, match="data directory"):
        enter(given)


def test_a_current_directory_that_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(warren.UsageError, match="current directory was removed"):
        warren.attach("data")


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"name": 5}, "name.*not int"),
        ({"name": False}, "name.*not bool"),
        ({"name": b"x"}, "name.*not bytes"),
        ({"timeout": True}, "timeout must be"),
        ({"timeout": None}, "timeout must be"),
        ({"timeout": float("nan")}, "timeout must be"),
        ({"call_timeout": True}, "call_timeout must be"),
        ({"call_timeout": 0}, "call_timeout must be"),
        ({"idle_exit": -1}, "idle_exit must be.*not -1"),
        ({"idle_exit": float("nan")}, "idle_exit must be"),
        ({"idle_exit": True}, "idle_exit must be"),
        ({"idle_exit": "1"}, "idle_exit must be"),
        ({"workers": "\ud800"}, "setting workers must be"),
        ({"nothing": 1}, "no setting 'nothing'"),
    ],
    ids=repr,
)
def test_arguments_of_open_and_attach(directory: Path, tmp_path: Path, given: dict[str, Any], word: str) -> None:
    """Those of open are refused before anything is started, or made."""
    for place in (directory, tmp_path / "new"):
        with pytest.raises(warren.UsageError, match=word):
            warren.open(place, **given)

        async def awaited(place: Path = place) -> None:
            async with warren.aio.open(place, **given):
                raise AssertionError("opened")

        with pytest.raises(warren.UsageError, match=word):
            asyncio.run(awaited())
    assert not os.path.exists(tmp_path / "new")
    if given.keys() <= {"name", "timeout", "call_timeout"}:
        with pytest.raises(warren.UsageError, match=word):
            warren.attach(directory, **given)


REFUSED: dict[str, tuple[Callable[[warren.Node], object], str]] = {
    "text for names": (lambda node: node.delete_queues("kept"), "names must be a list, not one str"),
    "text for queues": (lambda node: node.declare_queues("kept"), "queues must be a list, not one str"),
    "no queues": (lambda node: node.declare_queues(5), "queues must be a list"),  # type: ignore[arg-type]
    "text for keys": (lambda node: node.publish_many([b"x"], routing_keys="x"), "routing_keys must be a list"),
    "no bodies": (lambda node: node.publish_many(None), "bodies must be a list"),  # type: ignore[arg-type]
    "an exchange": (lambda node: node.publish(b"x", exchange=[]), "exchange name must be a str"),  # type: ignore[arg-type]
    "a key": (lambda node: node.publish(b"x", routing_key={}), "routing key must be a str"),  # type: ignore[arg-type]
    "many keys": (lambda node: node.publish_many([b"x"], routing_keys=[[]]), "routing key must be a str"),  # type: ignore[list-item]
    "bound exchange": (lambda node: node.bind("kept", 5), "exchange name must be a str, not int"),  # type: ignore[arg-type]
    "arguments": (lambda node: node.queue("kept").bind("amq.topic", "a", "b"), "arguments must be a mapping, not str"),  # type: ignore[arg-type]
    "a set": (lambda node: node.bind("kept", "amq.headers", "", {"a": {1}}), "binding argument 'a' is of type set"),
    "a large int": (lambda node: node.bind("kept", "amq.headers", "", {"a": 1 << 64}), "binding argument 'a': an int"),
    "no number": (
        lambda node: node.bind("kept", "amq.headers", "", {"a": float("nan")}),
        "binding argument 'a' is nan",
    ),
    "0-d array": (lambda node: node.queue("kept").ack(numpy.array(3)), "messages must be a list.*not numpy.ndarray"),  # type: ignore[arg-type]
    "other properties": (
        lambda node: node.queue("kept", max_length=7),
        r"max_length=7: open it as it is \(create=False",
    ),
    "max": (lambda node: node.queue("kept").browse(None), "max must be a whole number"),  # type: ignore[arg-type]
    "max, a truth": (lambda node: node.queue("kept").get_many(True, 0), "max must be a whole number"),
    "prefetch": (lambda node: next(node.queue("kept").consume(True)), "prefetch must"),
    "a time, a truth": (lambda node: node.queue("kept").get(True), "timeout must be"),
    "maxsize": (lambda node: node.work_queue("kept", None), "maxsize must be a whole number"),  # type: ignore[call-overload]
    "persistent": (lambda node: node.queue("kept").put_many([b"x"], persistent=5), "persistent must be True or False"),  # type: ignore[arg-type]
    "messages": (lambda node: node.queue("kept").ack(None), "messages must be a list"),  # type: ignore[arg-type]
    "claims": (lambda node: node.queue("kept").subscription("s").claim("2"), "max_messages must be"),  # type: ignore[arg-type]
    "ids": (lambda node: node.store().remove(5), "ids must be a list"),  # type: ignore[arg-type]
    "called": (lambda node: node.call(5, b"x", 1.0), "queue must be a Queue of this node, or the name of one, not 5"),  # type: ignore[arg-type]
    "served": (lambda node: node.serve([], print), "queue must be a Queue"),  # type: ignore[arg-type, call-overload]
    "worked off": (lambda node: node.worker(b"kept", print), "queue must be a Queue"),  # type: ignore[call-overload]
    "answered": (
        lambda node: node.queue("kept").reply(None, b"x"),
        "message must be a message of this queue, not None",
    ),  # type: ignore[arg-type]
    "to nobody": (lambda node: node.publish(b"x"), "give an exchange or a routing key"),
    "many to nobody": (lambda node: node.publish_many([b"x"]), "give an exchange or a routing key"),
    "new ids": (lambda node: node.store().new_ids("5"), "count must be"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_names_the_argument(node: warren.Node, case: str) -> None:
    """Text where many are wanted would be taken letter by letter: it is refused, and nothing is declared or deleted."""
    node.queue("kept", durable=True)
    before = node.queues()
    call, word = REFUSED[case]
    with pytest.raises(warren.UsageError, match=word):
        call(node)
    assert node.queues() == before


def test_asyncio_raises_only_errors_of_warren(directory: Path) -> None:
    wrong: list[str] = []

    async def tried() -> None:
        async with warren.aio.attach(directory) as node:
            queue = await node.queue("odd-aio")
            await queue.put_many([b"x"] * 10)
            await node.declare_exchange("odd-aio-topic", "topic")
            named: dict[Callable[..., Any], dict[str, Any]] = {
                node.queue: {"name": "odd-aio-1"},
                node.declare_queues: {"queues": ["odd-aio-3"]},
                node.delete_queues: {"names": []},
                node.bind: {"queue": "odd-aio", "exchange": "odd-aio-topic"},
                node.bind_many: {"bindings": []},
                node.unbind_many: {"bindings": []},
                node.publish: {"body": b"x", "routing_key": "odd-aio", "timeout": 9},
                queue.put: {"body": b"x", "timeout": 9},
                queue.put_many: {"bodies": [b"x"], "timeout": 9},
                queue.get: {"timeout": 0},
                queue.get_many: {"max": 1, "timeout": 0},
                queue.ack: {"messages": []},
                queue.nack: {"messages": []},
                queue.purge: {},
                queue.bind: {"exchange": "odd-aio-topic"},
            }
            for call, good in named.items():
                for parameter in inspect.signature(call).parameters.values():
                    if parameter.kind is parameter.VAR_KEYWORD:
                        continue
                    for odd in ODD:
                        try:
                            await call(**good | {parameter.name: odd})
                        except Exception as error:  # noqa: BLE001 - which ones is the question
                            wrong.extend(unlike_warren(f"{call.__qualname__}({parameter.name}={shown(odd)})", error))
            for odd in ODD:
                if isinstance(odd, bool) or not hasattr(odd, "__index__") or operator.index(odd) < 1:
                    with pytest.raises(warren.UsageError, match="prefetch must be"):
                        queue.consume(prefetch=odd)

    asyncio.run(tried())
    assert not wrong, "\n".join(wrong)


class Raising(collections.UserDict[str, Any]):
    """Headers that are read from somewhere, which fails."""

    def __init__(self, error: Exception) -> None:
        super().__init__({"a": 1})
        self.error = error

    def __getitem__(self, key: str) -> Any:
        raise self.error


@pytest.mark.parametrize("kind", [RuntimeError, ValueError, TypeError, KeyError, OSError])
def test_what_headers_of_a_program_raise_comes_through(node: warren.Node, kind: type[Exception]) -> None:
    """It is the program's, as it raised it; nothing was published, not even the part of a batch before."""
    name = f"odd-raising-{kind.__name__}"
    queue, error = node.queue(name), kind("of the program")
    queue.bind("amq.headers", "", {"a": 1})
    given: list[dict[str, Any]] = [
        {"headers": Raising(error)},
        {"headers": {"deep": [{"a": Raising(error)}]}},
        {"properties": Raising(error)},
    ]

    async def tried() -> None:
        async with warren.aio.attach(node.directory) as other:
            theirs = await other.queue(name)
            for options in given:
                for awaited in (
                    theirs.put(b"x", **options),
                    theirs.put_many([b"x", b"x"], **options),
                    other.publish(b"x", routing_key=name, **options),
                    other.publish_many([b"x", b"x"], routing_key=name, **options),
                ):
                    with pytest.raises(kind) as caught:
                        await awaited
                    assert caught.value is error

    for options in given:
        (many,) = [[{}, value] for value in options.values()]
        calls: list[Callable[[], object]] = [
            lambda options=options: queue.put(b"x", **options),
            lambda options=options: queue.put_many([b"x", b"x"], **options),
            lambda options=options, many=many: queue.put_many([b"x", b"x"], **dict.fromkeys(options, many)),
            lambda options=options: node.publish(b"x", routing_key=name, **options),
            lambda options=options: node.publish(b"x", "amq.headers", **options),
            lambda options=options: node.publish_many([b"x", b"x"], "amq.headers", **options),
            lambda options=options: node.call(name, b"x", 1.0, **options),
        ]
        for call in calls:
            with pytest.raises(kind) as caught:
                call()
            assert caught.value is error
    asyncio.run(tried())
    assert queue.stats()["published"] == 0


def owner(call: Callable[..., Any]) -> object:
    """Whose method it is."""
    return getattr(call, "__self__", None)


def flags(calls: dict[Callable[..., Any], dict[str, Any]]) -> Iterator[tuple[Callable[..., Any], str, dict[str, Any]]]:
    """Each flag of some calls, with each value that is none."""
    for call, good in calls.items():
        for name in FLAGS & inspect.signature(call).parameters.keys():
            for value in NO_FLAGS:
                if (
                    name not in ("block", "immediate")
                    or type(value) is not int
                    or isinstance(owner(call), (warren.Queue, warren.aio.Queue))
                ):
                    yield call, name, good | {name: value}


async def answer_of(call: Callable[..., Any], given: dict[str, Any]) -> None:
    """Call it, and await what is to be awaited."""
    found = call(**given)
    if inspect.isawaitable(found):
        await found


def test_a_flag_is_true_or_false(node: warren.Node) -> None:
    """Numbers, text and arrays that are taken for their truth hide mistakes ("no"). Work queues take 0 and 1, as those
    of the standard library do."""
    queue = node.queue("odd-flags")
    queue.put_many([b"kept"] * 3)
    tasks = node.work_queue("odd-flagged-tasks")
    message = queue.get(timeout=30)
    named = {call: good for _name, call, good in calls(node) if owner(call) is not None}

    def ack(multiple: bool = False) -> None:
        message.ack(multiple)

    def nack(requeue: bool = True, multiple: bool = False) -> None:
        message.nack(requeue=requeue, multiple=multiple)

    named |= {ack: {}, nack: {}, tasks.shutdown: {}, node.worker: {"queue": "odd", "function": print}}
    found: set[str] = set()
    for call, name, given in flags(named):
        with pytest.raises(warren.UsageError, match=f"{name} must be True or False, not "):
            call(**given)
        found.add(name)
    assert found == FLAGS
    for value in NO_FLAGS:
        with pytest.raises(warren.UsageError, match="durable must be True or False"):
            node.declare_queues([{"name": "odd-flagged", "durable": value}])
    assert "odd-flagged" not in node.queues()
    message.nack()  # the counts may be some milliseconds old
    wait_until(lambda: (queue.depth(), queue.stats()["published"]) == (3, 3), what="three are ready, and no more")
    tasks.put(b"1", block=0)  # type: ignore[call-overload]
    assert tasks.get(block=1) == b"1"  # type: ignore[arg-type]


def test_a_flag_of_asyncio_is_true_or_false(directory: Path) -> None:
    async def tried() -> None:
        async with warren.aio.attach(directory) as node:
            queue, store = await node.queue("odd-aio-flags"), node.store()
            await queue.put_many([b"kept"] * 3)
            message = await queue.get(timeout=30)
            tasks, id = await node.work_queue("odd-aio-flagged-tasks"), await store.new_id()
            named: dict[Callable[..., Any], dict[str, Any]] = {
                node.queue: {"name": "odd-aio-flagged"},
                node.declare_queues: {"queues": ["odd-aio-flagged"]},
                node.declare_exchange: {"name": "odd-aio-flagged"},
                node.publish: {"body": b"x", "routing_key": queue.name},
                node.publish_many: {"bodies": [b"x"], "routing_key": queue.name},
                node.store: {},
                queue.put: {"body": b"x"},
                queue.put_many: {"bodies": [b"x"]},
                queue.nack: {"messages": []},
                store.write: {"id": id, "body": b"x"},
                store.write_many: {"ids": [id], "bodies": [b"x"]},
                message.ack: {},
                message.nack: {},
                tasks.shutdown: {},
            }
            for call, name, given in flags(named):
                with pytest.raises(warren.UsageError, match=f"{name} must be True or False, not "):
                    await answer_of(call, given)
            for value in NO_FLAGS:
                with pytest.raises(warren.UsageError, match="persistent must be True or False"):
                    await queue.put(b"x", persistent=value)
            await message.nack()
            assert "odd-aio-flagged" not in await node.queues()

    asyncio.run(tried())
    with warren.attach(directory) as node:  # the counts may be some milliseconds old
        left = node.queue("odd-aio-flags")
        wait_until(lambda: (left.depth(), left.stats()["published"]) == (3, 3), what="three are ready, and no more")


def test_task_done_too_often_is_a_value_error_as_in_the_standard_library(node: warren.Node) -> None:
    with pytest.raises(ValueError, match="called too many times") as caught:
        node.work_queue("odd-done").task_done()
    assert type(caught.value) is ValueError


def test_what_was_removed_is_gone_after_a_barrier(node: warren.Node) -> None:
    store = node.store()
    ids = store.new_ids(100)
    store.write_many(ids, [b"body"] * len(ids))
    store.remove(ids)
    store.barrier()
    assert store.read_many(ids) == [None] * len(ids)
