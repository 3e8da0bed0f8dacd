"""Goal: declarations follow the rules, survive the file, and a damaged or newer file is refused with its path.

Method: each rule by example; a file round trip; every single flipped byte of a small catalog; a full disk by a limit
on file size.
"""

import json
import resource
import signal
import sys
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.engine.catalog import exchanges
from warren.engine.catalog.catalog import FILE_NAME, QUEUES_PER_WORKER_MAX, Binding, Catalog
from warren.engine.catalog.topics import TopicDeclaration
from warren.engine.errors import (
    CorruptRecord,
    DeclarationMismatch,
    ExchangeNotFound,
    FormatVersionError,
    InvalidName,
    LimitError,
    PreconditionFailed,
    QueueNotFound,
    ResourceLocked,
    StoreError,
    TopicNotFound,
    UsageError,
)


def example() -> Catalog:
    catalog = Catalog()
    catalog.declare_queue("orders", workers_n=2)
    catalog.declare_queue("fast", workers_n=2, durable=False)
    catalog.declare_exchange("events", type="topic")
    catalog.declare_exchange("passing", type="fanout", durable=False)
    catalog.bind("orders", "events", "order.#")
    catalog.bind("fast", "events", "*")
    catalog.bind("orders", "passing")
    catalog.declare_subscription("orders", "report")
    catalog.declare_topic("flights", queues=2, retention_s=60.0)
    return catalog


def same(one: Catalog, other: Catalog) -> bool:
    return {**vars(one), "log": 0, "_before": 0} == {**vars(other), "log": 0, "_before": 0}


def test_ids_rise_and_are_never_used_again() -> None:
    catalog = Catalog()
    first = catalog.declare_queue("a", workers_n=1)
    catalog.delete_queue("a")
    second = catalog.declare_queue("a", workers_n=1)
    assert (first.id, second.id) == (1, 2)
    assert catalog.by_id == {2: second}


def test_declaring_twice_changes_nothing() -> None:
    catalog = example()
    version = catalog.version
    assert catalog.declare_queue("orders", workers_n=2) is catalog.queues["orders"]
    assert catalog.declare_exchange("events", type="topic") is catalog.exchanges["events"]
    assert catalog.declare_exchange("amq.topic", type="topic").durable
    assert catalog.declare_exchange("", type="direct").name == ""
    catalog.bind("orders", "events", "order.#")
    assert catalog.declare_subscription("orders", "report").hidden
    assert catalog.declare_topic("flights", queues=2, retention_s=60) is catalog.topics["flights"]
    assert catalog.declare_topic("flights", retention_s=60) is catalog.topics["flights"]
    assert catalog.declare_topic("flights", as_it_is=True) is catalog.topics["flights"]
    assert catalog.version == version


def test_every_change_raises_the_version() -> None:
    catalog = Catalog()
    versions = [catalog.version]
    for change in (
        lambda: catalog.declare_queue("q", workers_n=1),
        lambda: catalog.declare_exchange("x"),
        lambda: catalog.bind("q", "x", "k"),
        lambda: catalog.unbind("q", "x", "k"),
        lambda: catalog.declare_subscription("q", "s"),
        lambda: catalog.delete_subscription("q", "s"),
        lambda: catalog.delete_exchange("x"),
        lambda: catalog.delete_queue("q"),
        lambda: catalog.declare_topic("t"),
        lambda: catalog.delete_topic("t"),
    ):
        change()
        versions.append(catalog.version)
    assert versions == sorted(set(versions))


