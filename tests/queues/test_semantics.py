"""Goal: what a queue is declared with and what a message is published with have their effects end to end.

Method: a real node of two workers, clients in this process and in others, kills in the middle.
"""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import warren
from warren.engine.catalog import metadata
from warren.engine.errors import (
    DeclarationMismatch,
    QueueFull,
    QueueNotFound,
    ResourceLocked,
    Unroutable,
    UsageError,
)
from warren.workers.faces.node import Node

from support.real_node import RealNode
from support.waiting import wait_until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RealNode]:
    with RealNode(tmp_path / "node") as running:
        yield running


@pytest.fixture
def node(server: RealNode) -> Iterator[Node]:
    with warren.attach(server.directory, name="test") as attached:
        yield attached


def gone(node: Node, name: str, timeout: float = 20) -> None:
    wait_until(lambda: name not in node.queues(), timeout, what=f"the end of queue {name}")


def other_client(server: RealNode, code: str) -> subprocess.Popen[str]:
    """Another process, attached as `node`; it says 'ready' when `code` is done, and ends with its standard input."""
    program = (
        f"import sys, warren\nnode = warren.attach({str(server.directory)!r}, name='other')\n"
        f"{code}\nprint('ready', flush=True)\nsys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": ":".join(path for path in sys.path if path), "PATH": "/usr/bin:/bin"},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


# ---- declarations ----------------------------------------------------------------------------------------------------


def test_arguments_are_part_of_the_declaration(node: Node) -> None:
    node.queue("q", message_ttl=60, max_priority=5)
    node.queue("q", message_ttl=60.0, max_priority=5, overflow="drop-head")
    node.queue("q", create=False)
    node.queue("q")
    for other in ({"durable": True}, {"message_ttl": 61, "max_priority": 5}):
        with pytest.raises(DeclarationMismatch, match="message_ttl"):
            node.queue("q", **other)
    with pytest.raises(UsageError, match="unknown argument 'ttl'"):
        node.queue("r", ttl=5)
    (shown,) = [item for item in node.status()["queues"] if item["name"] == "q"]
    assert shown["arguments"] == {"message_ttl": 60.0, "max_priority": 5}


def test_an_exclusive_queue_is_its_clients_alone(server: RealNode, node: Node) -> None:
    mine = node.queue("mine", exclusive=True)
    mine.put(b"x")
    assert node.queue("mine", exclusive=True) is mine
    with warren.attach(server.directory) as other:
        for attempt in (
            lambda: other.queue("mine", exclusive=True),
            lambda: other.queue("mine", create=False),
            lambda: other.delete_queue("mine"),
            lambda: other.bind("mine", "amq.fanout"),
        ):
            with pytest.raises(ResourceLocked, match="another client"):
                attempt()
        other.publish(b"y", "", "mine")  # publishing is open to all
    assert [mine.get(5).body for _each in range(2)] == [b"x", b"y"]
    node.close()
    with warren.attach(server.directory) as other:
        gone(other, "mine")
        other.queue("mine")


def test_an_exclusive_queue_goes_with_a_killed_client_and_with_the_node(server: RealNode, node: Node) -> None:
    process = other_client(server, "node.queue('theirs', exclusive=True, durable=False).put(b'x')")
    assert "theirs" in node.queues()
    end(process)
    gone(node, "theirs")
    process = other_client(server, "node.queue('theirs', exclusive=True)")
    mine = node.queue("mine", exclusive=True)
    node.queue("all")
    server.kill_all()
    end(process)
    server.start()
    mine.put(b"x")  # its client has outlived the servers, so it has, too
    gone(node, "theirs")
    node.close()
    server.kill_all()
    server.start()
    with warren.attach(server.directory) as again:
        assert again.queues() == ["all"]


def test_auto_delete(server: RealNode, node: Node) -> None:
    queue = node.queue("q", auto_delete=True)
    queue.put(b"x")
    with pytest.raises(warren.QueueEmpty):
        node.queue("other", auto_delete=True).get(timeout=0.1)
    process = other_client(server, "for message in node.queue('q', create=False).consume(timeout=20): break")
    node.queue("later", auto_delete=True).put(b"x")
    end(other_client(server, "for message in node.queue('later', create=False).consume(timeout=20): break"))
    gone(node, "later")  # no declaration protects "q" any more, either: it stays because somebody consumes it
    assert "q" in node.queues()
    end(process)
    gone(node, "q")
    assert "other" in node.queues(), "a get is no consumer"
    with pytest.raises(QueueNotFound):
        queue.put(b"y")


