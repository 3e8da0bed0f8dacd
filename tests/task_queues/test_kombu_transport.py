"""The transport of kombu, in one process: what is declared, published, consumed, settled and returned, and what wakes.

Method: connections of kombu to a node of the module; each test has queues of its own.
"""

import contextlib
import os
import select
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from amqp.exceptions import RecoverableChannelError, RecoverableConnectionError
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.asynchronous import Hub
from kombu.exceptions import OperationalError
from kombu.transport import pyamqp

import warren
import warren.celery
from warren.engine.amqp.names import node_name
from warren.engine.errors import AckTimedOut, PeerLost, PreconditionFailed, QueueNotFound, TimedOut, UsageError
from warren.workers.celery.place import Place
from warren.workers.faces.node import Node, client_of

from support.real_node import RealNode
from support.waiting import wait_until


@pytest.fixture
def url(directory: Path) -> Iterator[str]:
    yield f"warren:///{directory}"
    Place.of(f"warren:///{directory}").client.close()


@pytest.fixture
def connection(url: str) -> Iterator[Any]:
    with Connection(url) as made:
        yield made


def publish(connection: Any, queue: Any, *bodies: Any, **options: Any) -> None:
    producer = Producer(connection.default_channel)
    for body in bodies:
        producer.publish(body, exchange="", routing_key=queue.name, declare=[queue], **options)


def test_a_message_keeps_what_it_was_published_with(connection: Any, name: str, node: warren.Node) -> None:
    queue = Queue(name, max_priority=10)
    headers = {"task": "t", "pair": (1, [2]), "eta": None}
    publish(connection, queue, {"a": 1}, headers=headers, priority=300, correlation_id="c", reply_to="r", expiration=60)
    (looked,) = node.queue(name).browse()  # a program without kombu sees the same
    assert (looked.content_type, looked.properties["correlation_id"], looked.headers["pair"]) == (
        "application/json",
        "c",
        [1, [2]],
    )
    message = queue(connection.default_channel).get()
    assert message is not None
    assert message.payload == {"a": 1}
    assert message.headers == {"task": "t", "pair": [1, [2]], "eta": None}
    assert (message.properties["correlation_id"], message.properties["reply_to"]) == ("c", "r")
    assert (message.properties["priority"], message.delivery_info["redelivered"]) == (255, False)
    message.ack()
    assert queue(connection.default_channel).get() is None
    node.delete_queue(name)


def test_prefetch_is_kept_and_what_is_requeued_comes_again_redelivered(connection: Any, name: str) -> None:
    queue = Queue(name)
    publish(connection, queue, *range(10))
    got: list[Any] = []
    with Consumer(connection, [queue], prefetch_count=3, on_message=got.append) as consumer:
        wait_until(lambda: drained(connection, 0.05) or len(got) == 3)
        drained(connection, 0.2)
        assert [message.payload for message in got] == [0, 1, 2]  # no more than three unacked
        got[1].ack()
        wait_until(lambda: drained(connection, 0.05) or len(got) == 4)
        got[0].requeue()
        wait_until(lambda: drained(connection, 0.05) or len(got) == 5)
        assert (got[4].payload, got[4].delivery_info["redelivered"]) == (0, True)
        got[2].reject()
        consumer.qos(prefetch_count=0)  # no limit
        wait_until(lambda: drained(connection, 0.05) or len(got) == 11)
        consumer.recover(requeue=True)
        wait_until(lambda: drained(connection, 0.05) or len(got) == 19)
        assert all(message.delivery_info["redelivered"] for message in got[11:])
    with Connection(connection.hostname) as other:  # closing the consumer did not return what it holds
        channel = other.channel()
        assert channel.queue_declare(name, passive=True).message_count == 0
        connection.close()
        wait_until(lambda: channel.queue_declare(name, passive=True).message_count == 8)
        assert channel.queue_purge(name) == 8
        channel.queue_delete(name)


def drained(connection: Any, timeout: float) -> bool:
    """One event, or none; never the end of a wait."""
    with contextlib.suppress(TimeoutError):
        connection.drain_events(timeout=timeout)
    return False


