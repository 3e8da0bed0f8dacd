"""`warren import rabbitmq-definitions`, `warren export definitions`: from RabbitMQ, and back.

An import changes users, vhosts and permissions first (`DIR/users.json`), then it declares in the node, which has to
run. It can be repeated: what is there is left (workers/amqp/imported.py).
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import msgspec

from warren.engine.catalog import ownership
from warren.engine.catalog.catalog import Catalog
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.kernel import atomic_file
from warren.engine.saying import command, counted
from warren.workers.amqp import exported, users_file
from warren.workers.amqp.definitions import Definitions, read
from warren.workers.amqp.imported import Plan, plan, plan_of_users
from warren.workers.cli import output
from warren.workers.cli.gateway_words import DIRECTORY, JSON
from warren.workers.process.control import ControlClient


@click.group("import")
def import_() -> None:
    """Take over what another broker has declared."""


@click.group("export")
def export() -> None:
    """Write what is declared here, for another broker."""


@import_.command("rabbitmq-definitions")
@DIRECTORY
@click.argument("file")
@click.option("--vhost", help="Where the things of a file belong that is of one virtual host; default: '/'.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and change nothing; the node need not run.")
@JSON
def import_rabbitmq(directory: str, file: str, vhost: str | None, dry_run: bool, as_json: bool) -> int:
    """Declare what RabbitMQ has exported: users with their passwords, vhosts, permissions, queues, exchanges, bindings;
    policies become arguments of the queues and exchanges that they match. FILE is what `rabbitmqctl export_definitions`
    or the management plugin writes (3.8 to 4.x). What has no place here is listed with the reason.
    The exit code is 1 if a queue, an exchange or a binding is refused.
    """
    node = NodeDirectory(directory)
    node.check_made()
    ownership.check_owner(node.path)
    found = read(Path(file), vhost)
    made = plan(found, users_file.load(node.path), Catalog.load(node.path))
    if not dry_run:
        _carry_out(directory, node.path, found, made)
    if as_json:
        output.print_json({"dry_run": dry_run, **made.told()})
    else:
        _print(made, dry_run)
    return output.EXIT_ERROR if made.refused else 0


def _carry_out(directory: str, path: Path, found: Definitions, made: Plan) -> None:
    with ControlClient(directory, output.waiting) as client:
        if made.declares:
            client.call("ping")  # or nothing is changed
        with users_file.changing(path) as accounts:
            fresh = plan_of_users(found, accounts)
            accounts.users, accounts.vhosts = fresh.users, fresh.vhosts
        made.carry_out(client)


def _print(made: Plan, dry_run: bool) -> None:
    rows = [
        [kind, *(f"{counts[kind]:,}" if counts[kind] else "–" for counts in (made.new, made.changed, made.there))]
        for kind in {**made.new, **made.changed, **made.there}
    ]
    columns = [output.Column(""), *(output.Column(word, True) for word in ("new", "changed", "there already"))]
    output.print_rows(columns, rows)
    for policy in made.policies:
        what = counted(policy["applied"], "queue or exchange", "queues and exchanges")
        print(output.escaped(f"policy {policy['name']} of vhost {policy['vhost']} is applied to {what}"))
    if made.policies:
        print("(policies do not change what programs declare later)")
    for title, items in (("left as it is", made.left), ("refused", made.refused), ("not mapped", made.unmapped)):
        if items:
            print(f"\n{title}:")
        for item in items:
            where = f" (vhost {item.vhost})" if item.vhost not in (None, "/") else ""
            print(output.escaped(f"  {item.kind} {item.name}{where}: {item.why}"))
    if dry_run:
        print("\nnothing was changed (--dry-run)")


@export.command("definitions")
@DIRECTORY
@click.argument("file", required=False)
@JSON
def export_definitions(directory: str, file: str | None, as_json: bool) -> None:
    """Write users, vhosts, permissions, queues, streams, exchanges and bindings as RabbitMQ's definitions into FILE, or
    to standard output, for `rabbitmqctl import_definitions`. The node need not run. The file has hashes of passwords:
    it is made for its owner alone.
    """
    node = NodeDirectory(directory)
    node.check_made()
    found = exported.export(Catalog.load(node.path), users_file.load(node.path), version("warren"))
    content = msgspec.json.format(msgspec.json.encode(found.content), indent=2) + b"\n"
    if file is None:
        output.check_seen()
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    else:
        _write(Path(file), content)
    for note in found.notes:
        output.note(note)
    if file is not None:
        told: dict[str, Any] = {kind: len(items) for kind, items in found.content.items() if isinstance(items, list)}
        if as_json:
            output.print_json({"file": file, **told, "notes": found.notes})
        else:
            said = ", ".join(f"{count:,} {kind.replace('_', ' ')}" for kind, count in told.items() if count)
            print(output.escaped(f"{file}: {said}; {command('import', 'rabbitmq-definitions', 'DIR', file)} reads it"))


def _write(file: Path, content: bytes) -> None:
    """Make the file, or replace it as a whole; what is no file, as /dev/stdout, is written to."""
    if file.exists() and not file.is_file():
        with atomic_file.file_explained(f"cannot write {file}"), open(file, "wb") as opened:
            opened.write(content)
    else:
        atomic_file.replace(Path(os.path.realpath(file)), content, users_file.MODE)
