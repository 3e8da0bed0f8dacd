"""Goal: what a client of the gateway sees is what a client of RabbitMQ sees, in each virtual host.
Method: each case runs against the gateway, in `/` and at the same time, with the same names, in another virtual host;
both transcripts are the recorded one, but for the differences that are wanted.
"""

from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from amqp_diff.cases import MODULES, missing
from amqp_diff.differences import DIFFERENCES
from amqp_diff.record import recorded
from amqp_diff.scene import Server, run

#: cases in which all clients of the node take part
ALONE = {"raw_connection.blocked_and_unblocked"}
#: too long together with the name of a virtual host, as this row of the page says
TOO_LONG = {"raw_exchanges.a_name_of_255_bytes": "names have up to 255 bytes in each vhost"}
PAGE = Path(__file__).parents[2] / "docs/amqp.md"
RECORDED = {f"{module}.{name}": lines for module in MODULES for name, lines in recorded(module).items()}


@pytest.mark.integration
@pytest.mark.parametrize("name", RECORDED)
def test_same(name: str, gateway: Server, in_vhost: Server, rabbitmq: Server | None) -> None:
    reason = missing(name.partition(".")[0])
    if reason:
        pytest.skip(reason)
    wanted = RECORDED[name]
    if rabbitmq is not None:
        assert run(name, rabbitmq, wanted) == wanted, "RabbitMQ itself answers otherwise: python -m amqp_diff.record"
    if name in DIFFERENCES:
        wanted = DIFFERENCES[name].applied(wanted)
    with ThreadPoolExecutor(1) as aside:
        other = aside.submit(run, name, in_vhost, None if name in TOO_LONG else wanted)
        if name in ALONE:
            wait([other])
        assert run(name, gateway, wanted) == wanted
        if name in TOO_LONG:
            assert "too many bytes" in "".join(other.result())
            return
        assert other.result() == wanted, f"in virtual host {in_vhost.vhost}"


def test_every_difference_is_of_a_case_and_is_told_to_users() -> None:
    assert {*DIFFERENCES, *TOO_LONG} <= set(RECORDED)
    page = PAGE.read_text()
    rows = [*(one.page for one in DIFFERENCES.values()), *TOO_LONG.values()]
    assert [row for row in rows if f"\n| {row}" not in page] == []