def test_refusals_change_nothing() -> None:
    catalog = example()
    before = catalog.copy()
    refusals = [
        (DeclarationMismatch, lambda: catalog.declare_queue("orders", workers_n=2, durable=False)),
        (DeclarationMismatch, lambda: catalog.declare_exchange("events", type="direct")),
        (DeclarationMismatch, lambda: catalog.declare_exchange("amq.fanout", type="topic")),
        (InvalidName, lambda: catalog.declare_queue("a/b", workers_n=2)),
        (InvalidName, lambda: catalog.declare_exchange(".x")),
        (InvalidName, lambda: catalog.declare_subscription("orders", "a/b")),
        (InvalidName, lambda: catalog.bind("orders", "events", "k" * 256)),
        (UsageError, lambda: catalog.declare_exchange("x", type="hash")),
        (UsageError, lambda: catalog.declare_exchange("amq.mine")),
        (UsageError, lambda: catalog.delete_exchange("amq.direct")),
        (UsageError, lambda: catalog.delete_exchange("")),
        (UsageError, lambda: catalog.declare_queue("new", workers_n=2, arguments={"ttl": 5})),
        (UsageError, lambda: catalog.bind("orders", "", "k")),
        (QueueNotFound, lambda: catalog.delete_queue("none")),
        (QueueNotFound, lambda: catalog.delete_queue("orders/report")),
        (QueueNotFound, lambda: catalog.bind("none", "events")),
        (QueueNotFound, lambda: catalog.declare_subscription("none", "s")),
        (QueueNotFound, lambda: catalog.delete_subscription("orders", "none")),
        (ExchangeNotFound, lambda: catalog.bind("orders", "none")),
        (ExchangeNotFound, lambda: catalog.delete_exchange("none")),
        (TopicNotFound, lambda: catalog.delete_topic("none")),
        (TopicNotFound, lambda: catalog.delete_topic("orders")),
        (DeclarationMismatch, lambda: catalog.declare_topic("flights", queues=3, retention_s=60)),
        (DeclarationMismatch, lambda: catalog.declare_topic("flights", retention_s=61)),
        (DeclarationMismatch, lambda: catalog.declare_topic("flights", retention_bytes=5)),
        (DeclarationMismatch, lambda: catalog.declare_topic("flights", retention_s=60, compacted=True)),
        (InvalidName, lambda: catalog.declare_topic("a.b")),
        (UsageError, lambda: catalog.declare_topic("t", queues=0)),
        (UsageError, lambda: catalog.declare_topic("t", queues=1025)),
        (UsageError, lambda: catalog.declare_topic("t", queues=True)),
        (UsageError, lambda: catalog.declare_topic("t", queues=1.5)),  # type: ignore[arg-type]
        (UsageError, lambda: catalog.declare_topic("t", retention_s=0)),
        (UsageError, lambda: catalog.declare_topic("t", retention_s=float("nan"))),
        (UsageError, lambda: catalog.declare_topic("t", retention_s=10**400)),
        (UsageError, lambda: catalog.declare_topic("t", retention_bytes=0)),
        (UsageError, lambda: catalog.declare_topic("t", retention_bytes=1 << 63)),
        (UsageError, lambda: catalog.declare_topic("t", compacted=1)),  # type: ignore[arg-type]
        (UsageError, lambda: catalog.declare_topic("t", compacted=True, retention_s=5)),
        (UsageError, lambda: catalog.declare_topic("t", compacted=True, retention_bytes=5)),
    ]
    for error, change in refusals:
        with pytest.raises(error):
            change()
        assert same(catalog, before)


def test_queues_go_to_the_worker_with_the_fewest() -> None:
    catalog = Catalog()
    for number in range(9):
        catalog.declare_queue(f"q{number}", workers_n=3)
    assert [len(catalog.of_worker(worker)) for worker in range(3)] == [3, 3, 3]
    for item in catalog.of_worker(1):
        catalog.delete_queue(item.name)
    assert [catalog.declare_queue(f"n{number}", workers_n=3).worker for number in range(3)] == [1, 1, 1]
    assert catalog.declare_queue("wider", workers_n=4).worker == 3


def test_a_worker_has_a_limit_that_is_named() -> None:
    catalog = Catalog()
    for number in range(QUEUES_PER_WORKER_MAX):
        catalog._add_queue(f"q{number}", True, 0)
    with pytest.raises(LimitError, match="workers"):
        catalog.declare_queue("one more", workers_n=1)


def test_a_subscription_lives_and_dies_with_its_queue() -> None:
    catalog = example()
    queue = catalog.queue("orders")
    hidden = catalog.subscription("orders", "report")
    assert hidden is not None
    assert (hidden.worker, hidden.durable, hidden.subscription_of) == (queue.worker, True, queue.id)
    with pytest.raises(QueueNotFound):
        catalog.queue(hidden.name)
    catalog.delete_queue("orders")
    assert catalog.subscription("orders", "report") is None
    assert {item.queue for item in catalog.bindings} == {"fast"}


