"""Goal: two gateway processes of a node are one to programs: they accept from the same Unix socket, and count the
connections and channels of users and vhosts together, also when one of them is killed.

Method: real nodes with two gateways at one Unix socket; raw frames. A connection comes to the gateway that is meant,
because the other one stands still meanwhile.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from warren.engine.errors import TimedOut
from warren.workers.amqp import users_file
from warren.workers.amqp.counts import Counts, section_bytes
from warren.workers.amqp.shared_file import SharedFile
from warren.workers.amqp.users_file import Vhost

from support.gateway_node import GatewayNode
from support.two_gateways import UnixWire, gateway_pid, is_replaced, kill_gateway, stopped, wire_at
from support.waiting import wait_until


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayNode]:
    """A node with two gateways at one Unix socket."""
    directory = tmp_path_factory.mktemp("two") / "data"
    with GatewayNode(directory, amqp="unix:amqp.sock", amqp_processes=2, profile="small") as running:
        with users_file.changing(directory) as accounts:
            accounts.vhosts["limited"] = Vhost(limits={"max-connections": 2})
            accounts.users["guest"].permissions["limited"] = accounts.users["guest"].permissions["/"]
        yield running


@pytest.mark.integration
def test_both_accept_from_the_unix_socket_and_a_kill_refuses_nobody(two: GatewayNode) -> None:
    """Whoever connects while a gateway is dead is accepted by the other one; its successor gets the same socket."""
    path = two.directory / "amqp.sock"
    place = os.stat(path)
    for killed, kept in ((0, 1), (1, 0)):
        other = wire_at(two, kept)
        dead = kill_gateway(two, killed)
        opened = 0
        while not is_replaced(two, killed, dead) or not opened:
            wire = UnixWire(path)
            wire.opened()
            wire.close()
            opened += 1
        other.channel().alive()
        other.close()
        wire_at(two, killed).close()
    assert os.stat(path).st_ino == place.st_ino
    assert [two.ask(index=index)["listening"] for index in (0, 1)] == [[f"unix:{path}"]] * 2


@pytest.mark.integration
def test_the_unix_socket_comes_back_when_both_are_killed(two: GatewayNode) -> None:
    pids = [gateway_pid(two, index) for index in (0, 1)]
    with stopped(pids[1]):  # so that nobody hands it on
        kill_gateway(two, 0)
        os.kill(pids[1], signal.SIGKILL)
    wait_until(lambda: all(is_replaced(two, index, pids[index]) for index in (0, 1)), 20, what="two new gateways")
    for index in (0, 1):
        wire_at(two, index).close()


def said(wire: UnixWire) -> str:
    """What a connection is closed with."""
    found = wire.expect("connection.close")
    assert found is not None
    return str(found.values.get("text", found))


def refused(two: GatewayNode, index: int, vhost: str = "/") -> str:
    """What is said to a connection that a gateway does not open."""
    with pytest.raises(AssertionError, match=r"no connection.open-ok came") as raised:
        wire_at(two, index, vhost=vhost)
    return str(raised.value)


@pytest.mark.integration
def test_connections_count_in_both_and_those_of_a_killed_one_do_not(two: GatewayNode) -> None:
    text = "access to vhost 'limited' refused for user 'guest': connection limit (2) is reached"
    first, second = wire_at(two, 0, vhost="limited"), wire_at(two, 1, vhost="limited")
    for index in (0, 1):
        assert text in refused(two, index, "limited")
    first.close()
    third = wire_at(two, 1, vhost="limited")
    assert text in refused(two, 0, "limited")
    dead = kill_gateway(two, 1)  # with both of them
    wait_until(lambda: is_replaced(two, 1, dead), 20, what="the successor of gateway 1")
    wires = [wire_at(two, index, vhost="limited") for index in (0, 1)]
    assert text in refused(two, 0, "limited")
    for wire in (second, third, *wires):
        wire.shut()


@pytest.mark.integration
def test_channels_and_connections_of_a_user_count_in_both(two: GatewayNode) -> None:
    with users_file.changing(two.directory) as accounts:
        accounts.users["guest"].limits = {"max-channels": 3, "max-connections": 3}
    text = "number of channels opened for user 'guest' has reached the maximum allowed limit of (3)"
    wait_until(lambda: _channels_limited(two), 20, what="the limit to be known")
    first, second = wire_at(two, 0), wire_at(two, 1)
    first.channel()
    lane = second.channel()
    lane.call("channel.close", code=200)
    second.channel(5)
    second.channel(6)
    third = wire_at(two, 0)
    assert "user connection limit (3) is reached" in refused(two, 1)
    third.send(1, "channel.open", {})
    assert text in said(third)
    second.shut()  # without a word: its two channels are free
    wait_until(lambda: two.ask(index=1)["channels_n"] == 0, 20, what="the end of its channels")
    first.channel(7)
    first.channel(8)
    first.send(9, "channel.open", {})
    assert text in said(first)
    for wire in (first, third):
        wire.shut()
    with users_file.changing(two.directory) as accounts:
        accounts.users["guest"].limits = {}


def _channels_limited(two: GatewayNode) -> bool:
    """Whether both gateways have seen the new limits: a fourth channel is refused."""
    for index in (0, 1):
        wire = wire_at(two, index)
        for number in (1, 2, 3):
            wire.channel(number)
        wire.send(4, "channel.open", {})
        found = wire.wait(None, ["channel.open-ok"])
        wire.shut()
        wait_until(lambda at=index: two.ask(index=at)["channels_n"] == 0, 20, what="the end of its channels")
        assert found is not None
        if found.name == "channel.open-ok":
            return False
    return True


# -- the file that they share ---------------------------------------------------------------------------------------


def opened(directory: Path, index: int, connections_max: int = 4) -> SharedFile:
    return SharedFile(directory, index, 3, section_bytes(connections_max))


def test_numbers_of_the_living_are_added_up(tmp_path: Path) -> None:
    files = [opened(tmp_path, index) for index in (0, 1, 2)]
    counts = [Counts(file) for file in files]
    for one in counts:
        one.came("connections of user", "ann")
    counts[2].came("connections of user", "ann")
    counts[1].came("channels of user", "ann")
    assert [one.total("connections of user", "ann") for one in counts] == [4, 4, 4]
    assert [one.total("channels of user", "ann") for one in counts] == [1, 1, 1]
    assert counts[0].total("connections in vhost", "ann") == 0
    files[2].close()  # as a kill does
    assert counts[0].total("connections of user", "ann") == 2
    again = opened(tmp_path, 2)
    assert (counts[0].total("connections of user", "ann"), Counts(again).total("connections of user", "ann")) == (4, 2)
    for file in (*files[:2], again):
        file.close()


def test_rows_are_used_again(tmp_path: Path) -> None:
    """A section has room for as many names as there may be at once, however many there were."""
    mine, others = opened(tmp_path, 0, 1), opened(tmp_path, 1, 1)
    counts, seen = Counts(mine), Counts(others)
    for number in range(1000):
        for kind in ("connections of user", "channels of user", "connections in vhost"):
            counts.came(kind, f"n{number}")
            assert seen.total(kind, f"n{number}") == 1
        assert seen.total("channels of user", f"n{number - 1}") == 0
        for kind in ("connections in vhost", "connections of user", "channels of user"):
            counts.went(kind, f"n{number}")
    mine.close()
    others.close()


def test_one_alone_counts_without_a_file() -> None:
    counts = Counts(None)
    counts.came("channels of user", "ann")
    counts.came("channels of user", "ann")
    counts.went("channels of user", "ann")
    with counts.deciding():
        assert counts.total("channels of user", "ann") == 1
    counts.went("channels of user", "ann")
    assert counts.total("channels of user", "ann") == 0


def test_one_looks_for_sockets_at_a_time_and_nobody_waits_for_it_to_end_himself(tmp_path: Path) -> None:
    mine, others = opened(tmp_path, 0), opened(tmp_path, 1)
    with mine.binding(60, lambda: False) as alone:
        assert alone
        with others.binding(60, lambda: True) as alone:  # it is told to end
            assert not alone
        with pytest.raises(TimedOut, match="another gateway has looked"), others.binding(0.01, lambda: False):
            pass
    with others.binding(60, lambda: False) as alone:
        assert alone
    mine.close()
    others.close()


def test_the_last_place_is_one_gateways(tmp_path: Path) -> None:
    """Three that try all the time: never two at once, and each tries until it had it often enough."""
    limit, turns = 1, 50
    inside: list[int] = []
    most: list[int] = []
    had = [0, 0, 0]
    files = [opened(tmp_path, index) for index in (0, 1, 2)]
    begin = threading.Barrier(3)

    def work(index: int) -> None:
        counts = Counts(files[index])
        begin.wait()
        while had[index] < turns:
            with counts.deciding():
                counts.came("connections of user", "ann")
                let_in = counts.total("connections of user", "ann") <= limit
                if not let_in:
                    counts.went("connections of user", "ann")
            if let_in:
                inside.append(index)
                most.append(len(inside))
                time.sleep(0)  # the others try meanwhile
                had[index] += 1
                inside.remove(index)
                counts.went("connections of user", "ann")

    threads = [threading.Thread(target=work, args=(index,), daemon=True) for index in (0, 1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (had, max(most), inside) == ([turns] * 3, 1, [])
    for file in files:
        file.close()
