"""Goal: connections of the gateway begin, live and end as those of RabbitMQ, and one that behaves badly harms no other.

Method: pika, py-amqp and raw frames against the gateway of a real node. What each frame of a handshake is answered
with, tests/amqp_diff compares.
"""

import contextlib
import os
import signal
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import amqp
import pika
import pika.exceptions
import psutil
import pytest

from warren.engine import _core
from warren.engine.amqp import spec
from warren.engine.errors import Error
from warren.workers.amqp import connection as connections
from warren.workers.amqp import handshake, login, passwords, users_file
from warren.workers.amqp.peers import Peer
from warren.workers.process.control import ControlClient

from amqp_diff.wire import HELLO, Wire, frame, header, method
from support import command_line
from support.gateway_node import GatewayNode
from support.waiting import wait_until

pytestmark = pytest.mark.integration
Connect = Callable[..., Wire]


def blocking(gateway: GatewayNode, **parameters: Any) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", gateway.port, **parameters))


def close_of(wire: Wire) -> tuple[int, str]:
    """The connection.close that comes next."""
    found = wire.wait(0, ["connection.close"], 60)
    assert found is not None
    assert found.name == "connection.close", found
    return found["code"], found["text"]


# ---- clients ------------------------------------------------------------------------------------------------------


def test_pika_opens_and_closes(gateway: GatewayNode) -> None:
    with blocking(gateway, client_properties={"connection_name": "pika's"}) as connection:
        channels = [connection.channel() for _ in range(3)]
        found = next(item for item in gateway.connections() if item["given_name"] == "pika's")
        assert (found["user"], found["vhost"], found["state"]) == ("guest", "/", "running")
        assert [item["number"] for item in found["channels"]] == [1, 2, 3]
        channels[1].close()
        found = next(item for item in gateway.connections() if item["given_name"] == "pika's")
        assert [item["number"] for item in found["channels"]] == [1, 3]
        assert found["client_properties"]["product"].startswith("Pika")
    wait_until(lambda: not any(item["given_name"] == "pika's" for item in gateway.connections()))


def test_py_amqp_opens_and_closes(gateway: GatewayNode) -> None:
    with amqp.Connection(f"127.0.0.1:{gateway.port}", heartbeat=10) as connection:
        assert connection.server_properties["product"] == "RabbitMQ"  # whose ways it has: clients adapt to them
        assert connection.server_properties["capabilities"]["consumer_cancel_notify"] is True
        with connection.channel() as channel:
            assert channel.is_open


def test_a_wrong_password_is_told_to_those_who_announce_that_they_hear_it(gateway: GatewayNode) -> None:
    with pytest.raises(pika.exceptions.ProbableAuthenticationError, match=r"403.*Login was refused"):
        blocking(gateway, credentials=pika.PlainCredentials("guest", "wrong"))
    before = gateway.ask()["refused_logins_n"]
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        blocking(gateway, credentials=pika.PlainCredentials("nobody", "guest"))
    assert gateway.ask()["refused_logins_n"] == before + 1


def test_a_vhost_that_is_not_there_is_530(gateway: GatewayNode) -> None:
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match=r"530.*vhost nowhere not found"):
        blocking(gateway, virtual_host="nowhere")


def test_limits_are_agreed_on(gateway: GatewayNode) -> None:
    with blocking(gateway, channel_max=3, frame_max=8192, heartbeat=30) as connection:
        found = next(item for item in gateway.connections() if item["channel_max"] == 3)
        assert (found["frame_max"], found["heartbeat_s"]) == (8192, 30)
        for _ in range(3):
            connection.channel()


def test_one_channel_too_many_ends_the_connection(connect: Connect) -> None:
    wire = connect()
    wire.opened(channel_max=2)
    wire.channel(65535)
    wire.channel(7)
    wire.raw(method(8, "channel.open", {}))
    said = "NOT_ALLOWED - number of channels opened (2) has reached the negotiated channel_max (2)"
    assert close_of(wire) == (530, said)


# ---- what is no handshake -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("hello", [b"AMQP\1\1\0\x0a", b"HTTP/1.1", b"\x16\x03\x01\0", b"AMQP\0\0\x09\0"])
def test_another_protocol_is_answered_by_the_header(connect: Connect, hello: bytes) -> None:
    wire = connect()
    wire.raw(hello)
    found = wire.wait(0, ["(header)"])
    assert found is not None
    assert found["bytes"].encode("latin-1") == HELLO
    end = wire.wait(0, ["(closed)"])
    assert end is not None


