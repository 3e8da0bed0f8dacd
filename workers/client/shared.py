"""The clients of what came by pickle: one for each directory in a process.

A Node, Queue, WorkQueue or Store is pickled as the directory of its node and what it is called there. Whoever unpickles
it, a child of multiprocessing or a worker of concurrent.futures, uses it as a client of his own.

Invariants
  Unpickling asks nobody and does not fail: pools lose a task whose arguments cannot be unpickled, and wait for it for
  ever. The first use attaches, and raises what is wrong.
  All that is unpickled in a process for one directory shares a client, so that tasks which get the same queue again and
  again attach once. It stays until somebody closes it or the process ends; what is unpickled afterwards has another.
  Objects that a program opened itself are never given away so: closing them would close what came by pickle.
"""

from __future__ import annotations

import os
import threading

from warren.workers.client.client import Client, child_name

_clients: dict[str, Client] = {}
_lock = threading.Lock()

#: what a client of a directory is found by: the directory, the name, call_timeout
Place = tuple[str, str, float | None]


def place_of(client: Client) -> Place:
    """What another process needs to be a client of the same node."""
    return os.path.abspath(client.directory.path), client.name, client.call_timeout


def shared(place: Place) -> Client:
    """The client of this process for what came by pickle. It attaches when it is used."""
    directory, name, call_timeout = place
    with _lock:
        found = _clients.get(directory)
        if found is None or found.closed:
            found = _clients[directory] = Client(
                directory, child_name(name), 0.0, call_timeout=call_timeout, attach=False
            )
        return found


def _in_child() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_in_child)