def drained_for_ever(connection: Any) -> None:
    """Until the connection ends."""
    while True:
        drained(connection, 30)


def test_exchanges_route_by_their_types_and_to_each_other(connection: Any, name: str) -> None:
    fan, topic = Exchange(f"{name}-f", "fanout", durable=False), Exchange(f"{name}-t", "topic", durable=False)
    queues = [
        Queue(f"{name}-1", fan, durable=False, auto_delete=True),
        Queue(f"{name}-2", topic, routing_key="a.#", durable=False, auto_delete=True),
    ]
    got: list[str] = []
    with Consumer(connection, queues, callbacks=[lambda body, _message: got.append(body)], no_ack=True):
        topic(connection.default_channel).declare()
        fan(connection.default_channel).bind_to(topic, routing_key="b.*")
        producer = Producer(connection.default_channel)
        for exchange, key in ((fan, "x"), (topic, "a.b.c"), (topic, "b.c"), (topic, "c")):
            producer.publish(key, exchange=exchange, routing_key=key, delivery_mode=1)
        wait_until(lambda: drained(connection, 0.05) or len(got) == 3)
    assert sorted(got) == ["a.b.c", "b.c", "x"]
    with pytest.raises(UsageError):  # it went with its last consumer
        wait_until(lambda: connection.default_channel.queue_declare(f"{name}-1", passive=True) is None, 5)
    for exchange in (fan, topic):
        exchange(connection.default_channel).delete()


def test_the_event_loop_is_woken_by_the_bell_and_by_nothing_else(connection: Any, name: str) -> None:
    queue, got, hub = Queue(name, durable=False), [], Hub()
    try:
        connection.connect()
        connection.register_with_event_loop(hub)
        with Consumer(connection, [queue], on_message=lambda message: (got.append(message.payload), message.ack())):
            loop = hub.create_loop()
            fd = connection.connection.inbox.fd
            wait_until(lambda: not (select.select([fd], [], [], 0)[0] and next(loop) is None))
            assert not select.select([fd], [], [], 1.5)[0]  # an idle connection wakes nobody
            publish(connection, queue, *range(100), delivery_mode=1)
            while len(got) < 100:
                next(loop)
            assert got == list(range(100))
    finally:
        hub.close()
        connection.default_channel.queue_delete(name)


def test_a_queue_is_consumed_got_from_and_consumed_again_by_one_connection(connection: Any, name: str) -> None:
    queue, got = Queue(name), []
    publish(connection, queue, *range(6))
    channel = connection.default_channel
    for number in range(3):
        with Consumer(connection, [queue], prefetch_count=1, on_message=got.append):
            wait_until(lambda wanted=2 * number: drained(connection, 0.05) or len(got) > wanted)
        message = queue(channel).get()
        assert message is not None
        got.append(message)
        for message in got[-2:]:
            message.ack()
    assert [message.payload for message in got] == list(range(6))
    with (
        Consumer(connection.channel(), [queue], on_message=got.append),
        Consumer(channel, [queue], on_message=got.append),
    ):
        publish(connection, queue, *range(10))  # two consumers of one connection take turns
        wait_until(lambda: drained(connection, 0.05) or len(got) == 16)
        assert len({message.delivery_info["consumer_tag"] for message in got[6:]}) == 2
        for message in got[6:]:
            message.ack()
    channel.queue_delete(name)


def test_a_consumer_hears_that_its_queue_was_deleted(connection: Any, name: str, node: warren.Node) -> None:
    with Consumer(connection, [Queue(name)], callbacks=[]):
        node.delete_queue(name)
        with pytest.raises(PeerLost, match="was deleted while it was consumed"):
            drained_for_ever(connection)


