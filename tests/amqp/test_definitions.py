"""Goal: RabbitMQ's definitions become users, vhosts, permissions, queues, exchanges and bindings of a node, policies
become arguments, and what has no place is named; importing twice is importing once; what is exported is what came in.

Method: `definitions/rabbitmq-3.10.8.json`, which a RabbitMQ with something of everything exported; files as other
versions write them; a plan against an empty catalog, and the command line against a node. A RabbitMQ, where one is
installed, imports what a node exports (`long`).
"""

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from warren.engine.catalog.catalog import Catalog
from warren.engine.errors import UsageError
from warren.workers.amqp import users_file
from warren.workers.amqp.definitions import DefinedPolicy, DefinedQueue, Definitions, decode, read
from warren.workers.amqp.exported import export
from warren.workers.amqp.imported import Plan, plan
from warren.workers.amqp.policies import Policies
from warren.workers.amqp.users import Users

from support.command_line import warren

RECORDED = Path(__file__).parent / "definitions/rabbitmq-3.10.8.json"


def planned(**sections: Any) -> Plan:
    return plan(decode(json.dumps(sections).encode(), "the file"), users_file.defaults(), Catalog())


def told(made: Plan) -> list[tuple[str, str]]:
    return [(item.kind, item.name) for item in made.not_mapped]


# -- what RabbitMQ wrote ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def of_rabbitmq() -> Plan:
    return plan(read(RECORDED), users_file.defaults(), Catalog())


def test_what_rabbitmq_exported_is_understood(of_rabbitmq: Plan) -> None:
    assert of_rabbitmq.new == {
        "vhosts": 2,
        "users": 2,
        "permissions": 4,
        "topic permissions": 1,
        "exchanges": 8,
        "queues": len(of_rabbitmq.queues),
        "streams": 1,
        "bindings": 12,
    }
    assert of_rabbitmq.changed == {"users": 1}, "guest has another hash"
    assert of_rabbitmq.there == {"vhosts": 1, "permissions": 1}
    assert not of_rabbitmq.left
    accounts = of_rabbitmq.accounts
    assert accounts.users["guest"].loopback_only
    assert not accounts.users["alice"].loopback_only
    assert accounts.users["alice"].tags == ["monitoring"]
    assert accounts.users["bob"].limits == {"max-connections": 0, "max-channels": 7}
    assert accounts.users["alice"].topic_permissions["/"]["amq.topic"].write == "^a"
    assert accounts.vhosts["shop"].description == "The shop"
    assert accounts.vhosts["limited"].limits == {"max-connections": 1, "max-queues": 1}


QUEUES = {
    "with ttl": {"message_ttl": 60.0, "expires": 3600.0},
    "bounded": {"max_length": 1000, "max_length_bytes": 1 << 20, "overflow": "reject-publish"},
    "mourned": {"dead_letter_exchange": "dead", "dead_letter_routing_key": "from.mourned"},
    "single": {"single_active_consumer": True},
    "quorum": {"delivery_limit": 5},
    "lazy": {},
    "classic": {},
    "gone-with-its-consumer": {"auto_delete": True},
    "a%2Fb%252F.x ü": {},
    "%2Ehidden": {},
    "%40odd": {},
    "@shop:orders": {},
    # by policies
    "plain": {"expires": 86400.0, "max_length": 100_000},
    "mirrored.q": {"max_length_bytes": 1_000_000},
    "policied.log": {"max_length": 7, "delivery_limit": 3},
    "policied": {
        "message_ttl": 1.0,
        "expires": 999.999,
        "max_length": 500,
        "dead_letter_exchange": "dead",
        "dead_letter_routing_key": "p",
    },
}


@pytest.mark.parametrize("name", QUEUES)
def test_queues_do_what_they_did(of_rabbitmq: Plan, name: str) -> None:
    assert of_rabbitmq.queues[name]["arguments"] == QUEUES[name]


