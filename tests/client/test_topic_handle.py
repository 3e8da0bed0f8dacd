"""Goal: what a program says of a message is in the command as the topic worker reads it; where the worker says that
messages lie is what the program is told; what is wrong is refused before anything is sent.

Method: the client's core with a server driven by hand (support/fake_server.py), whose last worker is the topic worker.
"""

import array
import gc
import itertools
import pickle
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest

from warren.engine import _core
from warren.engine.errors import (
    LimitError,
    MessageTooLarge,
    PeerLost,
    StoreError,
    SyncFailed,
    TimedOut,
    TopicNotFound,
    UsageError,
)
from warren.engine.kernel.protocol import PROTOCOL
from warren.engine.topics import records
from warren.engine.topics.formats import PROPERTIES_BYTES_MAX
from warren.ipc.layout import COMMAND

from support.fake_server import FakeNode

SERVER, TOPIC, NAME, QUEUES = 3, 70, "flights", 5
HOST = bytes([10, 0, 0, 1, 0, 0, 0, 7])
NONE, WRITTEN, SYNCED = _core.LEVEL_NONE, _core.LEVEL_WRITTEN, _core.LEVEL_SYNCED
Handle = Any


class Worker:
    """A topic worker by hand: a log of its own, in which it counts."""

    def __init__(self, node: FakeNode) -> None:
        self.node = node
        self.next = 0
        self.log = 1000
        self.offsets = [0] * QUEUES
        self.said: list[dict[str, Any]] = []

    def records(self, command: dict[str, Any]) -> list[tuple[bytes, bytes]]:
        """Properties and body of each record of a command."""
        blob = command["blob"]
        if command["op"] == PROTOCOL["OP_APPEND"]:
            return [(blob[: command["meta_length"]], blob[command["meta_length"] :])]
        assert command["op"] == PROTOCOL["OP_APPEND_MANY"]
        found, at = [], 8 * command["count"]
        for body, told in struct.iter_unpack("<II", blob[:at]):
            found.append((blob[at : at + told], blob[at + told : at + told + body]))
            at += told + body
        assert at == len(blob)
        return found

    def answer(self, result: str = "OK", upto: int | None = None) -> None:
        """Answer what was submitted since, as appended."""
        for command in self.node.commands(SERVER, self.next)[: None if upto is None else upto - self.next]:
            parts = self.records(command)
            place = struct.pack("<QQ", self.offsets[command["row"]], self.log)
            at = self.node.record_at(SERVER, self.next)
            COMMAND.set_bytes(self.node.region, "id", place, at)
            COMMAND.pack_into(self.node.region, "result", PROTOCOL[f"RESULT_{result}"], at)
            self.offsets[command["row"]] += len(parts)
            self.log += sum(size_of(told, body) for told, body in parts)
            self.said.append({**command, "records": parts})
            self.next += 1
        self.node.set_link(SERVER, "processed", self.next)

    def confirm(self) -> None:
        """All of it is on stable storage."""
        self.answer()
        self.node.finish(SERVER, self.next)


def size_of(told: bytes, body: bytes) -> int:
    """Bytes of its record."""
    properties = _core.properties_decode(told)
    return len(records.encode(records.Record(topic=NAME, body=body, properties=properties)))


@pytest.fixture
def node() -> FakeNode:
    return FakeNode()


@pytest.fixture
def worker(node: FakeNode) -> Worker:
    return Worker(node)


@pytest.fixture
def handle(node: FakeNode) -> Handle:
    return _core.TopicHandle(node.client, SERVER, TOPIC, len(NAME), QUEUES, HOST, 262_144, 0)


def later(handle: Handle, body: Any = b"x", level: int = SYNCED, **told: Any) -> Any:
    """Append one, without waiting for anything."""
    values = [told.get(name) for name in ("key", "tag", "properties", "queue", "born", "later")]
    return handle.append(body, *values, level, 0.0, False)


