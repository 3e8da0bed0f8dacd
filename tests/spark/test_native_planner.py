"""The native scan without Spark: what its planner answers, and its jar.

Method: lines of questions to the planner in this process, beside the answers of Python's own readers; jars that are
missing, broken, or made for another PySpark.
"""

import io
import json
import os
import threading
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows

import warren
from warren.engine.errors import UsageError
from warren.workers.spark import native, native_planner
from warren.workers.spark.client import close_clients
from warren.workers.spark.data_source import WarrenDataSource, WarrenPythonDataSource

from support.spark_queries import holders

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def own_client() -> Iterator[None]:
    """The planner's client, and what it holds for a time, end with the test."""
    yield
    for timer in threading.enumerate():
        if isinstance(timer, threading.Timer):
            timer.cancel()
            timer.function()
            timer.join()
    close_clients()


@pytest.fixture
def topic(node: warren.Node) -> Iterator[warren.Topic]:
    """A new topic of two queues, used by a client of the test's own."""
    with warren.attach(node.directory, name="test") as client:
        made = client.topic(f"t-{uuid.uuid4().hex[:8]}", queues=2)
        yield made
        made.delete()


def asked(*questions: dict[str, Any]) -> list[dict[str, Any]]:
    """The answers of a planner, one question after the other."""
    answers: list[dict[str, Any]] = []
    planner = native_planner.Planner()
    for number, question in enumerate(questions):
        written = io.StringIO()
        native_planner.serve(io.StringIO(json.dumps({"number": number, **question}) + "\n"), written, planner)
        (line,) = written.getvalue().splitlines()
        answers.append(json.loads(line))
        assert answers[-1].pop("number") == number
    return answers


def options_of(topic: warren.Topic, **more: str) -> dict[str, str]:
    return {"path": str(topic._client.directory.path), "subscribe": topic.name, "scan": "native", **more}


def test_a_batch_is_planned_as_in_python(topic: warren.Topic) -> None:
    topic.append_many([b"%d" % n for n in range(10)], queue=1)
    options = options_of(topic, tags="UA", maxRecordsPerPartition="4")
    schema = WarrenDataSource({**options, "scan": "auto"}).schema()
    is_native, told, opened, parts, stopped = asked(
        {"ask": "native", "options": options},
        {"ask": "schema", "options": options},
        {"ask": "open", "options": options, "schema": schema.json(), "kind": "batch"},
        {"ask": "partitions", "reader": 1},
        {"ask": "stop", "reader": 1},
    )
    assert is_native == {"answer": True}
    assert told == {"answer": schema.json()}
    assert (opened, stopped) == ({"answer": 1}, {"answer": None})
    found = parts["answer"]
    assert all(part["queue"] == 1 and part["end"] - part["start"] <= 4 for part in found)
    assert [part["start"] for part in found] == [0, *(part["end"] for part in found[:-1])]
    assert found[-1]["end"] == 10
    assert {(part["topic"], tuple(part["tags"]), part["keys"]) for part in found} == {(topic.name, ("UA",), None)}
    assert all(Path(part["path"], part["topics"], "consumequeue", topic.name, "1").is_dir() for part in found)


def test_a_stream_has_the_offsets_of_python(topic: warren.Topic) -> None:
    topic.append_many([b"%d" % n for n in range(10)], queue=0)
    options = options_of(topic, startingOffsets="earliest", maxOffsetsPerTrigger="6")
    source = WarrenDataSource({**options, "scan": "auto"})
    python = source.streamReader(source.schema())
    start = python.initialOffset()
    python.latestOffset(start, ReadMaxRows(6))
    end = python.latestOffset(start, ReadMaxRows(6))
    opened = {"ask": "open", "options": options, "schema": source.schema().json(), "kind": "stream"}
    latest = {"ask": "latest", "reader": 1, "start": json.dumps(start), "limit": "max_rows", "most": 6}
    answers = asked(
        opened,
        {"ask": "initial", "reader": 1},
        {"ask": "limit", "reader": 1},
        latest,
        latest,
        {"ask": "report", "reader": 1},
        {"ask": "metrics", "reader": 1, "offset": json.dumps(end)},
        {"ask": "partitions", "reader": 1, "start": json.dumps(start), "end": json.dumps(end)},
        {"ask": "available_now", "reader": 1},
        {"ask": "commit", "reader": 1, "offset": json.dumps(end)},
        {"ask": "stop", "reader": 1},
        {"ask": "initial", "reader": 1},
    )
    told = [answer.get("answer") for answer in answers]
    assert told[1] == json.dumps(start)
    assert told[2] == {"limit": "max_rows", "most": 6}
    assert told[4] == json.dumps(end)
    assert told[5] == json.dumps(python.reportLatestOffset())
    assert told[6]["maxOffsetsBehindLatest"] == 4
    assert [(part["queue"], part["start"], part["end"]) for part in told[7]] == [(0, 0, 6)]
    assert "start the query again" in answers[-1]["message"]
    python.stop()


