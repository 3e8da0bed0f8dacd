"""`warren gateway connections · close`: who is connected to the AMQP gateways of a node."""

from __future__ import annotations

import time
from typing import Any

import click

from warren.engine.catalog import ownership
from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.errors import Error, UsageError
from warren.engine.saying import command, counted, shown
from warren.workers.amqp import asking
from warren.workers.cli import output
from warren.workers.process.control import ControlClient

DIRECTORY = click.argument("directory", metavar="DIR")
JSON = click.option("--json", "as_json", is_flag=True, help="One line of JSON.")
TIMEOUT = click.option("--timeout", type=output.Seconds(min=0), default=10.0, show_default=True)


def gateways(directory: str, timeout: float) -> list[int]:
    """The numbers of the gateways of a node that runs. Raises NodeNotRunning, UsageError (it has none)."""
    NodeDirectory(directory).check_made()
    with ControlClient(directory, output.waiting) as client:
        found = client.call("status", timeout=timeout, most=0)["gateways"]
    if not found:
        raise UsageError(
            f"the node of {directory} serves no AMQP: stop it, and start it with "
            f"{command('up', directory, '--amqp', 'ADDRESS')}"
        )
    return [item["index"] for item in found]


def asked(directory: str, timeout: float, **question: str) -> tuple[list[dict[str, Any]], list[Error]]:
    """What the gateways of a node answer, and why some do not."""
    path, deadline = NodeDirectory(directory).path, time.monotonic() + timeout
    answers: list[dict[str, Any]] = []
    silent: list[Error] = []
    for index in gateways(directory, timeout):
        try:
            answers.append(asking.ask(path, index, max(0.1, deadline - time.monotonic()), **question))
        except Error as error:
            silent.append(error)
    if not answers:
        raise silent[0]
    return answers, silent


@click.command("connections")
@DIRECTORY
@TIMEOUT
@JSON
def connections(directory: str, timeout: float, as_json: bool) -> None:
    """List the connections of the AMQP gateways: who is at the other end, and what each holds and does.

    state: running; full (a consumer holds all it may, and gets no more until it acks); flow (it waits for room, or its
    client does not read); blocked (by an alarm); opening; closing.
    """
    if not as_json:
        output.check_seen()
    answers, silent = asked(directory, timeout, op="connections")
    found = [{"gateway": answer["index"], **item} for answer in answers for item in answer["connections"]]
    found.sort(key=lambda item: (item["gateway"], item["since"], item["name"]))
    if as_json:
        output.print_json({"gateways": [_without_connections(answer) for answer in answers], "connections": found})
    else:
        _show(answers, found)
    for error in silent:
        output.note(str(error))


def _without_connections(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name != "connections"}


def _show(answers: list[dict[str, Any]], found: list[dict[str, Any]]) -> None:
    for answer in answers:
        places = ", ".join(answer["listening"]) or "no address of its own"
        print(f"gateway {answer['index']} (process {answer['pid']}) at {output.escaped(places)}")
    if not found:
        print("no connections")
        return
    columns = [output.Column(word) for word in ("name", "user", "vhost", "client", "state")]
    numbers = ("channels", "consumers", "prefetch", "unacked", "published", "in", "out", "seconds")
    columns += [output.Column(word, True) for word in numbers]
    output.print_rows(columns, [_row(item) for item in found])


def _row(item: dict[str, Any]) -> list[str]:
    properties = item["client_properties"]
    client = item["given_name"] or " ".join(str(properties.get(word, "")) for word in ("product", "version")).strip()
    prefetch = {str(channel["prefetch"]) for channel in item["channels"] if channel.get("prefetch")}
    state = item["state"]
    if item["blocked_since"]:
        state += time.strftime(" since %H:%M:%S", time.localtime(item["blocked_since"]))
    return [
        output.escaped(item["name"]),
        output.escaped(item["user"]) or "–",
        output.escaped(item["vhost"]) or "–",
        output.escaped(client) or "–",
        state,
        f"{len(item['channels']):,}",
        f"{item['consumers']:,}",
        ", ".join(sorted(prefetch)) or "–",
        f"{item['unacked']:,}",
        f"{item['published']:,}",
        output.bytes_text(item["bytes_in"]),
        output.bytes_text(item["bytes_out"]),
        f"{item['seconds']:,.0f}",
    ]


@click.command("close")
@DIRECTORY
@click.argument("name")
@click.option("--reason", default="", help="What the client is told.")
@TIMEOUT
@JSON
def close(directory: str, name: str, reason: str, timeout: float, as_json: bool) -> None:
    """Close connections: that of this NAME, or those to which clients gave this name. What they hold returns."""
    ownership.check_owner(NodeDirectory(directory).path)
    answers, silent = asked(directory, timeout, op="close", name=name, reason=reason)
    closed = sum(answer["closed"] for answer in answers)
    for error in silent:
        output.note(str(error))
    if not closed:
        raise UsageError(
            f"there is no connection {shown(name)}: {command('gateway', 'connections', directory)} lists them"
        )
    if as_json:
        output.print_json({"closed": closed})
    else:
        print(f"{counted(closed, 'connection')} closed")