def many(handle: Handle, bodies: Any, level: int = SYNCED, **told: Any) -> Any:
    """Append many, the same."""
    values = [told.get(name) for name in ("keys", "tags", "properties", "queues", "born", "later")]
    return handle.append_many(bodies, *values, level, 0.0, False)


def java_hash(text: str) -> int:
    """Java's String.hashCode, from its documentation."""
    units = struct.unpack(f">{len(text.encode('utf-16-be')) // 2}H", text.encode("utf-16-be"))
    h = 0
    for unit in units:
        h = (31 * h + unit) & 0xFFFFFFFF
    return h - (1 << 32) if h >> 31 else h


# ---- one message ----------------------------------------------------------------------------------------------------


def test_a_message_is_in_its_command_as_it_was_told(worker: Worker, handle: Handle) -> None:
    confirm = later(
        handle, b"body", key=["k", "ø"], tag="T", properties={"origin": "EWR", "empty": ""}, queue=3, born=5
    )
    assert not confirm.done()
    worker.confirm()
    (said,) = worker.said
    assert (said["queue"], said["row"], said["tag"], said["flags"]) == (TOPIC, 3, 5, PROTOCOL["FLAG_SYNCED"])
    ((told, body),) = said["records"]
    assert body == b"body"
    assert _core.properties_decode(told) == {"KEYS": "k ø", "TAGS": "T", "origin": "EWR", "empty": ""}
    position = confirm.result()
    assert (position.queue, position.offset, position.physical_offset) == (3, 0, 1000)
    assert position.message_id == records.message_id(records.Host("10.0.0.1", 7), 1000)
    assert (confirm.wait(), confirm.exception(), confirm.duplicate) == (None, None, False)
    assert confirm.result() == confirm.future().result(5) == position


def test_a_plain_one_is_born_now_and_has_no_properties(worker: Worker, handle: Handle) -> None:
    before = int(time.time() * 1000)
    later(handle, memoryview(b"x" * 3), level=WRITTEN)
    worker.confirm()
    (said,) = worker.said
    assert before <= said["tag"] <= int(time.time() * 1000)
    assert (said["records"], said["flags"]) == ([(b"", b"xxx")], PROTOCOL["FLAG_WRITTEN"])


@pytest.mark.parametrize("key", ["N14228", "polygenelubricants", "ø", "𝄞", "a" * 5000, *"abcdefghijklm"])
def test_a_key_leads_to_the_queue_that_rocketmq_chooses(worker: Worker, handle: Handle, key: str) -> None:
    later(handle, key=key)
    later(handle, key=[key, "other"])
    worker.confirm()
    wanted = abs(java_hash(key)) % QUEUES
    assert [said["row"] for said in worker.said] == [wanted, wanted]
    assert handle.queue_of(key) == handle.queue_of((key, "other")) == wanted


