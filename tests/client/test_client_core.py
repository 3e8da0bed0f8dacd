"""Goal: the client's core says and takes what the link protocol wants. Method: the server is played by hand."""

import os
import struct
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from warren.engine import _core
from warren.engine.errors import (
    ClosedError,
    LimitError,
    MessageTooLarge,
    PeerLost,
    StoreError,
    SyncFailed,
    TimedOut,
    UsageError,
)
from warren.engine.kernel.protocol import DELIVERY, PROTOCOL
from warren.ipc.layout import CONSTANTS, QUEUE_GONE_ROWS, SERVER_STORE_PERSISTENT, SERVER_STORE_TRANSIENT

from support.fake_server import WORKER, FakeNode
from support.waiting import wait_until

OP = {name.removeprefix("OP_"): value for name, value in PROTOCOL.items() if name.startswith("OP_")}
FLAG = {name.removeprefix("FLAG_"): value for name, value in PROTOCOL.items() if name.startswith("FLAG_")}
NONE, WRITTEN, SYNCED = _core.LEVEL_NONE, _core.LEVEL_WRITTEN, _core.LEVEL_SYNCED
QUEUE = 17
UNSEEN = FLAG["REQUEUE"] | FLAG["UNSEEN"]


@pytest.fixture
def node() -> FakeNode:
    return FakeNode()


@pytest.fixture
def handle(node: FakeNode) -> _core.QueueHandle:
    return _core.QueueHandle(node.client, WORKER, QUEUE, SimpleNamespace(name="orders"), _core.Delivery)


