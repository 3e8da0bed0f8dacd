"""`warren inspect DIR`: what stands in the shared memory of a node, and which files its large messages have. It only
reads, and asks no process.

For finding out what a node is doing when it does not say so itself; the numbers of one look are not from one instant.
"""

from __future__ import annotations

import errno
import functools
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from warren.engine.catalog import ownership
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.errors import PermissionRefused
from warren.engine.kernel import atomic_file
from warren.engine.kernel.protocol import INDEX_HEADER
from warren.engine.queues import large_files
from warren.engine.queues.folder import Folder
from warren.engine.store import file_summary
from warren.ipc import _core as shared
from warren.ipc import names, region
from warren.ipc.declare import Struct
from warren.ipc.layout import CLIENT, CONSTANTS, LINK, PAGE_BYTES, SERVER, SERVER_STORE_TRANSIENT, SUPERBLOCK
from warren.ipc.superblock import Superblock
from warren.workers.cli import output
from warren.workers.process import standstill
from warren.workers.process.shared_objects import semaphore_value
from warren.workers.process.tie import workers_there

#: a slot's `reading`: server << READING_SHIFT | file number + 1
READING_SHIFT, READING_FILE = 56, (1 << 56) - 1
LARGE = "large"
PARTS = ("superblock", "servers", "slots", "links", "files", "collection", "index", "regions", LARGE)


def _names_of(prefix: str) -> dict[int, str]:
    return {value: key.removeprefix(prefix).lower() for key, value in CONSTANTS.items() if key.startswith(prefix)}


_NODE_STATES = {
    CONSTANTS[f"NODE_{name}"]: name.lower() for name in ("CREATING", "STARTING", "RUNNING", "DRAINING", "STOPPED")
}
_SERVER_STATES = {
    CONSTANTS[f"SERVER_{name}"]: name.lower() for name in ("DOWN", "RECOVERING", "READY", "STOPPING", "FAILED")
}
_SLOT_STATES = {CONSTANTS[f"SLOT_{name}"]: name.lower() for name in ("FREE", "CLAIMED", "ACTIVE", "LEAVING", "DEAD")}


def _scalars(struct: Struct, read: Callable[[str], int]) -> dict[str, Any]:
    """Fields of a structure; those that name a process are null while there is none (never 0: a signal to 0 hits the
    sender's process group).
    """
    found: dict[str, Any] = {item.name: read(item.name) for item in struct.fields if item.type != "bytes"}
    return found | {name: found[name] or None for name in found if name == "pid" or name.endswith("_pid")}


def superblock_part(superblock: Superblock) -> dict[str, Any]:
    """The first page."""
    found = _scalars(SUPERBLOCK, superblock.get)
    found["state"] = _NODE_STATES.get(found["state"], found["state"])
    found["alarms"] = sorted(name for bit, name in _names_of("ALARM_").items() if found["alarms"] & bit)
    found["shortages"] = sorted(name for bit, name in _names_of("SHORT_").items() if found["shortages"] & bit)
    for name in ("magic", "layout_hash", "node_id"):
        found[name] = f"{found[name]:#x}"
    found["live_clients"] = semaphore_value(superblock.get("live_semaphore_key"))
    return found


def servers_part(superblock: Superblock) -> list[dict[str, Any]]:
    """Every server's row, of the topic worker if there ever was one."""
    rows = []
    servers = range(superblock.servers_n)
    if superblock.topic_server and not superblock.server_identity(superblock.topic_server).pid:
        servers = range(superblock.topic_server)
    for server in servers:
        of_server = functools.partial(superblock.server_get, server)
        row: dict[str, Any] = {"server": server, "role": superblock.server_name(server), **_scalars(SERVER, of_server)}
        still = superblock.server_identity(server).stands_still()
        row["state"] = standstill.STOPPED if still else _SERVER_STATES.get(row["state"], row["state"])
        rows.append(row)
    return rows


def slots_part(superblock: Superblock) -> list[dict[str, Any]]:
    """Every slot that is not free."""
    rows = []
    for view in superblock.slots():
        done = [
            server
            for server in range(superblock.servers_n)
            if superblock.server_done(view.slot, server) == view.generation & 0xFF
        ]
        rows.append(
            {
                "slot": view.slot,
                "pid": view.pid or None,
                "name": view.name,
                "state": _SLOT_STATES.get(view.state, view.state),
                "generation": view.generation,
                "client_epoch": view.client_epoch,
                "start_time": view.start_time,
                "shmid": view.shmid,
                "attached": region.sysv_attached(view.shmid) if view.shmid >= 0 else 0,
                "servers_done": done,
            }
        )
    return rows


