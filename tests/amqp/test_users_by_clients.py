"""Goal: a gateway asks for the permissions that RabbitMQ asks for, and refuses in its words; changes of users and
vhosts reach connections that are open; what was imported from RabbitMQ is used by its programs as before.

Method: pika against a node with a gateway. The answers in `ANSWERS` are those that RabbitMQ 3.10.8 gave to the same
calls, with the same users.
"""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import AMQPConnectionError, ChannelClosedByBroker, ConnectionClosedByBroker

from warren import attach
from warren.workers.amqp import users_file
from warren.workers.amqp.users_file import ALL, Account, Rights, TopicRights, Vhost

from support.command_line import warren
from support.gateway_node import GatewayNode
from support.waiting import patience

pytestmark = pytest.mark.integration
DEFINITIONS = Path(__file__).parent / "definitions/rabbitmq-3.10.8.json"
#: of "secret", as RabbitMQ made it
HASH = "+4sO4aJ0RTkqs/j0KJNokT79gzn7bil7UbrAhSSj3u+1M0Ao"
SEEN_S = 20.0
REPLY_TO = "amq.rabbitmq.reply-to"


def connected(gateway: GatewayNode, user: str, password: str = "secret", vhost: str = "/") -> BlockingConnection:
    credentials = pika.PlainCredentials(user, password)
    return BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", gateway.port, vhost, credentials, socket_timeout=30, heartbeat=30)
    )


def refused(gateway: GatewayNode, user: str, password: str = "secret", vhost: str = "/") -> str:
    """What is said to whoever cannot connect."""
    with pytest.raises(AMQPConnectionError) as raised:
        connected(gateway, user, password, vhost)
    return str(raised.value)


def use_accounts(directory: Path) -> None:
    """The users of these tests."""
    all_of_it = Rights(ALL, ALL, ALL)
    algorithm = "rabbit_password_hashing_sha256"
    with users_file.changing(directory) as accounts:
        accounts.vhosts = {
            "/": Vhost(),
            "shop": Vhost(),
            "limited": Vhost(limits={"max-connections": 1, "max-queues": 1}),
        }
        accounts.users["alice"] = Account(
            HASH,
            algorithm,
            ["monitoring"],
            permissions={"/": Rights("^mine", r"^(mine|amq\.default)", "^(mine|amq)"), "limited": all_of_it},
            topic_permissions={"/": {"amq.topic": TopicRights("^a", "^b")}},
        )
        accounts.users["carol"] = Account(
            HASH,
            algorithm,
            permissions={"/": all_of_it},
            topic_permissions={"/": {"amq.topic": TopicRights(r"^a\.", ".*")}},
        )
        accounts.users["bob"] = Account(HASH, algorithm)
        accounts.users["passing"] = Account(HASH, algorithm, permissions={"/": all_of_it, "shop": all_of_it})
        accounts.users["guest"].permissions |= {"shop": all_of_it, "limited": all_of_it}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayNode]:
    """A node with these users, and things of guest's."""
    with GatewayNode(tmp_path_factory.mktemp("users") / "data") as running:
        use_accounts(running.directory)
        wait_until_said(lambda: "NOT_ALLOWED" in refused(running, "bob"))
        connection = connected(running, "guest", "guest")
        channel = connection.channel()
        for name in ("theirs", "minex"):
            channel.exchange_declare(name, "topic")
        for name in ("theirsq", "mineq"):
            channel.queue_declare(name)
        connection.close()
        yield running


def test_the_log_says_who_was_let_into_no_vhost(gateway: GatewayNode) -> None:
    assert "NOT_ALLOWED" in refused(gateway, "bob")
    log = (gateway.directory / "log" / "amqp-0.log").read_text()
    said = r"warning amqp-0.*: connection .* \(user bob\) is closed: 530 NOT_ALLOWED"
    assert re.search(said, log), log