def test_deleting_an_exchange_removes_its_bindings() -> None:
    catalog = example()
    catalog.delete_exchange("events")
    assert catalog.bindings == {Binding("passing", "orders", "")}


def test_transient_declarations_vanish() -> None:
    catalog = example()
    catalog.declare_subscription("fast", "s")
    dropped = catalog.drop_transient()
    assert {item.name for item in dropped} == {"fast", "fast/s"}
    assert set(catalog.queues) == {"orders", "orders/report"}
    assert "passing" not in catalog.exchanges
    assert catalog.bindings == {Binding("events", "orders", "order.#")}
    version = catalog.version
    assert catalog.drop_transient() == []
    assert catalog.version == version


def test_file_round_trip(tmp_path: Path) -> None:
    catalog = example()
    catalog.save(tmp_path)
    assert same(Catalog.load(tmp_path), catalog)
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


@given(st.lists(st.tuples(st.text(min_size=1, max_size=20), st.booleans()), max_size=20))
def test_file_round_trip_of_any_names(declarations: list[tuple[str, bool]]) -> None:
    catalog = Catalog()
    for name, durable in declarations:
        try:
            catalog.declare_queue(name, workers_n=2, durable=durable)
        except UsageError:
            continue
    assert same(Catalog.decode(catalog.encode(), Path("x")), catalog)


def test_every_flipped_byte_is_noticed() -> None:
    catalog = example()
    content = catalog.encode()
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 0x04
        try:
            found = Catalog.decode(bytes(damaged), Path("catalog.json"))
        except CorruptRecord:
            continue
        assert same(found, catalog), f"byte {position} changed the catalog unnoticed"  # white space at the end


def test_missing_torn_foreign_and_newer_files(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    with pytest.raises(CorruptRecord, match="no file"):
        Catalog.load(tmp_path)
    content = example().encode()
    for wrong in (b"", content[: len(content) // 2], b"\xff\xfe", b"[]", b'{"crc32":1,"catalog":{}}'):
        path.write_bytes(wrong)
        with pytest.raises(CorruptRecord, match=FILE_NAME):
            Catalog.load(tmp_path)
    import zlib

    body = json.dumps({"format_version": 99, "and": "new things"}).encode()
    path.write_bytes(b'{"crc32":%d,"catalog":%s}' % (zlib.crc32(body), body))
    with pytest.raises(FormatVersionError, match="newer Warren"):
        Catalog.load(tmp_path)


def test_a_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    catalog = example()
    catalog.save(tmp_path)
    bigger = catalog.copy()
    for number in range(100):
        bigger.declare_queue(f"more {number}", workers_n=2)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        with pytest.raises(StoreError, match=r"catalog\.json"):
            bigger.save(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert same(Catalog.load(tmp_path), catalog)
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_arguments_are_stored_in_one_form() -> None:
    """What is said aloud and equals the default is the same declaration; seconds and counts have one type each."""
    catalog = Catalog()
    first = catalog.declare_queue("q", workers_n=1, arguments={"message_ttl": 5, "overflow": "drop-head"})
    assert first.arguments == {"message_ttl": 5.0}
    assert catalog.declare_queue("q", workers_n=1, arguments={"message_ttl": 5}) is first
    assert (first.policy.message_ttl_ms, first.policy.dead_letters, first.policy.rejects_publish) == (
        5000,
        False,
        False,
    )
    with pytest.raises(DeclarationMismatch, match=r"message_ttl=5\.0, not .*message_ttl=6\.0"):
        catalog.declare_queue("q", workers_n=1, arguments={"message_ttl": 6})
    with pytest.raises(DeclarationMismatch):
        catalog.declare_queue("q", workers_n=1)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"ttl": 1}, "did you mean message_ttl"),
        ({"colour": 1}, "known are .*message_ttl"),
        ({"message_ttl": -0.001}, "seconds"),
        ({"message_ttl": float("nan")}, "seconds"),
        ({"message_ttl": True}, "number"),
        ({"expires": -1}, "seconds"),
        ({"max_length": -1}, "from 0"),
        ({"max_length": 1.5}, "whole"),
        ({"max_length": "many"}, "max_length='many': it must be a whole number"),
        ({"message_ttl": "soon"}, "message_ttl='soon': it must be a number"),
        ({"max_length_bytes": 1 << 63}, "whole"),
        ({"overflow": "reject-publish"}, "max_length"),
        ({"max_length": 1, "overflow": "block"}, "reject-publish"),
        ({"dead_letter_routing_key": "k"}, "dead_letter_exchange"),
        ({"dead_letter_exchange": "a/b"}, "slash"),
        ({"dead_letter_exchange": "x", "dead_letter_routing_key": "k" * 256}, "long"),
        ({"max_priority": 256}, "from 0 to 255"),
        ({"delivery_limit": -1}, "from 0"),
        ({"single_active_consumer": 2}, "True or False"),
        ({"deduplication_window": 1e12}, "seconds"),
        ({"exclusive": True}, "client"),
    ],
)
def test_wrong_arguments_are_refused_by_name(arguments: dict[str, object], says: str) -> None:
    catalog = Catalog()
    with pytest.raises(UsageError, match=says):
        catalog.declare_queue("q", workers_n=1, arguments=arguments)
    assert not catalog.queues


