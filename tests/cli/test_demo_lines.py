"""Goal: what `warren demo` says in a file can be read there: a line is one line, however long, and tables are whole.

Method: its console on a standard output that is no terminal.
"""

import pytest
from rich.table import Table

from warren.tools.demo import report
from warren.tools.demo.chaos import Progress
from warren.workers.cli.demo import PLAIN_WIDTH, console


def test_a_line_of_progress_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    count = 336_776
    report.watcher(console(False), False).progress(Progress(count, count, count, count, count))
    (line,) = capsys.readouterr().out.splitlines()
    assert len(line) > PLAIN_WIDTH
    assert line.endswith("; waiting for Spark, which takes longest to start")


def test_a_table_is_as_wide_as_it_may_be(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(title="a table")
    table.add_column("a")
    table.add_row("word " * 100)
    console(False).print(table)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) == PLAIN_WIDTH
    assert sum(line.count("word") for line in lines) == 100
