"""Goal: what docs/spark.md shows works, and so does the example for Spark. Method: they are run, one process each, and
what the queues hold then is compared.
"""

from pathlib import Path

import pytest

import warren

from support.real_node import RealNode
from support.snippets import ROOT, snippets
from support.spark_queries import run_program as run

pytestmark = [pytest.mark.spark]
SNIPPETS = [snippet.code for snippet in snippets(ROOT / "docs/spark.md")]


@pytest.fixture
def snippet(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    program = tmp_path / "snippet.py"
    program.write_text(SNIPPETS[request.param])
    return program


@pytest.mark.parametrize("snippet", [0], indirect=True)
def test_a_stream_from_queue_to_queue(tmp_path: Path, snippet: Path) -> None:
    bodies = [b"one", b"two", b"three"]
    with RealNode(tmp_path / "data"), warren.attach(tmp_path / "data") as node:
        orders, shipped = node.queue("orders"), node.queue("shipped")
        orders.put_many(bodies)
        said = run(snippet, tmp_path)
        for body in bodies:
            assert body.hex(" ").upper() in said
        assert orders.depth() == 0
        assert sorted(message.body for message in shipped.browse()) == sorted(bodies)


@pytest.mark.parametrize("snippet", [1], indirect=True)
def test_writing_to_an_exchange(tmp_path: Path, snippet: Path) -> None:
    with RealNode(tmp_path / "data"), warren.attach(tmp_path / "data") as node:
        node.declare_exchange("flights", "topic")
        from_jfk, all_flights = node.queue("from-jfk"), node.queue("all-flights")
        from_jfk.bind("flights", "flight.JFK")
        all_flights.bind("flights", "flight.#")
        run(snippet, tmp_path)
        assert [message.body for message in from_jfk.browse()] == [b'{"origin":"JFK","delay":12}']
        assert all_flights.depth() == 2


def test_there_is_a_test_for_each_snippet() -> None:
    assert len(SNIPPETS) == 2


@pytest.mark.long
def test_the_example(tmp_path: Path) -> None:
    said = run(ROOT / "docs/examples/spark_stream.py", tmp_path, stop=True)
    totals = [f'{{"shop":{shop},"orders":100,"items":{sum(range(shop, 300, 3))}}}' for shop in range(3)]
    assert said.splitlines() == [*totals, "orders left: 0"]
    noise = (
        max(tmp_path.glob("try-*")).joinpath("errors").read_text()
    )  # a line of the JVM, before it reads any setting, cannot be helped
    assert not any(word in noise for word in ("log4j", "log level", " WARN ", " INFO ", "FutureWarning")), noise