def in_thread(call: Any) -> tuple[threading.Thread, list[Any]]:
    """Run a call in a thread; the list gets its result or its exception."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(call())
        except Exception as error:  # noqa: BLE001 - handed to the test
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


# ---- publish ---------------------------------------------------------------------------------------------------------


def test_a_publish_record(node: FakeNode, handle: _core.QueueHandle) -> None:
    handle.put(b"body", SYNCED, b"meta", None, False)
    handle.put(b"second", NONE, None, None, False)
    first, second = node.commands(WORKER)
    assert (first["op"], first["queue"], first["blob"]) == (OP["PUBLISH"], QUEUE, b"metabody")
    assert first["flags"] == FLAG["PERSISTENT"] | FLAG["SYNCED"]
    assert (first["meta_length"], second["meta_length"]) == (4, 0)
    assert second["flags"] == FLAG["PERSISTENT"]
    assert first["id"] == (0xABCD).to_bytes(8, "big") + (1).to_bytes(8, "big")
    assert second["id"] == (0xABCD).to_bytes(8, "big") + (2).to_bytes(8, "big")


@pytest.mark.parametrize("queues", [[QUEUE], [3, 4, 5]])
def test_a_batch_has_the_records_of_single_publishes(node: FakeNode, queues: list[int]) -> None:
    """Runs of plain bytes are prepared together, with what stands between them alone; neither shows in the ring."""
    lengths = [0, 1, 7, 8, 9, 300, 4096]
    bodies = [bytes([n % 251]) * lengths[n % len(lengths)] for n in range(50)]
    bodies[40] = bytearray(bodies[40])  # type: ignore[call-overload]
    route = _core.Route([(WORKER, queues)])
    node.client.publish_many(route, bodies, SYNCED, b"meta", None, False, (7, 9, None, True))
    found = node.commands(WORKER)
    routes = struct.pack("<3I", *queues) if len(queues) > 1 else b""
    assert [item["blob"] for item in found] == [routes + b"meta" + bytes(body) for body in bodies]
    assert [item["id"] for item in found] == [
        (0xABCD).to_bytes(8, "big") + n.to_bytes(8, "big") for n in range(1, len(bodies) + 1)
    ]
    for item in found:
        assert item["op"] == OP["PUBLISH"]
        assert item["flags"] == FLAG["PERSISTENT"] | FLAG["SYNCED"] | (FLAG["ROUTES"] if routes else 0)
        assert item["queue"] == (3 if routes else QUEUE)
        assert (item["count"], item["tag"], item["meta_length"]) == (7, 9, 4)
        assert item["body"] % 8 == 0


def test_a_route_to_many_queues_of_two_workers(node: FakeNode) -> None:
    """One blob serves the worker with many queues and the one with a single queue."""
    route = _core.Route([(WORKER + 1, [9]), (WORKER, [3, 4, 5])])
    node.client.publish(route, b"body", WRITTEN, b"m", None, False)
    (many,), (one,) = node.commands(WORKER), node.commands(WORKER + 1)
    assert many["flags"] & FLAG["ROUTES"]
    assert many["queue"] == 3
    assert many["blob"] == struct.pack("<3I", 3, 4, 5) + b"mbody"
    assert not one["flags"] & FLAG["ROUTES"]
    assert (one["queue"], one["blob"]) == (9, b"mbody")
    assert one["body"] == many["body"] + 12, "the same bytes"
    assert one["id"] == many["id"]


def test_a_route_with_many_queues_at_both_workers(node: FakeNode) -> None:
    route = _core.Route([(WORKER + 1, [9, 10]), (WORKER, [3, 4])])
    node.client.publish(route, b"body", NONE, None, None, False)
    (a,), (b,) = node.commands(WORKER), node.commands(WORKER + 1)
    assert a["blob"] == struct.pack("<2I", 3, 4) + b"body"
    assert b["blob"] == struct.pack("<2I", 9, 10) + b"body"


def test_levels_wait_for_their_horizon(node: FakeNode, handle: _core.QueueHandle) -> None:
    confirms = [handle.put(b"x", level, None, None, False) for level in (NONE, WRITTEN, SYNCED)]
    assert [confirm is not None and confirm.done() for confirm in confirms] == [False] * 3
    node.set_link(WORKER, "processed", 3)
    assert [confirm is not None and confirm.done() for confirm in confirms] == [True, False, False]
    node.set_link(WORKER, "written", 3)
    assert [confirm is not None and confirm.done() for confirm in confirms] == [True, True, False]
    thread, outcome = in_thread(lambda: confirms[2].result(timeout=10))  # type: ignore[union-attr]
    node.set_link(WORKER, "synced", 3)
    thread.join(10)
    assert outcome == [None]


def test_a_confirm_of_two_workers_needs_both(node: FakeNode) -> None:
    route = _core.Route([(WORKER, [1]), (WORKER + 1, [2])])
    confirm = node.client.publish(route, b"x", NONE, None, None, False)
    node.finish(WORKER)
    assert not confirm.done()
    node.finish(WORKER + 1)
    assert confirm.done()


def test_a_full_ring_waits_and_goes_on(node: FakeNode, handle: _core.QueueHandle) -> None:
    node.raising[_core.HOOK_TIMED_OUT] = TimedOut("told")
    for _ in range(64):
        handle.put(b"x", NONE, None, None, False)
    with pytest.raises(TimedOut, match="told"):
        handle.put(b"x", NONE, None, 0.01, False)
    assert node.trouble[-1] == (_core.HOOK_TIMED_OUT, WORKER, "room for the message")
    thread, outcome = in_thread(lambda: handle.put_many([b"%d" % n for n in range(100)], NONE, None, 10.0, False))
    for upto in range(64, 165, 10):
        wait_until(lambda upto=upto: node.link(WORKER, "tail") >= upto)  # type: ignore[misc]
        node.finish(WORKER, upto)
    node.finish(WORKER)
    thread.join(10)
    assert isinstance(outcome[0], _core.Confirm)
    assert node.link(WORKER, "tail") == 164


def test_a_full_arena_waits_and_goes_on(node: FakeNode, handle: _core.QueueHandle) -> None:
    node.raising[_core.HOOK_TIMED_OUT] = TimedOut("told")
    for _ in range(3):
        handle.put(bytes(20_000), NONE, None, None, False)
    with pytest.raises(TimedOut):
        handle.put(bytes(20_000), NONE, None, 0.01, False)
    node.finish(WORKER, 1)
    handle.put(b"y" * 20_000, NONE, None, 1.0, False)
    assert node.commands(WORKER)[-1]["blob"] == b"y" * 20_000
    assert [record["blob"] for record in node.commands(WORKER)[1:3]] == [bytes(20_000)] * 2, "not overwritten"


def test_blobs_survive_many_rounds_of_the_arena(node: FakeNode, handle: _core.QueueHandle) -> None:
    for n in range(500):
        body = bytes([n % 256]) * (n * 37 % 20_000)
        handle.put(body, NONE, None, 1.0, False)
        assert node.commands(WORKER, n)[0]["blob"] == body
        node.finish(WORKER, n)


def test_refusals_send_nothing(node: FakeNode, handle: _core.QueueHandle) -> None:
    with pytest.raises(MessageTooLarge):
        handle.put(bytes(20_001), NONE, None, None, False)
    with pytest.raises(MessageTooLarge):
        handle.put(bytes(19_999), NONE, b"mm", None, False)
    with pytest.raises(UsageError):
        handle.put_many([b"a", "b"], NONE, None, None, False)  # type: ignore[list-item]
    with pytest.raises(UsageError):
        handle.put_many([b"a", b"b"], NONE, [None], None, False)
    with pytest.raises(ValueError, match="level"):
        handle.put(b"", 3, None, None, False)
    for targets in ([(99, [1])], [(WORKER, [])], [(WORKER, list(range(2000)))]):
        with pytest.raises((ValueError, LimitError)):
            _core.Route(targets)
    with pytest.raises(UsageError):
        node.client.publish(_core.Route([(31, [1])]), b"x", NONE, None, None, False)
    assert node.link(WORKER, "tail") == 0


def test_a_dropped_message_is_told(node: FakeNode, handle: _core.QueueHandle) -> None:
    thread, outcome = in_thread(lambda: handle.put(b"x", NONE, None, 10.0, True))
    wait_until(lambda: node.link(WORKER, "tail") == 1)
    node.result(WORKER, 0, PROTOCOL["RESULT_NO"])
    node.finish(WORKER)
    thread.join(10)
    assert type(outcome[0]).__name__ == "QueueNotFound"


@pytest.mark.parametrize("failed", [SERVER_STORE_PERSISTENT, SERVER_STORE_TRANSIENT, WORKER])
def test_a_message_that_a_failed_disk_refused_is_told_with_its_cause(
    node: FakeNode, handle: _core.QueueHandle, failed: int
) -> None:
    node.raising[_core.HOOK_FROZEN] = SyncFailed("the disk")
    confirm = handle.put(b"x", NONE, None, None, False)
    assert confirm is not None
    node.result(WORKER, 0, PROTOCOL["RESULT_ERROR"])
    node.finish(WORKER)
    node.set_server(failed, "error", 5)
    with pytest.raises(SyncFailed, match="the disk"):
        confirm.result(10.0)
    assert node.trouble[-1][:2] == (_core.HOOK_FROZEN, failed)


def test_a_message_that_was_not_taken_without_a_failed_disk(node: FakeNode, handle: _core.QueueHandle) -> None:
    confirm = handle.put(b"x", NONE, None, None, False)
    assert confirm is not None
    node.result(WORKER, 0, PROTOCOL["RESULT_ERROR"])
    node.finish(WORKER)
    with pytest.raises(StoreError, match="could not take the message"):
        confirm.result(10.0)


def test_alarms_block(node: FakeNode, handle: _core.QueueHandle) -> None:
    node.raising[_core.HOOK_TIMED_OUT] = TimedOut("alarm")
    node.set_node("alarms", CONSTANTS["ALARM_DISK"])
    with pytest.raises(TimedOut, match="alarm"):
        handle.put(b"x", NONE, None, 0.01, False)
    thread, outcome = in_thread(lambda: handle.put(b"x", NONE, None, 10.0, False))
    node.set_node("alarms", CONSTANTS["ALARM_SYNC_FAILED"])
    thread.join(10)
    assert isinstance(outcome[0], _core.Confirm), "only memory and disk block"


def test_a_catalog_is_read_for_routes_and_when_the_queue_of_a_handle_may_be_gone(
    node: FakeNode, handle: _core.QueueHandle
) -> None:
    node.set_node("catalog_version", 5)
    with pytest.raises(_core.AttachmentLost):
        node.client.publish(_core.Route([(WORKER, [1])]), b"x", NONE, None, None, False)
    assert [code for code, _server, _what in node.trouble] == [_core.HOOK_CATALOG]
    node.set_node("catalog_version", 6)
    handle.put(b"x", NONE, None, None, False)
    node.queue_gone(handle.queue + 1, 6)
    assert not handle.perhaps_gone
    handle.put(b"x", NONE, None, None, False)
    assert [code for code, _server, _what in node.trouble] == [_core.HOOK_CATALOG], "of other queues it tells others"
    for put in (handle.put, lambda *rest: handle.put_many([rest[0]], *rest[1:])):
        node.trouble.clear()
        node.client.catalog_seen = 5
        node.queue_gone(handle.queue + QUEUE_GONE_ROWS, 6)
        assert handle.perhaps_gone
        put(b"x", NONE, None, None, False)
        assert [code for code, _server, _what in node.trouble] == [_core.HOOK_CATALOG]
        assert not handle.perhaps_gone
    node.client.catalog_seen = (1 << 64) - 1
    assert handle.perhaps_gone, "this attachment has read none"
    node.client.catalog_seen = 6
    handle.kill("deleted")
    with pytest.raises(_core.AttachmentLost, match="deleted"):
        handle.put(b"x", NONE, None, None, False)
    assert node.link(WORKER, "tail") == 4


def test_who_waits_has_the_catalog_read_when_its_queue_may_be_gone(node: FakeNode, handle: _core.QueueHandle) -> None:
    node.raising[_core.HOOK_CATALOG] = _core.AttachmentLost("deleted")
    thread, outcome = start_get(node, handle)
    node.set_node("catalog_version", 7)
    node.queue_gone(handle.queue, 7)
    thread.join(10)
    assert isinstance(outcome[0], _core.AttachmentLost)
    assert (_core.HOOK_CATALOG, 0, "") in node.trouble


# ---- consume ---------------------------------------------------------------------------------------------------------


def credits_of(node: FakeNode) -> list[tuple[int, int, int]]:
    return [(r["tag"], r["count"], r["body"]) for r in node.commands(WORKER) if r["op"] == OP["CREDIT"]]


def start_get(node: FakeNode, handle: _core.QueueHandle, timeout: float = 10.0) -> tuple[threading.Thread, list[Any]]:
    before = node.link(WORKER, "tail")
    thread, outcome = in_thread(lambda: handle.get(timeout))
    wait_until(lambda: node.link(WORKER, "tail") > before)
    return thread, outcome


def test_a_first_get_asks_for_one(node: FakeNode, handle: _core.QueueHandle) -> None:
    thread, outcome = start_get(node, handle)
    assert credits_of(node) == [(1, 0, node.link(WORKER, "server_epoch"))]
    node.deliver(WORKER, QUEUE, 40, b"body", meta=b"me", flags=1, count=2)
    thread.join(10)
    message = outcome[0]
    assert (message.body, message.meta, message.delivery_tag) == (b"body", b"me", 40)
    assert (message.redelivered, message.delivery_count, message.queue.name) == (True, 2, "orders")
    assert message.message_id == (40).to_bytes(16, "big")
    assert node.link(WORKER, "delivery_head") == 1
    assert (handle.unacked, handle.pending) == (1, 0)


def test_no_credit_before_the_worker_has_taken_the_link_up(node: FakeNode, handle: _core.QueueHandle) -> None:
    """Credit is counted under the worker's epoch: one without an epoch would be counted twice."""
    node.set_link(WORKER, "server_epoch", 0)
    thread, outcome = in_thread(lambda: handle.get(10.0))
    wait_until(lambda: node.client.busy == 1)
    assert node.link(WORKER, "tail") == 0
    node.restart(WORKER)
    wait_until(lambda: node.link(WORKER, "tail") == 1)
    assert credits_of(node) == [(1, 0, node.link(WORKER, "server_epoch"))]
    node.deliver(WORKER, QUEUE, 0, b"x")
    thread.join(10)
    assert outcome[0].body == b"x"