def test_a_companion_lives_and_goes_with_its_queue() -> None:
    catalog = Catalog()
    catalog.declare_queue("other", workers_n=2)
    queue = catalog.declare_queue("q", workers_n=2, durable=False, arguments={"dead_letter_exchange": ""})
    companion = catalog.dead_letters(queue)
    assert companion is not None
    assert (companion.hidden, companion.durable, companion.worker) == (True, False, queue.worker)
    assert companion.dead_letters_of == queue.id
    assert companion in catalog.of_worker(queue.worker)
    with pytest.raises(QueueNotFound):
        catalog.queue(companion.name)
    assert catalog.dead_letters(catalog.queue("other")) is None
    loaded = Catalog.decode(catalog.encode(), Path("x"))
    assert same(loaded, catalog)
    catalog.delete_queue("q")
    assert list(catalog.queues) == ["other"]


def test_an_exclusive_queue_belongs_to_one_client_and_survives_no_start() -> None:
    catalog = Catalog()
    mine = catalog.declare_queue(
        "mine", workers_n=1, arguments={"exclusive": True, "dead_letter_exchange": ""}, client=7
    )
    catalog.declare_exchange("x")
    assert mine.owner == 7
    assert catalog.declare_queue("mine", workers_n=1, arguments=mine.arguments, client=7) is mine
    for change in (
        lambda: catalog.declare_queue("mine", workers_n=1, arguments=mine.arguments, client=8),
        lambda: catalog.delete_queue("mine", client=8),
        lambda: catalog.bind("mine", "x", client=8),
        lambda: catalog.unbind("mine", "x", client=8),
        lambda: catalog.declare_subscription("mine", "s"),
    ):
        with pytest.raises(ResourceLocked, match="another client"):
            change()
    catalog.declare_subscription("mine", "s", client=7)
    catalog.bind("mine", "x", client=7)
    assert len(catalog.drop_transient()) == 3
    assert not catalog.queues
    assert not catalog.bindings