def wait_until_said(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SEEN_S * patience()
    while not condition():
        assert time.monotonic() < deadline, "the gateway does not see the change"


@pytest.fixture(scope="module")
def alice(gateway: GatewayNode) -> Iterator[BlockingConnection]:
    connection = connected(gateway, "alice")
    yield connection
    connection.close()


def publishes(exchange: str, key: str, **more: Any) -> Callable[[BlockingChannel], object]:
    def call(channel: BlockingChannel) -> None:
        channel.confirm_delivery()
        channel.basic_publish(exchange, key, b"", **more)

    return call


def access(resource: str) -> str:
    return f"403 ACCESS_REFUSED - access to {resource} in vhost '/' refused for user 'alice'"


#: what alice asks for, and what she is told; "": it is done
ANSWERS: dict[str, tuple[Callable[[BlockingChannel], object], str]] = {
    "declare a queue": (lambda ch: ch.queue_declare("other"), access("queue 'other'")),
    "declare one of hers": (lambda ch: ch.queue_declare("mine"), ""),
    "declare one that is there": (lambda ch: ch.queue_declare("theirsq"), access("queue 'theirsq'")),
    "look at one": (lambda ch: ch.queue_declare("theirsq", passive=True), ""),
    "declare one with dead letters": (
        lambda ch: ch.queue_declare("mine2", arguments={"x-dead-letter-exchange": "theirs"}),
        access("exchange 'theirs'"),
    ),
    "declare one with dead letters to the default exchange": (
        lambda ch: ch.queue_declare(
            "mine3", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "mine"}
        ),
        "",
    ),
    "declare an exchange": (lambda ch: ch.exchange_declare("other"), access("exchange 'other'")),
    "look at an exchange": (lambda ch: ch.exchange_declare("theirs", passive=True), ""),
    "declare an exchange with an alternate": (
        lambda ch: ch.exchange_declare("mineae", arguments={"alternate-exchange": "theirs"}),
        access("exchange 'theirs'"),
    ),
    "delete an exchange that is not there": (lambda ch: ch.exchange_delete("nope"), access("exchange 'nope'")),
    "delete one of hers that is not there": (lambda ch: ch.exchange_delete("mine-nope"), ""),
    "delete a queue": (lambda ch: ch.queue_delete("theirsq"), access("queue 'theirsq'")),
    "delete a queue that is not there": (lambda ch: ch.queue_delete("missing"), access("queue 'missing'")),
    "bind, without write": (lambda ch: ch.queue_bind("theirsq", "theirs", "x"), access("queue 'theirsq'")),
    "bind, without read": (lambda ch: ch.queue_bind("mineq", "theirs", "x"), access("exchange 'theirs'")),
    "bind what is not there": (
        lambda ch: ch.queue_bind("minenope", "amq.direct", "x"),
        "404 NOT_FOUND - no queue 'minenope' in vhost '/'",
    ),
    "bind a routing key": (
        lambda ch: ch.queue_bind("mineq", "amq.topic", "a.x"),
        access("topic 'a.x' in exchange 'amq.topic'"),
    ),
    "bind a routing key of hers": (lambda ch: ch.queue_bind("mineq", "amq.topic", "b.x"), ""),
    "unbind a routing key": (
        lambda ch: ch.queue_unbind("mineq", "amq.topic", "a.x"),
        access("topic 'a.x' in exchange 'amq.topic'"),
    ),
    "bind to the default exchange": (
        lambda ch: ch.queue_bind("mineq", "", "a.x"),
        "403 ACCESS_REFUSED - operation not permitted on the default exchange",
    ),
    "bind an exchange, without write": (
        lambda ch: ch.exchange_bind("theirs", "minex", "x"),
        access("exchange 'theirs'"),
    ),
    "bind an exchange, without read": (
        lambda ch: ch.exchange_bind("minex", "theirs", "x"),
        access("exchange 'theirs'"),
    ),
    "purge": (lambda ch: ch.queue_purge("theirsq"), access("queue 'theirsq'")),
    "get": (lambda ch: ch.basic_get("theirsq"), access("queue 'theirsq'")),
    "get what is not there": (lambda ch: ch.basic_get("missing"), access("queue 'missing'")),
    "consume": (lambda ch: ch.basic_consume("theirsq", lambda *_: None), access("queue 'theirsq'")),
    "publish": (publishes("theirs", "k"), access("exchange 'theirs'")),
    "publish to what is not there": (publishes("nope", "k"), access("exchange 'nope'")),
    "publish to one of hers that is not there": (
        publishes("minenope", "k"),
        "404 NOT_FOUND - no exchange 'minenope' in vhost '/'",
    ),
    "publish to a queue": (publishes("", "mineq"), ""),
    "publish to an exchange of RabbitMQ's": (publishes("amq.topic", "a"), access("exchange 'amq.topic'")),
    "publish as another": (
        publishes("", "mineq", properties=pika.BasicProperties(user_id="bob")),
        "406 PRECONDITION_FAILED - user_id property set to 'bob' but authenticated user was 'alice'",
    ),
}