#: a process that begins slowly may find that the queue has expired already: then it declares it again
USES_A_QUEUE_THAT_EXPIRES = """
import warren
while True:
    try:
        queue = node.queue('kept', expires=2)
        queue.put(b'x')
        for message in queue.consume(timeout=60): break
        break
    except warren.QueueNotFound:
        pass
"""


def test_an_unused_queue_expires(server: RealNode, node: Node) -> None:
    process = other_client(server, USES_A_QUEUE_THAT_EXPIRES)
    unused = node.queue("unused", expires=2)

    def has_expired() -> bool:
        with contextlib.suppress(QueueNotFound):
            unused.put(b"publishing is no use of it")
        return "unused" not in node.queues()

    wait_until(has_expired, 20, what="the end of the unused queue")
    assert "kept" in node.queues()
    end(process)
    gone(node, "kept")


# ---- exchanges -------------------------------------------------------------------------------------------------------


def bodies(queue: warren.Queue, wait: float = 0.5) -> list[bytes]:
    """All messages that are there or come before `wait` seconds pass without one; acked."""
    return [message.body for message in taken(queue, wait)]


def taken(queue: warren.Queue, wait: float = 0.5) -> list[warren.Message]:
    found = []
    while True:
        try:
            message = queue.get(timeout=wait)
        except warren.QueueEmpty:
            return found
        message.ack()
        found.append(message)


def test_a_headers_exchange(server: RealNode, node: Node) -> None:
    node.declare_exchange("h", "headers")
    both, either = node.queue("both"), node.queue("either")
    both.bind("h", arguments={"kind": "a", "level": 2})
    node.bind("either", "h", arguments={"kind": "a", "level": 2, "x-match": "any"})
    node.publish(b"1", "h", headers={"kind": "a", "level": 2})
    node.publish(b"2", "h", headers={"kind": "a"})
    node.publish(b"3", "h", "some.key", headers={"kind": "b"})
    node.publish_many(
        [b"4", b"5", b"6"], "h", headers=[{"kind": "a", "level": 2}, None, {"level": 2}], routing_keys=["k", "k", "l"]
    )
    with pytest.raises(Unroutable):
        node.publish(b"7", "h", headers={"kind": "b"}, mandatory=True)
    with pytest.raises(Unroutable):
        node.publish_many([b"8", b"9"], "h", headers=[{"kind": "a"}, {}], mandatory=True)
    assert bodies(both) == [b"1", b"4"]
    assert bodies(either) == [b"1", b"2", b"4", b"6"]
    server.kill_all()
    server.start()
    with warren.attach(server.directory) as again:
        again.publish(b"x", "h", headers={"kind": "a", "level": 2})
        assert bodies(again.queue("both")) == [b"x"]
        assert again.unbind("both", "h", arguments={"level": 2, "kind": "a"})
        assert not again.unbind("both", "h", arguments={"kind": "a"})


def test_an_alternate_exchange(node: Node) -> None:
    node.declare_exchange("rest", "fanout")
    node.declare_exchange("first", "direct", alternate="rest")
    with pytest.raises(DeclarationMismatch, match="alternate"):
        node.declare_exchange("first", "direct")
    queue = node.queue("unrouted")
    with pytest.raises(Unroutable):
        node.publish(b"1", "first", "k", mandatory=True)
    queue.bind("rest")
    node.publish(b"2", "first", "k", mandatory=True)
    message = queue.get(5)
    assert (message.body, message.exchange, message.routing_key) == (b"2", "first", "k")


# ---- what a message carries ------------------------------------------------------------------------------------------


