"""Servers that do nothing but what the supervisor looks at, for tests of the supervisor: they are ready, sweep, and
end.

As a program: `python -m support.dummy_servers DIR [key=value …]` is a supervisor with such servers; the behaviour of
the servers is told by files in DIR/behave: `<role>.exit` with an exit code ends that role at once, `<role>.deaf`
makes it deaf to SIGTERM, and `<role>.slow` lets it sync all the same; `<role>.unclean` lets it end with 1;
`topics.blind` keeps the topic worker from reading the catalog.
"""

import contextlib
import os
import select
import signal
import sys
from pathlib import Path

from warren.engine import _core
from warren.engine.config import Settings
from warren.engine.errors import DirectoryInUse, Error, UsageError
from warren.engine.kernel.protocol import LAYOUT_HASH
from warren.ipc.layout import CONSTANTS
from warren.ipc.superblock import DEAD, LEAVING, Superblock
from warren.workers.node import children
from warren.workers.node.options import Options
from warren.workers.node.supervise import supervise


class DummyServers:
    """A store server, queue workers and a topic worker without any messages."""

    def store(self, directory: Path, shared_id: int, _settings: Settings, supervisor_pidfd: int) -> int:
        return _serve(directory, shared_id, "store", (0, 1), supervisor_pidfd)

    def worker(self, directory: Path, shared_id: int, worker: int, _settings: Settings, supervisor_pidfd: int) -> int:
        return _serve(directory, shared_id, f"worker-{worker}", (2 + worker,), supervisor_pidfd)

    def topics(self, directory: Path, shared_id: int, _settings: Settings, supervisor_pidfd: int) -> int:
        superblock = Superblock.attach(shared_id, LAYOUT_HASH)
        server = superblock.topic_server
        superblock.close()
        return _serve(directory, shared_id, "topics", (server,), supervisor_pidfd)

    def collector(self, directory: Path, shared_id: int, _settings: Settings, supervisor_pidfd: int) -> int:
        return _serve(directory, shared_id, "collector", (), supervisor_pidfd)


def _serve(directory: Path, shared_id: int, name: str, servers: tuple[int, ...], supervisor_pidfd: int) -> int:
    behave = directory / "behave"
    with contextlib.suppress(FileNotFoundError):
        code = int((behave / f"{name}.exit").read_text())
        print(f"{name} was told to end with {code}", flush=True)
        return code
    read_end, write_end = os.pipe2(os.O_NONBLOCK)
    if not (behave / f"{name}.deaf").exists():
        signal.set_wakeup_fd(write_end)
    told = []
    signal.signal(signal.SIGTERM, lambda *_: None if (behave / f"{name}.deaf").exists() else told.append(1))
    superblock = Superblock.attach(shared_id, LAYOUT_HASH)
    if not servers:
        superblock.set("collector_state", CONSTANTS["SERVER_READY"])
    for server in servers:
        superblock.server_set(server, "state", CONSTANTS["SERVER_READY"])
        superblock.server_set(server, "epoch", superblock.server_get(server, "epoch") + 1)
    orphaned = False
    finishing = superblock.state == CONSTANTS["NODE_DRAINING"]  # started to do what is left
    while not told and not finishing:
        watched = [read_end] if orphaned else [read_end, supervisor_pidfd]
        ready, _, _ = select.select(watched, [], [], 0.02)
        if supervisor_pidfd in ready:
            orphaned = True  # a new supervisor is the test's business
        if (behave / f"{name}.slow").exists():
            superblock.server_add(servers[0], "syncs_n", 1)
        if name == "topics" and not (behave / "topics.blind").exists():
            superblock.server_set(servers[0], "catalog_read", superblock.get("catalog_version"))
        for view in superblock.slots():
            if view.state in (LEAVING, DEAD):
                for server in servers:
                    superblock.set_server_done(view.slot, server, view.generation)
    for server in servers:
        superblock.server_set(server, "state", CONSTANTS["SERVER_DOWN"])
    superblock.close()
    return int((behave / f"{name}.unclean").exists())


def main() -> int:
    directory, *rest = sys.argv[1:]
    words = dict(word.split("=", 1) for word in rest)
    children.DEATHS_MAX = int(words.pop("deaths_max", "10"))
    options = Options(
        idle_exit=float(words.pop("idle_exit")) if "idle_exit" in words else None,
        adopt=bool(words.pop("adopt", "")),
        successor=bool(words.pop("successor", "")),
        stop_timeout=float(words.pop("stop_timeout", "30")),
        changes=dict(words),
    )
    try:
        return supervise(directory, options, DummyServers, lambda line: print(line, flush=True))
    except (UsageError, DirectoryInUse) as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        return 2
    except Error as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        return 1


assert _core.LAYOUT_HASH == LAYOUT_HASH  # the C core was built with these declarations
if __name__ == "__main__":
    sys.exit(main())
