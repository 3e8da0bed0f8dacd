"""Goal: for a mistyped name, or one that is right elsewhere, the error names the right one.

Method: calls that fail; a node where one is needed; missing packages are hidden from a child process.
"""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

import warren
import warren.aio
from warren.engine.catalog.arguments import QueueArguments, of_text
from warren.engine.catalog.node_directory import changed_settings
from warren.engine.config import Settings


@pytest.mark.parametrize("name", ["max_lenght", "x-max-length", "max-length"])
def test_an_argument_that_is_nearly_right(name: str) -> None:
    with pytest.raises(warren.UsageError, match=rf"unknown argument '{name}': did you mean max_length"):
        QueueArguments.of("q", {name: 5})


def test_a_setting_that_is_nearly_right() -> None:
    with pytest.raises(warren.UsageError, match=r"there is no setting 'file_byte': did you mean file_bytes"):
        changed_settings(Settings(), {"file_byte": 3})


@pytest.mark.parametrize(
    "arguments",
    [
        {"message_ttl": "60"},
        {"max_length": "5"},
        {"max_length": 5.0},
        {"max_priority": True},
        {"single_active_consumer": "yes"},
        {"single_active_consumer": 1},
        {"delivery_limit": "3"},
    ],
    ids=str,
)
def test_a_text_is_no_number(arguments: dict[str, object]) -> None:
    """On the command line all are text: there it is read."""
    ((name, value),) = arguments.items()
    with pytest.raises(warren.UsageError, match=f"argument {name}="):
        QueueArguments.of("q", arguments)
    if isinstance(value, str):
        assert not isinstance(of_text({name: value})[name], str)
        QueueArguments.of("q", of_text({name: value}))


def test_the_face_has_nothing_else() -> None:
    names = [name for name in dir(warren) if not name.startswith("__")]
    assert sorted(names) == sorted({*warren.__all__, "aio", "spark"} - {"__version__"})


def test_asyncio_says_how_it_is_written() -> None:
    with pytest.raises(TypeError, match=r"async with warren\.aio\.open"), warren.aio.open("nowhere"):  # type: ignore[attr-defined]
        pass


@pytest.mark.integration
def test_on_a_node(directory: Path) -> None:
    with warren.attach(directory) as node:
        topic = node.topic("words", queues=1)
        with pytest.raises(AttributeError, match="a topic has no 'put': it is append"):
            topic.put(b"1")  # type: ignore[attr-defined]
        with pytest.raises(AttributeError, match=r"a topic has no 'nothing'$"):
            topic.nothing  # type: ignore[attr-defined]  # noqa: B018
        topic.append(b"a body that is longer than what is shown")
        (record,) = topic.read(queue=0, offset=0).records
        assert repr(record).endswith("40 bytes: b'a body that is longer than what '…)")
        queue = node.queue("words")
        queue.put(b"short")
        with queue.get(timeout=20) as message:
            assert repr(message) == "<Message 0 of 'words', 5 bytes: b'short'>"

    async def work() -> None:
        async with await warren.aio.attach(directory) as aio_node:
            with pytest.raises(AttributeError, match="it is append"):
                (await aio_node.topic("words", create=False)).put(b"1")  # type: ignore[attr-defined]
            with pytest.raises(TypeError, match="async for message in"):
                for _ in (await aio_node.queue("words")).consume():  # type: ignore[attr-defined]
                    pass

    asyncio.run(asyncio.wait_for(work(), 60))


@pytest.mark.parametrize(
    ("module", "hidden", "said"),
    [
        ("warren.celery", "kombu", r"warren.celery needs kombu, which is not installed: pip install 'warren[celery]'"),
        ("warren.dramatiq", "dramatiq", "warren.dramatiq needs dramatiq, which is not installed: pip install dramatiq"),
        ("warren.taskiq", "taskiq", "warren.taskiq needs taskiq, which is not installed: pip install taskiq"),
    ],
)
def test_a_missing_package_is_named(module: str, hidden: str, said: str) -> None:
    program = (
        f"import sys\nsys.modules[{hidden!r}] = None\ntry:\n    import {module}\n"
        "except ImportError as error:\n    print(error)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    assert ended.stdout == said + "\n"