def test_queues_remember_what_they_were_declared_with(of_rabbitmq: Plan) -> None:
    """So a program that declares one as before finds it as it was, whatever a policy has changed."""
    origin = of_rabbitmq.queues["urgent"]["origin"]["arguments"]
    assert origin["x-max-priority"][1] == 10
    assert of_rabbitmq.queues["policied"]["origin"] == {"arguments": {}}
    assert of_rabbitmq.queues["lazy"]["origin"]["arguments"]["x-queue-mode"] == ["longstr", "lazy"]
    assert of_rabbitmq.streams["log"]["retention_s"] == 7 * 86400
    assert of_rabbitmq.streams["log"]["retention_bytes"] == 10**9
    assert of_rabbitmq.exchanges["events"]["alternate"] == "all", "by a policy"
    assert of_rabbitmq.exchanges["until-unbound"]["auto_delete"] is True
    assert of_rabbitmq.exchanges["@shop:amq.direct"]["type"] == "direct", "it is bound"


def test_what_has_no_place_is_named_with_why(of_rabbitmq: Plan) -> None:
    found = {(item.kind, item.name): item.why for item in of_rabbitmq.not_mapped}
    assert found.keys() >= {
        ("exchange", "hashed"),
        ("binding", "hashed → queue single with '1'"),
        ("binding", "inner → queue lazy with 'in'"),
        ("binding", "routed → exchange inner with 'in'"),
        ("policy", "limits"),
        ("policy", "mirrors"),
        ("federation-upstream", "up"),
        ("shovel", "sh"),
        ("global parameter", "mqtt_port_to_vhost_mapping"),
    }
    assert all(found.values())
    assert "unknown exchange type" in found["exchange", "hashed"]
    assert "internal" in found["binding", "routed → exchange inner with 'in'"]
    assert {item["name"]: item["applied"] for item in of_rabbitmq.policies} == {
        "altern": 1,
        "limits": 1,
        "quorums": 1,
        "mirrors": 1,
        "ops": 1,
    }


# -- how versions write it --------------------------------------------------------------------------------------------


def test_the_same_written_otherwise() -> None:
    made = planned(
        rabbit_version="3.8.9",
        users=[{"name": "a", "password_hash": "", "tags": "administrator, monitoring"}],
        vhosts=[
            {"name": "x", "metadata": {"description": "X", "tags": ["t"], "default_queue_type": "quorum"}},
            {"name": "y", "description": "Y", "tags": [], "metadata": {"description": "Y", "tags": []}, "limits": []},
            {"name": "z", "metadata": []},
        ],
        parameters=[
            {"component": "vhost-limits", "name": "limits", "vhost": "x", "value": [["max-queues", 3]]},
            {"component": "vhost-limits", "name": "limits", "vhost": "y", "value": {"max-connections": -1}},
        ],
    )
    assert made.accounts.users["a"].tags == ["administrator", "monitoring"]
    vhosts = made.accounts.vhosts
    assert (vhosts["x"].description, vhosts["x"].default_queue_type, vhosts["x"].limits) == (
        "X",
        "quorum",
        {"max-queues": 3},
    )
    assert (vhosts["y"].description, vhosts["y"].limits) == ("Y", {})
    assert not told(made)


