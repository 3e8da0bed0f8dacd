"""Goal: what a setting says about addresses is understood, or refused with what to write. Method: texts."""

import pytest

from warren.engine.addresses import Address, addresses
from warren.engine.config import Settings
from warren.engine.errors import UsageError


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("5672", Address("tcp", "127.0.0.1", 5672)),
        ("0.0.0.0:5672", Address("tcp", "0.0.0.0", 5672)),
        ("localhost:0", Address("tcp", "localhost", 0)),
        ("[::1]:5672", Address("tcp", "::1", 5672)),
        ("tls:5671", Address("tls", "127.0.0.1", 5671)),
        ("tls:rabbit.example:5671", Address("tls", "rabbit.example", 5671)),
        ("unix:amqp.sock", Address("unix", path="amqp.sock")),
        ("unix:/run/amqp:1.sock", Address("unix", path="/run/amqp:1.sock")),
    ],
)
def test_an_address(text: str, found: Address) -> None:
    assert addresses("amqp", text) == (found,)
    assert addresses("amqp", str(found)) == (found,)


def test_several() -> None:
    assert [str(one) for one in addresses("amqp", "5672, unix:a ,tls:1")] == [
        "127.0.0.1:5672",
        "unix:a",
        "tls:127.0.0.1:1",
    ]
    assert addresses("amqp", "") == ()
    assert len(addresses("amqp", "0,0")) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rabbit", "HOST:PORT"),
        ("127.0.0.1:65536", "HOST:PORT"),
        ("127.0.0.1:-1", "HOST:PORT"),
        ("127.0.0.1:", "HOST:PORT"),
        ("::1:5672", "in brackets"),
        (":5672", "0.0.0.0:5672"),
        ("amqp://127.0.0.1:5672", "not a URL.*write 127.0.0.1:5672"),
        ("amqps://guest:guest@rabbit.example:5671/shop", "not a URL.*write tls:rabbit.example:5671"),
        ("amqp://", "write HOST:PORT"),
        ("unix:", "path of a socket"),
        ("unix:" + "x" * 108, "107 bytes"),
        ("5672,127.0.0.1:5672", "twice"),
    ],
)
def test_what_is_none(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        addresses("amqp", text)


def test_settings_that_do_not_go_together() -> None:
    with pytest.raises(UsageError, match="amqp_tls_certificate"):
        Settings(amqp="tls:5671").checked()
    with pytest.raises(UsageError, match="port 0"):
        Settings(amqp="0", amqp_processes=2).checked()
    with pytest.raises(UsageError, match="HOST:PORT"):
        Settings(amqp="here").checked()
    assert Settings(amqp="5672", amqp_processes=2).checked().amqp == "5672"