def test_binding_arguments_are_compared_with_headers_or_opaque() -> None:
    catalog = Catalog()
    catalog.declare_queue("q", workers_n=1)
    one = catalog.bind("q", "amq.headers", arguments={"b": 1, "a": "x", "x-match": "any"})
    assert catalog.bind("q", "amq.headers", arguments={"x-match": "any", "a": "x", "b": 1}) == one
    catalog.bind("q", "amq.headers", arguments={"b": True, "a": "x", "x-match": "any"})
    assert len(catalog.bindings) == 2, "1 and True are different values"
    assert same(Catalog.decode(catalog.encode(), Path("x")), catalog)
    assert one.arguments == {"a": "x", "b": 1, "x-match": "any"}
    for wrong in ({"x-match": "some"}, {"a": b"bytes"}, {"a": [1]}, {1: "a"}):
        with pytest.raises(UsageError):
            catalog.bind("q", "amq.headers", arguments=wrong)
    other = catalog.bind("q", "amq.direct", "k", {"a": [1, {"b": None}], "x-match": "mine"})
    assert other.arguments == {"a": [1, {"b": None}], "x-match": "mine"}
    assert catalog.bind("q", "amq.direct", "k") != other, "they differ in arguments alone"
    assert same(Catalog.decode(catalog.encode(), Path("x")), catalog)
    assert not catalog.unbind("q", "amq.direct", "k", {"a": 1})
    assert catalog.unbind("q", "amq.direct", "k", other.arguments)
    for wrong in ({"a": b"bytes"}, {"a": {1: 2}}, {"a": 1 << 64}, {"a": [float("nan")]}, {"a": "x" * 65536}):
        with pytest.raises(UsageError):
            catalog.bind("q", "amq.direct", "k", wrong)
    assert catalog.unbind("q", "amq.headers", arguments={"b": 1, "a": "x", "x-match": "any"})
    assert not catalog.unbind("q", "amq.headers", arguments={"b": 1, "a": "x"})