def test_a_header_may_come_in_pieces(connect: Connect) -> None:
    wire = connect()
    for byte in HELLO[:-1]:
        wire.raw(bytes([byte]))
    assert wire.next(time.monotonic() + 0.05) is None
    wire.raw(HELLO[-1:])
    assert wire.wait(0, ["connection.start"]) is not None


def _all_at_once(queue: str, body: bytes) -> bytes:
    """All bytes of a client from its first one to its first message, if it waits for nothing."""
    start = {"client_properties": {"product": "eager"}, "mechanism": "PLAIN", "response": "\0guest\0guest"}
    return b"".join(
        (
            HELLO,
            method(0, "connection.start-ok", start | {"locale": "en_US"}),
            method(0, "connection.tune-ok", {"channel_max": 7, "frame_max": 131072}),
            method(0, "connection.open", {"vhost": "/"}),
            method(1, "channel.open", {}),
            method(1, "confirm.select", {}),
            method(1, "queue.declare", {"queue": queue}),
            method(1, "basic.publish", {"routing_key": queue, "mandatory": True}),
            header(1, len(body), {}),
            *([frame(spec.FRAME_BODY, 1, body)] if body else []),
        )
    )


def _is_served(wire: Wire) -> None:
    """Everything was answered, in order."""
    names = [wire.next(time.monotonic() + 60) for _answer in range(7)]
    assert [found.name if found else None for found in names] == [
        *("connection.start", "connection.tune", "connection.open-ok"),
        *("channel.open-ok", "confirm.select-ok", "queue.declare-ok", "basic.ack"),
    ]


@pytest.mark.parametrize("size", [0, 5, 100_000])
def test_everything_up_to_a_message_may_come_at_once(connect: Connect, size: int) -> None:
    """The frame of the largest body is allowed by the tune-ok before it."""
    wire = connect()
    wire.raw(_all_at_once(f"at-once-{size}", bytes(size)))
    _is_served(wire)
    wire.raw(method(1, "queue.delete", {"queue": f"at-once-{size}"}))
    found = wire.wait(1, ["queue.delete-ok"])
    assert found is not None
    assert found["messages"] == 1


def test_everything_up_to_a_message_may_be_cut_at_each_byte(gateway: GatewayNode, connect: Connect) -> None:
    sent = _all_at_once("cut", b"x")
    for first in range(1, len(sent), 100):
        cuts = range(first, min(first + 100, len(sent)))
        before = {item["name"] for item in gateway.connections()}
        wires = [connect_to(gateway) for _cut in cuts]
        for wire, at in zip(wires, cuts, strict=True):
            wire.raw(sent[:at])

        def came() -> int:
            return sum(item["bytes_in"] for item in gateway.connections() if item["name"] not in before)  # noqa: B023

        wait_until(lambda: came() == sum(cuts), 60, what="the first parts")  # noqa: B023
        for wire, at in zip(wires, cuts, strict=True):
            wire.raw(sent[at:])
        for wire in wires:
            _is_served(wire)
            wire.shut()
    wire = connect()
    for byte in sent:
        wire.raw(bytes([byte]))
    _is_served(wire)
    wire.raw(method(1, "queue.delete", {"queue": "cut"}))
    found = wire.wait(1, ["queue.delete-ok"])
    assert found is not None
    assert found["messages"] == len(sent)


def connect_to(gateway: GatewayNode) -> Wire:
    return Wire("w", lambda _line: None, "127.0.0.1", gateway.port)


def test_what_comes_behind_a_wrong_password_is_not_done(gateway: GatewayNode, connect: Connect) -> None:
    wire = connect()
    wire.raw(_all_at_once("guessed", b"x").replace(b"\0guest\0guest", b"\0guest\0wrong"))
    assert wire.wait(0, ["connection.start"]) is not None
    found = wire.next(time.monotonic() + 60)
    assert found is not None
    assert found.name == "(closed)"
    with gateway.connected() as connection, pytest.raises(pika.exceptions.ChannelClosedByBroker, match="no queue"):
        connection.channel().queue_declare("guessed", passive=True)


def test_a_flood_behind_a_login_is_not_read(gateway: GatewayNode, connect: Connect) -> None:
    """Nobody is known yet: little is kept of what comes, and the rest waits in the socket. Then all of it is done."""
    wire, count = connect(), 20_000
    qos = method(1, "basic.qos", {})
    wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    wire.raw(_all_at_once("flood", b"x") + qos * count)
    answers = {"basic.qos-ok": 0, "basic.ack": 0}
    while sum(answers.values()) < count + 1:
        found = wire.wait(1, answers)
        assert found is not None
        answers[found.name] += 1
    assert answers == {"basic.qos-ok": count, "basic.ack": 1}
    wire.raw(method(1, "queue.delete", {"queue": "flood"}))
    assert wire.wait(1, ["queue.delete-ok"]) is not None