def test_a_file_of_one_vhost() -> None:
    """As the management plugin of 4.x writes it: nothing in it names the vhost."""
    content = {
        "rabbitmq_definition_format": "single_virtual_host",
        "original_vhost_name": "shop",
        "metadata": {"description": "The shop", "tags": []},
        "limits": [["max-queues", 9]],
        "queues": [{"name": "q", "durable": True, "auto_delete": False, "arguments": {}}],
        "exchanges": [{"name": "x", "type": "fanout", "durable": True}],
        "bindings": [{"source": "x", "destination": "q", "destination_type": "queue", "routing_key": ""}],
        "policies": [{"name": "p", "pattern": "^q", "apply-to": "queues", "definition": {"max-length": 3}}],
    }
    made = plan(decode(json.dumps(content).encode(), "f", "shop"), users_file.defaults(), Catalog())
    assert made.accounts.vhosts["shop"].description == "The shop"
    assert made.accounts.vhosts["shop"].limits == {"max-queues": 9}
    assert made.queues["@shop:q"]["arguments"] == {"max_length": 3}
    assert made.bindings == [{"exchange": "@shop:x", "queue": "@shop:q", "routing_key": "", "arguments": None}]
    assert not told(made)
    bare = plan(decode(b'{"queues": [{"name": "q"}]}', "f"), users_file.defaults(), Catalog())
    assert list(bare.queues) == ["q"]
    assert bare.there == {"vhosts": 1}, "what is not said of vhost / stays"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not a file of RabbitMQ's definitions"),
        (b"[]", "not a file of RabbitMQ's definitions"),
        (b"{}", "it has none of users"),
        (b'{"cheese": []}', "it has none of users"),
        (b"\xff", "not a file of RabbitMQ's definitions"),
        (b"[" * 50_000, "not a file of RabbitMQ's definitions"),
        (b'{"queues": {}}', "queues must be a list"),
        (b'{"queues": [7]}', r"queues\[0\] must be a map"),
        (b'{"queues": [], "limits": {"max-queues": "7"}}', "f: limits: "),
        (b'{"queues": [], "description": 7}', "f: the vhost: .*description"),
        (b'{"queues": [{"durable": true}]}', r"queues\[0\]: .*name"),
        (b'{"permissions": [{"user": "a", "vhost": "/", "configure": "", "read": ""}]}', r"permissions\[0\]: .*write"),
        (b'{"permissions": [{"user": "a", "configure": "", "write": "", "read": ""}]}', r"permissions\[0\]: .*vhost"),
        (b'{"topic_permissions": [{"user": "a", "exchange": "x", "write": "", "read": ""}]}', r"\[0\]: .*vhost"),
        (b'{"topic_permissions": [{"user": "a", "vhost": "/", "exchange": "x", "write": ""}]}', r"\[0\]: .*read"),
        (b'{"queues": [{"name": "q", "arguments": 3}]}', r"queues\[0\]: "),
        (b'{"bindings": [{"source": "x"}]}', r"bindings\[0\]: .*destination"),
        (b'{"parameters": [{"component": "vhost-limits", "name": "l", "value": {"a": "b"}}]}', r"parameters\[0\]: "),
    ],
)
def test_what_is_no_such_file_is_refused(content: bytes, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        decode(content, "f")


def test_a_mark_of_the_byte_order_says_nothing() -> None:
    """Shells of Windows write one."""
    assert [item.name for item in decode(b'\xef\xbb\xbf{"queues": [{"name": "q"}]}', "f").queues] == ["q"]


def test_what_is_not_known_is_named() -> None:
    made = planned(queues=[], cheese=[1, 2])
    assert [(item.kind, item.name, item.why) for item in made.not_mapped] == [
        ("section", "cheese", "it is not known here (2 in it)")
    ]


def test_what_cannot_be_is_left_out_and_named() -> None:
    made = planned(
        users=[
            {"name": "", "password_hash": ""},
            {"name": "odd", "password_hash": "AAAA"},
            {"name": "rot", "password_hash": "", "hashing_algorithm": "rot13"},
            {"name": "good", "password_hash": "", "limits": {"max-cheese": 1}},
        ],
        vhosts=[{"name": "x" * 256}],
        permissions=[
            {"user": "nobody", "vhost": "/", "configure": "", "write": "", "read": ""},
            {"user": "good", "vhost": "nope", "configure": "", "write": "", "read": ""},
            {"user": "good", "vhost": "/", "configure": "(?<a>x", "write": "", "read": ""},
        ],
        queues=[
            {"name": "q", "vhost": "nope"},
            {"name": "x" * 300, "vhost": "/"},
            {"name": "minus", "arguments": {"x-max-length": -1}},
            {"name": "mqtt", "type": "MQTT-QoS-0"},
            {"name": "mine", "exclusive": True},
        ],
        exchanges=[{"name": "amq.topic", "type": "topic"}, {"name": "d", "type": "x-delayed-message"}],
        bindings=[
            {"source": "", "destination": "q", "vhost": "/"},
            {"source": "amq.topic", "destination": "q", "vhost": "/"},
            {"source": "d", "destination": "q", "vhost": "/"},
        ],
        policies=[{"name": "p", "pattern": "[[:alpha:]]", "definition": {}}],
    )
    assert told(made) == [
        ("vhost", "x" * 256),
        ("user", ""),
        ("user", "odd"),
        ("user", "rot"),
        ("user", "good"),
        ("permissions", "nobody"),
        ("permissions", "good"),
        ("permissions", "good"),
        ("exchange", "d"),
        ("queue", "q"),
        ("queue", "x" * 300),
        ("queue", "minus"),
        ("queue", "mqtt"),
        ("queue", "mine"),
        ("binding", "amq.topic → queue q"),
        ("binding", "d → queue q"),
        ("policy", "p"),
    ]
    assert not made.declares


def test_a_password_in_the_clear_is_hashed_once(tmp_path: Path) -> None:
    section = [{"name": "a", "password": "secret"}]
    made = planned(users=section)
    assert made.accounts.users["a"].password_hash.startswith("$argon2id$")
    again = plan(decode(json.dumps({"users": section}).encode(), "f"), made.accounts, Catalog())
    assert again.there["users"] == 1
    users_file.save(tmp_path, made.accounts)
    assert Users(tmp_path).check("a", b"secret", "") is not None


# -- policies ---------------------------------------------------------------------------------------------------------


def policy(name: str, pattern: str, priority: int = 0, to: str = "all", **definition: Any) -> DefinedPolicy:
    found = {key.replace("_", "-"): value for key, value in definition.items()}
    return DefinedPolicy(name=name, pattern=pattern, apply_to=to, priority=priority, definition=found)


def test_the_policy_of_the_highest_priority_counts_alone() -> None:
    policies = Policies(
        [policy("low", "q", 1, max_length=5, expires=7), policy("high", "^q", 2, max_length=9)],
        [policy("ops", "", 0, max_length=6, message_ttl=1)],
    )
    found = policies.queue("/", "q1", "classic", {})
    assert found.arguments == {"x-max-length": 6, "x-message-ttl": 1}, (
        "of numbers the smallest; `low` counts not at all"
    )
    assert [item.name for item in found.by] == ["high", "ops"]
    assert policies.queue("/", "xq", "classic", {}).arguments == {
        "x-max-length": 5,
        "x-expires": 7,
        "x-message-ttl": 1,
    }
    assert policies.queue("other", "q1", "classic", {}).by == []


def test_a_queues_own_arguments_and_a_policy() -> None:
    policies = Policies([policy("p", "", overflow="reject-publish", max_length=9, dead_letter_routing_key="k")], [])
    own = {"x-overflow": "drop-head", "x-max-length": 20}
    assert policies.queue("/", "q", "classic", own).arguments == {"x-overflow": "drop-head", "x-max-length": 9}
    assert policies.queue("/", "q", "classic", {"x-max-length": 2}).arguments["x-max-length"] == 2
    with_dlx = policies.queue("/", "q", "classic", {"x-dead-letter-exchange": "d"})
    assert with_dlx.arguments["x-dead-letter-routing-key"] == "k", "it counts where there is an exchange for it"


def test_which_kinds_a_policy_is_for() -> None:
    policies = Policies(
        [
            policy("q", "", 1, "quorum_queues", delivery_limit=3),
            policy("c", "", 1, "classic_queues", max_length=3),
            policy("s", "", 1, "streams", max_age="7D"),
            policy("x", "", 2, "exchanges", alternate_exchange="a"),
        ],
        [],
    )
    assert policies.queue("/", "n", "quorum", {}).arguments == {"x-delivery-limit": 3}
    assert policies.queue("/", "n", "classic", {}).arguments == {"x-max-length": 3}
    assert policies.queue("/", "n", "stream", {}).arguments == {"x-max-age": "7D"}
    assert policies.exchange("/", "n", {}).arguments == {"alternate-exchange": "a"}
    assert policies.exchange("/", "n", {"alternate-exchange": "own"}).arguments == {"alternate-exchange": "own"}


def test_what_a_type_of_queue_does_not_take_is_not_given_to_it() -> None:
    """RabbitMQ leaves it out as well, where a declaration with it would be refused."""
    policies = Policies([policy("p", "", max_age="7D", delivery_limit=3, message_ttl=9)], [])
    assert policies.queue("/", "n", "classic", {}).arguments == {"x-message-ttl": 9}


# -- a node -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    chosen = tmp_path / "node"
    warren("up", chosen, "--detach", "--workers", 1)
    yield chosen
    warren("stop", chosen)


def run(*words: object, code: int = 0) -> Any:
    ended = warren(*words, "--json", code=code)
    return json.loads(ended.stdout) if ended.stdout else ended.said


def without_origin(catalog: Catalog) -> list[object]:
    return [
        {(q.name, q.durable, str(q.arguments), str(q.origin)) for q in catalog.queues.values()},
        set(map(str, catalog.exchanges.values())),
        catalog.bindings,
        catalog.exchange_bindings,
        {(t.name, t.queues, t.retention_s, t.retention_bytes, str(t.origin)) for t in catalog.topics.values()},
        {str(bound) for bound in catalog.topic_bindings},
    ]


@pytest.mark.integration
def test_an_import_is_done_once_and_an_export_gives_it_back(directory: Path, tmp_path: Path) -> None:
    dry = run("import", "rabbitmq-definitions", directory, RECORDED, "--dry-run", code=1)
    assert dry["dry_run"] is True
    assert not users_file.path_of(directory).exists()
    assert not Catalog.load(directory).queues
    first = run("import", "rabbitmq-definitions", directory, RECORDED, code=1)
    assert first == dry | {"dry_run": False}
    catalog = Catalog.load(directory)
    assert {name for name, queue in catalog.queues.items() if not queue.hidden} >= QUEUES.keys()
    assert Users(directory).check("alice", b"secret", "10.0.0.7") is not None, "with the password that RabbitMQ knew"
    again = run("import", "rabbitmq-definitions", directory, RECORDED, code=1)
    assert (again["new"], again["changed"], again["left"]) == ({}, {}, [])
    assert Catalog.load(directory).version == catalog.version, "nothing was changed"

    file = tmp_path / "exported.json"
    exported = run("export", "definitions", directory, file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert exported["notes"] == []
    before, after = json.loads(RECORDED.read_text()), json.loads(file.read_text())
    refused = {"hashed", "inner"}
    for section in ("users", "permissions", "topic_permissions"):
        assert _set(after[section]) == _set(before[section])
    assert _set(after["bindings"]) == {
        text for text in _set(before["bindings"]) if not refused & {_of(text, "source"), _of(text, "destination")}
    }
    missing = {name for _kind, name in told(plan(read(RECORDED), users_file.defaults(), Catalog()))}
    assert _set(after["queues"]) == {text for text in _set(before["queues"]) if _of(text, "name") not in missing}
    assert {item["name"] for item in after["exchanges"]} == {item["name"] for item in before["exchanges"]} - refused

    other = tmp_path / "other"
    warren("up", other, "--detach", "--workers", 1)
    try:
        assert run("import", "rabbitmq-definitions", other, file)["not_mapped"] == []
        assert without_origin(Catalog.load(other)) == without_origin(catalog)
        assert users_file.load(other) == users_file.load(directory)
    finally:
        warren("stop", other)


def _set(items: list[dict[str, Any]]) -> set[str]:
    return {json.dumps(item, sort_keys=True) for item in items}


def _of(text: str, key: str) -> object:
    return json.loads(text)[key]


@pytest.mark.integration
def test_what_is_there_and_differs_is_left(directory: Path, tmp_path: Path) -> None:
    warren("queue", "declare", directory, "plain", "--transient")
    warren("exchange", "declare", directory, "all", "--type", "direct")
    file = tmp_path / "file.json"
    content = {
        "queues": [{"name": "plain"}, {"name": "new"}],
        "exchanges": [{"name": "all", "type": "fanout"}],
        "bindings": [{"source": "all", "destination": "plain"}],
    }
    file.write_text(json.dumps(content))
    answer = run("import", "rabbitmq-definitions", directory, file)
    assert [(item["kind"], item["name"]) for item in answer["left"]] == [("exchange", "all"), ("queue", "plain")]
    assert answer["new"] == {"queues": 1, "bindings": 1}
    assert not Catalog.load(directory).queues["plain"].durable


@pytest.mark.integration
def test_a_node_that_does_not_run_changes_nothing(tmp_path: Path) -> None:
    chosen = tmp_path / "node"
    warren("up", chosen, "--detach", "--workers", 1)
    warren("stop", chosen)
    said = warren("import", "rabbitmq-definitions", chosen, RECORDED, code=3).said
    assert "no node runs" in said
    assert not users_file.path_of(chosen).exists()
    assert "new" in warren("import", "rabbitmq-definitions", chosen, RECORDED, "--dry-run", code=1).stdout
    users_only = tmp_path / "users.json"
    users_only.write_text(json.dumps({"users": [{"name": "a", "password_hash": ""}]}))
    warren("import", "rabbitmq-definitions", chosen, users_only)
    assert "a" in users_file.load(chosen).users, "that needs no node"
    assert json.loads(warren("export", "definitions", chosen).stdout)["users"][0]["name"] == "a"
    for wrong in (tmp_path / "nowhere", tmp_path):
        assert "cannot read" in warren("import", "rabbitmq-definitions", chosen, wrong, code=1).said


def test_what_rabbitmq_has_no_words_for_is_noted() -> None:
    catalog = Catalog()
    catalog.declare_queue("q", workers_n=1, arguments={"ack_timeout": 5, "message_ttl": 1.5})
    catalog.declare_queue("@gone:q", workers_n=1)
    catalog.declare_topic("plain")
    accounts = users_file.defaults()
    accounts.users["a"] = users_file.Account("$argon2id$v=19$m=8,t=1,p=1$c29tZXNhbHQ$AAAA")
    found = export(catalog, accounts, "0.1")
    assert [note.split(":")[0].split(",")[0] for note in found.notes] == [
        "user a has no password there",
        "queue q has ack_timeout",
        "queue q is left out",
        "topic plain is left out",
    ]
    assert found.content["queues"][0]["arguments"] == {"x-message-ttl": 1500}
    assert next(user for user in found.content["users"] if user["name"] == "a")["password_hash"] == ""


def test_a_delivery_limit_comes_back_without_an_argument_that_classic_queues_refuse() -> None:
    """RabbitMQ's classic queues know no x-delivery-limit: the policy of the queue says it."""
    catalog = Catalog()
    more: dict[str, Any]
    for name, dead, more in (
        ("lim", "dead", {}),
        ("@v:first", "@v:dead", {"max_priority": 3}),
        ("gone", "dead", {"auto_delete": True}),
    ):
        arguments = {"delivery_limit": 2, "dead_letter_exchange": "", "dead_letter_routing_key": dead, **more}
        catalog.declare_queue(name, workers_n=1, arguments=arguments)
    accounts = users_file.defaults()
    accounts.vhosts["v"] = users_file.Vhost()
    found = export(catalog, accounts, "0.1")
    for item in found.content["queues"]:
        assert item["type"] == "classic"
        assert "x-delivery-limit" not in item["arguments"]
    assert [item["definition"] for item in found.content["policies"]] == [{"delivery-limit": 2}] * 3
    assert [note.split(",")[0] for note in found.notes] == [
        f"queue {name} has delivery_limit" for name in ("lim", "first", "gone")
    ]
    made = planned(**found.content)
    assert made.not_mapped == []
    assert {name: item["arguments"] for name, item in made.queues.items()} == {
        name: catalog.queues[name].arguments for name in ("lim", "@v:first", "gone")
    }
    assert [item["applied"] for item in made.policies] == [1, 1, 1]
    assert export(made.catalog, made.accounts, "0.1").content == found.content


def test_a_policy_of_rabbitmqs_gives_no_delivery_limit_to_classic_queues() -> None:
    """As there."""
    policy = {"name": "all", "pattern": "", "definition": {"delivery-limit": 2, "max-length": 3}}
    kinds = [{"name": "c"}, {"name": "q", "arguments": {"x-queue-type": "quorum"}}]
    made = planned(queues=kinds, policies=[policy])
    assert made.queues["c"]["arguments"] == {"max_length": 3}
    assert made.queues["q"]["arguments"] == {"max_length": 3, "delivery_limit": 2}


def test_what_is_refused_or_left_counts_for_no_policy() -> None:
    policy = {"name": "p", "pattern": "^[qx]", "definition": {"max-length": 3, "alternate-exchange": "a"}}
    wrong = {"name": "q", "arguments": {"x-delivery-limit": 2}}
    sections: dict[str, list[Any]] = {
        "queues": [wrong],
        "exchanges": [{"name": "x", "type": "x-random"}],
        "policies": [policy],
    }
    made = planned(**sections)
    assert made.policies == []
    assert [(item.kind, item.name) for item in made.refused] == [("exchange", "x"), ("queue", "q")]
    assert made.told()["refused"] == [item._asdict() for item in made.refused]
    assert [(item["kind"], item["name"]) for item in made.told()["not_mapped"]] == [("policy", "p")]
    sections["queues"].append({"name": "q2"})
    assert [item["applied"] for item in planned(**sections).policies] == [1]
    there = Catalog()
    there.declare_queue("q2", workers_n=1)
    made = plan(decode(json.dumps(sections).encode(), "the file"), users_file.defaults(), there)
    assert (made.policies, [item.name for item in made.left]) == ([], ["q2"])


@pytest.mark.integration
@pytest.mark.parametrize(
    "content",
    [
        {"queues": [{"name": "q", "arguments": {"x-delivery-limit": 2}}]},
        {"exchanges": [{"name": "x", "type": "x-random"}]},
        {"bindings": [{"source": "amq.direct", "destination": "nowhere"}]},
    ],
)
def test_an_import_that_refuses_a_declaration_ends_with_code_1(
    directory: Path, tmp_path: Path, content: dict[str, Any]
) -> None:
    file = tmp_path / "file.json"
    file.write_text(json.dumps(content | {"policies": [{"name": "p", "pattern": "", "definition": {"cheese": 1}}]}))
    for how in (("--dry-run",), ()):
        answer = run("import", "rabbitmq-definitions", directory, file, *how, code=1)
        assert len(answer["refused"]) == 1
        assert "policy" in {item["kind"] for item in answer["not_mapped"]}
    ended = warren("import", "rabbitmq-definitions", directory, file, code=1)
    assert "\nrefused:\n" in ended.stdout
    file.write_text(json.dumps({"queues": [{"name": "good"}], "policies": [{"name": "p", "pattern": "x"}]}))
    assert run("import", "rabbitmq-definitions", directory, file)["refused"] == []


@pytest.mark.long
@pytest.mark.integration
def test_rabbitmq_imports_what_a_node_exports(directory: Path, tmp_path: Path) -> None:
    """And exports the same again. Where no RabbitMQ is installed, it is skipped."""
    from warren.tools.rabbitmq import NoRabbitMQ, RabbitMQ

    run("import", "rabbitmq-definitions", directory, RECORDED, code=1)
    ours, theirs = tmp_path / "ours.json", tmp_path / "theirs.json"
    warren("export", "definitions", directory, ours)
    try:
        server = RabbitMQ()
    except NoRabbitMQ as reason:
        pytest.skip(str(reason))
    with server:
        ours.chmod(0o644)
        server.control("import_definitions", str(ours), "--format=json")
        server.control("export_definitions", str(theirs), "--format=json")
        server.control("authenticate_user", "alice", "secret")  # it raises, if that is not the password
    one, other = json.loads(ours.read_text()), json.loads(theirs.read_text())
    for section in ("users", "permissions", "topic_permissions", "queues", "bindings", "policies"):
        assert _set(other[section]) == _set(one[section]), section
    for item in one["exchanges"]:
        del item["internal"]
    assert _set(other["exchanges"]) == _set(one["exchanges"])


def test_a_plan_changes_nothing() -> None:
    accounts, catalog = users_file.defaults(), Catalog()
    before = str(accounts)
    plan(Definitions(queues=[DefinedQueue(name="q")], vhosts=[]), accounts, catalog)
    plan(read(RECORDED), accounts, catalog)
    assert str(accounts) == before
    assert not catalog.queues


# -- what a file may say that a node would refuse ---------------------------------------------------------------------


def test_what_a_file_says_twice_is_there_the_second_time() -> None:
    made = planned(
        queues=[{"name": "q"}, {"name": "q"}, {"name": "q", "durable": False}],
        exchanges=[{"name": "x", "type": "topic"}, {"name": "x", "type": "topic"}, {"name": "x", "type": "fanout"}],
        bindings=[{"source": "x", "destination": "q"}] * 2,
    )
    assert made.new == {"queues": 1, "exchanges": 1, "bindings": 1}
    assert (made.there["queues"], made.there["exchanges"], made.there["bindings"]) == (1, 1, 1)
    assert [(item.kind, item.name) for item in made.left] == [("exchange", "x"), ("queue", "q")]


def test_a_stream_and_a_queue_cannot_have_one_name() -> None:
    stream = {"name": "q", "arguments": {"x-queue-type": "stream"}}
    for one, other in (({"name": "q"}, stream), (stream, {"name": "q"})):
        made = planned(queues=[one, other])
        assert len(made.queues) + len(made.streams) == 1
        assert [item.name for item in made.left] == ["q"]
    catalog = Catalog()
    catalog.declare_topic("q")  # of Warren's programs, which AMQP does not see
    assert list(plan(Definitions(queues=[DefinedQueue(name="q")]), users_file.defaults(), catalog).queues) == ["q"]


def test_what_the_node_would_refuse_is_named_and_the_rest_is_declared() -> None:
    made = planned(
        queues=[
            {"name": ""},
            {"name": "TBW102", "type": "stream"},
            {"name": "q", "arguments": {"my": 2**70}},
            {"name": "good"},
        ],
        exchanges=[{"name": "/" * 200}],
        bindings=[
            {"source": "amq.topic", "destination": "good", "routing_key": "k" * 256},
            {"source": "amq.headers", "destination": "good", "arguments": {"x-match": "some"}},
            {"source": "amq.topic", "destination": "good", "destination_type": "cheese"},
            {"source": "amq.topic", "destination": "good"},
        ],
    )
    assert [kind for kind, _name in told(made)] == ["exchange", "queue", "stream", "queue", *["binding"] * 3]
    assert list(made.queues) == ["good"]
    assert len(made.bindings) == 1


def test_an_alternate_exchange_that_is_the_default_one_leads_nowhere_and_is_exported() -> None:
    made = planned(exchanges=[{"name": "x", "type": "direct", "arguments": {"alternate-exchange": ""}}])
    assert not told(made)
    assert made.exchanges["x"]["alternate"] is None
    (exported,) = export(made.catalog, made.accounts, "1").content["exchanges"]
    assert exported["arguments"] == {"alternate-exchange": ""}


def test_a_policy_that_rabbitmq_would_not_set_is_named_and_counts_not_at_all() -> None:
    wrong: dict[str, Any] = {"max-length": "7", "message-ttl": True, "overflow": 3, "expires": -1}
    made = planned(
        queues=[{"name": "q"}],
        policies=[
            *({"name": key, "pattern": "", "definition": {key: value}} for key, value in wrong.items()),
            {"name": "to", "pattern": "", "apply-to": "cheese", "definition": {}},
        ],
        parameters=[
            {"component": "operator_policy", "name": "overflow", "value": {"pattern": "", "definition": {"expires": 9}}}
        ],
    )
    assert [name for _kind, name in told(made)] == [*wrong, "to"]
    assert made.queues["q"]["arguments"] == {"expires": 0.009}, "that of operators has the same name, and is right"


def test_a_file_of_a_whole_broker_goes_into_no_one_vhost() -> None:
    with pytest.raises(UsageError, match="of a whole broker"):
        decode(b'{"users": [{"name": "a"}], "vhosts": [{"name": "/"}]}', "f", "shop")


def test_a_stream_that_a_policy_shortened_is_exported_with_a_policy() -> None:
    made = planned(
        queues=[{"name": "s", "arguments": {"x-queue-type": "stream"}}],
        policies=[{"name": "p", "pattern": "s", "definition": {"max-age": "7D"}}],
    )
    content = export(made.catalog, made.accounts, "1").content
    assert content["queues"][0]["arguments"] == {"x-queue-type": "stream"}
    assert [item["definition"] for item in content["policies"]] == [{"max-age": "604800s"}]


@pytest.mark.integration
def test_pipes_and_links(directory: Path, tmp_path: Path) -> None:
    """An import reads its file once; an export writes into what is no file, and behind a link."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    content = json.dumps({"users": [{"name": "a", "password_hash": ""}], "queues": [{"name": "q"}]}).encode()
    writer = threading.Thread(target=pipe.write_bytes, args=(content,))
    writer.start()
    assert run("import", "rabbitmq-definitions", directory, pipe)["new"]["queues"] == 1
    writer.join(60)
    assert not writer.is_alive()
    assert "a" in users_file.load(directory).users
    link, file = tmp_path / "link", tmp_path / "file"
    file.touch()
    link.symlink_to(file)
    run("export", "definitions", directory, link)
    assert link.is_symlink()
    assert json.loads(file.read_text())["queues"][0]["name"] == "q"
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()))
    reader.start()
    run("export", "definitions", directory, pipe)
    reader.join(60)
    assert found == [file.read_bytes()]
    assert pipe.is_fifo()