def test_arguments_of_something_new_are_small_and_those_of_a_catalog_may_be_larger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that an older version kept load, are found by a declaration, and go."""
    large: dict[str, object] = {"a": "x" * 4096}
    small = {"a": "x" * (4096 - len('{"a":""}'))}
    with monkeypatch.context() as before:
        before.setattr(exchanges, "ARGUMENTS_BYTES_MAX", 65536)
        older = _with_arguments(Catalog(), "old", large)
    catalog = Catalog.decode(older.encode(), Path("x"))
    assert same(_with_arguments(catalog.copy(), "old", large), catalog)
    _with_arguments(catalog, "new", small)
    known = catalog.copy()
    for declare in (
        lambda: catalog.declare_exchange("e", arguments=large),
        lambda: catalog.declare_exchange("e", origin=large),
        lambda: catalog.declare_queue("q", workers_n=1, origin=large),
        lambda: catalog.declare_topic("t", origin=large),
        lambda: catalog.bind("old", "amq.direct", "other", large),
        lambda: catalog.bind("old", "amq.headers", "other", large),
        lambda: catalog.bind_exchange("amq.fanout", "amq.direct", "other", large),
        lambda: catalog.bind_topic("old", "amq.direct", "other", large),
    ):
        with pytest.raises(UsageError, match="have 4104 bytes together: at most 4096 are kept"):
            declare()
    assert same(catalog, known)
    assert catalog.unbind("old", "amq.direct", "k", large)
    assert catalog.unbind_exchange("old", "amq.direct", "k", large)
    assert catalog.unbind_topic("old", "amq.direct", "k", large)


def test_arguments_of_all_together_have_a_limit_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """They count from their declaration, or the load of a catalog, to their end; a change that is undone counts not."""
    catalog = _with_arguments(Catalog(), "known", {"a": "x" * 92})
    known = catalog.copy()
    assert catalog.opaque_bytes == 8 * 100
    assert same(Catalog.decode(catalog.encode(), Path("x")), catalog)
    monkeypatch.setattr("warren.engine.catalog.catalog.ALL_BYTES_MAX", 900)
    catalog.begin()
    catalog.bind("known", "amq.direct", "one more", {"a": "x" * 92})
    with pytest.raises(LimitError, match="bindings, queues and topics have 900 bytes together, and 900 are the most"):
        catalog.bind("known", "amq.direct", "too many", {"a": 1})
    catalog.bind("known", "amq.direct", "without arguments")
    catalog.undo()
    assert catalog.opaque_bytes == known.opaque_bytes
    catalog.set_topic("known", 60.0, None)
    assert catalog.opaque_bytes == known.opaque_bytes
    catalog.unbind_exchange("known", "amq.direct", "k", {"a": "x" * 92})
    catalog.delete_queue("known")
    catalog.delete_topic("known")
    catalog.delete_exchange("known")
    assert catalog.opaque_bytes == 0


def _with_arguments(catalog: Catalog, name: str, arguments: dict[str, object]) -> Catalog:
    """One of all that takes arguments."""
    catalog.declare_exchange(name, arguments=arguments, origin=arguments)
    catalog.declare_queue(name, workers_n=1, origin=arguments)
    catalog.declare_topic(name, origin=arguments)
    catalog.bind(name, "amq.direct", "k", arguments)
    catalog.bind(name, "amq.headers", "k", arguments)
    catalog.bind_exchange(name, "amq.direct", "k", arguments)
    catalog.bind_topic(name, "amq.direct", "k", arguments)
    return catalog


def test_exchanges_and_bindings_of_a_node_have_limits_that_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = Catalog()
    catalog.declare_queue("q", workers_n=1)
    catalog.declare_topic("t")
    monkeypatch.setattr("warren.engine.catalog.catalog.EXCHANGES_MAX", len(catalog.exchanges) + 2)
    monkeypatch.setattr("warren.engine.catalog.catalog.BINDINGS_MAX", 3)
    catalog.declare_exchange("one")
    catalog.declare_exchange("two")
    catalog.bind("q", "one")
    catalog.bind_topic("t", "one")
    catalog.bind_exchange("two", "one")
    full = catalog.copy()
    with pytest.raises(LimitError, match="exchange 'three': the node has 9 exchanges, which is the most"):
        catalog.declare_exchange("three")
    for bind in (
        lambda: catalog.bind("q", "two"),
        lambda: catalog.bind_topic("t", "two"),
        lambda: catalog.bind_exchange("one", "two"),
    ):
        with pytest.raises(LimitError, match="exchange 'two': the node has 3 bindings, which is the most"):
            bind()
    catalog.declare_exchange("two")
    catalog.bind("q", "one")
    assert same(catalog, full), "what is there is found"
    catalog.delete_exchange("one")
    catalog.declare_exchange("three")
    catalog.bind("q", "three")


def test_a_file_of_the_first_version_loads() -> None:
    raw = (
        b'{"format_version":1,"version":9,"next_queue_id":3,"queues":[{"id":1,"name":"q","durable":true,"worker":0,'
        b'"hidden":false,"arguments":{},"subscription_of":0},{"id":2,"name":"q/s","durable":true,"worker":0,'
        b'"hidden":true,"arguments":{},"subscription_of":1}],"exchanges":[{"name":"x","type":"topic","durable":true}],'
        b'"bindings":[{"exchange":"x","queue":"q","routing_key":"a.*"}]}'
    )
    catalog = Catalog.decode(b'{"crc32":%d,"catalog":%s}\n' % (zlib.crc32(raw), raw), Path("x"))
    queue = catalog.queue("q")
    assert (queue.owner, queue.dead_letters_of, queue.policy.given()) == (0, 0, {})
    assert catalog.bindings == {Binding("x", "q", "a.*")}
    assert catalog.exchange("x").alternate is None


def test_a_family_moves_under_new_ids(tmp_path: Path) -> None:
    """Names, bindings and what checkpoints name a queue by stay; ids that were taken are nobody else's."""
    catalog = Catalog()
    queue = catalog.declare_queue("work", workers_n=1, arguments={"dead_letter_exchange": "gone"})
    reader = catalog.declare_subscription("work", "reader")
    other = catalog.declare_queue("other", workers_n=1)
    catalog.bind("work", "amq.topic", "a.#")
    members = catalog.families()["work"]
    assert [item.id for item in members] == [queue.id, queue.id + 1, reader.id]
    ids = dict(zip([item.id for item in members], catalog.take_ids(3), strict=True))
    assert catalog.declare_queue("late", workers_n=1).id not in {*ids, *ids.values()}
    catalog.move_family(3, ids)
    catalog.placed_for = 4
    catalog.save(tmp_path)
    catalog = Catalog.load(tmp_path)
    assert catalog.placed_for == 4
    moved = catalog.families()["work"]
    assert [(item.id, item.lasting_id, item.worker) for item in moved] == [(new, old, 3) for old, new in ids.items()]
    assert catalog.subscription("work", "reader") == moved[2]
    assert catalog.dead_letters(moved[0]) == moved[1]
    assert catalog.queue("other") == other
    assert {item.queue for item in catalog.bindings} == {"work"}
    assert not set(ids) & set(catalog.by_id)
    again = dict(zip([item.id for item in moved], catalog.take_ids(3), strict=True))
    catalog.move_family(0, again)
    assert catalog.queue("work").lasting_id == queue.id