def test_properties_and_headers_arrive(node: Node) -> None:
    queue = node.queue("q")
    queue.put(
        b"1",
        headers={"a": [1, b"2", None]},
        properties={"content_type": "text/plain", "correlation_id": b"\0\1", "reply_to": "back", "timestamp": 12.5},
        message_id="unique",
        priority=3,
        persistent=False,
    )
    queue.put_many(
        [b"2", b"3"],
        properties=[None, {"type": "t", "app_id": "me"}],
        headers=({}, {"n": 3}),
        message_id=[None, b"\xff"],
        ttl=(None, 600),
        persistent=[True, False],
    )
    node.publish(b"4", "", "q", properties={"content_encoding": "gzip"})
    node.publish_many([b"5", b"6"], "", "q", properties={"user_id": "u"}, priority=[1, 2])
    found = [queue.get(5) for _each in range(6)]
    assert [message.body for message in found] == [b"%d" % n for n in range(1, 7)]
    first = found[0]
    assert (first.headers, first.content_type, first.correlation_id) == ({"a": [1, b"2", None]}, "text/plain", b"\0\1")
    assert (first.reply_to, first.timestamp, first.type, first.app_id) == ("back", 12.5, None, None)
    assert first.properties["message_id"] == "unique"
    assert [message.properties for message in found[1:]] == [
        {},
        {"type": "t", "app_id": "me", "message_id": b"\xff"},
        {"content_encoding": "gzip"},
        {"user_id": "u"},
        {"user_id": "u"},
    ]
    assert (found[2].headers, found[2].type, found[2].app_id) == ({"n": 3}, "t", "me")
    with pytest.raises(UsageError, match="persistent"):
        queue.put(b"x", durability="synced", persistent=False)
    with pytest.raises(UsageError, match="there is no property 'colour'"):
        queue.put(b"x", properties={"colour": "red"})


def test_an_answer_goes_where_reply_to_says_whatever_it_is(node: Node) -> None:
    """Who answers publishes to `reply_to`: bytes, which no queue is called by, are refused where they are given, and
    read as text where they came from elsewhere.
    """
    asked, answers = node.queue("asked"), node.queue("back")
    with pytest.raises(UsageError, match="reply_to must be a str, the name of a queue, not bytes"):
        asked.put(b"?", properties={"reply_to": b"back"})
    asked._handle.put(b"?", 0, metadata.passed_on("", "asked", None, {"reply_to": b"back"}), 10, True)
    asked._handle.put(b"?", 0, metadata.passed_on("", "asked", None, {"reply_to": b"\xff"}), 10, True)
    for _each in range(2):
        question = asked.get(10)
        assert question.reply_to is not None
        node.publish(b"!", "", question.reply_to)
        question.ack()
    assert answers.get(10).body == b"!"


def test_a_transient_message_of_a_durable_queue_goes_with_the_node(server: RealNode, node: Node) -> None:
    queue = node.queue("q")
    queue.put_many([b"a", b"b", b"c"], persistent=[True, False, True])
    queue.put(bytes(100_000), persistent=False)
    queue.put(b"d")
    assert queue.depth() == 5
    node.close()
    server.kill_all()
    server.start()
    with warren.attach(server.directory) as again:
        assert bodies(again.queue("q")) == [b"a", b"c", b"d"]


# ---- what queues do with messages ------------------------------------------------------------------------------------


def test_reject_publish_says_which(node: Node) -> None:
    queue = node.queue("q", max_length=3, overflow="reject-publish")
    other = node.queue("other")
    for name in ("q", "other"):
        node.bind(name, "amq.fanout")
    with pytest.raises(QueueFull, match=r"queue 'q' \(max_length=3\)") as caught:
        queue.put_many([b"%d" % n for n in range(6)])
    assert caught.value.refused == (3, 4, 5)
    with pytest.raises(QueueFull, match="max_length=3"):
        queue.put(b"x")
    confirm = queue.put(b"x", wait=False)
    assert confirm is not None
    assert isinstance(confirm.exception(10), QueueFull)
    with pytest.raises(QueueFull):
        node.publish(b"y", "amq.fanout")
    assert bodies(other) == [b"y"], "a queue that has room has it"
    assert bodies(queue) == [b"0", b"1", b"2"]
    queue.put(b"z")


def test_duplicates_are_dropped(node: Node) -> None:
    queue = node.queue("q", deduplication_window=600)
    first = queue.put(b"1", message_id="a", wait=False)
    again = queue.put(b"2", message_id=b"a", wait=False)
    assert first is not None
    assert again is not None
    again.wait(60)
    assert (first.duplicate, again.duplicate) == (False, True)
    queue.put_many([b"3", b"4", b"5"], message_id=["b", "a", "b"])
    queue.put(b"6")
    assert bodies(queue) == [b"1", b"3", b"6"]


def test_priorities_and_delays(node: Node) -> None:
    queue = node.queue("q", max_priority=9)
    queue.put(b"far", delay=3600.0)
    queue.put_many([b"low", b"high", b"mid", b"high2"], priority=[0, 9, 5, 9])
    found = taken(queue, 0.5)
    assert [message.body for message in found] == [b"high", b"high2", b"mid", b"low"]
    assert [message.priority for message in found] == [9, 9, 5, 0]
    began = time.monotonic()
    queue.put(b"later", delay=0.5)
    assert queue.get(timeout=60).body == b"later"
    assert time.monotonic() - began >= 0.49