def test_a_child_of_fork_uses_nothing_of_its_parent(connection: Any, name: str) -> None:
    queue, got = Queue(name), []
    publish(connection, queue, "held")
    with Consumer(connection, [queue], on_message=got.append):
        wait_until(lambda: drained(connection, 0.05) or got)
        child = os.fork()
        if not child:
            code = 1
            try:
                assert not connection.connected
                connection.close()  # of the parent's things nothing ends
                with Connection(connection.hostname) as own:
                    publish(own, queue, "of the child")
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        wait_until(lambda: drained(connection, 0.05) or len(got) == 2)
        for message in got:
            message.ack()
    assert [message.payload for message in got] == ["held", "of the child"]
    connection.default_channel.queue_delete(name)


def test_a_child_of_fork_waits_for_no_lock_that_its_parent_held(connection: Any, name: str) -> None:
    with Consumer(connection, [Queue(name)], callbacks=[]):
        inbox = connection.connection.inbox
        with inbox._fd_lock:  # as the waiting thread has it while it rings
            child = os.fork()
            if not child:
                threading.Timer(30, os._exit, (1,)).start()
                inbox.ring()
                connection.close()
                inbox.__del__()
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    connection.default_channel.queue_delete(name)


def test_without_a_prefetch_as_much_is_held_as_there_is(connection: Any, name: str, node: warren.Node) -> None:
    queue, got = Queue(name, durable=False), []
    count = 2500
    node.queue(name, durable=False).put_many([b"1"] * count)
    with Consumer(connection, [queue], on_message=got.append, accept=None):
        while len(got) < count:
            connection.drain_events(timeout=30)
        connection.default_channel.basic_ack(got[-1].delivery_tag, multiple=True)
        wait_until(lambda: node.queue(name, create=False).stats()["unacked"] == 0)
    connection.default_channel.queue_delete(name)


def test_a_queue_is_deleted_on_conditions_that_are_true_when_it_goes(
    connection: Any, name: str, node: warren.Node
) -> None:
    channel, queue = connection.default_channel, Queue(name)
    publish(connection, queue, 1, 2)
    with pytest.raises(PreconditionFailed):
        channel.queue_delete(name, if_empty=True)
    with (
        Consumer(connection, [queue], prefetch_count=1, callbacks=[lambda *_: None]),
        pytest.raises(PreconditionFailed),
    ):
        channel.queue_delete(name, if_unused=True)
    assert channel.queue_delete(name, if_unused=True) == 2
    assert channel.queue_delete(name) == 0  # it is not there
    channel.exchange_delete(name)
    with pytest.raises(UsageError, match="exclusive"):
        channel.basic_consume(name, exclusive=True)


def test_an_exclusive_queue_is_every_channels_of_its_connection(connection: Any, name: str) -> None:
    one, other, got = connection.channel(), connection.channel(), []
    one.queue_declare(name, exclusive=True)
    exchange = Exchange(f"{name}-x", "fanout", durable=False)
    exchange(other).declare()
    other.queue_bind(name, exchange.name)
    Producer(other).publish(1, exchange=exchange)
    assert other.queue_declare(name, passive=True).message_count == 1
    other.basic_consume(name, no_ack=True, callback=got.append)
    wait_until(lambda: drained(connection, 0.05) or got)
    with Connection(connection.hostname) as stranger, pytest.raises(UsageError, match="exclusive"):
        stranger.channel().queue_purge(name)
    assert other.queue_delete(name) == 0
    one.queue_declare(name)  # another one, for everybody
    with Connection(connection.hostname) as stranger:
        assert stranger.channel().queue_purge(name) == 0
    exchange(one).delete()
    one.queue_delete(name)


def test_one_ack_that_comes_too_late_does_not_keep_the_others_from_being_acked(
    connection: Any, name: str, node: warren.Node
) -> None:
    hasty, patient, got = Queue(f"{name}-1", queue_arguments={"ack_timeout": 0.5}), Queue(f"{name}-2"), []
    channel = connection.default_channel
    publish(connection, hasty, 1)
    with Consumer(connection.channel(), [hasty, patient], prefetch_count=1, on_message=got.append) as consumer:
        wait_until(lambda: drained(connection, 0.05) or got)
        publish(connection, patient, 2)
        wait_until(lambda: drained(connection, 0.05) or got[1:])
        wait_until(lambda: node.queue(hasty.name, create=False).stats()["ready"] == 1)
        with pytest.raises(AckTimedOut):
            consumer.channel.basic_ack(got[1].delivery_tag, multiple=True)
        wait_until(lambda: node.queue(patient.name, create=False).stats()["unacked"] == 0)
    for queue in (hasty, patient):
        channel.queue_delete(queue.name)


