"""Goal: what docs/python.md shows works, and is well typed for who uses it. Method: it is run, and checked by mypy."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.real_node import RealNode

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = re.findall(
    r"^## (.+?)\n.*?^```python\n(.*?)^```", (ROOT / "docs/python.md").read_text(), re.MULTILINE | re.DOTALL
)
SAID = {
    "Queues": "b'two' {'shop': 7} False\nb'three' {} False\nb'four' {} False\n",
    "Handling messages, with retries": "handled b'plain'\nhandled b'flaky'\nhandled b'last'\nb'by hand'\n",
    "Calls": "b'42'\nqueue 'prices': the function that served the call raised KeyError: 'no such metal'\n",
    "Many queues at once": "1000 b'21.5'\n",
    "As `queue.Queue`": "page 0\npage 1\npage 2\nempty\n",
    "Other processes": "[0, 1, 4, 9, 16, 25, 36, 49]\n",
    "asyncio": "100\n",
    "Confirms": "stored: True\n",
}


def test_every_face_has_an_example() -> None:
    assert [title for title, _code in EXAMPLES] == list(SAID)


@pytest.mark.parametrize(("title", "code"), EXAMPLES)
def test_an_example_runs_and_says_what_it_should(tmp_path: Path, title: str, code: str) -> None:
    script = tmp_path / "example.py"
    script.write_text(code)
    with RealNode(tmp_path / "data"):
        done = subprocess.run(
            [sys.executable, "-W", "error", str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(SAID[title]), done.stdout


USED = """
import asyncio
import concurrent.futures
from typing import Any, assert_type

import warren
import warren.aio


def blocking(node: warren.Node) -> None:
    with node:
        orders: warren.Queue = node.queue("orders", max_length=5)
        orders.put(b"x", headers={"a": 1})
        confirm = orders.put(b"x", wait=False)
        if confirm is not None:
            confirm.add_done_callback(lambda done: print(done.exception()))
            future = confirm.future()
            assert_type(future, concurrent.futures.Future[None])
        message = orders.get(timeout=1)
        assert_type(message, warren.Message)
        body: bytes = message.body
        print(body)
        message.ack()
        assert_type(node.work_queue("a"), warren.WorkQueue[bytes])
        tasks = node.work_queue("b", serializer="pickle")
        assert_type(tasks, warren.WorkQueue[Any])
        tasks.put({"a": 1}, timeout=1)
        item: dict[str, int] = tasks.get()
        print(item)


async def awaited() -> None:
    async with warren.aio.open("data") as node:
        assert_type(node, warren.aio.Node)
        queue = await node.queue("orders")
        confirm = await queue.put(b"x", wait=False)
        if confirm is not None:
            await confirm
        message = await queue.get(timeout=1)
        assert_type(message, warren.aio.Message)
        await message.ack()
        async with queue.consume(prefetch=5) as messages:
            async for one in messages:
                assert_type(one, warren.aio.Message)
                await one.nack()
    node = await warren.aio.attach("data")
    await node.close()


blocking(warren.open("data"))
asyncio.run(awaited())
"""


def test_a_program_that_uses_it_is_well_typed(tmp_path: Path) -> None:
    """mypy --strict, as a user runs it: the installed package's py.typed and stubs count."""
    sample = tmp_path / "sample.py"
    sample.write_text(USED)
    tree = tmp_path / "tree" / "warren"
    tree.mkdir(parents=True)
    for path in (ROOT / "warren").iterdir():
        if path.suffix in (".py", ".pyi", ".typed") or path.name == "py.typed":
            (tree / path.name).symlink_to(path)
    for folder in ("engine", "ipc", "workers"):
        (tree / folder).symlink_to(ROOT / folder)
    checked = _mypy(sample, tree.parent)
    assert "Success" in checked, checked
    wrong = USED.replace("body: bytes = message.body", "body: str = message.body")
    assert wrong != USED
    sample.write_text(wrong)
    assert "Incompatible types in assignment" in _mypy(sample, tree.parent), "the types are really looked at"


def _mypy(sample: Path, packages: Path) -> str:
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull, "--follow-imports", "silent"]
    command += ["--cache-dir", str(sample.with_suffix(".cache")), str(sample)]
    environment = os.environ | {"MYPYPATH": str(packages)}
    done = subprocess.run(command, cwd=packages, env=environment, capture_output=True, text=True, timeout=110)
    return done.stdout + done.stderr
