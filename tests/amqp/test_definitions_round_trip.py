"""Goal: whatever a file of definitions says, an import plans what a node takes, and names the rest; what is exported
afterwards becomes the same declarations, users and rights in an empty node, and the same file again.

Method: Hypothesis makes files with names that must be escaped, arguments of all types, things said twice, vhosts and
exchanges that are not there, policies. Each request of a plan is made as the node makes it, in a catalog.
"""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from warren.engine.catalog.catalog import Catalog
from warren.workers.amqp import users_file
from warren.workers.amqp.definitions import decode
from warren.workers.amqp.exported import export
from warren.workers.amqp.imported import plan
from warren.workers.amqp.users_file import Accounts

from support.long import rounds

NAMES = [
    "q",
    "a/b",
    "a%2Fb",
    ".x",
    "@v:q",
    "@",
    "%41",
    "%RETRY%g",
    "%",
    "ü\n",
    "a.b",
    "a%2Eb",
    "v|q",
    "|q",
    "",
    "x" * 200,
]
NAMES += ["y" * 300, "WARREN_SYS_a", "amq.topic", "amq.own", "RMQ_SYS_a", "TBW102", "\x00", "a b", "^q$", "q.*"]
names = st.sampled_from(NAMES)
vhosts = st.sampled_from(["/", "/", "v", "v:w", "a/b", "|", "nowhere"])
keys = st.sampled_from(["", "k", "a.#", "k" * 256])
numbers = st.sampled_from([0, 1, 7, -1, 2**31, 2**63, 2**64, 2**70, 1.5, True])
texts = st.sampled_from(
    ["", "q", "a/b", "drop-head", "reject-publish", "quorum", "stream", "classic", "7D", "0s", "all"]
)
values: st.SearchStrategy[Any] = st.one_of(numbers, texts, st.none(), st.just([1, {"a": [2]}]))


def maps(*of: str, value: st.SearchStrategy[Any] = values) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(of), value, max_size=3)


ARGUMENTS = (
    "x-max-length",
    "x-message-ttl",
    "x-expires",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-own",
)
ARGUMENTS += ("x-overflow", "x-max-priority", "x-delivery-limit", "x-max-age", "x-max-length-bytes", "x-queue-mode")
good = st.fixed_dictionaries(
    {},
    optional={
        "x-max-length": st.integers(0, 9),
        "x-message-ttl": st.integers(0, 9999),
        "x-dead-letter-exchange": names,
        "x-delivery-limit": st.integers(-1, 9),
        "x-max-length-bytes": st.integers(0, 9999),
    },
)
ages = st.fixed_dictionaries({"x-queue-type": st.just("stream")}, optional={"x-max-age": st.sampled_from(["7D", "1h"])})
POLICIES = st.fixed_dictionaries(
    {},
    optional={
        "max-length": st.integers(0, 9),
        "message-ttl": st.integers(0, 9999),
        "expires": st.integers(1, 9999),
        "max-age": st.sampled_from(["1D", "5m"]),
        "max-length-bytes": st.integers(1, 9999),
        "delivery-limit": st.integers(0, 9),
        "dead-letter-exchange": names,
        "dead-letter-routing-key": names,
        "overflow": st.sampled_from(["drop-head", "reject-publish"]),
        "alternate-exchange": names,
        "ha-mode": values,
    },
)
odd_policies = maps("max-length", "message-ttl", "max-age", "overflow", "alternate-exchange", "cheese")
yes = st.booleans()
rights = st.sampled_from([".*", "", "^a", "("])
files = st.fixed_dictionaries(
    {
        "vhosts": st.lists(
            st.fixed_dictionaries({"name": vhosts.filter("nowhere".__ne__), "description": texts}), max_size=4
        ),
        "users": st.lists(
            st.fixed_dictionaries(
                {"name": names, "password_hash": st.just(""), "tags": st.just("a,b"), "limits": st.just({})}
            ),
            max_size=2,
        ),
        "permissions": st.lists(
            st.fixed_dictionaries(
                {"user": names, "vhost": vhosts, "configure": rights, "write": rights, "read": rights}
            ),
            max_size=2,
        ),
        "queues": st.lists(
            st.fixed_dictionaries(
                {
                    "name": names,
                    "vhost": vhosts,
                    "durable": st.sampled_from([True, True, False]),
                    "auto_delete": st.sampled_from([False, False, True]),
                    "arguments": st.one_of(good, ages, maps(*ARGUMENTS, "x-queue-type")),
                }
            ),
            max_size=6,
        ),
        "exchanges": st.lists(
            st.fixed_dictionaries(
                {
                    "name": names,
                    "vhost": vhosts,
                    "type": st.sampled_from(["direct", "topic", "headers", "fanout", "x-random"]),
                    "durable": yes,
                    "internal": yes,
                    "auto_delete": yes,
                    "arguments": maps("alternate-exchange", "x-own"),
                }
            ),
            max_size=4,
        ),
        "bindings": st.lists(
            st.fixed_dictionaries(
                {
                    "source": st.one_of(names, st.sampled_from(["amq.headers", "amq.topic"])),
                    "vhost": vhosts,
                    "destination": names,
                    "destination_type": st.sampled_from(["queue", "queue", "exchange", "cheese"]),
                    "routing_key": keys,
                    "arguments": maps("x-match", "h"),
                }
            ),
            max_size=8,
        ),
        "policies": st.lists(
            st.fixed_dictionaries(
                {
                    "name": names,
                    "vhost": vhosts,
                    "pattern": st.sampled_from(["", "^q", "a", "("]),
                    "apply-to": st.sampled_from(["all", "queues", "exchanges", "streams", "cheese"]),
                    "priority": st.integers(0, 2),
                    "definition": st.one_of(POLICIES, odd_policies),
                }
            ),
            max_size=3,
        ),
    }
)


