"""Goal: what a client of the gateway sees is what a client of RabbitMQ sees.
Method: each case runs against the gateway; its transcript is the recorded one, but for the differences that are wanted.
"""

from pathlib import Path

import pytest

from amqp_diff.cases import MODULES, missing
from amqp_diff.differences import DIFFERENCES
from amqp_diff.record import recorded
from amqp_diff.scene import Server, run

PAGE = Path(__file__).parents[2] / "docs/amqp.md"
RECORDED = {f"{module}.{name}": lines for module in MODULES for name, lines in recorded(module).items()}


@pytest.mark.integration
@pytest.mark.parametrize("name", RECORDED)
def test_same(name: str, gateway: Server, rabbitmq: Server | None) -> None:
    reason = missing(name.partition(".")[0])
    if reason:
        pytest.skip(reason)
    wanted = RECORDED[name]
    if rabbitmq is not None:
        assert run(name, rabbitmq, wanted) == wanted, "RabbitMQ itself answers otherwise: python -m amqp_diff.record"
    if name in DIFFERENCES:
        wanted = DIFFERENCES[name].applied(wanted)
    assert run(name, gateway, wanted) == wanted


def test_every_difference_is_of_a_case_and_is_told_to_users() -> None:
    assert set(DIFFERENCES) <= set(RECORDED)
    page = PAGE.read_text()
    assert [one.page for one in DIFFERENCES.values() if f"\n| {one.page}" not in page] == []
