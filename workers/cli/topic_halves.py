"""`warren topic halves`: half messages that are neither committed nor rolled back, and an end for one of them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from warren.engine.errors import UsageError
from warren.engine.saying import counted
from warren.workers.cli import output
from warren.workers.cli.attached import attached
from warren.workers.cli.topic_words import DIRECTORY, JSON, NAME, found

if TYPE_CHECKING:
    from warren.workers.faces.topic_halves import HalfMessage
    from warren.workers.faces.topics import Topic


@click.command("halves")
@DIRECTORY
@NAME
@click.option("--commit", "commit_id", metavar="ID", help="Commit this one: the message is in the topic from then on.")
@click.option("--rollback", "rollback_id", metavar="ID", help="Roll this one back: the message will never be seen.")
@click.option("--limit", type=output.Count(min=1), default=1000, show_default=True, help="So many at most.")
@JSON
def list_halves(
    directory: str, name: str, commit_id: str | None, rollback_id: str | None, limit: int, as_json: bool
) -> None:
    """List the half messages of the topic NAME that are neither committed nor rolled back, the oldest first: id, age,
    how often it was asked what becomes of them, queue, key and bytes. With --commit or --rollback finish one of them.
    """
    output.check_seen()
    if commit_id is not None and rollback_id is not None:
        raise UsageError("--commit and --rollback: give only one of them")
    with found(directory, name), attached(directory, "warren-topic") as node:
        topic = node.topic(name, create=False)
        if commit_id is not None:
            _say(_commit(topic, commit_id), as_json)
            return
        if rollback_id is not None:
            _say(_roll_back(topic, rollback_id), as_json)
            return
        rows = [_row(each) for each in topic.halves(limit)]
    if as_json:
        output.print_json(rows)
    elif not rows:
        print(f"topic {output.escaped(name)} has no half messages")
    else:
        _print(rows)


def _commit(topic: Topic, message_id: str) -> dict[str, Any]:
    half = topic.half(message_id)
    position = half.commit()
    told = {"queue": position.queue, "offset": position.offset, "message_id": position.message_id}
    return {"half": half.message_id, "state": half.state, **told}


def _roll_back(topic: Topic, message_id: str) -> dict[str, Any]:
    half = topic.half(message_id)
    half.rollback()
    return {"half": half.message_id, "state": half.state}


def _say(told: dict[str, Any], as_json: bool) -> None:
    if as_json:
        output.print_json(told)
        return
    where = f" to queue {told['queue']} at offset {told['offset']}, id {told['message_id']}" if "queue" in told else ""
    print(f"the half message {told['half']} is {told['state']}{where}")


def _row(half: HalfMessage) -> dict[str, Any]:
    age_s = None if half.damaged else max(0.0, time.time() - half.timestamp / 1000)
    return {
        "id": half.message_id,
        "age_s": None if age_s is None else round(age_s, 3),
        "asked": half.asked,
        "queue": None if half.damaged else half.queue,
        "keys": list(half.keys),
        "tag": half.tag,
        "properties": half.properties or {},
        "bytes": len(half.body),
        "damaged": half.damaged,
    }


def _print(rows: list[dict[str, Any]]) -> None:
    columns = [output.Column("id"), *(output.Column(word, True) for word in ("age", "asked", "queue"))]
    columns += [output.Column("key"), output.Column("bytes", True)]
    lines = []
    for row in rows:
        asked = f"{row['asked']:,}"
        if row["damaged"]:
            lines.append([row["id"], "–", asked, "–", "(its record cannot be read: see warren check)", "–"])
            continue
        key = output.escaped(" ".join(row["keys"])) or "–"
        lines.append([row["id"], f"{row['age_s']:,.0f} s", asked, str(row["queue"]), key, f"{row['bytes']:,}"])
    output.print_rows(columns, lines)
    print(counted(len(rows), "half message"))


COMMANDS = (list_halves,)
