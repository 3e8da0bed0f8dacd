"""Goal: the campaign of Spark knows which messages of a topic a committed batch ends with, and sees a changed one.

Method: Spark's log of offsets is played; messages are read as the campaign's judge reads them.
"""

import json
from pathlib import Path

import pytest

import warren
from warren.tools.crash.spark_campaign import main
from warren.tools.crash.spark_numbers import AHEAD, AHEAD_MIN, QUEUES, SOURCE, FromTopic, Rate, body, key
from warren.workers.process.control import ControlClient

pytestmark = pytest.mark.crash
ROWS = 10


def log(work: Path, batch: int, offsets: list[int]) -> None:
    """What Spark writes down of a batch."""
    folder = work / "checkpoint" / "offsets"
    folder.mkdir(parents=True, exist_ok=True)
    position = {SOURCE: {**{str(queue): end for queue, end in enumerate(offsets)}, "id": "1-2"}}
    (folder / str(batch)).write_text(f"v1\n{{}}\n{json.dumps(position)}")


def test_messages_are_there_ahead_of_the_stream(tmp_path: Path) -> None:
    with warren.open(tmp_path / "data", name="tests") as node:
        numbers = FromTopic(node.directory, ROWS)
        numbers.keep_ahead(tmp_path)
        topic = node.topic(SOURCE)

        def ends() -> list[int]:
            return [topic.offsets(queue)[1] for queue in range(QUEUES)]

        first = sum(ends())
        assert AHEAD_MIN * ROWS < first <= AHEAD * ROWS
        numbers.keep_ahead(tmp_path)
        assert sum(ends()) == first, "there was enough"
        log(tmp_path, 0, [0, 0, 0])
        log(tmp_path, 3, [130, 140, 160])
        numbers.keep_ahead(tmp_path)
        assert sum(ends()) > first
        found = []
        for queue in range(QUEUES):
            batch = topic.read_arrow(queue)
            found += [
                numbers.number(value, named)
                for value, named in zip(batch["value"].to_pylist(), batch["key"].to_pylist(), strict=True)
            ]
            assert batch.num_rows == ends()[queue]
        assert sorted(found) == list(range(sum(ends())))
        wanted = numbers.wanted(tmp_path, 3)
        assert wanted == {*range(0, 3 * 130, 3), *range(1, 3 * 140, 3), *range(2, 3 * 160, 3)}
        assert numbers.wanted(tmp_path, 0) == set()
        topic.delete()
        with ControlClient(node.directory) as control:
            control.call("stop")


def test_a_message_that_is_changed_is_seen() -> None:
    numbers = FromTopic.__new__(FromTopic)  # it needs no node to look at a message
    assert numbers.number(body(5), key(5)) == 5
    for value, named in ((body(5)[:-1], key(5)), (body(5), None), (body(6), "k6"), (b"5 ", key(5)), (b"x", None)):
        with pytest.raises(ValueError, match=r"."):
            numbers.number(value, named)
    assert Rate(ROWS).number(b"17", None) == 17
    assert Rate(ROWS).wanted(Path(), 2) == set(range(3 * ROWS))


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["--kinds", "driver,executors"], "unknown kind 'executors'; there are driver, front"),
        (["--kinds", "driver=often"], "could not convert"),
        (["--kinds", "executor"], "executors with --master local-cluster"),
        (["--scan", "native"], "--scan is for --source topic"),
    ],
)
def test_what_cannot_be_asked_for(arguments: list[str], answer: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert answer in capsys.readouterr().err