def test_a_timeout_cancels_and_looks_once_more(node: FakeNode, handle: _core.QueueHandle) -> None:
    thread, outcome = in_thread(lambda: handle.get(0.01))
    wait_until(lambda: OP["CANCEL"] in node.ops(WORKER) or bool(node.finish(WORKER)))
    node.deliver(WORKER, QUEUE, 0, b"at the last moment")
    node.finish(WORKER)
    thread.join(10)
    assert outcome[0].body == b"at the last moment"
    thread, outcome = in_thread(lambda: handle.get(0.01))
    wait_until(lambda: bool(node.finish(WORKER)) or not thread.is_alive())
    thread.join(10)
    assert outcome == [None]
    assert node.ops(WORKER) == [OP["CREDIT"], OP["CANCEL"]] * 2


def test_a_stale_delivery_is_skipped(node: FakeNode, handle: _core.QueueHandle) -> None:
    thread, outcome = start_get(node, handle)
    gone = node.deliver(WORKER, QUEUE + 1, 7, b"for somebody else")
    node.withdraw(WORKER, gone)
    node.deliver(WORKER, QUEUE, 8, b"mine")
    thread.join(10)
    assert outcome[0].body == b"mine"


def test_a_delivery_that_nobody_wants_is_returned(node: FakeNode, handle: _core.QueueHandle) -> None:
    thread, _outcome = start_get(node, handle)
    node.deliver(WORKER, QUEUE + 1, 7, b"of a queue that is not read any more")
    node.deliver(WORKER, QUEUE, 0, b"x")
    thread.join(10)
    nack = node.commands(WORKER)[-1]
    assert (nack["op"], nack["queue"], nack["tag"]) == (OP["NACK"], QUEUE + 1, 7)
    assert nack["flags"] == UNSEEN