class Taking:
    """Who takes requests, and makes them in a catalog, as the desk of a node does."""

    def __init__(self) -> None:
        self.catalog = Catalog()

    def call(self, op: str, **fields: Any) -> dict[str, Any]:
        json.dumps(fields)  # it goes through a socket
        many = {"declare_queues": "queues", "bind_many": "bindings"}
        for item in fields[many[op]] if op in many else [fields]:
            if op == "declare_queues":
                self.catalog.declare_queue(workers_n=1, **item)
            else:
                getattr(self.catalog, op.removesuffix("_many"))(**item)
        return {}


def taken(content: dict[str, Any]) -> tuple[Accounts, Catalog]:
    """What an empty node is after an import, which is what the plan said."""
    found = decode(json.dumps(content).encode(), "f")
    made = plan(found, users_file.defaults(), Catalog())
    node = Taking()
    made.carry_out(node)
    made.accounts.check()
    assert declared(node.catalog) == declared(made.catalog)
    again = plan(found, made.accounts, node.catalog)
    assert not again.declares
    assert not again.new
    return made.accounts, node.catalog


def declared(catalog: Catalog) -> list[object]:
    return [
        sorted(str((q.name, q.durable, q.arguments, q.origin)) for q in catalog.queues.values() if not q.hidden),
        sorted(map(str, catalog.exchanges.values())),
        catalog.bindings,
        catalog.exchange_bindings,
        sorted(str((t.name, t.queues, t.retention_s, t.retention_bytes, t.origin)) for t in catalog.topics.values()),
        sorted(map(str, catalog.topic_bindings)),
    ]


@given(files)
@settings(max_examples=rounds(200), deadline=None)
def test_what_is_exported_becomes_the_same_in_an_empty_node(content: dict[str, Any]) -> None:
    accounts, catalog = taken(content)
    first = export(catalog, accounts, "1").content
    accounts_again, catalog_again = taken(first)
    assert export(catalog_again, accounts_again, "1").content == first
    assert does(catalog_again) == does(catalog)
    assert accounts_again == accounts


def does(catalog: Catalog) -> list[object]:
    """What is declared, without what it was said with."""
    return [
        sorted((q.name, q.durable, str(sorted(q.arguments.items()))) for q in catalog.queues.values() if not q.hidden),
        {(x.name, x.type, x.durable, x.alternate, x.internal, x.auto_delete) for x in catalog.exchanges.values()},
        catalog.bindings,
        catalog.exchange_bindings,
        {(t.name, t.queues, t.retention_s, t.retention_bytes) for t in catalog.topics.values()},
        catalog.topic_bindings,
    ]
