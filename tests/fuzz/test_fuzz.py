"""Goal: the fuzz targets hold over their corpus and over mutations of it, under AddressSanitizer and UBSan.

Method: each target of tools/fuzz is compiled by gcc with a small driver of its own, so neither clang nor luck is
needed; the mutations follow from a fixed seed. `scripts/fuzz` searches on, guided by coverage.
WARREN_FUZZ_MUTATIONS=N makes N mutations of each here.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from warren.tools.fuzz.build import HERE, build, targets

#: per target: enough for a few seconds
MUTATIONS = {"frames": 20_000, "list": 20_000}
MUTATIONS_DEFAULT = 1_500

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc here")


@pytest.fixture(scope="module")
def programs() -> dict[str, Path]:
    return build("gcc", targets())


@pytest.mark.long
@pytest.mark.parametrize("name", targets())
def test_target_holds(name: str, programs: dict[str, Path], tmp_path: Path) -> None:
    mutations = os.environ.get("WARREN_FUZZ_MUTATIONS") or str(MUTATIONS.get(name, MUTATIONS_DEFAULT))
    crash = tmp_path / "crash"
    command = [str(programs[name]), "--mutations", mutations, "--seed", "1", "--seconds", "4", "--crash", str(crash)]
    corpus = HERE / "corpus" / name.removesuffix("_race")
    done = subprocess.run([*command, *([str(corpus)] if corpus.exists() else [])], capture_output=True, text=True)
    assert done.returncode == 0, (
        f"{done.stdout}{done.stderr}\ninput: {crash.read_bytes().hex() if crash.exists() else None}"
    )


def test_corpus_is_small() -> None:
    assert sum(path.stat().st_size for path in (HERE / "corpus").rglob("*") if path.is_file()) <= 200_000


def test_every_corpus_has_its_target() -> None:
    assert {path.name for path in (HERE / "corpus").iterdir()} <= set(targets())
