"""Goal: alarms say what is short, with figures; they end well below the limit, and a new supervisor goes on with them.

Method: `Alarms` on a superblock of its own with probes that the test sets; control groups as trees of files.
"""

import errno
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warren.engine.config import MIB, Settings
from warren.engine.kernel import low_disk
from warren.engine.kernel.protocol import LAYOUT_HASH
from warren.ipc.layout import CONSTANTS
from warren.ipc.superblock import GEOMETRY, Superblock
from warren.workers.node import alarms
from warren.workers.node.alarms import Alarms, Memory
from warren.workers.process import alarm_words, lack
from warren.workers.process.alarm_words import DISK, MEMORY, SYNC_FAILED

SMALL = dict.fromkeys(GEOMETRY, 64) | {"servers_n": 3, "arena_bytes": 65536, "reply_bytes": 4096}
GIB = 1024 * MIB


@dataclass
class World:
    """What the probes say."""

    superblock: Superblock
    settings: Settings
    used: int = 0
    total: int = 16 * GIB
    own: int = 0
    free: int = 100 * GIB

    def alarms(self) -> Alarms:
        """A supervisor's view; each call is another supervisor."""
        return Alarms(
            self.superblock,
            Path("/"),
            self.settings,
            list,
            memory=lambda: Memory(self.used, self.total),
            own=lambda _node, _pids: self.own,
            disk=lambda _path: self.free,
        )

    def check(self) -> int:
        self.alarms().check(False)
        return self.superblock.get("alarms")


def made() -> Superblock:
    return Superblock.create(secrets.randbits(47), 5, 11, 12, SMALL, layout_hash=LAYOUT_HASH)


@pytest.fixture
def world() -> Iterator[World]:
    superblock = made()
    yield World(superblock, Settings(workers=1, disk_free_bytes_min=GIB))
    superblock.unlink()
    superblock.close()


def test_nothing_is_short(world: World) -> None:
    assert world.check() == 0
    assert alarm_words.described(world.superblock) == []


