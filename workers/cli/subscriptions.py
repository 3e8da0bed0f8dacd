"""`warren subscriptions`: what readers of queues as streams hold, and how it goes back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from warren.engine.errors import UsageError
from warren.engine.saying import command, counted, shown
from warren.workers.cli import output
from warren.workers.cli.attached import attached
from warren.workers.faces.queue_range import number_of
from warren.workers.faces.subscription_owner import is_owned

if TYPE_CHECKING:
    import warren

DIRECTORY = click.argument("directory", metavar="DIR")
JSON = click.option("--json", "as_json", is_flag=True, help="One line of JSON.")


@click.command("subscriptions")
@DIRECTORY
@click.argument("queue", required=False)
@click.option(
    "--delete",
    "doomed",
    metavar="NAME",
    help="Delete this subscription of QUEUE; what it claimed returns to the queue.",
)
@click.option("--force", is_flag=True, help="Delete it also while a query reads it, which fails then.")
@JSON
def subscriptions(directory: str, queue: str | None, doomed: str | None, force: bool, as_json: bool) -> None:
    """List the subscriptions of all queues, or of QUEUE: how many messages each holds (claimed and not acked), the
    number of the first of these, and whether a query reads it now.

    A subscription belongs to a stream of Spark, and stays when the stream is given up; nobody else gets what it
    claimed. --delete returns that to the end of its queue, in order, marked redelivered.
    """
    if doomed is not None and queue is None:
        raise UsageError(
            f"--delete wants the queue, too: {command('subscriptions', directory, 'QUEUE', '--delete', doomed)}"
        )
    if doomed is None and force:
        raise UsageError("--force is for --delete NAME")
    if doomed is None:
        output.check_seen()
    with output.found_in(directory, queue=queue), attached(directory, "warren-subscriptions") as node:
        if doomed is not None:
            assert queue is not None
            count = _delete(node, queue, doomed, force)
            if as_json:
                output.print_json({"queue": queue, "subscription": doomed, "returned": count})
            else:
                print(f"subscription {doomed} deleted, {counted(count, 'message')} returned to queue {queue}")
            return
        found = _found(node, queue)
    if as_json:
        output.print_json(found)
    elif not found:
        print("no subscriptions" if queue is None else f"queue {output.escaped(queue)} has no subscriptions")
    else:
        columns = [output.Column("queue"), output.Column("subscription")]
        columns += [output.Column(name, True) for name in ("claimed", "first", "next")]
        lines = [
            [item["queue"], item["name"], f"{item['claimed']:,}", f"{item['first']:,}", f"{item['next']:,}"]
            for item in found
        ]
        lines = [[*line, "yes" if item["read"] else "no"] for line, item in zip(lines, found, strict=True)]
        output.print_rows([*columns, output.Column("read now")], lines)


def _found(node: warren.Node, queue: str | None) -> list[dict[str, Any]]:
    if queue is not None:
        node.queue(queue, create=False)
    found = []
    for item in node.status()["subscriptions"]:
        if queue not in (None, item["queue"]):
            continue
        name = item["name"].removeprefix(f"{item['queue']}/")
        subscription = node.queue(item["queue"], create=False).subscription(name, create=False)
        first, following = subscription.range()
        row = {"queue": item["queue"], "name": name, "claimed": item["ready"], "first": first, "next": following}
        found.append({**row, "read": _is_read(node, subscription)})
    return found


def _is_read(node: warren.Node, subscription: warren.Subscription) -> bool:
    return is_owned(str(node.directory), number_of(subscription.incarnation))


def _delete(node: warren.Node, queue: str, name: str, force: bool) -> int:
    subscription = node.queue(queue, create=False).subscription(name, create=False)
    if _is_read(node, subscription) and not force:
        raise UsageError(
            f"subscription {shown(name)} of queue {shown(queue)} is read by a query now: stop it first, or say --force"
        )
    return subscription.delete()