def test_a_hot_loop_asks_ahead_and_says_so(node: FakeNode, handle: _core.QueueHandle) -> None:
    """Calls that follow each other closely get a growing window; somebody is told to look after what then lies here."""
    thread, outcome = start_get(node, handle)
    node.deliver(WORKER, QUEUE, 0, b"x")
    thread.join(10)
    outcome[0].ack()
    numbers = iter(range(1, 10**6))

    def hot() -> bool:
        for _ in range(8):
            node.deliver(WORKER, QUEUE, next(numbers), b"x")
        for _ in range(8):
            message = handle.get(1.0)
            assert message is not None
            message.ack()
            node.finish(WORKER)
        return (_core.HOOK_HOT, QUEUE, "") in node.trouble

    wait_until(hot, 20, what="the loop to be hot")
    limit = credits_of_all(node)[-1]
    assert limit > node.link(WORKER, "delivery_head"), "more was asked for than has come"
    wait_until(lambda: handle.hoard() > 0, what="the loop to be idle")


def credits_of_all(node: FakeNode) -> list[int]:
    """Limits of the credits that are still in the ring."""
    first = max(0, node.link(WORKER, "tail") - node.geometry["ring_records"])
    return [record["tag"] for record in node.commands(WORKER, first) if record["op"] == OP["CREDIT"]]


