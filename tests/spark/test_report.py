"""What a report shows: its pictures are drawn from facts and looked at; redelivery and retention of a real node."""

import math
import os
import stat
from pathlib import Path
from typing import Any

import pytest

import warren
from warren.engine.catalog.topics import TopicDeclaration
from warren.workers.spark.files.directory import Directory
from warren.workers.spark.pipelines import pictures, redelivery, report, retention
from warren.workers.spark.pipelines.audit import Audit, StoreFile
from warren.workers.spark.pipelines.facts import Dead, Delivered, Depth, Facts, Kept, Key, Point, Size

from support.real_node import RealNode
from support.waiting import wait_until

#: a Saturday
BEGIN = 1_700_000_000.0
DAY = 86_400.0


def facts_of(**changed: Any) -> Facts:
    """Of a directory with two messages in a topic and three in a queue."""
    small: dict[str, Any] = {
        "path": "data",
        "running": False,
        "read": BEGIN,
        "bucket_s": 1,
        "points": [Point("flights", BEGIN, 2, 18, 0.0, 0.0, 0.0)],
        "sizes": [Size("flights", 4, 2), Size("orders", 5, 3)],
        "keys": [Key("flights", "N14228", 1, 9), Key("flights", "N24211", 1, 9)],
        "queues": [Depth("orders", 3, 90, 1), Depth("empty", 0, 0, 0)],
        "delivered": [],
        "dead": [],
        "kept": [],
        "audit": Audit({"ok": 1, "delta": 0, "orphan": 0, "lost": 0}, 0, [], [StoreFile(0, 1, 6000, 0, 0)], False),
        "damage": [],
    }
    return Facts(**{**small, **changed})


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The axes of a picture, which was drawn."""
    found: list[Any] = []
    png = pictures._png

    def kept(figure: Any) -> bytes:
        found.append(figure)
        return png(figure)

    monkeypatch.setattr(pictures, "_png", kept)

    def draw(name: str, facts: Facts) -> Any:
        found.clear()
        assert (pictures.draw(name, facts) or b"").startswith(b"\x89PNG")
        return found[0].axes[0]

    return draw


def ticks(axis: Any, limits: tuple[float, float]) -> list[str]:
    """What an axis says, where it is seen."""
    return [
        label.get_text()
        for place, label in zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)
        if limits[0] <= place <= limits[1]
    ]


# ---- pictures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "axis"), [("throughput", "y"), ("sizes", "y"), ("keys", "x"), ("queues", "x")])
def test_there_are_no_halves_of_messages(drawn: Any, name: str, axis: str) -> None:
    axes = drawn(name, facts_of())
    said = ticks(axes.yaxis, axes.get_ylim()) if axis == "y" else ticks(axes.xaxis, axes.get_xlim())
    assert len(said) >= 2
    assert all(text.isdigit() for text in said), said


def test_what_came_within_a_moment_is_no_rate(drawn: Any) -> None:
    """Two messages are two, in their second; and their point lies within the picture."""
    axes = drawn("throughput", facts_of())
    [line] = axes.lines
    assert list(line.get_ydata()) == [2]
    assert axes.get_ylabel() == "messages, second by second"
    for name in ("throughput", "latency"):
        axes = drawn(name, facts_of())
        low, high = axes.get_xlim()
        bottom, top = axes.get_ylim()
        for line in axes.lines:
            assert line.get_marker() == "o"
            assert not line.get_clip_on()
            assert all(low < x < high and bottom < y < top for x, y in line.get_xydata())


def test_a_rate_of_a_time_that_has_one(drawn: Any) -> None:
    points = [Point("flights", BEGIN + second, 600, 6000, 1.0, 2.0, 3.0) for second in (0, 60, 180)]
    axes = drawn("throughput", facts_of(points=points, bucket_s=60))
    assert axes.get_ylabel() == "messages/s"
    assert list(axes.lines[0].get_ydata()) == [10, 10, 0, 10]


@pytest.mark.parametrize(
    ("seconds", "bucket"), [(0.0, 1), (0.4, 1), (119, 1), (600, 5), (86_400, 900), (1e12, 86_400_000)]
)
def test_points_are_a_second_at_least(seconds: float, bucket: int) -> None:
    assert report.bucket_s(seconds) == bucket


def test_no_line_of_the_latency_hides_another(drawn: Any) -> None:
    """All three are there also where they are the same: what is drawn later is thinner."""
    axes = drawn("latency", facts_of())
    lines = axes.lines
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [line.get_label() for line in lines]
    assert len(lines) == 3
    assert [line.get_linewidth() for line in lines] == sorted((line.get_linewidth() for line in lines), reverse=True)
    assert len({line.get_markersize() for line in lines}) == 3
    assert len({line.get_zorder() for line in lines}) == 1  # so they are drawn in this order


def test_queues_that_hold_nothing_are_there(drawn: Any) -> None:
    axes = drawn("queues", facts_of())
    assert [label.get_text() for label in axes.get_yticklabels()] == ["orders", "empty"]
    assert "<td>empty</td><td>0</td>" in pictures.page(facts_of(), [])
    assert pictures.draw("queues", facts_of(queues=[Depth("empty", 0, 0, 0)])) is None


def test_a_caption_says_what_its_axis_says(drawn: Any) -> None:
    axes = drawn("sizes", facts_of())
    assert ticks(axes.xaxis, axes.get_xlim()) == ["16 B", "32 B"]
    assert axes.get_xlabel() == "bytes of the body: fewer than"
    assert any(name == "sizes" and "fewer bytes than" in text for name, _title, text in pictures.PICTURES)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_a_report_is_for_whom_the_umask_says(tmp_path: Path, mask: int, mode: int) -> None:
    before = os.umask(mask)
    try:
        made = report.write(facts_of(), tmp_path / "out")
    finally:
        os.umask(before)
    assert len(made) == 7
    assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {mode}


# ---- retention ------------------------------------------------------------------------------------------------------


def kept_of(**changed: Any) -> Kept:
    """A topic of 1000 bytes, which grows by 100 a day."""
    plain: dict[str, Any] = {
        "topic": "flights",
        "messages": 10,
        "bytes": 1000,
        "oldest": BEGIN,
        "growth": 100.0,
        "retention_s": None,
        "retention_bytes": None,
        "compacted": False,
    }
    return Kept(**{**plain, **changed})


@pytest.mark.parametrize(
    ("given", "goes_in", "says", "steady"),
    [
        ({}, math.inf, "never", None),
        ({"retention_s": 3 * DAY}, 2 * DAY, "in 2 days", 300),
        ({"retention_s": 1 * DAY}, 0, "now", 100),
        ({"retention_s": 30 * DAY, "retention_bytes": 1200}, 2 * DAY, "in 2 days", 1200),
        ({"retention_bytes": 1200}, 2 * DAY, "in 2 days", 1200),
        ({"retention_bytes": 900}, 0, "now", 900),
        ({"retention_bytes": 1200, "growth": 0.0}, math.inf, "never", None),
        ({"retention_bytes": 1200, "growth": None}, None, "200 B later", None),
        ({"retention_s": 3 * DAY, "retention_bytes": 1200, "growth": None}, 2 * DAY, "at the latest in 2 days", None),
        ({"compacted": True}, math.inf, "when a newer one replaces it", None),
        ({"oldest": None, "bytes": 0, "growth": None, "retention_s": DAY}, math.inf, "–", None),
    ],
)
def test_when_the_oldest_message_goes(given: dict[str, Any], goes_in: float | None, says: str, steady: float) -> None:
    """Read a day after it was stored."""
    item = kept_of(**given)
    now = BEGIN + DAY
    assert retention.goes_in(item, now) == goes_in
    assert pictures._goes(item, now) == says
    if steady is not None:
        assert retention.steady_bytes(item) == steady
    assert says in pictures._retention(facts_of(kept=[item], read=now))


def test_growth_is_that_of_the_last_week() -> None:
    """Bursts are spread over the time between them; what has less than a day says nothing; one that ended has ended."""
    topics = [TopicDeclaration(n, name, 1) for n, name in enumerate(("nightly", "new", "ended", "none"), 1)]
    end = BEGIN + 20 * DAY
    hours = [retention.Hour("nightly", BEGIN + day * DAY, BEGIN + day * DAY + 600, 5, 700) for day in range(20)]
    hours += [retention.Hour("new", end - 7200, end, 1, 500), retention.Hour("ended", BEGIN, BEGIN + 60, 1, 800)]
    found = {item.topic: item for item in retention.kept(topics, hours)}
    assert (found["nightly"].bytes, found["nightly"].messages, found["nightly"].oldest) == (14_000, 100, BEGIN)
    assert found["nightly"].growth == pytest.approx(700)
    assert found["new"].growth is None
    assert found["ended"].growth == 0
    assert (found["none"].oldest, found["none"].growth, found["none"].bytes) == (None, None, 0)


# ---- of a real node -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A directory whose node was stopped, and what a read beside the node knew of deliveries.

    Of five orders one came back twice and was never acked, one is a dead letter, and one was not acked either.
    """
    path = tmp_path_factory.mktemp("report") / "data"
    with RealNode(path, workers=2), warren.attach(path) as node:
        orders = node.queue("orders", dead_letter_exchange="", dead_letter_routing_key="dead")
        dead = node.queue("dead")
        node.queue("empty")
        orders.put_many([b"order %d" % n for n in range(5)])
        orders.get(timeout=10).nack()
        orders.get(timeout=10).nack()
        held = [orders.get(timeout=10)]
        orders.get(timeout=10).reject()
        held.append(orders.get(timeout=10))
        assert [bytes(message.body) for message in held] == [b"order 0", b"order 2"]
        wait_until(lambda: dead.depth() == 1, 20, what="the dead letter")
        topic = node.topic("flights", queues=1, retention_s=7 * DAY, retention_bytes=1 << 20)
        topic.append_many([b"EWR", b"LGA", b"JFK"])
        running = redelivery.terms(Directory.read(str(path)))
    return path, running


