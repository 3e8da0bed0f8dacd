"""`warren clean`: what killed nodes have left in shared memory, which no start of theirs will remove any more."""

from __future__ import annotations

import dataclasses

import click

from warren.engine.saying import counted, inert
from warren.workers.cli import output
from warren.workers.process import abandoned


@click.command()
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON.")
def clean(dry_run: bool, as_json: bool) -> int:
    """Remove the shared memory of killed nodes that no living process has, whose directories may be gone.

    Only what belongs to this user, and only what the kernel says is not open or mapped anywhere: a node that runs or
    starts, and a client that lives, keep theirs. Each start of a node does the same.
    """
    found = abandoned.clean(dry_run=dry_run)
    known = {left.shared_id for left in found}
    found += [left for left in abandoned.in_use() if left.shared_id not in known]
    gone = [left for left in found if not left.kept]
    if as_json:
        rows = [dataclasses.asdict(left) | {"shared_id": f"{left.shared_id:012x}"} for left in found]
        output.print_json({"nodes": rows, "bytes": sum(left.bytes for left in gone), "dry_run": dry_run})
        return 0
    for left in found:
        parts = f"{left.regions} in /dev/shm, {left.segments} System V segments"
        where, size = inert(left.directory) or "directory not known", output.bytes_text(left.bytes)
        if left.kept:
            output.say(f"kept: {size} of {where}, {output.escaped(left.kept)} ({left.shared_id:012x}: {parts})")
        else:
            output.say(f"{left.shared_id:012x}  {size} ({parts})  {where}")
    done = "would be removed" if dry_run else "removed"
    output.say(f"{done}: {output.bytes_text(sum(left.bytes for left in gone))} of {counted(len(gone), 'killed node')}")
    return 0
