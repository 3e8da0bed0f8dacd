"""Goal: rule C17, at the topic worker: it closes each ring where it stopped taking, and nobody takes more from it.

Method: one worker in this process, clients played by hand (support.topic_probe); the node ends, and clients submit more
behind the worker's last look.
"""

from pathlib import Path

import pytest

from warren.engine.topics import service
from warren.ipc.layout import CONSTANTS

from support.topic_probe import TopicNode


@pytest.fixture
def node(tmp_path: Path) -> TopicNode:
    return TopicNode(tmp_path)


def test_what_comes_behind_the_last_look_is_not_taken(node: TopicNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: it is submitted when the worker has done what it took, before it syncs and says where it closed."""
    life = node.life()
    appender, late = node.appender(life), node.appender(life)
    for n in range(700):
        appender.append(1, 0, b"%d" % n)
    catch_up = service.ending.catch_up

    def behind(*given: object) -> bool:
        done = catch_up(*given)  # type: ignore[arg-type]
        appender.append(1, 0, b"late")
        late.append(1, 0, b"late")
        return done

    monkeypatch.setattr(service.ending, "catch_up", behind)
    node.superblock.set("state", CONSTANTS["NODE_DRAINING"])
    assert life.stop()
    assert (appender.get("tail"), appender.get("closed"), appender.get("head")) == (701, 701, 700)
    assert (late.get("tail"), late.get("closed"), late.get("head")) == (1, 1, 0)
    again = node.life()  # while the node ends: a ring that was closed stays so
    assert again.maximum(1, 0) == 700
    again.service.turn(1_000_000, False)
    assert again.server.behind() == 0
    assert again.maximum(1, 0) == 700
    again.release()


def test_a_worker_alone_that_ends_leaves_the_rings_open(node: TopicNode) -> None:
    life = node.life()
    appender = node.appender(life)
    appender.append(1, 0, b"x")
    assert life.stop()
    assert appender.get("closed") == 0
    appender.append(1, 0, b"y")
    again = node.life()
    again.until(lambda: again.maximum(1, 0) == 2)
    again.release()