def test_prefetch_is_announced_and_again_after_a_restart(node: FakeNode, handle: _core.QueueHandle) -> None:
    handle.begin(30)
    thread, outcome = start_get(node, handle)
    first = node.link(WORKER, "server_epoch")
    assert credits_of(node) == [(0, 30, first)]
    node.restart(WORKER)
    wait_until(lambda: len(credits_of(node)) == 2)
    assert credits_of(node)[1] == (0, 30, first + 2)
    node.deliver(WORKER, QUEUE, 0, b"x")
    thread.join(10)
    assert outcome[0].body == b"x"


def test_a_worker_given_twice_leaves_the_count_of_deliveries(node: FakeNode, handle: _core.QueueHandle) -> None:
    """Threads that see a new worker at once all open its regions; what one of them has got since counts on."""
    thread, _outcome = start_get(node, handle)
    node.deliver(WORKER, QUEUE, 0, b"x")
    thread.join(10)
    node.give(WORKER)
    thread, outcome = start_get(node, handle)
    # 3 when the second get came within a millisecond of the first: a hot loop asks for more; 1 would be counted anew
    assert [limit for limit, _most, _epoch in credits_of(node)] in ([1, 2], [1, 3])
    node.deliver(WORKER, QUEUE, 1, b"y")
    thread.join(10)
    assert outcome[0].body == b"y"


def test_a_restart_keeps_what_the_slots_still_say(node: FakeNode, handle: _core.QueueHandle) -> None:
    handle.begin(30)
    thread, _outcome = start_get(node, handle)
    slots = [node.deliver(WORKER, QUEUE, n, b"%d" % n) for n in range(4)]
    thread.join(10)
    wait_until(lambda: handle.pending == 3 or handle.get(0) is not None)
    node.withdraw(WORKER, slots[2])
    node.restart(WORKER)
    found = [handle.get(0.0) for _ in range(2)]
    assert [message and message.body for message in found] == [b"1", b"3"]


def test_release_returns_what_was_not_handed_out(node: FakeNode, handle: _core.QueueHandle) -> None:
    handle.begin(30)
    thread, outcome = start_get(node, handle)
    for n in range(5):
        node.deliver(WORKER, QUEUE, n, b"x")
    thread.join(10)
    assert handle.pending == 4
    first = node.link(WORKER, "tail")
    thread, _ended = in_thread(handle.release)
    wait_until(lambda: bool(node.finish(WORKER)) or not thread.is_alive())
    thread.join(10)
    cancel, nack = node.commands(WORKER, first)
    assert (cancel["op"], nack["op"], nack["flags"], nack["count"]) == (OP["CANCEL"], OP["NACK"], UNSEEN, 4)
    assert struct.unpack("<4Q", nack["blob"]) == (1, 2, 3, 4)
    assert (handle.pending, handle.unacked) == (0, 1)
    outcome[0].ack()


def test_a_get_while_release_waits_keeps_what_lies_here(node: FakeNode, handle: _core.QueueHandle) -> None:
    """Its credit is behind the CANCEL: later messages may be on their way, and what returns now comes after them."""
    thread, _outcome = start_get(node, handle)
    node.deliver(WORKER, QUEUE, 0, b"x")
    thread.join(10)
    releasing, _ended = in_thread(handle.release)
    wait_until(lambda: not handle.quiet)
    getting, outcome = start_get(node, handle)
    assert node.ops(WORKER)[-2:] == [OP["CANCEL"], OP["CREDIT"]]
    for n in (1, 2):
        node.deliver(WORKER, QUEUE, n, b"x")
    getting.join(10)
    assert outcome[0].delivery_tag == 1
    node.finish(WORKER)
    releasing.join(10)
    assert handle.pending == 1  # taken in by the release, if not by the get
    assert OP["NACK"] not in node.ops(WORKER)
    node.deliver(WORKER, QUEUE, 3, b"x")
    assert [handle.get(1.0).delivery_tag for _ in range(2)] == [2, 3]  # type: ignore[union-attr]