def dead(queue: warren.Queue, count: int, wait: float = 20) -> list[warren.Message]:
    """So many letters, acked."""
    found = []
    for _each in range(count):
        message = queue.get(timeout=wait)
        message.ack()
        found.append(message)
    return found


def deaths(message: warren.Message) -> list[tuple[str, str, int]]:
    return [(item["queue"], item["reason"], item["count"]) for item in message.headers["x-death"]]


def test_a_rejected_message_becomes_a_dead_letter(node: Node) -> None:
    letters = node.queue("letters")
    node.declare_exchange("dlx", "topic")
    letters.bind("dlx", "#")
    work = node.queue("work", dead_letter_exchange="dlx")
    work.put(b"1", headers={"mine": 1}, properties={"content_type": "text/plain"}, priority=4, ttl=600)
    work.put(b"2")
    node.publish(b"3", "amq.direct", "nobody")
    work.bind("amq.direct", "k")
    node.publish(bytes(50_000), "amq.direct", "k")
    for _each in range(3):
        work.get(10).reject()
    first, second, third = dead(letters, 3)
    assert (first.body, first.exchange, first.routing_key) == (b"1", "dlx", "work")
    assert (first.content_type, first.priority, first.headers["mine"]) == ("text/plain", 4, 1)
    assert deaths(first) == [("work", "rejected", 1)]
    assert first.headers["x-death"][0]["routing-keys"] == ["work"]
    assert abs(first.headers["x-death"][0]["time"] - time.time()) < 600
    assert first.headers["x-first-death-queue"] == "work"
    assert (second.body, second.headers.get("mine")) == (b"2", None)
    assert (third.body, third.routing_key, third.headers["x-death"][0]["exchange"]) == (
        bytes(50_000),
        "k",
        "amq.direct",
    )
    assert work.depth() == 0
    wait_until(lambda: not node.status()["dead_letters"][0]["unacked"], 10)


def test_reasons_of_death(node: Node) -> None:
    letters = node.queue("letters")
    to = {"dead_letter_exchange": "", "dead_letter_routing_key": "letters"}
    node.queue("brief", message_ttl=0.2, **to).put(b"ttl")
    assert deaths(dead(letters, 1)[0]) == [("brief", "expired", 1)]
    node.queue("plain", **to).put(b"own", ttl=0.2)
    assert deaths(dead(letters, 1)[0]) == [("plain", "expired", 1)]
    small = node.queue("small", max_length=2, **to)
    small.put_many([b"%d" % n for n in range(5)])
    found = dead(letters, 3)
    assert [message.body for message in found] == [b"0", b"1", b"2"]
    assert deaths(found[0]) == [("small", "maxlen", 1)]
    again = node.queue("again", delivery_limit=2, **to)
    again.put(b"x")
    returned = 0
    while not letters.depth():
        with contextlib.suppress(warren.QueueEmpty):
            again.get(timeout=0.1).nack()
            returned += 1
            assert returned < 20, "it was returned forever"
    found = dead(letters, 1)
    assert deaths(found[0]) == [("again", "delivery_limit", 1)]


def test_retries_count_and_automatic_circles_end(node: Node) -> None:
    """Rejected into a queue that waits, expired back: the usual retry. Without a rejection the circle is cut."""
    work = node.queue("work", dead_letter_exchange="", dead_letter_routing_key="wait")
    node.queue("wait", message_ttl=0.1, dead_letter_exchange="", dead_letter_routing_key="work")
    work.put(b"x")
    for round in range(3):
        message = work.get(20)
        if round:
            assert deaths(message) == [("wait", "expired", round), ("work", "rejected", round)]
        message.reject()
    work.get(20).ack()
    here = node.queue("here", message_ttl=0.1, dead_letter_exchange="", dead_letter_routing_key="there")
    node.queue("there", message_ttl=0.1, dead_letter_exchange="", dead_letter_routing_key="here")
    here.put(b"y")
    wait_until(lambda: any("circle" in line for line in node.status()["messages"]), 20, what="the end of the circle")
    assert all(not item["ready"] + item["unacked"] for item in node.status()["queues"])