@pytest.mark.parametrize("asked", ANSWERS)
def test_what_a_user_may_do(alice: BlockingConnection, asked: str) -> None:
    call, answer = ANSWERS[asked]
    channel = alice.channel()
    if not answer:
        call(channel)
        channel.close()
        return
    with pytest.raises(ChannelClosedByBroker) as raised:
        call(channel)
    assert f"{raised.value.reply_code} {raised.value.reply_text}" == answer
    assert alice.is_open


@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_copies_go_by_keys_that_a_user_may_write(gateway: GatewayNode, header: str) -> None:
    """RabbitMQ 3.10.8 looks at the routing key alone; 4 does so."""
    with connected(gateway, "carol") as connection:
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        for key in ("a.1", "a.2", "b.1"):
            channel.queue_bind(queue, "amq.topic", key)

        def publish(copy: str, exchange: str = "amq.topic") -> None:
            properties = pika.BasicProperties(headers={header: [copy]})
            publishes(exchange, "a.1", properties=properties)(connection.channel())

        publish("a.2")
        publish(queue, "amq.direct")
        with pytest.raises(ChannelClosedByBroker) as raised:
            publish("b.1")
        assert raised.value.reply_text == (
            "ACCESS_REFUSED - access to topic 'b.1' in exchange 'amq.topic' in vhost '/' refused for user 'carol'"
        )
        assert channel.queue_declare(queue, passive=True).method.message_count == 1


def test_a_name_that_the_server_makes_is_asked_for(alice: BlockingConnection) -> None:
    with pytest.raises(ChannelClosedByBroker, match=r"access to queue 'amq\.gen-[^']+' in vhost '/' refused"):
        alice.channel().queue_declare("")


def test_who_comes_in(gateway: GatewayNode) -> None:
    login = (
        "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile."
    )
    assert login in refused(gateway, "alice", "wrong")
    assert login in refused(gateway, "nobody")
    assert "NOT_ALLOWED - vhost nope not found" in refused(gateway, "alice", vhost="nope")
    assert "NOT_ALLOWED - access to vhost 'shop' refused for user 'alice'" in refused(gateway, "alice", vhost="shop")
    assert "NOT_ALLOWED - access to vhost '/' refused for user 'bob'" in refused(gateway, "bob")
    first = connected(gateway, "alice", vhost="limited")
    assert (
        "NOT_ALLOWED - access to vhost 'limited' refused for user 'alice': connection limit (1) is reached"
        in refused(gateway, "alice", vhost="limited")
    )
    channel = first.channel()
    channel.queue_declare("q1")
    channel.queue_declare("q1")
    with pytest.raises(ChannelClosedByBroker) as raised:
        channel.queue_declare("q2")
    assert (raised.value.reply_code, raised.value.reply_text) == (
        406,
        "PRECONDITION_FAILED - cannot declare queue 'q2': queue limit in vhost 'limited' (1) is reached",
    )
    first.close()


def test_a_question_of_a_vhost_is_answered_from_anywhere(gateway: GatewayNode) -> None:
    """In it, in another vhost, and by a program of the node; where answers go counts as a queue of no vhost."""
    connection = connected(gateway, "guest", "guest", "limited")
    channel = connection.channel()
    got: list[bytes] = []
    channel.queue_delete("q1")
    channel.basic_consume(REPLY_TO, lambda *answer: got.append(answer[3]), auto_ack=True)
    channel.queue_declare("questions")  # the only one that is allowed: answers do not count
    channel.basic_publish("", "questions", b"?", pika.BasicProperties(reply_to=REPLY_TO))
    asked = channel.basic_get("questions", auto_ack=True)[1]
    assert asked is not None
    channel.basic_publish("", asked.reply_to, b"from here")
    other = connected(gateway, "guest", "guest", "shop")
    other.channel().basic_publish("", asked.reply_to, b"from the shop")
    with attach(gateway.directory) as node:
        node.publish(b"from the node", "", asked.reply_to)
        deadline = time.monotonic() + SEEN_S
        while len(got) < 3 and time.monotonic() < deadline:
            connection.process_data_events(0.1)
        assert sorted(got) == [b"from here", b"from the node", b"from the shop"]
        assert [name for name in node.queues() if REPLY_TO in name] == [asked.reply_to]
    channel.queue_delete("questions")
    other.close()
    connection.close()