def test_without_a_key_the_queues_take_turns(node: FakeNode, worker: Worker, handle: Handle) -> None:
    for _ in range(2 * QUEUES):
        later(handle)
    worker.confirm()
    rows = [said["row"] for said in worker.said]
    assert sorted(rows[:QUEUES]) == list(range(QUEUES))
    assert rows[:QUEUES] == rows[QUEUES:]
    other = _core.TopicHandle(node.client, SERVER, TOPIC, len(NAME), QUEUES, HOST, 262_144, 0)
    assert other.turn() != _core.TopicHandle(node.client, SERVER, TOPIC, len(NAME), QUEUES, HOST, 262_144, 0).turn()


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"key": ""}, UsageError, "key must not be empty"),
    ({"key": 5}, UsageError, "a str, or a list of str, not 5"),
    ({"key": ["a", None]}, UsageError, "a key must be a str, not None"),
    ({"key": "a b"}, UsageError, "space"),
    ({"key": "a\x01"}, UsageError, "put it into the body"),
    ({"key": "\ud800"}, UsageError, "surrogates"),
    ({"key": "k" * PROPERTIES_BYTES_MAX}, MessageTooLarge, "put more into the body"),
    ({"tag": ""}, UsageError, "tag must not be empty"),
    ({"tag": b"x"}, UsageError, "tag must be a str"),
    ({"tag": "a\x02b"}, UsageError, "put it into the body"),
    ({"properties": {"a": 1}}, UsageError, "value of a property must be a str, not 1"),
    ({"properties": {1: "a"}}, UsageError, "name of a property must be a str"),
    ({"properties": {"": "a"}}, UsageError, "must not be empty"),
    ({"properties": {"a\x00": "a"}}, UsageError, "put it into the body"),
    ({"properties": {"a": "x\x01"}}, UsageError, "'a' and its value"),
    ({"properties": {"KEYS": "a"}}, UsageError, "give them as key"),
    ({"properties": {"TAGS": "a"}}, UsageError, "give it as tag"),
    ({"properties": {"DELAY": "3"}}, UsageError, "another name"),
    ({"properties": {"a": "x" * PROPERTIES_BYTES_MAX}}, MessageTooLarge, "put more into the body"),
    ({"properties": "a"}, UsageError, "mapping"),
    ({"queue": QUEUES}, UsageError, "a number from 0 to 4, not 5"),
    ({"queue": -1}, UsageError, "not -1"),
    ({"queue": True}, UsageError, "not True"),
    ({"queue": "1"}, UsageError, "not '1'"),
    ({"queue": 1 << 70}, UsageError, "a number from 0 to 4"),
    ({"body": "text"}, UsageError, "a body is bytes"),
    ({"body": bytes(20_001)}, MessageTooLarge, "message_bytes_max"),
    ({"body": bytes(19_990), "tag": "a long one"}, MessageTooLarge, "message_bytes_max"),
]