def test_what_some_queues_have_is_not_published_again(
    connection: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    def publish_to_some(*_given: Any, **_named: Any) -> None:
        calls.append(1)
        raise QueueNotFound("one of them was deleted just now")

    monkeypatch.setattr(Node, "publish", publish_to_some)
    with pytest.raises(QueueNotFound):
        Producer(connection.default_channel).publish(1, routing_key=name, headers={"pair": (1, 2)})
    assert len(calls) == 1


def test_a_transient_exchange_that_went_with_the_node_is_declared_again(tmp_path: Path) -> None:
    """Kombu declares once a connection, and a connection that only publishes outlives the node."""
    exchange = Exchange("news", "fanout", durable=False)
    with RealNode(tmp_path / "data") as running, Connection(f"warren:///{tmp_path / 'data'}") as connection:
        producer = Producer(connection.default_channel)
        producer.publish(1, exchange="news", declare=[exchange])
        running.stop()
        running.start()
        producer.publish(2, exchange="news", declare=[exchange])
        with warren.attach(tmp_path / "data") as node:
            node.delete_exchange("news")
        with pytest.raises(connection.channel_errors):  # by somebody's wish
            producer.publish(3, exchange="news", declare=[exchange])
        connection.connection.place.node.close()  # that of the whole process


def test_a_node_that_was_stopped_is_an_error_of_the_connection(tmp_path: Path) -> None:
    place = f"warren:///{tmp_path / 'data'}"
    with pytest.raises(OperationalError, match="warren up"):
        Connection(place).ensure_connection(max_retries=1, interval_start=0)
    with RealNode(tmp_path / "data") as running, Connection(place) as connection:
        queue, got = Queue("q"), []
        publish(connection, queue, 1)
        consumer = Consumer(connection, [queue], on_message=got.append)
        consumer.consume()
        wait_until(lambda: drained(connection, 0.05) or got)
        running.stop()
        with pytest.raises(connection.connection_errors):
            drained_for_ever(connection)
        with pytest.raises(connection.connection_errors):
            got[0].ack()
        running.start()
        connection = connection.clone()
        connection.ensure_connection(max_retries=50, interval_start=0.1, interval_step=0)
        with Consumer(connection, [queue], on_message=got.append):
            wait_until(lambda: drained(connection, 0.05) or len(got) == 2)
            assert got[1].payload == 1
            got[1].ack()
        connection.close()
        Place.of(place).client.close()


@pytest.mark.parametrize("durability", ["none", "written", "synced"])
def test_a_delay_and_a_durability_are_those_of_the_engine(url: str, name: str, durability: str) -> None:
    with Connection(f"{url}?durability={durability}") as connection:
        queue = Queue(name)
        due = time.time() + 0.5
        eta = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(due)) + f"{due % 1:.6f}"[1:] + "+00:00"
        publish(connection, queue, "later", headers={"task": "t", "eta": eta})
        publish(connection, queue, "now", headers={"task": "t", "eta": "2001-01-01T00:00:00"})
        got: list[Any] = []
        with Consumer(connection, [queue], on_message=lambda message: got.append((time.time(), message))):
            wait_until(lambda: drained(connection, 0.1) or len(got) == 2)
        assert [message.payload for _when, message in got] == ["now", "later"]
        assert got[1][0] >= due - 0.005
        for _when, message in got:
            message.ack()
        connection.default_channel.queue_delete(name)
        with pytest.raises(UsageError, match="is no time"):
            publish(connection, queue, "never", headers={"task": "t", "eta": "tomorrow"})