def links_part(superblock: Superblock) -> list[dict[str, Any]]:
    """Every client's link to every server: how far it is, and what it holds."""
    rows = []
    size = superblock.get("client_base_bytes")
    for view in superblock.slots():
        try:
            memory = region.sysv_attach(view.shmid, read_only=True)
        except region.RegionError:
            continue
        try:
            if memory.size < size:
                continue
            for server in range(superblock.servers_n):
                base = PAGE_BYTES + server * LINK.size
                counts = {name: CLIENT.unpack(memory.buffer, name) for name in ("blocked_alarm", "blocked_credit")}
                row = {item.name: LINK.unpack(memory.buffer, item.name, base) for item in LINK.fields}
                rows.append(
                    {
                        "slot": view.slot,
                        "server": server,
                        **row,
                        "waiting": row["tail"] - row["processed"],
                        "in_ring": row["tail"] - row["head"],
                        **counts,
                        "undelivered": row["delivery_tail"] - row["delivery_head"],
                    }
                )
        finally:
            memory.close()
    return rows


def _region_of(superblock: Superblock, what: str, server: int, generation: str) -> region.Region | None:
    number = superblock.server_get(server, generation)
    try:
        return region.posix_open(superblock.region_name(what, server, number)) if number else None
    except region.RegionError:
        return None  # the server is being replaced


def _readers(superblock: Superblock) -> Counter[tuple[int, int]]:
    """How many clients read each file just now, by (server, file): what they say themselves in their slots."""
    found: Counter[tuple[int, int]] = Counter()
    for view in superblock.slots():
        word = shared.load64(superblock.buffer, superblock.slot_at(view.slot, "reading"))
        if word & READING_FILE and view.state == CONSTANTS["SLOT_ACTIVE"] and view.identity.alive():
            found[word >> READING_SHIFT, (word & READING_FILE) - 1] += 1
    return found


def collection_part(superblock: Superblock) -> list[dict[str, Any]]:
    """What the collection of garbage has to do, and has done, in each store."""
    rows = []
    for server in range(SERVER_STORE_TRANSIENT + 1):
        names_of = ("files", "valid_bytes", "file_bytes_sum", "collected_n", "retired_n", "copied_bytes", "lost_n")
        row = {name: superblock.server_get(server, name) for name in names_of}
        used = row["valid_bytes"] / row["file_bytes_sum"] if row["file_bytes_sum"] else 1.0
        rows.append({"server": server, **row, "utilisation": round(used, 4)})
    return rows


def files_part(superblock: Superblock) -> list[dict[str, Any]]:
    """The file summary of both stores, in the order of their positions, with who reads what."""
    rows = []
    readers = _readers(superblock)
    for server in range(SERVER_STORE_TRANSIENT + 1):
        memory = _region_of(superblock, "summary", server, "generation")
        if memory is None:
            continue
        try:
            found = sorted(file_summary.files(memory.buffer), key=lambda row: (row.position_low, row.file))
            rows += [{"server": server, **row._asdict(), "readers": readers[server, row.file]} for row in found]
        finally:
            memory.close()
    return rows


def index_part(superblock: Superblock) -> list[dict[str, Any]]:
    """How full the index of each store is."""
    rows = []
    for server in range(SERVER_STORE_TRANSIENT + 1):
        memory = _region_of(superblock, "index", server, "index_generation")
        if memory is None:
            continue
        try:
            found = {name: INDEX_HEADER.unpack(memory.buffer, name) for name in ("rows", "used", "live")}
        finally:
            memory.close()
        share = found["used"] / found["rows"] if found["rows"] else 0.0
        rows.append({"server": server, **found, "used_share": round(share, 4), "bytes": memory.size})
    return rows


def regions_part(superblock: Superblock) -> list[dict[str, Any]]:
    """Every POSIX region of the node, with its size."""
    rows = []
    for name in region.posix_names(names.node_prefix(superblock.shared_id)):
        try:
            memory = region.posix_open(name, writable=False)
        except region.RegionError:
            continue
        rows.append({"name": name, "bytes": memory.size})
        memory.close()
    return rows


