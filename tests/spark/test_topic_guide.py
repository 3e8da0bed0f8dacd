"""Goal: what docs/spark-topics.md shows works, and so do the example and the job for Kafka that it ports.

Method: the snippet and the example are run, one process each; the lines that the diff adds and keeps are run, too.
"""

from pathlib import Path
from typing import Any

import pytest

import warren

from support.real_node import RealNode
from support.snippets import ROOT, snippets
from support.spark_queries import run_program as run

pytestmark = [pytest.mark.spark]


def fill(topic: warren.Topic) -> None:
    for queue in (0, 1):
        for tag in ("UA", "B6"):
            topic.append_many([f"{tag} {n}".encode() for n in range(5)], keys="N14228", tags=tag, queue=queue)


def test_a_stream_and_a_batch(tmp_path: Path) -> None:
    (snippet,) = snippets(ROOT / "docs/spark-topics.md")
    program = tmp_path / "snippet.py"
    program.write_text(snippet.code)
    with RealNode(tmp_path / "data"), warren.attach(tmp_path / "data") as node:
        fill(node.topic("flights", queues=2))
        assert run(program, tmp_path).splitlines()[-1] == "10"
    assert list((tmp_path / "lines").glob("*.parquet"))


def test_a_job_for_kafka(spark: Any, node: warren.Node) -> None:
    text = (ROOT / "docs/spark-topics.md").read_text().split("```diff\n")[1].split("```")[0]
    lines = [line[1:] for line in text.splitlines() if line[0] in "+ "]
    with warren.attach(node.directory) as client:
        topic = client.topic("flights", queues=2)
        try:
            fill(topic)
            code = "\n".join(lines).replace('"data"', repr(str(node.directory))).replace("readStream", "read")
            code = code.replace(
                '.option("maxOffsetsPerTrigger", "100000")', ""
            )  # of the stream, which a batch stands for
            names: dict[str, Any] = {"spark": spark}
            exec(compile(code, "port", "exec"), names)
            rows = names["frame"].collect()
            assert sorted(row.value for row in rows) == sorted(
                [f"{tag} {n}" for tag in ("UA", "B6") for n in range(5)] * 2
            )
            assert {(row.key, row.topic, row.timestampType) for row in rows} == {("N14228", "flights", 1)}
        finally:
            topic.delete()


@pytest.mark.long
def test_the_example(tmp_path: Path) -> None:
    program = ROOT / "docs/examples/spark_topics.py"
    said = run(program, tmp_path, stop=True).splitlines()
    assert said[:2] == ["3000 of 3000 rows, 3000 of them once", "lag of the group: 0"]
    assert len(said) == 7