def test_a_server_that_sees_a_short_disk_first_says_how_short(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the supervisor has looked, and after it has died, the alarm has figures, too."""
    assert world.check() == 0
    monkeypatch.setattr(low_disk, "free_disk", lambda _folder: GIB - 1)
    low_disk.look(world.superblock, tmp_path)
    (row,) = alarm_words.described(world.superblock)
    assert "1024 MiB are free on the disk of the node, less than 1 GiB" in row["cause"], row


def test_disk_has_figures_and_ends_above_the_limit(world: World) -> None:
    world.free = GIB - 1
    said = world.alarms().check(False)
    assert len(said) == 1
    assert said[0].startswith("alarm disk raised: 1024 MiB are free")
    (row,) = alarm_words.described(world.superblock)
    assert (row["alarm"], row["free_bytes"], row["limit_bytes"]) == ("disk", GIB - 1, GIB)
    assert row["blocks_publishers"]
    assert row["settings"] == ["disk_free_bytes_min"]
    since = row["since"]
    assert since > 1.6e9
    world.free = GIB + GIB // 20
    assert world.check() == DISK, "the limit again is not enough"
    assert alarm_words.described(world.superblock)[0]["since"] == since
    world.free = GIB + GIB // 5
    assert world.alarms().check(False) == ["alarm disk cleared"]
    assert world.superblock.get("disk_since") == 0
    world.free = GIB + GIB // 20
    assert world.check() == 0, "and it does not come back between the two"


def test_memory_of_the_machine(world: World) -> None:
    world.used = int(0.91 * world.total)
    assert world.check() == MEMORY
    said = alarm_words.text(world.superblock, MEMORY)
    assert "memory_used_max" in said
    assert "14.56 GiB" in said
    assert "memory_own_max" not in said
    world.used = int(0.88 * world.total)
    assert world.check() == MEMORY
    world.used = int(0.85 * world.total)
    assert world.check() == 0


def test_memory_of_the_node(world: World) -> None:
    world.own = int(0.41 * world.total)
    assert world.check() == MEMORY
    (row,) = alarm_words.described(world.superblock)
    assert "the node itself uses 6.56 GiB" in row["cause"]
    assert "memory_own_max" in row["cause"]
    assert (row["own_bytes"], row["own_limit_bytes"]) == (world.own, int(0.4 * world.total))
    world.own = int(0.39 * world.total)
    assert world.check() == MEMORY
    world.own = int(0.37 * world.total)
    assert world.check() == 0


def test_the_node_may_use_what_its_settings_need(world: World) -> None:
    """On a small machine its share would be less than an idle node has: such an alarm would never end."""
    world.total = 512 * MIB
    world.own = 300 * MIB
    assert world.check() == 0
    world.used = 480 * MIB
    assert world.check() == MEMORY


def test_pressure_comes_before_the_alarm(world: World) -> None:
    def pressure() -> int:
        world.check()
        return world.superblock.get("pressure")

    assert pressure() == 0
    world.used = world.total // 2
    assert pressure() == 0, "memory of others is none of our business as long as there is enough"
    world.own = int(0.2 * world.total) + 1
    assert pressure() in (500, 501)
    world.used = int(0.85 * world.total)
    assert 900 < pressure() < 1000
    assert world.superblock.get("alarms") == 0
    assert CONSTANTS["PRESSURE_PAGE"] == 500


def test_what_cannot_be_read_changes_nothing(world: World) -> None:
    world.free, world.used = 0, world.total
    assert world.check() == MEMORY | DISK

    def broken(*_arguments: object) -> int:
        raise OSError("not today")

    Alarms(world.superblock, Path("/"), world.settings, list, memory=broken, disk=broken).check(False)  # type: ignore[arg-type]
    assert world.superblock.get("alarms") == MEMORY | DISK
    assert world.superblock.get("pressure") > 1000


@pytest.mark.parametrize(
    ("number", "said", "todo"),
    [
        (errno.EDQUOT, "the quota of this user is used up", "free some space"),
        (errno.EACCES, "cannot be made: Permission denied, EACCES", "the right to write"),
        (errno.EROFS, "cannot be made: Read-only file system, EROFS", "mount it writable"),
        (errno.EIO, "cannot be made: Input/output error, EIO", "look at the disk"),
        (errno.EMFILE, "cannot be made: Too many open files, EMFILE", "ulimit -n"),
        (errno.ENOMEM, "cannot be made: Cannot allocate memory, ENOMEM", "free memory"),
        (errno.ENOTDIR, "cannot be made: Not a directory, ENOTDIR", "remove the cause that DIR/log names"),
        (0, "cannot be made: see its log", "remove the cause that DIR/log names"),
    ],
)
def test_the_disk_alarm_says_what_the_system_said(world: World, number: int, said: str, todo: str) -> None:
    world.superblock.server_set(2, "alarms", DISK)
    world.superblock.server_set(2, "file_error", number)
    world.check()
    (row,) = alarm_words.described(world.superblock)
    assert said in row["cause"]
    assert todo in row["text"]
    assert ("no space" in row["cause"]) == (number == errno.EDQUOT)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_what_ends_an_alarm_is_said_once(world: World, number: int) -> None:
    """Too little space is seen by the supervisor and by a server: with how much is wanted, and not twice."""
    world.free = 0
    world.superblock.server_set(2, "alarms", DISK)
    world.superblock.server_set(2, "file_error", number)
    world.check()
    todo = alarm_words.advice(world.superblock, DISK)
    assert todo.count("free some space") == 1
    assert "free some space (until" in todo
    assert ("look at the disk" in todo) == (number == errno.EIO)


@pytest.mark.parametrize(("number", "said"), [(errno.ESTALE, "that {} was writing"), (errno.EIO, "data of {} durable")])
def test_a_sync_that_failed_is_said_of_a_server_by_its_name(world: World, number: int, said: str) -> None:
    world.superblock.server_set(2, "alarms", SYNC_FAILED)
    world.superblock.server_set(2, "error", number)
    assert said.format("worker-0") in alarm_words.cause(world.superblock, SYNC_FAILED)
    world.superblock.server_set(2, "alarms", 0)
    assert said.format("the node") in alarm_words.cause(world.superblock, SYNC_FAILED)


def test_servers_alarms_name_the_server(world: World) -> None:
    world.superblock.server_set(2, "alarms", DISK)
    world.superblock.server_set(2, "file_error", errno.ENOSPC)
    assert world.check() == DISK
    (row,) = alarm_words.described(world.superblock)
    assert row["servers"] == ["worker-0"]
    assert "no space for the files of worker-0" in row["text"]
    assert "100 GiB are free" in row["text"]
    world.superblock.server_set(2, "alarms", 0)
    assert world.check() == 0, "what a server takes back ends at once"


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["used", "own", "free"]),
            st.floats(0, 2, allow_nan=False),
            st.booleans(),
        ),
        max_size=30,
    )
)
def test_hysteresis(steps: list[tuple[str, float, bool]]) -> None:
    """Any course of memory and disk, with other supervisors in between: on beyond the limit, off far from it, and in
    between what it was before."""
    superblock = made()
    try:
        world = World(superblock, Settings(workers=1, disk_free_bytes_min=GIB))
        before = {"used": False, "own": False, "free": False}
        mine = world.alarms()
        limits = {"used": 0.9 * world.total, "own": 0.4 * world.total, "free": float(GIB)}
        for what, share, other_supervisor in steps:
            setattr(world, what, int(share * limits[what]))
            if other_supervisor:
                mine = world.alarms()
            mine.check(False)
            on = superblock.get("alarms")
            for name, limit in limits.items():
                value = getattr(world, name)
                beyond = value < limit if name == "free" else value > int(limit)
                clear = value >= 1.1 * limit if name == "free" else value <= int(limit) * 0.95
                before[name] = beyond or (before[name] and not clear)
            expected = (DISK if before["free"] else 0) | (MEMORY if before["used"] or before["own"] else 0)
            assert on == expected
            for bit, name in ((MEMORY, "memory_since"), (DISK, "disk_since")):
                assert bool(superblock.get(name)) == bool(on & bit)
    finally:
        superblock.unlink()
        superblock.close()


# ---- control groups -------------------------------------------------------------------------------------------------


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, content in {"proc/meminfo": "MemTotal: 16777216 kB\nMemAvailable: 12582912 kB\n", **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


def test_a_machine_without_groups(tmp_path: Path) -> None:
    assert alarms.machine_memory(tree(tmp_path, {})) == Memory(4 * GIB, 16 * GIB)


def test_version_2_counts_the_nearest_limit_and_no_cache(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/user/job"
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/user/job\n",
            f"{group}/memory.max": "max\n",
            f"{group}/memory.current": "7\n",
            f"{group}/memory.stat": "file 1\n",
            "sys/fs/cgroup/user/memory.max": f"{2 * GIB}\n",
            "sys/fs/cgroup/user/memory.current": f"{GIB + 512 * MIB}\n",
            "sys/fs/cgroup/user/memory.stat": f"anon 5\nfile {700 * MIB}\nshmem {200 * MIB}\n",
        },
    )
    assert alarms.machine_memory(root) == Memory(GIB + 12 * MIB, 2 * GIB)


def test_version_2_in_a_container_that_sees_only_its_own_group(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/../../docker/abc\n",
            "sys/fs/cgroup/memory.max": f"{GIB}\n",
            "sys/fs/cgroup/memory.current": f"{GIB // 2}\n",
            "sys/fs/cgroup/memory.stat": "file 0\nshmem 0\n",
        },
    )
    assert alarms.machine_memory(root) == Memory(GIB // 2, GIB)


@pytest.mark.parametrize(
    ("limit", "expected"), [(GIB, Memory(600 * MIB, GIB)), (9223372036854771712, Memory(4 * GIB, 16 * GIB))]
)
def test_version_1(tmp_path: Path, limit: int, expected: Memory) -> None:
    group = "sys/fs/cgroup/memory/jobs/one"
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "9:name=systemd:/\n4:memory:/jobs/one\n0::/\n",
            f"{group}/memory.limit_in_bytes": f"{limit}\n",
            f"{group}/memory.usage_in_bytes": f"{700 * MIB}\n",
            f"{group}/memory.stat": f"cache {150 * MIB}\nshmem {50 * MIB}\n",
        },
    )
    assert alarms.machine_memory(root) == expected


def test_this_machine_can_be_read(tmp_path: Path) -> None:
    memory = alarms.machine_memory()
    assert 0 < memory.used < memory.total
    assert low_disk.free_disk(tmp_path) > 0


def test_own_memory_sees_regions_and_processes() -> None:
    superblock = made()
    try:
        alone = alarms.own_memory(superblock.shared_id, [])
        assert superblock.buffer.nbytes / 2 < alone <= 2 * superblock.buffer.nbytes
        import os

        assert alarms.own_memory(superblock.shared_id, [os.getpid(), 2**22 + 1]) > alone + MIB
    finally:
        superblock.unlink()
        superblock.close()


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (1 << 60, "1048576 TiB")]
)
def test_sizes_for_people(number: int, said: str) -> None:
    assert lack.size(number) == said