def large_part(directory: Path) -> list[dict[str, Any]]:
    """Every file of a large message, in the order in which they were published. `links`: how many workers have it;
    `client_epoch`: whose it was. Raises StoreError, PermissionRefused.
    """
    rows: list[tuple[int, dict[str, Any]]] = []
    for worker in workers_there(directory):
        folder = Folder.of(directory, worker)
        with atomic_file.file_explained(f"cannot read {folder.large}"):
            for id in large_files.ids_in(folder):
                try:
                    found = (folder.large / id.hex()).lstat()
                except FileNotFoundError:
                    continue  # its message was settled just now
                if not stat.S_ISREG(found.st_mode):
                    continue  # a member of the group put it there
                row = {"worker": worker, "id": id.hex(), "client_epoch": large_files.client_epoch_of(id)}
                sizes = {"file_bytes": found.st_size, "disk_bytes": found.st_blocks * 512, "links": found.st_nlink}
                rows.append((found.st_mtime_ns, row | sizes))
    return [row for _when, row in sorted(rows, key=lambda item: item[0])]


_READERS: dict[str, Callable[[Superblock], Any]] = {
    "superblock": superblock_part,
    "servers": servers_part,
    "slots": slots_part,
    "links": links_part,
    "files": files_part,
    "collection": collection_part,
    "index": index_part,
    "regions": regions_part,
}
#: columns that are shown to people, where there are too many for a screen
_COLUMNS = {
    "files": (
        *("server", "file", "position_low", "position_high", "left", "right", "locked", "replay_free", "ghosts"),
        *("readers", "messages", "valid_total_size", "file_size", "pin_low", "pin_high", "image"),
    ),
    "servers": (
        *(
            "server",
            "role",
            "state",
            "pid",
            "epoch",
            "generation",
            "restarts",
            "error",
            "sleeping",
            "messages",
            "files",
        ),
        *(
            "processed_n",
            "written_n",
            "eliminated_n",
            "commits_n",
            "syncs_n",
            "wakes_n",
            "delivered_n",
            "acked_n",
            "evicted_n",
        ),
    ),
    "links": (
        *(
            "slot",
            "server",
            "tail",
            "processed",
            "written",
            "synced",
            "head",
            "in_ring",
            "delivery_tail",
            "delivery_head",
        ),
        *("server_epoch", "evicted", "blocked_alarm", "blocked_credit"),
    ),
}


def attach(directory: str) -> Superblock:
    """The superblock of a node. Raises NodeNotRunning, PermissionRefused."""
    target = NodeDirectory(directory)
    ownership.check_user(target.path, reading=True)
    try:
        return target.superblock()
    except region.RegionError as error:
        if error.errno == errno.EACCES:
            raise PermissionRefused(str(error.strerror)) from error
        raise target.none_runs() from None


@click.command()
@click.argument("directory", metavar="DIR")
@click.argument("parts", nargs=-1, type=click.Choice(PARTS))
@click.option("--json", "as_json", is_flag=True, help="One line of JSON.")
def inspect(directory: str, parts: tuple[str, ...], as_json: bool) -> None:
    """Show the shared memory of a node: superblock, servers, slots, links, files, collection, index, regions; and the
    files of its large messages: large. Default: all.
    """
    output.check_seen()
    superblock = attach(directory)
    try:
        path = NodeDirectory(directory).path
        found = {part: large_part(path) if part == LARGE else _READERS[part](superblock) for part in parts or PARTS}
    finally:
        superblock.close()
    if as_json:
        output.print_json(found)
        return
    console = output.console()
    for part, content in found.items():
        console.print(f"[bold]{part}[/bold]{'' if content else ': none'}")
        if isinstance(content, dict):
            for name, value in content.items():
                console.print(f"  {name:20} {'' if value is None else output.escaped(value)}".rstrip(), markup=False)
        elif content:
            names_of = _COLUMNS.get(part) or tuple(content[0])
            columns = [output.Column(name, not isinstance(content[0][name], str)) for name in names_of]
            # each row on one line, however long: a table fitted to a screen would cut headings, or break them up
            output.print_rows(
                columns,
                [["" if row[name] is None else str(row[name]) for name in names_of] for row in content],
            )
        console.print()
