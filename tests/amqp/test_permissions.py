"""Goal: what a user may do is what RabbitMQ's regular expressions say, and refusals are its codes and texts.

Method: users in memory, by a file of a temporary directory; names that match and names that do not.
"""

from pathlib import Path

import pytest

from warren.engine.errors import UsageError
from warren.workers.amqp import permissions, users_file
from warren.workers.amqp.faults import ChannelFault, ConnectionFault
from warren.workers.amqp.users import DECISIONS_MAX, User, Users
from warren.workers.amqp.users_file import Account, Rights, TopicRights, Vhost


def user_with(directory: Path, rights: Rights, topics: dict[str, TopicRights] | None = None) -> User:
    with users_file.changing(directory) as accounts:
        accounts.users["u"] = Account(permissions={"/": rights}, topic_permissions={"/": topics} if topics else {})
    found = Users(directory).named("u")
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("pattern", "matches", "does_not"),
    [
        (".*", ["", "x", "a.b", "ü"], []),
        ("", [], ["x", "amq.gen-1", " "]),
        ("^$", [], ["x"]),
        ("a", ["a", "ba", "bab"], ["b", "A"]),  # it is searched for anywhere
        ("^a", ["a", "ab"], ["ba"]),
        ("a$", ["a", "ba"], ["ab"]),
        (r"^(amq\.gen|own\.).*", ["amq.gen-xyz", "own.q"], ["amqxgen", "amq.topic"]),
        ("(?i)^orders", ["ORDERS.new"], ["x.orders"]),
        (r"^(?!secret)", ["open"], ["secret.q"]),
    ],
)
def test_names_match_as_in_rabbitmq(tmp_path: Path, pattern: str, matches: list[str], does_not: list[str]) -> None:
    user = user_with(tmp_path, Rights("^never$", pattern, "^never$"))
    assert [name for name in matches if not user.may("write", "queue", name, "/")] == []
    assert [name for name in does_not if user.may("write", "queue", name, "/")] == []
    for name in matches:
        assert not user.may("read", "queue", name, "/")
        assert not user.may("configure", "queue", name, "/")
        assert not user.may("write", "queue", name, "other"), "rights of one vhost are none in another"


def test_the_default_exchange_has_a_name(tmp_path: Path) -> None:
    user = user_with(tmp_path, Rights("", r"^amq\.default$", ""))
    permissions.check(user, "/", "write", "exchange", "")
    with pytest.raises(ChannelFault):
        permissions.check(user, "/", "write", "queue", "")


def test_refusals_are_rabbitmqs(tmp_path: Path) -> None:
    user = user_with(tmp_path, Rights("", "", ""), {"amq.topic": TopicRights("^a", "^b")})
    for kind, name, said in (
        ("queue", "q", "ACCESS_REFUSED - access to queue 'q' in vhost '/' refused for user 'u'"),
        ("exchange", "x", "ACCESS_REFUSED - access to exchange 'x' in vhost '/' refused for user 'u'"),
        ("exchange", "", "ACCESS_REFUSED - access to exchange 'amq.default' in vhost '/' refused for user 'u'"),
    ):
        with pytest.raises(ChannelFault) as raised:
            permissions.check(user, "/", "write", kind, name)  # type: ignore[arg-type]  # both are words of Kind
        assert (raised.value.code, raised.value.said) == (403, said)
    with pytest.raises(ChannelFault) as raised:
        permissions.check_topic(user, "/", "write", "amq.topic", "b.c")
    assert raised.value.said == (
        "ACCESS_REFUSED - access to topic 'b.c' in exchange 'amq.topic' in vhost '/' refused for user 'u'"
    )