@pytest.mark.spark
def test_what_was_delivered_before(spark: Any, told: tuple[Path, Any]) -> None:
    path, running = told
    assert running is None
    found = report.facts(spark, str(path))
    assert {depth.queue: depth.messages for depth in found.queues} == {"orders": 4, "dead": 1, "empty": 0}
    assert found.delivered == [Delivered("orders", 1, 1), Delivered("orders", 3, 1)]
    assert found.dead == [Dead("queue orders", "not forwarded yet", 0), Dead("queue orders", "queue dead", 1)]
    [kept] = found.kept
    assert kept[:2] == ("flights", 3)
    assert kept[4:] == (None, 7 * DAY, 1 << 20, False)
    assert kept.oldest is not None
    assert 7 * DAY - 3600 < (retention.goes_in(kept, found.read) or 0) < 7 * DAY
    page = pictures.page(found, [])
    assert "<td>orders</td><td>4</td><td>2</td><td>1</td><td>1</td><td>0</td><td>3</td>" in page
    assert "<td>queue orders</td><td>queue dead</td><td>1</td>" in page
    assert "at the latest in 7 days" in page


def test_what_groups_gave_up(told: tuple[Path, Any]) -> None:
    found = redelivery.dead(
        Directory.read(str(told[0])), {}, {"flights": 3, "%DLQ%g+flights": 2, "%RETRY%g+flights": 5}
    )
    assert found[-2:] == [
        Dead("group g of topic flights", "given up: topic %DLQ%g+flights", 2),
        Dead("group g of topic flights", "tried again: topic %RETRY%g+flights", 5),
    ]


def test_nobody_knows_what_was_not_written_down() -> None:
    killed, running = (pictures._redelivery(facts_of(delivered=None, running=is_up)) for is_up in (False, True))
    assert "was killed" in killed
    assert "runs" in running