def test_what_does_not_check_out_in_java_is_said_by_python(topic: warren.Topic) -> None:
    topic.append_many([b"%d" % n for n in range(10)], queue=0)
    options = options_of(topic)
    opened = {"ask": "open", "options": options, "kind": "batch"}
    opened["schema"] = WarrenDataSource({**options, "scan": "auto"}).schema().json()
    (_opened, parts) = asked(opened, {"ask": "partitions", "reader": 1})
    part = parts["answer"][0]
    explain = {"ask": "explain", "options": options, "topic": topic.name, "incarnation": part["incarnation"]}
    explain |= {"queue": 0, "offset": 7, "end": 10, "body": True, "planned_on": part["planned_on"]}
    assert asked(explain) == [{"answer": 7}]
    (answer,) = asked({**explain, "incarnation": "0-0"})
    assert (answer["error"], "another node" in answer["message"]) == ("UsageError", True)
    node = part["incarnation"].partition("-")[0]
    (answer,) = asked({**explain, "incarnation": f"{node}-999"})
    assert answer["error"] == "StoreError"
    assert "deleted and made again" in answer["message"]
    (answer,) = asked({**explain, "incarnation": f"{node}-999", "options": {**options, "failOnDataLoss": "false"}})
    assert answer == {"answer": 10}


def test_ranges_of_an_earlier_planner_are_held_as_far_as_they_are_there(topic: warren.Topic) -> None:
    topic.append_many([b"%d" % n for n in range(10)], queue=0)
    options = options_of(topic)
    opened = {"ask": "open", "options": options, "kind": "batch"}
    opened["schema"] = WarrenDataSource({**options, "scan": "auto"}).schema().json()
    with warren.attach(topic._client.directory.path, name="looking") as client:
        assert not holders(client)
        _opened, parts, _stopped = asked(opened, {"ask": "partitions", "reader": 1}, {"ask": "stop", "reader": 1})
        planner = native_planner.Planner()
        hold = {"ask": "hold", "options": options, "ranges": parts["answer"]}
        number = planner.answer(hold)
        gone = planner.answer({**hold, "ranges": [{**part, "incarnation": "0-0"} for part in parts["answer"]]})
        assert holders(client) == [os.getpid()]
        planner.answer({"ask": "stop", "reader": number})
        assert not holders(client)
        planner.answer({"ask": "stop", "reader": gone})


def test_mistakes_are_answers(topic: warren.Topic) -> None:
    (answer,) = asked({"ask": "native", "options": options_of(topic, scan="fast")})
    assert answer["error"] == "UsageError"
    options = options_of(topic, subscribe="nowhere")
    opened = {"ask": "open", "options": options, "schema": '{"type":"struct","fields":[]}', "kind": "batch"}
    *_others, answer = asked({"ask": "native", "options": options}, opened, {"ask": "partitions", "reader": 1})
    assert answer["error"] == "TopicNotFound"


def test_limits_go_there_and_back() -> None:
    for limit in (ReadMaxRows(5), ReadMinRows(6), ReadMaxBytes(7), ReadAllAvailable()):
        told = native_planner.limit_of(limit)
        assert native_planner.LIMITS[told["limit"]](told["most"]) == limit


def test_lag_of_a_stream() -> None:
    latest = {"a": {"id": "x", "0": 10, "1": 7}, "b": {"id": "y", "0": 3}}
    found = native_planner.behind(latest, {"a": {"id": "x", "0": 4, "1": 7}})
    assert found == {"minOffsetsBehindLatest": 0, "maxOffsetsBehindLatest": 6, "avgOffsetsBehindLatest": 2.0}
    assert native_planner.behind(None, {}) == {}


def test_without_a_jar_a_native_read_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(native, "JAR", tmp_path / "none.jar")
    assert native.jar() is None
    options = {"path": str(tmp_path), "subscribe": "flights", "scan": "native"}
    with pytest.raises(UsageError, match="openjdk-17-jdk-headless"):
        WarrenDataSource(options).schema()
    assert WarrenDataSource({**options, "scan": "auto"}).schema()
    assert WarrenPythonDataSource.name() != WarrenDataSource.name()


def test_a_jar_for_another_spark_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = tmp_path / "made.jar"
    monkeypatch.setattr(native, "JAR", made)
    with zipfile.ZipFile(made, "w") as file:
        file.writestr(native.MANIFEST, "Manifest-Version: 1.0\r\nSpark-Version: 4.2.0\r\n\r\n")
    assert native.jar() is None
    assert "PySpark 4.2.0" in native.missing()
    made.write_bytes(b"no jar")
    assert "cannot be used" in native.missing()


@pytest.mark.skipif(native.compiler() is None, reason="there is no JDK here: apt-get install openjdk-17-jdk-headless")
def test_the_jar_is_made_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = tmp_path / "made.jar"
    monkeypatch.setattr(native, "JAR", made)
    assert native.build() == made
    assert native.jar() == made
    first = made.stat().st_mtime_ns
    assert native.build() == made
    assert made.stat().st_mtime_ns == first
    assert list(tmp_path.iterdir()) == [made]


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(native, "JAR", tmp_path / "none.jar")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(native.NativeMissing, match="openjdk-17-jdk-headless"):
        native.build()
    assert list(tmp_path.iterdir()) == []