@pytest.mark.parametrize(("told", "error", "says"), BAD)
def test_what_is_wrong_is_refused_before_it_is_sent(
    node: FakeNode, handle: Handle, told: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        later(handle, **told)
    names = {"key": "keys", "tag": "tags", "queue": "queues"}
    body = told.pop("body", b"x")
    with pytest.raises(error, match=rf"message 1 of 2: .*{says}"):
        many(handle, [b"good", body], **{names.get(name, name): [None, value] for name, value in told.items()})
    lists = [[None, told.get(name)] for name in ("key", "tag", "properties", "queue")]
    with pytest.raises(error, match=says):
        handle.check_many([b"good", body], *lists, None, None)
    assert node.ops(SERVER) == []


def test_the_answer_of_the_worker_may_be_no(node: FakeNode, worker: Worker, handle: Handle) -> None:
    confirms = []
    for result in ("NO", "REFUSED", "ERROR"):
        confirms.append(later(handle))
        worker.answer(result)
    node.finish(SERVER)
    with pytest.raises(TopicNotFound, match="the topic was deleted"):
        confirms[0].result()
    with pytest.raises(MessageTooLarge, match="topic_ring_bytes"):
        confirms[1].result()
    with pytest.raises(StoreError, match="topic worker"):
        confirms[2].result()
    assert isinstance(confirms[2].exception(), StoreError)
    node.set_server(SERVER, "error", 5)
    node.raising[_core.HOOK_FROZEN] = SyncFailed("the log failed")
    with pytest.raises(SyncFailed):
        confirms[2].wait()
    batch = many(handle, [b"a", b"b"])
    worker.answer("NO")
    node.finish(SERVER)
    with pytest.raises(TopicNotFound):
        batch.result()


def test_what_it_raises_names_the_topic(node: FakeNode, worker: Worker, handle: Handle) -> None:
    handle.tell("flights", 1000, "topic_ring_bytes = 7: split it")
    confirm, batch = later(handle), many(handle, [b"a", b"b"])
    worker.answer("NO")
    node.finish(SERVER)
    for one in (confirm, batch):
        with pytest.raises(TopicNotFound, match=r"^topic 'flights' was deleted: declare it again"):
            one.result()
    sent = len(node.ops(SERVER))
    says = "topic 'flights': the message takes 1,?[0-9]{3} bytes in the log, which takes 1000 at most, by the setting "
    with pytest.raises(MessageTooLarge, match=f"^{says}topic_ring_bytes = 7: split it"):
        later(handle, body=bytes(1000))
    with pytest.raises(MessageTooLarge, match=f"message 1 of 2: {says}"):
        many(handle, [b"a", bytes(1000)])
    assert len(node.ops(SERVER)) == sent, "nothing was sent"


def test_with_durability_none_the_answer_is_there_before_it_is_written(
    node: FakeNode, worker: Worker, handle: Handle
) -> None:
    first, second = later(handle, level=NONE, queue=0), later(handle, level=NONE, queue=0)
    worker.answer()
    assert first.result(0).offset == 0
    with pytest.raises(TimedOut):
        later(handle, level=WRITTEN).result(0)
    worker.next, worker.offsets = 0, [10] * QUEUES  # its successor appends in another order
    worker.confirm()
    assert (first.result(0).offset, second.result(0).offset) == (0, 11)


# ---- answers --------------------------------------------------------------------------------------------------------


def submitted(worker: Worker, append: Callable[[], Any]) -> Any:
    """What a call returns that may have to wait for room, which the worker makes."""
    try:
        return append()
    except TimedOut:
        worker.confirm()
        return append()


def test_answers_of_a_hundred_thousand_are_kept(node: FakeNode, worker: Worker, handle: Handle) -> None:
    confirms = [submitted(worker, lambda: later(handle, level=WRITTEN)) for _ in range(100_000)]
    worker.confirm()
    found: dict[int, list[int]] = {}
    for confirm in confirms:
        position = confirm.result(0)
        found.setdefault(position.queue, []).append(position.offset)
    assert sum(map(len, found.values())) == 100_000
    assert len(found) == QUEUES
    assert all(offsets == list(range(len(offsets))) for offsets in found.values())
    physical = [confirm.result(0).physical_offset for confirm in confirms]
    assert physical == list(range(1000, 1000 + 100_000 * size_of(b"", b"x"), size_of(b"", b"x")))
    assert node.trouble[-1][0] == _core.HOOK_TIMED_OUT


def test_who_drops_a_confirm_leaves_nothing(worker: Worker, handle: Handle) -> None:
    kept = []
    for number in range(1000):
        confirm = submitted(worker, lambda: many(handle, [b"a", b"b"], queues=1))
        if number % 100 == 0:
            kept.append(confirm)
        del confirm
    gc.collect()
    worker.confirm()
    assert [[position.offset for position in confirm.result(0)] for confirm in kept] == [
        [200 * number, 200 * number + 1] for number in range(10)
    ]


def test_the_end_of_the_attachment(node: FakeNode, worker: Worker, handle: Handle) -> None:
    done, accepted = later(handle, queue=2), later(handle, level=NONE, queue=2)
    worker.answer()
    node.set_link(SERVER, "synced", 1)
    node.set_link(SERVER, "written", 1)
    under_way = later(handle, level=NONE)
    batch = many(handle, [b"a"] * 10)
    node.client.end(None)
    assert (done.result().offset, accepted.result().offset) == (0, 1)
    for lost in (under_way, batch):
        with pytest.raises(PeerLost, match="may or may not"):
            lost.result()
    with pytest.raises(_core.AttachmentLost):
        later(handle)
    with pytest.raises(_core.AttachmentLost):
        many(handle, [b"a"])
    del under_way, batch, done
    gc.collect()


def test_a_handle_is_good_for_one_version_of_the_catalog(node: FakeNode, handle: Handle) -> None:
    node.set_node("catalog_version", 8)
    for call in (lambda: later(handle), lambda: many(handle, [b"x"]), handle.turn, lambda: handle.queue_of("k")):
        with pytest.raises(_core.AttachmentLost, match="catalog"):
            call()
    node.client.catalog_seen = 8
    with pytest.raises(_core.AttachmentLost, match="catalog"):
        later(handle)
    assert node.ops(SERVER) == []
    later(_core.TopicHandle(node.client, SERVER, TOPIC, len(NAME), QUEUES, HOST, 262_144, 8))
    assert len(node.ops(SERVER)) == 1


def test_a_body_whose_memory_ends_the_client_harms_nobody(node: FakeNode, handle: Handle) -> None:
    class Ends:
        def __index__(self) -> int:
            node.client.end(None)
            return 0

    with pytest.raises(_core.AttachmentLost):
        later(handle, queue=Ends())

    fresh = FakeNode()
    other = _core.TopicHandle(fresh.client, SERVER, TOPIC, len(NAME), QUEUES, HOST, 262_144, 0)

    def ending() -> Any:
        yield b"a"
        fresh.client.end(None)

    with pytest.raises(_core.AttachmentLost):
        many(other, ending())
    assert fresh.ops(SERVER) == []


# ---- batches --------------------------------------------------------------------------------------------------------


def test_a_batch_is_one_command_of_one_queue(worker: Worker, handle: Handle) -> None:
    bodies = [bytes(10 * number) for number in range(30)]
    confirm = many(handle, iter(bodies), tags="T", properties={"a": "b"}, born=9)
    worker.confirm()
    (said,) = worker.said
    told = b"TAGS\x01T\x02a\x01b\x02"
    assert (said["count"], said["tag"], said["records"]) == (30, 9, [(told, body) for body in bodies])
    positions = confirm.result()
    assert {position.queue for position in positions} == {said["row"]}
    assert [position.offset for position in positions] == list(range(30))
    at = 1000
    for position, body in zip(positions, bodies, strict=True):
        assert position.physical_offset == at
        at += size_of(told, body)
    assert many(handle, []).result() == []


def test_batches_take_turns_and_keys_lead_to_their_queues_in_order(worker: Worker, handle: Handle) -> None:
    plain = [many(handle, [b"a", b"b"]) for _ in range(QUEUES)]
    one_key = many(handle, [b"a", b"b"], keys="k")
    keys = [f"k{number % 17}" for number in range(1000)]
    keyed = many(handle, [b"%d" % number for number in range(1000)], keys=keys)
    worker.confirm()
    assert {confirm.result()[0].queue for confirm in plain} == set(range(QUEUES))
    assert [position.queue for position in one_key.result()] == [handle.queue_of("k")] * 2
    offsets: dict[int, list[int]] = {}
    positions = keyed.result()
    for key, position in zip(keys, positions, strict=True):
        assert position.queue == handle.queue_of(key)
        offsets.setdefault(position.queue, []).append(position.offset)
    for found in offsets.values():
        assert found == list(range(found[0], found[0] + len(found)))
    sent = [(said["row"], body) for said in worker.said[QUEUES + 1 :] for _told, body in said["records"]]
    assert len(worker.said) == QUEUES + 1 + len(offsets)
    for queue in offsets:
        wanted = [b"%d" % number for number, position in enumerate(positions) if position.queue == queue]
        assert [body for row, body in sent if row == queue] == wanted
    log = {}
    position_of = dict(zip((b"%d" % n for n in range(1000)), positions, strict=True))
    start = min(position.physical_offset for position in positions)
    for said in worker.said[QUEUES + 1 :]:
        for told, body in said["records"]:
            log[body] = start
            start += size_of(told, body)
    assert {body: position.physical_offset for body, position in position_of.items()} == log


def test_what_is_too_much_for_one_command_goes_in_several(handle: Handle) -> None:
    node = FakeNode(arena_bytes=1 << 22, message_bytes_max=1 << 20)
    worker = Worker(node)
    handle = _core.TopicHandle(node.client, SERVER, TOPIC, len(NAME), QUEUES, HOST, 262_144, 0)
    count = many(handle, [b""] * 5000, queues=1)
    large = many(handle, [bytes(100_000)] * 6 + [bytes(1_000_000), b"x"], queues=2)
    times = many(handle, [b"a"] * 6, queues=3, born=[1, 1, 2, 2, None, None])
    worker.confirm()
    by_queue = {queue: [len(said["records"]) for said in worker.said if said["row"] == queue] for queue in (1, 2, 3)}
    assert sum(by_queue[1]) == 5000
    assert max(by_queue[1]) <= 4096
    assert len(by_queue[1]) <= 3
    assert by_queue[2] == [2, 2, 2, 1, 1]
    assert by_queue[3] == [2, 2, 2]
    assert [position.offset for position in count.result()] == list(range(5000))
    assert [position.offset for position in large.result()] == list(range(8))
    assert [said["tag"] for said in worker.said if said["row"] == 3][:2] == [1, 2]
    assert [position.offset for position in times.result()] == list(range(6))
    at = [position.physical_offset for position in large.result()]
    assert [after - before for before, after in itertools.pairwise(at)] == [
        *[size_of(b"", bytes(100_000))] * 6,
        size_of(b"", bytes(1_000_000)),
    ]


def test_in_a_small_arena_too(node: FakeNode, worker: Worker, handle: Handle) -> None:
    """With an arena of 64 KiB, no command has more than the half of it; who does not wait for room is told so."""
    with pytest.raises(TimedOut):
        many(handle, [bytes(1000)] * 200, queues=0)
    worker.confirm()
    assert all(len(said["blob"]) <= 32768 for said in worker.said)
    sent = sum(len(said["records"]) for said in worker.said)
    assert 0 < sent < 200
    wide = FakeNode(message_bytes_max=60_000)
    with pytest.raises(LimitError, match="arena"):
        later(_core.TopicHandle(wide.client, SERVER, TOPIC, len(NAME), QUEUES, HOST, 262_144, 0), bytes(50_000))


def test_bodies_of_any_kind(worker: Worker, handle: Handle) -> None:
    column = array.array("d", [1.5, 2.5])
    confirm = many(
        handle, (b"a", bytearray(b"bc"), memoryview(b"defg")[1:3], column), keys=[None, "k", ["l", "m"], ()], queues=0
    )
    worker.confirm()
    assert [body for _told, body in worker.said[0]["records"]] == [b"a", b"bc", b"ef", column.tobytes()]
    assert [_core.properties_decode(told).get("KEYS") for told, _body in worker.said[0]["records"]] == [
        None,
        "k",
        "l m",
        None,
    ]
    assert len(confirm.result()) == 4
    column.append(1.0)  # nobody holds it any more


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"keys": ["a"]}, "keys: 1 for 2"),
        ({"tags": ("a", "b", "c")}, "tags: 3 for 2"),
        ({"properties": []}, "properties: 0 for 2"),
        ({"queues": [1]}, "queue: 1 for 2"),
        ({"born": [1]}, "born: 1 for 2"),
    ],
)
def test_lists_have_one_for_each(node: FakeNode, handle: Handle, given: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        many(handle, [b"a", b"b"], **given)
    with pytest.raises(UsageError, match="bodies must be a list"):
        many(handle, 5)
    assert node.ops(SERVER) == []


# ---- positions ------------------------------------------------------------------------------------------------------


def test_a_position_is_a_value(worker: Worker, handle: Handle) -> None:
    first, second = later(handle, queue=1), later(handle, queue=1)
    worker.confirm()
    one, two = first.result(), second.result()
    assert one == first.result()
    assert one != two
    assert len({one, two, first.result()}) == 2
    assert repr(one) == "Position(queue=1, offset=0, physical_offset=1000)"
    assert pickle.loads(pickle.dumps(one)) == one
    assert _core.Position(1, 0, 1000, one.message_id) == one
    assert one != (1, 0, 1000)
    for wrong in ((1, 0, 1001, one.message_id), (1, 0, 1000, "x"), (-1, 0, 1000, one.message_id)):
        with pytest.raises((ValueError, OverflowError)):
            _core.Position(*wrong)
    with pytest.raises(AttributeError):
        one.offset = 5  # type: ignore[misc]