def test_letters_wait_for_their_exchange(server: RealNode, node: Node) -> None:
    work = node.queue("work", dead_letter_exchange="missing")
    work.put_many([b"1", b"2"])
    for _each in range(2):
        work.get(10).reject()
    wait_until(lambda: any("'missing'" in line for line in node.status()["messages"]), 20, what="a word about it")
    letters = node.queue("letters")
    server.kill("worker-0")
    node.declare_exchange("missing", "fanout")
    letters.bind("missing")
    assert sorted({message.body for message in dead(letters, 2)}) == [b"1", b"2"]


def test_a_letter_too_large_for_its_deaths_arrives_with_less(node: Node) -> None:
    """Headers that leave no room for x-death, and a body that leaves none for any: neither holds up those behind it."""
    letters = node.queue("letters")
    work = node.queue("work", dead_letter_exchange="", dead_letter_routing_key="letters")
    work.put(b"1", headers={"big": "x" * 65_400})
    work.put(bytes(500_000))
    work.put(b"3")
    for _each in range(3):
        work.get(10).reject()
    first, second, third = dead(letters, 3)
    assert (first.body, list(first.headers), deaths(first)) == (b"1", ["x-death"], [("work", "rejected", 1)])
    assert (second.body, second.headers) == (bytes(500_000), {})
    assert deaths(third) == [("work", "rejected", 1)]
    assert any("lost its headers" in line for line in node.status()["messages"])


def test_letters_wait_while_a_queue_refuses_them(node: Node) -> None:
    letters = node.queue("letters", max_length=1, overflow="reject-publish")
    work = node.queue("work", dead_letter_exchange="", dead_letter_routing_key="letters")
    work.put_many([b"1", b"2", b"3"])
    for _each in range(3):
        work.get(10).reject()
    assert sorted(message.body for message in dead(letters, 3)) == [b"1", b"2", b"3"]


def test_no_letter_is_lost_when_workers_are_killed(server: RealNode, node: Node) -> None:
    """Workers and store are killed again and again while messages expire; each letter arrives.

    And once where keys of deduplication count. Every tenth body lies in the store.
    """
    letters = node.queue("letters")
    once = node.queue("once", deduplication_window=600)
    node.declare_exchange("dlx", "fanout")
    letters.bind("dlx")
    once.bind("dlx")
    work = [node.queue(f"work-{n}", dead_letter_exchange="dlx", message_ttl=0.05 + 0.2 * n) for n in range(4)]
    sent = set()
    for round in range(6):
        for queue in work:
            some = [b"%s %d %d" % (queue.name.encode(), round, n) + bytes(6000 * (n % 10 == 0)) for n in range(200)]
            queue.put_many(some)
            sent.update(some)
        server.kill(("worker-0", "worker-1", "store")[round % 3])
    found: list[bytes] = []
    wait_until(lambda: sent <= set(found) or found.extend(bodies(letters, 1)), 90, what="all letters")
    found_once = bodies(once, 2)
    assert set(found) == sent
    assert sorted(found_once) == sorted(sent)
    assert all(not item["ready"] + item["unacked"] for item in node.status()["dead_letters"])


def test_a_forwarder_keeps_no_node_up_and_no_stop_waiting(server: RealNode, node: Node) -> None:
    """It is a client of its own node: neither a reason to stay, nor to end without the clean mark."""
    letters = node.queue("letters")
    work = node.queue("work", dead_letter_exchange="", dead_letter_routing_key="letters", message_ttl=0.001)
    work.put_many([b"%d" % n for n in range(5000)])
    node.close()
    server.stop()
    folder = server.directory / "log"
    assert not any("left behind" in path.read_text() for path in folder.iterdir())
    assert [path.read_text().count("everything is saved") for path in folder.glob("worker-*.log")] == [1, 1]
    server.start()
    with warren.attach(server.directory) as again:
        found: list[bytes] = []
        wanted = {b"%d" % n for n in range(5000)}
        wait_until(lambda: wanted <= set(found) or found.extend(bodies(again.queue(letters.name), 1)), 60)
    with warren.open(server.directory.parent / "own", idle_exit=0.5, workers=1) as own:
        own.queue("work", dead_letter_exchange="nowhere").put(b"x")
        own.queue("work", create=False).get(10).reject()
        pid = own.ping()["pid"]
        wait_until(lambda: any("'nowhere'" in line for line in own.status()["messages"]), 20)
        assert own.status()["live_clients"] == 1, "a forwarder is no client for people"
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), 30, what="the end of a node without clients")