def test_release_waits_for_the_cancel_of_another_thread(node: FakeNode, handle: _core.QueueHandle) -> None:
    """Before it is executed the worker may push later messages than those that lie here."""
    assert handle.stop() is None
    thread, _outcome = start_get(node, handle)
    for n in range(3):
        node.deliver(WORKER, QUEUE, n, b"x")
    thread.join(10)
    cancelled = handle.stop()
    assert isinstance(cancelled, int)
    thread, _ended = in_thread(handle.release)
    wait_until(lambda: node.client.busy == 1)
    assert (node.ops(WORKER)[-1], handle.pending) == (OP["CANCEL"], 2)
    node.deliver(WORKER, QUEUE, 3, b"x")
    node.finish(WORKER)
    thread.join(10)
    nack = node.commands(WORKER)[-1]
    assert (nack["op"], nack["flags"]) == (OP["NACK"], UNSEEN)
    assert struct.unpack("<3Q", nack["blob"]) == (1, 2, 3)


def test_a_return_in_parts_begins_with_the_last() -> None:
    """Whoever comes between two parts gets what lies here, and that must be below what was returned."""
    node = FakeNode(delivery_slots=1024)
    handle = _core.QueueHandle(node.client, WORKER, QUEUE, "owner", _core.Delivery)
    thread, _outcome = start_get(node, handle)
    for n in range(701):
        node.deliver(WORKER, QUEUE, n, b"x")
    thread.join(10)
    first = node.link(WORKER, "tail")
    thread, _ended = in_thread(handle.release)
    wait_until(lambda: bool(node.finish(WORKER)) or not thread.is_alive())
    thread.join(10)
    nacks = [record for record in node.commands(WORKER, first) if record["op"] == OP["NACK"]]
    assert [struct.unpack_from("<Q", record["blob"])[0] for record in nacks] == [189, 1]
    assert [record["count"] for record in nacks] == [512, 188]


def test_what_another_consumer_began_is_not_ended(node: FakeNode, handle: _core.QueueHandle) -> None:
    """An iterator that was the last one is left while another thread begins."""
    first = handle.begin(30)
    second = handle.begin(20)
    thread, _outcome = start_get(node, handle)
    node.deliver(WORKER, QUEUE, 0, b"x")
    thread.join(10)
    handle.release(first)
    assert node.ops(WORKER) == [OP["CREDIT"]]
    releasing, _ended = in_thread(lambda: handle.release(second))
    wait_until(lambda: bool(node.finish(WORKER)) or not releasing.is_alive())
    releasing.join(10)
    assert node.ops(WORKER) == [OP["CREDIT"], OP["CANCEL"]]


def test_the_credit_of_a_get_that_failed_is_looked_after(node: FakeNode, handle: _core.QueueHandle) -> None:
    """Else the message that comes for it would lie here unseen for as long as the process lives."""
    node.raising[_core.HOOK_STOPPING] = RuntimeError("as a signal's handler may raise it")
    thread, outcome = in_thread(lambda: handle.get(10.0))
    wait_until(lambda: node.link(WORKER, "tail") == 1)
    node.set_node("state", CONSTANTS["NODE_DRAINING"])
    thread.join(10)
    assert isinstance(outcome[0], RuntimeError)
    assert (_core.HOOK_HOT, QUEUE, "") in node.trouble
    wait_until(lambda: handle.hoard() == 1, what="the call to be over for a while")
    node.set_node("state", CONSTANTS["NODE_RUNNING"])
    node.deliver(WORKER, QUEUE, 0, b"x")
    tidying, _ended = in_thread(handle.tidy)
    wait_until(lambda: bool(node.finish(WORKER)) or not tidying.is_alive())
    tidying.join(10)
    assert node.ops(WORKER) == [OP["CREDIT"], OP["CANCEL"], OP["NACK"]]
    assert handle.hoard() == 0


def take(node: FakeNode, handle: _core.QueueHandle, sequences: list[int]) -> list[_core.Delivery]:
    handle.begin(60)
    thread, outcome = start_get(node, handle)
    for sequence in sequences:
        node.deliver(WORKER, QUEUE, sequence, b"%d" % sequence)
    thread.join(10)
    node.finish(WORKER)
    return [outcome[0], *(handle.get_many(len(sequences), 0.0) if len(sequences) > 1 else [])]


