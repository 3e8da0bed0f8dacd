"""A client that has next to nothing left of what the system gives: `python limited_client.py DIR LIMIT PHASE`.

LIMIT: `files` (RLIMIT_NOFILE) or `memory` (RLIMIT_AS). PHASE: what is done with so little: `attach`, `use` (first use
of a queue and of the store), `again` (use after the worker and the store were replaced). For each amount of what is
left, from none to plenty, it prints a line of JSON: what happened, whether the same client goes on when there is plenty
again, and what stayed behind.
"""

import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any

import warren
from warren.workers.process.shared_objects import segments

from support.waiting import wait_until

KIND = {"files": resource.RLIMIT_NOFILE, "memory": resource.RLIMIT_AS}
#: what is left, in descriptors or bytes
LEFT = {
    ("files", "attach"): range(12),
    ("files", "use"): range(16),
    ("files", "again"): range(0, 9, 2),
    ("memory", "attach"): range(0, 24 << 20, 192 << 10),
    ("memory", "use"): range(0, 48 << 20, 768 << 10),
    ("memory", "again"): range(0, 20 << 20, 4 << 20),
}
BIG = os.urandom(50_000)  # goes to the store, and is read from there


def bound(limit: str, left: int) -> int:
    """The limit that leaves so much."""
    if limit == "memory":
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize() + left
    return free_descriptors()[left]


def free_descriptors() -> list[int]:
    """Numbers that the next descriptors will have."""
    return [number for number in range(256) if not os.path.exists(f"/proc/self/fd/{number}")]


def my_segments() -> list[int]:
    return [item.id for item in segments() if item.creator == os.getpid()]


def things() -> dict[str, Any]:
    """What a client may leave behind: segments, descriptors, mappings of Warren."""
    with open("/proc/self/maps") as file:
        mapped = [line.split()[-1] for line in file if "/SYSV" in line or "/warren-" in line]
    descriptors = []
    for name in os.listdir("/proc/self/fd"):
        try:
            descriptors.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:  # it was for listing
            continue
    wait_until(lambda: not my_segments(), 20, what="the supervisor to remove the segments of clients that left")
    return {"segments": my_segments(), "mapped": sorted(mapped), "descriptors": sorted(descriptors)}


def use(node: warren.Node) -> None:
    queue, store = node.queue("q"), node.store()
    queue.put(b"small", timeout=20)
    queue.put(BIG, timeout=20)
    id = store.new_id()
    store.write(id, BIG, timeout=20)
    assert store.read(id) == BIG
    store.remove([id])
    queue.stats()
    node.ping()
    while (message := queue.get(timeout=20)).body != BIG:
        message.ack()
    message.ack()


def replace_servers(node: warren.Node) -> None:
    def pids() -> dict[str, int]:
        return {f"{item['role']}-{item.get('index')}": item["pid"] for item in node.status()["processes"]}

    before = pids()
    victims = [name for name in before if name.startswith(("queue_worker", "store"))]
    for name in victims:
        os.kill(before[name], signal.SIGKILL)
    wait_until(lambda: all(pids().get(name) not in (None, 0, before[name]) for name in victims), 30, what="new servers")


def tried(limit: str, left: int, call: Callable[[], object]) -> dict[str, Any]:
    """Call it with so much left."""
    soft, hard = resource.getrlimit(KIND[limit])
    resource.setrlimit(KIND[limit], (bound(limit, left), hard))
    try:
        call()
        return {"error": None}
    except Exception as error:  # noqa: BLE001 - the test judges it
        return {"error": type(error).__name__, "ours": isinstance(error, warren.Error), "text": str(error)}
    finally:
        resource.setrlimit(KIND[limit], (soft, hard))


def main(directory: str, limit: str, phase: str) -> None:
    for _ in range(2):
        with warren.attach(directory) as node:  # what is loaded once is loaded
            use(node)
    before = things()
    for left in LEFT[limit, phase]:
        if phase == "attach":
            made: list[warren.Node] = []
            told = tried(limit, left, lambda made=made: made.append(warren.attach(directory)))  # type: ignore[misc]
            node = made[0] if made else warren.attach(directory)
        else:
            node = warren.attach(directory)
            if phase == "again":
                use(node)
                replace_servers(node)
            told = tried(limit, left, lambda node=node: use(node))  # type: ignore[misc]
        use(node)
        node.close()
        after = things()
        stayed = {name: after[name] for name in before if after[name] != before[name]}
        print(json.dumps({"left": left, **told, "stayed": stayed}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