def test_a_topic_draws_its_id_from_those_of_queues_and_never_has_one_of_before() -> None:
    catalog = Catalog()
    queue, topic = catalog.declare_queue("a", workers_n=1), catalog.declare_topic("a", queues=3)
    catalog.delete_topic("a")
    again, other = catalog.declare_topic("a", queues=3), catalog.declare_queue("b", workers_n=1)
    assert (queue.id, topic.id, again.id, other.id) == (1, 2, 3, 4)
    assert catalog.topics_by_id == {3: again}
    assert catalog.topic_rows == 3
    assert again == TopicDeclaration(3, "a", 3, None, None, False)


def test_what_differs_is_said_and_what_to_do() -> None:
    catalog = example()
    with pytest.raises(
        DeclarationMismatch,
        match=r"topic 'flights' exists and differs: queues=2, not 8; retention_s=60.0, not 61.0; compacted=False, not "
        r"True: open it as it is",
    ):
        catalog.declare_topic("flights", queues=8, retention_s=61, compacted=True)
    with pytest.raises(DeclarationMismatch, match=r"retention_s=60.0, not 61.0: topic.set\(\), or `warren topic set`"):
        catalog.declare_topic("flights", retention_s=61)
    assert catalog.declare_topic("flights").retention_s == 60, "what is not told is as it has it"


def test_all_topics_together_have_a_limit_that_is_named() -> None:
    catalog = Catalog()
    for number in range(63):
        catalog.declare_topic(f"t{number}", queues=1024)
    catalog.declare_topic("most", queues=1000)
    before = catalog.copy()
    with pytest.raises(LimitError, match=r"would have 25 queues, and all .* 65536 at most, of which 65512 are there"):
        catalog.declare_topic("more", queues=25)
    assert same(catalog, before)
    catalog.declare_topic("exact", queues=24)
    catalog.delete_topic("t0")
    assert catalog.declare_topic("more", queues=1024).queues == 1024


def test_a_catalog_with_topics_is_refused_by_an_older_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would not know that their ids are used."""
    example().save(tmp_path)
    monkeypatch.setattr("warren.engine.catalog.catalog.CATALOG_VERSION", 2)
    with pytest.raises(FormatVersionError, match=r"has format version 3, and this Warren knows 2: install a newer"):
        Catalog.load(tmp_path)
    catalog = example()
    catalog.delete_topic("flights")
    catalog.save(tmp_path)
    assert set(Catalog.load(tmp_path).queues) == {"orders", "fast", "orders/report"}


def test_ids_that_a_queue_and_a_topic_share_are_damage() -> None:
    catalog = Catalog()
    queue = catalog.declare_queue("q", workers_n=1)
    catalog._put_topic(TopicDeclaration(queue.id, "t", 1))
    with pytest.raises(CorruptRecord, match="used once"):
        Catalog.decode(catalog.encode(), Path())


def test_an_exchange_goes_with_the_last_binding_to_it() -> None:
    """Whatever takes it away, and in the same change; one to which nothing was ever bound stays."""

    def fresh() -> Catalog:
        catalog = Catalog()
        for name in ("q", "other"):
            catalog.declare_queue(name, workers_n=1, durable=name == "other")
        catalog.declare_topic("t", queues=1)
        catalog.declare_exchange("x", auto_delete=True, type="fanout")
        catalog.declare_exchange("before", auto_delete=True, type="fanout")
        catalog.bind_exchange("x", "before")
        catalog.bind("q", "x", "k")
        return catalog

    catalog = fresh()
    catalog.bind("other", "x")
    catalog.unbind("other", "x")
    assert "x" in catalog.exchanges, "something is bound still"
    unchanged = catalog.copy()
    catalog.begin()
    assert catalog.unbind("q", "x", "k")
    assert {"x", "before"}.isdisjoint(catalog.exchanges), "and so the one that leads to it alone"
    assert not catalog.exchange_bindings
    catalog.undo()
    assert same(catalog, unchanged)
    for take in (
        lambda c: c.delete_queue("q"),
        lambda c: c.drop_transient(),
        lambda c: c.delete_exchange("x"),
    ):
        catalog = fresh()
        take(catalog)
        assert {"x", "before"}.isdisjoint(catalog.exchanges)
    catalog = fresh()
    catalog.bind_topic("t", "x")
    catalog.delete_queue("q")
    assert {"x", "before"} <= catalog.exchanges.keys(), "a topic is bound"
    catalog.delete_topic("t")
    assert {"x", "before"}.isdisjoint(catalog.exchanges)
    catalog.declare_exchange("unused", auto_delete=True)
    catalog.delete_queue("other")
    assert "unused" in catalog.exchanges


def test_a_long_chain_of_exchanges_goes_at_once() -> None:
    """Each is deleted with the last that is bound to it; the chain may be longer than Python's stack."""
    catalog = Catalog()
    length = sys.getrecursionlimit() * 2
    for place in range(length):
        catalog.declare_exchange(f"x{place}", auto_delete=True)
    for place in range(length - 1):
        catalog.bind_exchange(f"x{place + 1}", f"x{place}")
    unchanged = catalog.copy()
    catalog.begin()
    catalog.delete_exchange(f"x{length - 1}")
    assert not catalog.exchange_bindings
    assert not [name for name in catalog.exchanges if name.startswith("x")]
    catalog.undo()
    assert same(catalog, unchanged)