def test_settling(node: FakeNode, handle: _core.QueueHandle) -> None:
    messages = take(node, handle, [4, 5, 6, 2, 9])
    first = node.link(WORKER, "tail")
    messages[1].ack()
    messages[2].nack(requeue=False)
    messages[0].nack()
    for message in messages[:3]:
        with pytest.raises(UsageError):
            message.ack()
    ack, drop, back = node.commands(WORKER, first)
    assert (ack["op"], ack["tag"], ack["count"]) == (OP["ACK"], 5, 0)
    assert (drop["op"], drop["tag"], drop["flags"]) == (OP["NACK"], 6, 0)
    assert (back["op"], back["tag"], back["flags"]) == (OP["NACK"], 4, FLAG["REQUEUE"])
    handle.settle_many(messages[3:], True, False)
    both = node.commands(WORKER, first)[-1]
    assert (both["op"], both["count"], struct.unpack("<2Q", both["blob"])) == (OP["ACK"], 2, (2, 9))
    assert handle.unacked == 0


def test_ack_multiple_names_what_was_handed_out(node: FakeNode, handle: _core.QueueHandle) -> None:
    messages = take(node, handle, [4, 5, 2, 9])
    node.deliver(WORKER, QUEUE, 3, b"lies here, not handed out")
    first = node.link(WORKER, "tail")
    messages[1].ack(multiple=True)
    (record,) = node.commands(WORKER, first)
    assert struct.unpack("<2Q", record["blob"]) == (4, 5), "2 was handed out later"
    messages[0].ack()
    assert node.link(WORKER, "tail") == first + 1, "acked before: nothing to say"
    assert handle.unacked == 2


def test_a_client_holding_every_slot_is_told(handle: _core.QueueHandle, node: FakeNode) -> None:
    messages = take(node, handle, list(range(60)))
    for sequence in range(60, 64):
        node.deliver(WORKER, QUEUE, sequence, b"x")
    messages += handle.get_many(4, 0.0)
    assert len(messages) == 64
    with pytest.raises(LimitError, match="delivery_slots"):
        handle.get(0.0)


# ---- the end ---------------------------------------------------------------------------------------------------------


def test_the_end_wakes_and_keeps_what_is_known(node: FakeNode, handle: _core.QueueHandle) -> None:
    known = handle.put(b"x", NONE, None, None, False)
    node.finish(WORKER)
    unknown = handle.put(b"x", NONE, None, None, False)
    threads = [start_get(node, handle), in_thread(unknown.wait)]
    wait_until(lambda: node.client.busy == 2)
    node.client.end(ClosedError("closed"))
    for thread, outcome in threads:
        thread.join(10)
        assert isinstance(outcome[0], ClosedError)
    assert node.client.ended
    assert known is not None
    assert known.done()
    assert known.wait() is None
    assert unknown is not None
    assert unknown.done(), "it never will be confirmed: there is nothing to wait for"
    with pytest.raises(ClosedError):
        unknown.wait()
    with pytest.raises(ClosedError):
        handle.put(b"x", NONE, None, None, False)
    assert node.client.busy == 0
    node.region[0] = 1
    del node.region[-1:]  # nobody holds the memory any more (else: BufferError)


def test_a_lost_session_makes_confirms_lost(node: FakeNode, handle: _core.QueueHandle) -> None:
    confirm = handle.put(b"x", NONE, None, None, False)
    node.client.end(None)
    assert confirm is not None
    assert isinstance(confirm.exception(), PeerLost)
    with pytest.raises(_core.AttachmentLost):
        handle.get(0.0)


def test_a_forked_child_touches_nothing(node: FakeNode, handle: _core.QueueHandle) -> None:
    (message,) = take(node, handle, [1])[:1]
    before = bytes(node.region)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            for call in (
                lambda: handle.put(b"x", NONE, None, None, False),
                lambda: handle.get(0.0),
                node.client.next_id,
            ):
                with pytest.raises(_core.AttachmentLost, match="parent"):
                    call()
            with pytest.raises(PeerLost):
                message.ack()
            node.client.end(None)
            assert node.client.ended
            assert bytes(node.region) == before
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    message.ack()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda node: node.set_link(WORKER, "evicted", 3), _core.HOOK_EVICTED),
        (lambda node: node.set_server(WORKER, "error", 5), _core.HOOK_FROZEN),
        (lambda node: node.set_server(WORKER, "state", CONSTANTS["SERVER_FAILED"]), _core.HOOK_FAILED),
        (lambda node: node.set_node("state", CONSTANTS["NODE_STOPPED"]), _core.HOOK_STOPPING),
    ],
)
def test_trouble_ends_a_wait(node: FakeNode, handle: _core.QueueHandle, change: Any, code: int) -> None:
    node.raising[code] = PeerLost("told")
    thread, outcome = in_thread(lambda: handle.put(b"x", SYNCED, None, 20.0, True))
    wait_until(lambda: node.link(WORKER, "tail") == 1)
    change(node)
    thread.join(10)
    assert isinstance(outcome[0], PeerLost)
    assert node.trouble[-1][:2] == (code, WORKER)