def test_nonsense_in_a_handshake_is_answered_by_silence_then_the_end(connect: Connect) -> None:
    began = time.monotonic()
    wire = connect()
    wire.hello()
    wire.raw(method(0, "connection.open", {"vhost": "/"}))
    found = wire.next(time.monotonic() + 60)
    assert found is not None
    assert found.name == "(closed)"
    assert time.monotonic() - began >= handshake.SILENT_S


def test_a_client_that_says_nothing_is_ended(connect: Connect, gateway: GatewayNode) -> None:
    began = time.monotonic()
    wire = connect()
    other = connect()
    other.opened()  # is not disturbed
    found = wire.next(time.monotonic() + 60)
    assert found is not None
    assert found.name == "(closed)"
    assert time.monotonic() - began >= handshake.HANDSHAKE_S
    other.channel()


def test_amqplain_and_external_by_a_unix_socket(gateway: GatewayNode) -> None:
    """The user who runs the node proves who he is."""
    with gateway.unix() as sock:
        wire = Wire.__new__(Wire)
        vars(wire).update(vars(_wire_of(sock)))
        start = wire.hello()
        assert "EXTERNAL" in str(start["mechanisms"])
        wire.start_ok(mechanism="EXTERNAL", response="")
        tune = wire.wait(0, ["connection.tune"])
        assert tune is not None
        assert tune.name == "connection.tune"
        wire.raw(method(0, "connection.tune-ok", {name: tune[name] for name in ("channel_max", "frame_max")}))
        wire.raw(method(0, "connection.open", {"vhost": "/"}))
        opened = wire.wait(0, ["connection.open-ok"])
        assert opened is not None
        assert opened.name == "connection.open-ok"
        found = next(item for item in gateway.connections() if str(os.getpid()) in item["peer"])
        assert found["name"].startswith("unix:")