def test_an_exchange_that_is_used_is_not_deleted_if_unused() -> None:
    catalog = Catalog()
    catalog.declare_queue("q", workers_n=1)
    catalog.declare_exchange("x")
    catalog.declare_exchange("y")
    catalog.bind("q", "x", "k")
    catalog.bind_exchange("y", "x", "k")
    with pytest.raises(PreconditionFailed, match="1 binding of queues, 1 binding of exchanges"):
        catalog.delete_exchange("x", if_unused=True)
    catalog.delete_exchange("y", if_unused=True)  # what leads to it does not count
    catalog.unbind("q", "x", "k")
    catalog.delete_exchange("x", if_unused=True)


def test_what_an_exchange_is_declared_with_is_compared_and_its_origin_is_not() -> None:
    catalog = Catalog()
    made = catalog.declare_exchange("x", internal=True, arguments={"n": 1}, origin={"from": "here"})
    assert catalog.declare_exchange("x", internal=True, arguments={"n": 1}, origin={"from": "there"}) is made
    for other in ({}, {"internal": True}, {"internal": True, "arguments": {"n": True}}):
        with pytest.raises(DeclarationMismatch, match="internal"):
            catalog.declare_exchange("x", **other)
    with pytest.raises(UsageError, match="origin"):
        catalog.declare_exchange("y", origin={"a": b"bytes"})
    queue = catalog.declare_queue("q", workers_n=1, origin={"x-queue-type": "classic"})
    assert catalog.declare_queue("q", workers_n=1) is queue
    assert catalog.queue("q").origin == {"x-queue-type": "classic"}
    topic = catalog.declare_topic("t", queues=1, origin={"x-queue-type": "stream"})
    assert catalog.declare_topic("t", queues=1, origin={}) is topic
    assert same(Catalog.decode(catalog.encode(), Path("x")), catalog)


def test_the_default_exchange_is_bound_to_nothing() -> None:
    catalog = Catalog()
    for to, source in (("", "amq.topic"), ("amq.topic", "")):
        with pytest.raises(UsageError, match="default exchange"):
            catalog.bind_exchange(to, source)
    with pytest.raises(ExchangeNotFound):
        catalog.bind_exchange("amq.topic", "nowhere")
    with pytest.raises(ExchangeNotFound):
        catalog.bind_exchange("nowhere", "amq.topic")


def test_an_older_warren_reads_no_catalog_with_priorities_that_it_does_not_know() -> None:
    catalog = Catalog()
    catalog.declare_queue("q", workers_n=1, arguments={"max_priority": 9})
    assert b'"format_version":1,' in catalog.encode()
    catalog.declare_queue("wide", workers_n=1, arguments={"max_priority": 255})
    assert b'"format_version":5,' in catalog.encode()
