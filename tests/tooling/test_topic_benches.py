"""Goal: the benches of topics run, count every message, and say what docs/performance.md compares.
Method: each with few messages and a fraction of a second; no figure is judged. What the machine's limits are measured
with is run once, in a cell that wants the raw log, one of memory, and one of reads.
"""

import json
from pathlib import Path

import pytest

from warren.tools import bench
from warren.tools.bench.topic import batch_of, run_topic, run_topic_beside, run_topic_latency, run_topic_many, sentences
from warren.tools.bench.topic_find import run_topic_find
from warren.tools.bench.topic_read import INTO, messages_of, run_topic_read

from support.long import in_part

pytestmark = pytest.mark.integration

SECONDS = 0.2


def silent(_done: str) -> None:
    pass


def test_appends_are_compared_with_one_producer_and_with_the_raw_log(tmp_path: Path) -> None:
    found = run_topic(tmp_path, 100, SECONDS, "synced", 50, 2, True)
    assert found["messages"] > 0
    assert found["messages"] % 50 == 0
    assert found["log_bytes_per_message"] > 100
    assert found["limit"]["messages_per_s"] > 0
    assert found["ratio_to_limit"] > 0
    assert found["to_one"] > 0
    assert set(found["cpu_ns_by_role"]) == {"producer", "topic worker"}
    assert len(sentences(found)) == 2


@pytest.mark.long
def test_single_calls_and_latency_count_every_message(tmp_path: Path) -> None:
    assert run_topic(tmp_path, 16, SECONDS, "none", 1, 1, False)["messages"] > 0
    found = run_topic_latency(tmp_path, 4, SECONDS, "written")
    assert found["messages"] == 100
    assert found["size_bytes"] == 8  # the time is in it
    assert found["to_queue"] > 0
    assert "that of a queue" in sentences(found)[0]


@pytest.mark.long
def test_a_producer_beside_readers_and_with_many_topics(tmp_path: Path) -> None:
    found = run_topic_beside(tmp_path, 100, SECONDS, "written", 50)
    assert min(found[name] for name in ("messages", "beside_to_alone", "cpu_to_alone", "messages_per_s_alone")) > 0
    told: list[str] = []
    found = run_topic_many(tmp_path, 100, SECONDS, "written", 10, 5, told.append)
    assert found["topics"] == 5
    assert min(found[name] for name in ("messages", "to_one", "open_s", "first_append_s")) > 0
    assert "5 of 5 topics declared" in told
    assert "5 topics of 4 queues" in sentences(found)[-1]


@pytest.mark.parametrize("into", in_part(INTO))
def test_readers_find_all_that_was_appended_again_and_again(tmp_path: Path, into: str) -> None:
    found = run_topic_read(tmp_path, 100, SECONDS, into, 30, 2, 1000, True, silent)
    assert found["messages"] > 0
    assert found["stored"] == 1000
    assert found["to_one"] > 0
    assert found["limit"]["bytes_per_s"] > 0


def test_each_key_is_found(tmp_path: Path) -> None:
    told: list[str] = []
    found = run_topic_find(tmp_path, 100, SECONDS, 2000, 1, True, told.append)
    assert found["messages"] > 0
    assert found["stored"] == 2000
    assert found["ratio_to_limit"] > 0
    assert told[0] == "0 of 2,000 messages appended"


def test_what_the_commands_choose_by_themselves() -> None:
    assert batch_of(1000, 100) == 1000
    assert batch_of(1000, 16384) == 64
    assert batch_of(1000, 5 << 20) == 1
    assert messages_of(100) > messages_of(16384) >= 4


def test_the_command_prints_a_line_of_json_or_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--seconds", "0.1", "--messages", "400", "--dir", str(tmp_path)]
    assert bench.main(["topic-read", *few, "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["into"] for line in lines] == list(INTO)
    assert bench.main(["topic-find", *few]) == 0
    out = capsys.readouterr().out
    assert "topic-find" in out
    assert "among 400 messages" in out
    assert bench.main(["topic", "--topics", "0"]) == 2
    assert list(tmp_path.iterdir()) == []