def test_entering_a_vhost(tmp_path: Path) -> None:
    with users_file.changing(tmp_path) as accounts:
        accounts.vhosts["shop"] = Vhost(limits={"max-connections": 2})
        accounts.vhosts["closed"] = Vhost(limits={"max-connections": 0, "max-queues": 1})
        accounts.users["u"] = Account(
            permissions={"shop": Rights(), "closed": Rights()}, limits={"max-connections": 3, "max-channels": -1}
        )
    users = Users(tmp_path)
    user = users.named("u")
    assert user is not None
    permissions.check_vhost(users, user, "shop")
    for vhost, said in (
        ("nope", "NOT_ALLOWED - vhost nope not found"),
        ("/", "NOT_ALLOWED - access to vhost '/' refused for user 'u'"),
    ):
        with pytest.raises(ConnectionFault) as raised:
            permissions.check_vhost(users, user, vhost)
        assert (raised.value.code, raised.value.said) == (530, said)
    permissions.check_vhost_connections(users, user, "shop", 1, 2)
    permissions.check_vhost_connections(users, user, "/", 1000, 2)
    for vhost, in_vhost, of_user, told in (
        ("shop", 2, 2, "connection limit (2) is reached"),
        ("closed", 0, 0, "connection limit (0) is reached"),
        ("/", 0, 3, "user connection limit (3) is reached"),
    ):
        with pytest.raises(ConnectionFault, match=r"530") as raised:
            permissions.check_vhost_connections(users, user, vhost, in_vhost, of_user)
        assert told in raised.value.said
    permissions.check_vhost_queues(users, "shop", "q2", lambda: 100)
    permissions.check_vhost_queues(users, "closed", "q1", lambda: 0)
    with pytest.raises(ChannelFault) as refused:
        permissions.check_vhost_queues(users, "closed", "q2", lambda: 1)
    assert (refused.value.code, refused.value.said) == (
        406,
        "PRECONDITION_FAILED - cannot declare queue 'q2': queue limit in vhost 'closed' (1) is reached",
    )
    assert user.limit("max-connections") == 3
    assert user.limit("max-channels") is None


def test_routing_keys_of_topic_exchanges(tmp_path: Path) -> None:
    topics = {
        "amq.topic": TopicRights("^a", "^b"),
        "own": TopicRights("^{username}\\.{vhost}$", ""),
    }
    user = user_with(tmp_path, Rights(".*", ".*", ".*"), topics)
    for permission, exchange, key, may in (
        ("write", "amq.topic", "a.x", True),
        ("write", "amq.topic", "b.x", False),
        ("read", "amq.topic", "b.x", True),
        ("read", "amq.topic", "a.x", False),
        ("write", "own", "u./", True),
        ("write", "own", "v./", False),
        ("read", "own", "anything", False),
        ("write", "free", "anything", True),
    ):
        assert user.may_topic(permission, exchange, key, "/") is may, (permission, exchange, key)  # type: ignore[arg-type]


def test_a_name_with_words_of_regular_expressions_is_no_expression(tmp_path: Path) -> None:
    with users_file.changing(tmp_path) as accounts:
        accounts.users[".*"] = Account(
            permissions={"/": Rights(".*", ".*", ".*")}, topic_permissions={"/": {"x": TopicRights("^{username}$", "")}}
        )
    user = Users(tmp_path).named(".*")
    assert user is not None
    assert user.may_topic("write", "x", ".*", "/")
    assert not user.may_topic("write", "x", "other", "/")


def test_decisions_are_bounded(tmp_path: Path) -> None:
    user = user_with(tmp_path, Rights(".*", "^1", ".*"))
    for number in range(3 * DECISIONS_MAX):
        assert user.may("write", "queue", str(number), "/") is str(number).startswith("1")
    assert len(user._decided) <= DECISIONS_MAX


@pytest.mark.parametrize("pattern", ["(", "a**", "[[:alpha:]]", r"\Qx\E", "(?P<a>x)(?P<a>y)", "x" * 5000])
def test_what_is_no_expression_is_refused_where_it_is_given(pattern: str) -> None:
    with pytest.raises(UsageError, match="regular expression"):
        users_file.check_pattern(pattern)
