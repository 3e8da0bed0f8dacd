"""What every test gets: it fails when it leaves anything behind (see support/leaks.py), and it can print its seed.

Goal: no segment, semaphore, queue, process, descriptor, mapping or directory survives its test, module or run.
Method: a census around each test, each module and the whole run. The wider ones catch what a shared fixture leaves,
whose things the narrower ones excuse. What is left gets five seconds (WARREN_LEAK_GRACE_S) to go away by itself, then
fails the test, and is removed.

`pytest -n 4` runs four lanes: each module as a whole in one of them, those that share the Spark session in the same
one, which begins with them, because they are the longest. A lane is another run to the others; what none of them can be
blamed for is looked for when all have ended.
"""

import gc
import os
import signal
import subprocess
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from support.leaks import MARK, Census, clean_up, leaks_since
from support.long import LONG
from support.seeds import new_seed
from support.waiting import wait_until

pytest_plugins = ["support.running_node"]

FAILED = pytest.StashKey[bool]()
BEFORE = pytest.StashKey[Census]()
ROOT = Path(__file__).parents[1]
#: no test depends on being fast, and no short one on chance
settings.register_profile("warren", deadline=None, derandomize=not LONG, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("warren")
SPARK = ROOT / "tests/spark"
DRIVERS = (SPARK / "test_processes.py", SPARK / "test_cluster.py")  # drivers of their own
#: modules that take a lane a minute or more: the others fill the lanes beside the last of them
LONGEST = [
    ROOT / "tests" / name
    for name in (
        "amqp_diff/test_same.py",
        "queues/test_queue_policy.py",
        "crash/test_damage_topics.py",
        "topics/test_topic_halves.py",
        "node/test_start_waits.py",
        "cli/test_cli.py",
        "crash/test_damage_absence.py",
        "catalog/test_catalog_log.py",
        "crash/test_points.py",
        "node/test_moves.py",
        "crash/test_log_loss.py",
        "crash/test_newest_powerloss.py",
        "faces/test_ack_timeout.py",
        "store/test_store_space.py",
        "house/test_house.py",
        "tooling/test_topic_benches.py",
        "task_queues/test_celery_worker.py",
        "topics/test_bindings_kill.py",
        "documents/test_types.py",
    )
]


def pytest_configure(config: pytest.Config) -> None:
    """A temporary directory of this run's own: nothing of another run is ever taken for a leak, or removed."""
    own = tempfile.TemporaryDirectory(prefix="wtest-", ignore_cleanup_errors=True)
    os.environ["TMPDIR"] = tempfile.tempdir = own.name
    config.add_cleanup(own.cleanup)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background job; commands would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    lane = getattr(config, "workerinput", {}).get("workerid")
    if lane is not None:
        os.environ[MARK] += f".{lane}"
    elif config.getoption("numprocesses", None):
        config.stash[BEFORE] = Census.take()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest."""
    order = {path: number for number, path in enumerate(LONGEST, 1)}
    items.sort(key=lambda item: 0 if item.path.is_relative_to(SPARK) else order.get(item.path, len(LONGEST) + 1))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """The tests themselves stay: a collection, of which there are thousands, need not look at them each time."""
    gc.collect()
    gc.freeze()


class Lanes(LoadScopeScheduling):  # type: ignore[misc] # xdist has no types for it
    """Which tests stay together. xdist's own `loadgroup` does nothing with pytest 9.2."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        path = ROOT / file
        return "spark" if path.is_relative_to(SPARK) and path not in DRIVERS else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Lanes:
    """Each module in one lane."""
    config.option.loadscopereorder = False  # the longest need not be those with most tests
    return Lanes(config, log)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """After all lanes."""
    before = session.config.stash.get(BEFORE, None)
    if before is None:
        return
    leaks = leaks_since(before, Path(tempfile.gettempdir()), own_process=False)
    if leaks:
        clean_up(leaks)
        print("\nthe lanes left behind:", *leaks, sep="\n  ")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note for the fixtures that a test, and with it the run, has failed: a traceback keeps what it holds open."""
    report = yield
    if report.failed:
        item.stash[FAILED] = item.session.stash[FAILED] = True
    return report


@pytest.hookimpl
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> None:
    """What a shared fixture makes is there before its first test."""
    _forget_census(fixturedef)


@pytest.hookimpl
def pytest_fixture_post_finalizer(fixturedef: pytest.FixtureDef[Any]) -> None:
    """And what it leaves, too."""
    _forget_census(fixturedef)


def _forget_census(fixturedef: pytest.FixtureDef[Any]) -> None:
    if fixturedef.scope != "function":
        Census.newest = None


def _watch(root: Path, scope: str, node: pytest.Item | pytest.Session) -> Iterator[None]:
    before = Census.newest or Census.take()  # nothing has come since the test before ended
    yield
    leaks = leaks_since(before, root, own_process=not node.stash.get(FAILED, False))
    if leaks:
        node.session.stash[FAILED] = True
        clean_up(leaks)
        pytest.fail(f"the {scope} left behind:\n" + "\n".join(f"  {leak}" for leak in leaks), pytrace=False)


@pytest.fixture(scope="session")
def _private_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.getbasetemp()


@pytest.fixture(scope="session", autouse=True)
def _run_leaves_nothing(_private_root: Path, request: pytest.FixtureRequest) -> Iterator[None]:
    yield from _watch(_private_root, "run", request.session)


@pytest.fixture(scope="module", autouse=True)
def _module_leaves_nothing(
    _private_root: Path, _run_leaves_nothing: None, request: pytest.FixtureRequest
) -> Iterator[None]:
    yield from _watch(_private_root, "module", request.session)


@pytest.fixture(autouse=True)
def _test_leaves_nothing(
    _private_root: Path, _module_leaves_nothing: None, request: pytest.FixtureRequest
) -> Iterator[None]:
    yield from _watch(_private_root, "test", request.node)


@pytest.fixture
def seed() -> int:
    """Return the seed of this test, and print it (support/seeds.py)."""
    return new_seed()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 24 MiB, mounted below tmp_path."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m,mode=0700", "none", str(place)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"a small file system needs the right to mount: {mounted.stderr.strip()}")
    try:
        yield place
    finally:

        def unmounted() -> bool:
            return subprocess.run(["umount", str(place)], stderr=subprocess.DEVNULL).returncode == 0

        wait_until(unmounted, 20, what="the last process to leave the small disk")
