"""Goal: the topics of a group come and go with it and with its topic, keep their messages as long as that, and have
names that nobody else can have; a change that cannot be made durable is undone as a whole.

Method: a catalog by itself, and one whose log cannot be written.
"""

from pathlib import Path

import pytest

from warren.engine.catalog import group_topics
from warren.engine.catalog import log as catalog_log
from warren.engine.catalog.catalog import Catalog
from warren.engine.catalog.group_topics import Owner, name_of, owner_of
from warren.engine.catalog.topics import TOPIC_ROWS_MAX
from warren.engine.errors import InvalidName, LimitError, StoreError, TopicNotFound

from support.catalog_history import alone


def test_a_name_says_whose_it_is() -> None:
    for kind in group_topics.PREFIXES:
        for topic, group in (("flights", "report"), ("a-b", "x.y%|_"), (name_of("dead", "t", "g"), "h")):
            name = name_of(kind, topic, group)
            assert owner_of(name) == Owner(kind, group, topic)
    for name in ("flights", "%RETRY%old", "a%RETRY%g+t", "%OTHER%g+t"):
        assert owner_of(name) is None
    assert name_of("retry", "flights", "report") == "%RETRY%report+flights"
    for wrong in ("", "a/b", "a+b", "../x", "g" * 256):
        with pytest.raises(InvalidName, match=r"^group name"):
            name_of("retry", "t", wrong)
    with pytest.raises(InvalidName, match="both names together have 248 bytes, and 247 at most"):
        name_of("retry", "t" * 124, "g" * 124)
    assert len(name_of("retry", "t" * 123, "g" * 123)) == 254


def test_they_are_declared_once_and_go_with_group_and_topic() -> None:
    catalog = Catalog()
    flights = catalog.declare_topic("flights", queues=7, retention_s=60)
    prices = catalog.declare_topic("prices", queues=1)
    first = catalog.declare_group_topic("retry", "flights", "g", flights.id)
    assert (first.name, first.queues, first.retention_s) == ("%RETRY%g+flights", group_topics.QUEUES_MAX, 60)
    version = catalog.version
    assert catalog.declare_group_topic("retry", "flights", "g", flights.id) == first
    assert catalog.version == version
    catalog.declare_group_topic("dead", "flights", "g", flights.id)
    catalog.declare_group_topic("retry", "flights", "h", flights.id)
    other = catalog.declare_group_topic("retry", "prices", "g", prices.id)
    assert other.queues == 1
    catalog.declare_group_topic("retry", other.name, "g", other.id)
    assert catalog.delete_group_topics("flights", "g") == ["%RETRY%g+flights", "%DLQ%g+flights"]
    assert catalog.delete_group_topics("flights", "g") == []
    catalog.delete_topic("prices")  # and what belongs to that of its group
    assert set(catalog.topics) == {"flights", "%RETRY%h+flights"}
    assert catalog.topic_rows == 7 + group_topics.QUEUES_MAX
    catalog.delete_topic("flights")
    anew = catalog.declare_topic("flights")
    assert set(catalog.topics) == {"flights"}
    with pytest.raises(TopicNotFound, match="was deleted"):
        catalog.declare_group_topic("retry", "flights", "g", flights.id)
    assert catalog.declare_group_topic("retry", "flights", "g", anew.id).id != first.id


def test_there_is_room_for_them_or_not() -> None:
    catalog = Catalog()
    for number in range(TOPIC_ROWS_MAX // 1024):
        last = catalog.declare_topic(f"t{number}", queues=1024)
    with pytest.raises(LimitError, match=r"%RETRY%g\+"):
        catalog.declare_group_topic("retry", last.name, "g", last.id)


def test_they_keep_messages_as_long_as_their_topic() -> None:
    catalog = Catalog()
    flights = catalog.declare_topic("flights")
    first = catalog.declare_group_topic("retry", "flights", "g", flights.id)
    catalog.declare_topic("prices")
    catalog.set_topic("flights", 60, 1000)
    again = catalog.topics[first.name]
    assert (again.id, again.retention_s, again.retention_bytes) == (first.id, 60, 1000)
    catalog.set_topic(first.name, 5, None)  # by itself
    assert catalog.topics["flights"].retention_s == 60
    version = catalog.version
    catalog.set_topic("flights", 60, 1000)
    assert catalog.topics[first.name].retention_s == 60
    assert catalog.version == version + 1
    assert catalog.topics["prices"].retention_s is None


def test_a_retention_that_cannot_be_written_is_what_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Catalog().save(tmp_path)
    writer = catalog_log.Writer(tmp_path, catalog_log.load(tmp_path))
    flights = writer.change(lambda catalog: catalog.declare_topic("flights", retention_s=60))
    again = writer.change(lambda catalog: catalog.declare_group_topic("retry", "flights", "g", flights.id))
    before = alone(writer.catalog)

    def full(*_arguments: object) -> None:
        raise StoreError("no space")

    monkeypatch.setattr(writer, "_write", full)
    with pytest.raises(StoreError):
        writer.change(lambda catalog: catalog.set_topic("flights", 5, None))
    monkeypatch.undo()
    assert alone(writer.catalog) == before
    assert writer.catalog.topics == {"flights": flights, again.name: again}
    writer.change(lambda catalog: catalog.set_topic("flights", 7, None))
    assert {topic.retention_s for topic in Catalog.load(tmp_path).topics.values()} == {7}
    writer.close()