def test_control(node: FakeNode) -> None:
    thread, outcome = in_thread(lambda: node.client.control(WORKER, b"question", 10.0))
    wait_until(lambda: node.link(WORKER, "tail") == 1)
    (record,) = node.commands(WORKER)
    assert (record["op"], record["blob"]) == (OP["CONTROL"], b"question")
    at = node.replies_at + WORKER * node.geometry["reply_bytes"]
    node.region[at : at + 6] = b"answer"
    node.set_link(WORKER, "reply_length", 6)
    node.result(WORKER, 0, PROTOCOL["RESULT_OK"])
    node.finish(WORKER)
    thread.join(10)
    assert outcome == [(PROTOCOL["RESULT_OK"], b"answer")]


def test_wrong_arguments(node: FakeNode, handle: _core.QueueHandle) -> None:
    for call in (
        lambda: node.client.control(99, b"", 1.0),
        lambda: node.client.barrier(WORKER, 7, 1.0),
        lambda: node.client.set_worker(WORKER, bytes(5), None, -1, -1, -1, 1),
        lambda: _core.QueueHandle(node.client, 0, 1, None, _core.Delivery),
        lambda: _core.QueueHandle(node.client, WORKER, 1, None, int),
        handle.get,
        lambda: handle.get("soon"),  # type: ignore[arg-type]
        lambda: handle.settle_many([b"x"], True, False),  # type: ignore[list-item]
        _core.Delivery,
        _core.Confirm,
        lambda: _core.Client(bytearray(10), bytearray(10), 1, 1, 1, print),
    ):
        with pytest.raises((TypeError, ValueError, OSError)):
            call()
    for timeout in (-1.0, float("nan")):
        with pytest.raises(UsageError):
            handle.get(timeout)


@pytest.mark.parametrize(("call", "more"), [("columns", (0, b"name")), ("deliveries", ())])
def test_rows_of_an_answer_are_bytes_that_nobody_changes(
    node: FakeNode, handle: _core.QueueHandle, call: str, more: tuple[Any, ...]
) -> None:
    """They are read in several passes, with the GIL away in between: memory that could change meanwhile is refused."""
    rows = bytes(DELIVERY.size)
    node.give(WORKER)
    for changing in (bytearray(rows), memoryview(bytearray(rows))):
        with pytest.raises(TypeError, match="rows must be bytes"):
            getattr(node.client, call)(handle, changing, *more)
    assert getattr(node.client, call)(handle, b"", *more) is not None


@pytest.mark.parametrize("prefetch", [0, 5])
def test_a_timeout_of_nothing_waits_for_the_answer_of_the_worker(
    node: FakeNode, handle: _core.QueueHandle, prefetch: int
) -> None:
    """What a slow worker has is found: "none" is never said because the answer was late."""
    if prefetch:
        handle.begin(prefetch)
    thread, outcome = in_thread(lambda: handle.get(0.0))
    wait_until(lambda: OP["CREDIT"] in node.ops(WORKER))
    thread.join(0.3)
    assert thread.is_alive(), "the worker has not looked"
    assert node.ops(WORKER) == [OP["CREDIT"]]
    node.deliver(WORKER, QUEUE, 0, b"late")
    node.finish(WORKER)
    thread.join(10)
    assert outcome[0].body == b"late"
    thread, outcome = in_thread(lambda: handle.get(0.0))
    wait_until(lambda: bool(node.finish(WORKER)) or not thread.is_alive())
    assert outcome == [None]


def test_a_timeout_of_nothing_ends_with_call_timeout(node: FakeNode, handle: _core.QueueHandle) -> None:
    node.client.call_timeout = 0.05
    for call in (lambda: handle.get(0.0), lambda: handle.get(0.0, False), lambda: handle.get_many(5, 0.0)):
        with pytest.raises(TimedOut, match=r"^queue 'orders': .*: not done in time$"):
            call()
