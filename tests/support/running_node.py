"""What many modules begin with (a plugin of tests/conftest.py): a node of the module's own, a client of it, the name
of a new queue. Modules that need another node have fixtures of these names of their own."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

import warren

from support.real_node import RealNode


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with RealNode(tmp_path_factory.mktemp("node") / "data") as running:
        yield running.directory


@pytest.fixture
def node(directory: Path) -> Iterator[warren.Node]:
    with warren.attach(directory) as attached:
        yield attached


@pytest.fixture
def name() -> str:
    return f"q-{uuid4().hex[:8]}"