def test_a_vhost_that_was_made_again_has_its_own_exchanges(gateway: GatewayNode) -> None:
    """Its first life took them along."""
    for life in ("first", "second"):
        with users_file.changing(gateway.directory) as accounts:
            accounts.vhosts["lives"] = Vhost()
            accounts.users["guest"].permissions["lives"] = Rights(ALL, ALL, ALL)
        wait_until_said(lambda: _enters(gateway, "lives"))
        connection = connected(gateway, "guest", "guest", "lives")
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare(life)
        channel.queue_bind(life, "amq.topic", "k")
        channel.basic_publish("amq.topic", "k", b"x", mandatory=True)
        warren("gateway", "vhosts", "delete", gateway.directory, "lives", "--force")
        with pytest.raises(ConnectionClosedByBroker, match="was deleted"):
            _wait_for_close(connection)


def _enters(gateway: GatewayNode, vhost: str) -> bool:
    try:
        connected(gateway, "guest", "guest", vhost).close()
    except AMQPConnectionError:
        return False
    return True


def test_a_permission_that_is_taken_away_is_gone_for_open_channels(gateway: GatewayNode) -> None:
    connection = connected(gateway, "passing")
    channel = connection.channel()
    channel.queue_declare("passing")
    with users_file.changing(gateway.directory) as accounts:
        accounts.users["passing"].permissions["/"].configure = "^$"

    def is_refused() -> bool:
        try:
            connection.channel().queue_declare("passing")
        except ChannelClosedByBroker as error:
            return error.reply_code == 403
        return False

    wait_until_said(is_refused)
    connection.close()


def test_connections_of_who_is_deleted_are_closed(gateway: GatewayNode) -> None:
    with users_file.changing(gateway.directory) as accounts:
        accounts.users["goes"] = Account(
            HASH, "rabbit_password_hashing_sha256", permissions={"/": Rights(ALL, ALL, ALL)}
        )
        accounts.vhosts["goes"] = Vhost()
        accounts.users["guest"].permissions["goes"] = Rights(ALL, ALL, ALL)
    wait_until_said(lambda: _comes_in(gateway))
    for connection, deleted, said in (
        (connected(gateway, "goes"), ("users", "goes"), "user 'goes' was deleted"),
        (connected(gateway, "guest", "guest", "goes"), ("vhosts", "goes"), "vhost 'goes' was deleted"),
    ):
        warren(
            "gateway", deleted[0], "delete", gateway.directory, deleted[1], *(["--force"] if "vhost" in said else [])
        )
        with pytest.raises(ConnectionClosedByBroker) as raised:
            _wait_for_close(connection)
        assert raised.value.reply_code == 320
        assert said in raised.value.reply_text


def _comes_in(gateway: GatewayNode) -> bool:
    try:
        connected(gateway, "goes").close()
    except AMQPConnectionError:
        return False
    return True


def _wait_for_close(connection: BlockingConnection) -> None:
    deadline = time.monotonic() + SEEN_S * patience()
    while time.monotonic() < deadline:
        connection.process_data_events(0.2)


def test_what_was_imported_is_used_as_before(tmp_path: Path) -> None:
    with GatewayNode(tmp_path / "data") as node:
        warren("import", "rabbitmq-definitions", node.directory, DEFINITIONS, code=1)  # it refuses a few
        wait_until_said(lambda: "NOT_ALLOWED" in refused(node, "alice", vhost="shop"))
        connection = connected(node, "guest", "guest")
        channel = connection.channel()
        for name, arguments in (
            ("plain", {}),
            ("urgent", {"x-max-priority": 10}),
            ("with ttl", {"x-message-ttl": 60_000, "x-expires": 3_600_000}),
            ("lazy", {"x-queue-mode": "lazy"}),
            ("policied", {}),
            ("quorum", {"x-queue-type": "quorum", "x-delivery-limit": 5, "x-quorum-initial-group-size": 1}),
            ("a/b%2F.x ü", {}),
        ):
            channel.queue_declare(name, durable=True, arguments=arguments)
        channel.exchange_declare("events", "topic", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("events", "a.b.c", b"one", mandatory=True)
        assert channel.basic_get("plain", auto_ack=True)[2] == b"one"
        channel.basic_publish("routed", "k/1", b"two", mandatory=True)
        assert channel.basic_get("a/b%2F.x ü", auto_ack=True)[2] == b"two"
        with pytest.raises(ChannelClosedByBroker, match="inequivalent arg 'x-max-priority'"):
            channel.queue_declare("urgent", durable=True, arguments={"x-max-priority": 9})
        connection.close()
        shop = connected(node, "guest", "guest", "shop")
        channel = shop.channel()
        channel.confirm_delivery()
        channel.basic_publish("amq.direct", "k", b"three", mandatory=True)
        assert channel.basic_get("orders", auto_ack=True)[2] == b"three"
        shop.close()