def test_errors_that_kombu_raises_by_itself_are_those_of_the_transport() -> None:
    """Beat and the pools connect anew behind what is one of the connection, and behind nothing else."""
    transport = warren.celery.Transport
    assert issubclass(RecoverableConnectionError, transport.connection_errors)
    assert issubclass(RecoverableConnectionError, transport.recoverable_connection_errors)
    assert issubclass(ConnectionResetError, transport.recoverable_connection_errors)
    assert issubclass(RecoverableChannelError, transport.channel_errors)
    assert not issubclass(TimedOut, (*transport.connection_errors, *transport.channel_errors)), "its fate is not known"
    said = {name for name in dir(pyamqp.Transport) if "errors" in name}
    assert said == {name for name in dir(transport) if "errors" in name}
    assert set(pyamqp.Transport.implements) == set(transport.implements)


def test_the_next_node_of_a_list_is_connected_to(url: str, directory: Path, name: str, tmp_path: Path) -> None:
    """By an absolute and by a relative path; options come from transport_options."""
    gone = f"warren:///{tmp_path}/gone"
    relative = f"warren:///{os.path.relpath(directory)}"
    for there in (url, relative):
        with Connection(f"{gone};{there}", transport_options={"call_timeout": 30}) as connection:
            connection.ensure_connection(max_retries=3, interval_start=0.01)
            assert connection.as_uri() == there
            publish(connection, Queue(name), "hello")
            with connection.SimpleQueue(name) as queue:
                message = queue.get(timeout=30)
                assert message.payload == "hello"
                message.ack()


@pytest.mark.parametrize("other", ["a/b", "@at", ".dot", "100%2F", "tab\there", "ünder"])
def test_names_are_those_that_amqp_allows(connection: Any, name: str, node: warren.Node, other: str) -> None:
    """They are mapped as the gateway maps them, and mapped back."""
    called = f"{other}-{name}"
    exchange = Exchange(f"x/{called}", "direct")
    queue = Queue(called, exchange, routing_key="k/1", queue_arguments={"x-dead-letter-exchange": "x/dead"})
    publish(connection, queue, "by the default exchange")
    Producer(connection.default_channel).publish("by its own", exchange=exchange, routing_key="k/1", declare=[exchange])
    seen: list[tuple[Any, str, str]] = []

    def take(body: Any, message: Any) -> None:
        seen.append((body, message.delivery_info["exchange"], message.delivery_info["routing_key"]))
        message.ack()

    with Consumer(connection.default_channel, [queue], callbacks=[take]):
        while len(seen) < 2:
            connection.drain_events(timeout=30)
    assert seen == [("by the default exchange", "", called), ("by its own", f"x/{called}", "k/1")]
    assert node_name("/", called) in client_of(node).catalog().queues
    bindings = [(row["source"], row["routing_key"]) for row in connection.manager.get_bindings()
                if row["destination"] == called]  # fmt: skip
    assert bindings == [("", called), (f"x/{called}", "k/1")]
    assert queue(connection.default_channel).purge() == 0
    queue(connection.default_channel).delete()
    assert node_name("/", called) not in client_of(node).catalog().queues


def test_two_workers_of_one_name_share_the_mailbox_of_remote_control(url: str, name: str) -> None:
    """The second one starts, and Celery says that there is another one."""
    mailbox = Queue(f"{name}.celery.pidbox", exclusive=True, auto_delete=True)
    with Connection(url) as first, Connection(url) as second, contextlib.ExitStack() as stack:
        for connection in (first, second):
            stack.enter_context(Consumer(connection.default_channel, [mailbox]))
        assert mailbox(second.default_channel).queue_declare(passive=True).consumer_count == 2


def test_a_body_is_published_as_it_is(connection: Any, name: str) -> None:
    """As `celery amqp basic.publish` does."""
    queue = Queue(name)(connection.default_channel)
    queue.declare()
    connection.default_channel.basic_publish("plain", "", name)
    assert queue.get(no_ack=True).body == b"plain"
