"""Goal: every program of docs/examples/ works, is short, and is found. Method: each is run in an empty folder, and what
it prints is compared; all of them are counts. (test_types.py checks the types; the one for Spark runs in tests/spark.)
"""

import re
from pathlib import Path

import pytest

from support.programs import run_program
from support.snippets import EXAMPLES, ROOT

pytestmark = pytest.mark.integration

SAID = {
    "asyncio_service.py": "invoices: 500, handled: 500, at most 100 at a time: True\n",
    "cron.py": "reports: 5, every tick once: True\n",
    "event_log.py": (
        "billing handled 3\nmails handled 3\nbilling handled 2\nlag: {'billing': 0, 'mails': 2}\nmails handled 2\n"
        "ada: [('paid', 5), ('cancelled', 30)]\naudit: 4 paid, 54 in all, the first of ['ada']\n"
    ),
    "log_shipper.py": "full at 50 lines\nall shipped, in order: True\n",
    "retries.py": (
        "sent to ann@here.org\nsent to carl@here.org\nsent to bob@slow.org\n"
        "dead letter: 'nobody', rejected in queue 'mails'\nhandled: 3, failed: 5, rejected: 1, late: 0\n"
    ),
    "rpc.py": (
        "answers: 100, sum of the prices: 1692\n"
        "queue 'prices': the function that served the call raised KeyError: b'lead'\n"
    ),
    "tables.py": (
        "tables: 5, rows: 5000, mean delay: 499.5\nbrowsed: 1000 rows, 10 columns; still in the queue: 1000\n"
    ),
    "worker_pool.py": "squares: 200, different ones: 200, sum: 2646700\n",
}
#: these need a JVM: tests/spark/test_guide.py, test_topic_guide.py
SPARK = ("spark_stream.py", "spark_topics.py")


def test_each_example_is_run() -> None:
    assert {path.name for path in EXAMPLES} == {*SAID, *SPARK}


@pytest.mark.parametrize("name", sorted(SAID))
def test_an_example_prints_what_it_should_twice(tmp_path: Path, name: str) -> None:
    """The second time in the same folder, with what the first one left there."""
    for _time in range(2):
        said = run_program(ROOT / "docs/examples" / name, tmp_path)
        assert sorted(said.splitlines()) == sorted(SAID[name].splitlines())  # what comes first is the machine's affair


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_short_and_says_what_it_shows_and_how_to_run_it(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) < 60
    assert re.match(r'"""[A-Z].*\.$', lines[0])
    run = rf"Run it: python docs/examples/{path.name} \(it makes a node in ./examples-data.*\)\"\"\"$"
    assert re.match(run, lines[1])


def test_the_documents_list_every_example() -> None:
    guide = (ROOT / "docs/python.md").read_text()
    listed = re.findall(r"^\| \[(\w+\.py)\]\(examples/(\w+\.py)\) \|", guide, re.MULTILINE)
    assert sorted(listed) == [(path.name, path.name) for path in EXAMPLES]
    assert "(docs/examples)" in (ROOT / "README.md").read_text()