def _wire_of(sock: socket.socket) -> Wire:
    """D's client on a socket that is connected already."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        wire = Wire("u", lambda _line: None, *server.getsockname()[:2])
    wire.socket.close()
    wire.socket = sock
    return wire


# ---- heartbeats, and peers that are not there ---------------------------------------------------------------------


@pytest.mark.parametrize("value", [1 << 31, -1, 1.5, True, None, [], {}, b"\xff", ""])
@pytest.mark.parametrize("name", ["LOGIN", "PASSWORD"])
def test_credentials_of_any_type_are_read_or_refused(name: str, value: Any) -> None:
    """Who has not logged in costs nothing: no error that nobody expected, and no memory of the size of a number."""
    given = {"LOGIN": "guest", "PASSWORD": "guest", name: value}
    found = login.credentials("AMQPLAIN", _core.amqp_table_bytes(given)[4:], Peer("a test"))
    if isinstance(value, str) or (isinstance(value, bytes) and name == "PASSWORD"):
        assert found is not None
        assert found.password == (b"guest" if name == "LOGIN" else value or b"")
    else:
        assert found is None


def test_what_was_begun_goes_with_its_connection(connect: Connect, gateway: GatewayNode) -> None:
    """At once, not when Python looks for garbage next."""
    process, size, count = psutil.Process(gateway.ask()["pid"]), 15 << 20, 8
    before = process.memory_info().rss
    wires = [connect() for _ in range(count)]
    for wire in wires:
        wire.opened()
        lane = wire.channel()
        lane.send("basic.publish", exchange="", routing_key="nowhere")
        wire.raw(header(1, size + 1, {}))
        piece = frame(3, 1, bytes(120_000))
        wire.raw(piece * (size // 120_000))
    wait_until(lambda: process.memory_info().rss > before + count * size * 0.8, 60, what="the memory of the bodies")
    for wire in wires:
        wire.shut()
    wait_until(lambda: process.memory_info().rss < before + size * 2, 30, what="the end of that memory")


def test_very_many_consumers_of_one_queue(connect: Connect, gateway: GatewayNode) -> None:
    """They come and go without a look at all of them for each; each gets its turn."""
    count = 3000
    wire = connect()
    wire.opened()
    lane = wire.channel()
    lane.call("queue.declare", queue="many", auto_delete=True)
    lane.call("basic.qos", count=1)
    wire.raw(b"".join(method(1, "basic.consume", {"queue": "many", "tag": f"c{n}"}) for n in range(count)))
    for _n in range(count):
        found = wire.wait(1, ["basic.consume-ok"], 60)
        assert found is not None
    with blocking(gateway) as other:
        channel = other.channel()
        for n in range(count):
            channel.basic_publish("", "many", b"%d" % n)
    tags = set()
    for _n in range(count):
        came = wire.wait(1, ["basic.deliver"], 60)
        assert came is not None
        tags.add(came["tag"])
    assert len(tags) == count


def test_a_silent_peer_is_ended_after_two_heartbeats(connect: Connect, gateway: GatewayNode) -> None:
    began = time.monotonic()
    wire = connect()
    wire.opened(heartbeat=1)
    wire.channel()
    came = []
    while (found := wire.next(time.monotonic() + 60)) is not None and found.name != "(closed)":
        came.append(found.name)
    assert came.count("heartbeat") >= 1
    assert time.monotonic() - began >= 2.0
    wait_until(lambda: not any(item["heartbeat_s"] == 1 for item in gateway.connections()))


def test_heartbeats_keep_a_quiet_connection(connect: Connect) -> None:
    """A connection whose heartbeats this process could not send in time says nothing, and is tried again."""
    for _attempt in range(20):
        wire = connect()
        wire.opened(heartbeat=1)
        until, last, longest = time.monotonic() + 3.5, time.monotonic(), 0.0
        found = None
        while time.monotonic() < until and (found is None or found.name == "heartbeat"):
            wire.raw(bytes((spec.FRAME_HEARTBEAT, 0, 0, 0, 0, 0, 0, spec.FRAME_END)))
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
            found = wire.next(time.monotonic() + 0.3)
        if found is None or found.name == "heartbeat":
            wire.channel()
            return
        assert longest > 1.0, "it sent a heartbeat each second"


def test_who_asks_and_does_not_read_is_not_read_any_more(connect: Connect, gateway: GatewayNode) -> None:
    """What the gateway keeps for it is bounded; when it reads again, it gets every answer."""
    wire = connect()
    wire.opened()
    wire.channel(1)
    question = method(1, "channel.flow", {"active": True})
    wire.socket.settimeout(2.0)
    left = question * 10_000
    sent = 0
    while True:
        try:
            taken = wire.socket.send(left)
        except TimeoutError:
            break
        sent += taken
        assert sent < 500_000_000, "it is read for ever"
        left = left[taken:] or question * 10_000
    found = next(item for item in gateway.connections() if item["state"] == "flow")
    assert found["unsent_bytes"] < 2 * connections.FLOOD
    with blocking(gateway) as other:
        other.channel()
    wire.socket.settimeout(60)
    answered = 0
    while answered < sent // len(question) * len(question):  # an answer is as long as a question
        answered += len(wire.socket.recv(1 << 20))


# ---- operations ---------------------------------------------------------------------------------------------------


def test_an_operator_closes_a_connection(gateway: GatewayNode) -> None:
    connection = blocking(gateway, client_properties={"connection_name": "mine"})
    assert gateway.ask("close", name="mine", reason="go home") == {"closed": 1}
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match=r"320.*CONNECTION_FORCED - go home"):
        connection.process_data_events(30)
    assert gateway.ask("close", name="mine") == {"closed": 0}


def nested(depth: int) -> bytes:
    """A table in which others lie."""
    data = b""
    for _ in range(depth):
        data = b"\1aF" + struct.pack(">I", len(data)) + data
    return struct.pack(">I", len(data)) + data


def test_a_client_that_introduces_itself_by_nested_tables_is_ended_as_after_any_mistake_there(connect: Connect) -> None:
    """A client that has not logged in is told nothing; one that keeps to the bound logs in."""
    for depth, answer in ((spec.DEPTH_MAX, "connection.tune"), (spec.DEPTH_MAX + 1, "(closed)")):
        wire = connect()
        wire.hello()
        rest = method(0, "connection.start-ok", {"mechanism": "PLAIN", "response": "\0guest\0guest", "locale": "en_US"})
        assert rest[11:15] == b"\0\0\0\0", "its first argument is the table"
        wire.raw(frame(spec.FRAME_METHOD, 0, rest[7:11] + nested(depth) + rest[15:-1]))
        found = wire.wait(0, ["connection.tune"], 60)
        assert found is not None
        assert found.name == answer


@pytest.mark.parametrize("depth", [65, 1_000, 10_000])
@pytest.mark.parametrize("where", ["queue.declare", "queue.bind", "exchange.declare", "basic.consume", "properties"])
def test_tables_that_are_nested_too_deeply_are_refused_in_words(connect: Connect, where: str, depth: int) -> None:
    wire = connect()
    wire.opened()
    wire.channel()
    deep = nested(depth)
    if where == "properties":
        wire.raw(method(1, "basic.publish", {"routing_key": "q"}) + header(1, 0, b"\x20\0" + deep))
        called = "the properties of a message"
    else:  # whose last argument is the table
        shallow = method(1, where, {"arguments": {}})
        assert shallow.endswith(b"\0\0\0\0\xce")
        wire.raw(frame(spec.FRAME_METHOD, 1, shallow[7:-5] + deep))
        called = where
    text = "a table is nested too deeply: its values may lie 64 deep"
    assert close_of(wire) == (502, f"SYNTAX_ERROR - cannot decode {called}: {text}")


def test_a_killed_gateway_is_there_again(gateway: GatewayNode) -> None:
    connection = blocking(gateway)
    before, port = gateway.pids()["amqp_gateway"], gateway.port
    after = gateway.kill("amqp_gateway")
    assert after != before
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        connection.process_data_events(30)
    assert gateway.ask()["pid"] == after
    assert gateway.port != port  # port 0 is another one each time
    with blocking(gateway) as again:
        again.channel()
    with gateway.unix() as sock:  # whose file the killed one left
        sock.sendall(HELLO)
        assert sock.recv(1) == b"\1"


def test_connections_outlive_the_supervisor(tmp_path: Path) -> None:
    """Its successor takes the gateway over, and looks after it."""
    with GatewayNode(tmp_path / "data") as node:
        with blocking(node) as connection:
            pids = node.pids()
            os.kill(pids["supervisor"], signal.SIGKILL)

            def again() -> bool:
                with contextlib.suppress(Error):
                    return node.pids()["supervisor"] != pids["supervisor"]
                return False

            wait_until(again, 30, what="a new supervisor")
            connection.channel().close()
            assert node.pids()["amqp_gateway"] == pids["amqp_gateway"]
        fresh = node.kill("amqp_gateway")
        assert node.ask()["pid"] == fresh
        left = [psutil.Process(pid) for pid in node.pids().values()]
        with ControlClient(node.directory) as control:
            control.call("stop")
        psutil.wait_procs(left, 60)
        assert not any(process.is_running() for process in left)


def test_the_command_line_shows_and_closes_connections(gateway: GatewayNode) -> None:
    named = blocking(gateway, client_properties={"connection_name": "shown"})
    named.channel().basic_qos(prefetch_count=7)
    told = command_line.warren("gateway", "connections", gateway.directory).stdout
    assert f"gateway 0 (process {gateway.pids()['amqp_gateway']}) at 127.0.0.1:{gateway.port}" in told
    (line,) = (line for line in told.splitlines() if "shown" in line)
    assert "running" in line
    told = command_line.warren("status", gateway.directory).stdout
    assert "AMQP gateways" in told
    told = command_line.warren("gateway", "close", gateway.directory, "shown", "--reason", "enough").stdout
    assert told == "1 connection closed\n"
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match=r"320.*enough"):
        named.process_data_events(30)
    assert "lists them" in command_line.warren("gateway", "close", gateway.directory, "shown", code=2).said


def test_a_user_who_is_deleted_has_to_go(gateway: GatewayNode) -> None:
    with users_file.changing(gateway.directory) as accounts:
        algorithm: passwords.Algorithm = "rabbit_password_hashing_sha256"
        rights = {"/": users_file.Rights(users_file.ALL, users_file.ALL, users_file.ALL)}
        accounts.users["passing"] = users_file.Account(passwords.make(b"by", algorithm), algorithm, permissions=rights)

    def logged_in() -> pika.BlockingConnection | None:
        with contextlib.suppress(pika.exceptions.AMQPConnectionError):  # the gateway looks twice a second
            return blocking(gateway, credentials=pika.PlainCredentials("passing", "by"))
        return None

    connection = wait_until(logged_in, 20, what="the login of the new user")
    assert connection is not None
    with users_file.changing(gateway.directory) as accounts:
        del accounts.users["passing"]
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match=r"320.*user 'passing' was deleted"):
        connection.process_data_events(60)


def test_a_storm_of_logins_stops_nobody(gateway: GatewayNode) -> None:
    """They wait in line for two threads, and who is in works on."""
    with blocking(gateway) as connection:
        channel = connection.channel()
        storm = [Wire("s", lambda _line: None, "127.0.0.1", gateway.port) for _ in range(60)]
        try:
            for wire in storm:
                wire.hello()
                wire.start_ok(response=f"\0nobody-{id(wire)}\0wrong")
            for _ in range(20):
                channel.basic_qos(prefetch_count=1)
            for wire in storm:
                assert close_of(wire)[0] == 403
        finally:
            for wire in storm:
                wire.shut()
