"""`warren transactions DIR`: the sinks of Spark jobs that write with delivery=transactional, and an end for one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.errors import Error, UsageError
from warren.engine.saying import command, counted, shown
from warren.engine.transactions import folder as folders
from warren.engine.transactions import state as states
from warren.engine.transactions.folder import SinkFolder
from warren.engine.transactions.sink import Sink
from warren.workers.cli import output
from warren.workers.cli.topic_words import DIRECTORY, JSON


@click.command("transactions")
@DIRECTORY
@click.option("--finish", "finished", metavar="SINK", help="Append what is committed there and not in its place yet.")
@click.option("--again", is_flag=True, help="With --finish: append again what nobody knows of; it may come twice.")
@click.option("--forget", "forgotten", metavar="SINK", help="Remove this sink: its name begins anew.")
@click.option("--force", is_flag=True, help="With --forget: also if a batch is lost by that.")
@click.option("--timeout", type=output.Seconds(min=0), default=60.0, show_default=True, help="Limit of each wait.")
@JSON
def transactions(
    directory: str, finished: str | None, again: bool, forgotten: str | None, force: bool, timeout: float, as_json: bool
) -> None:
    """List the sinks of Spark jobs that write with delivery=transactional: whose batches each takes, the last one that
    is committed, what of it is still to be appended, and what tasks have staged. It looks into files, and needs no
    node. --finish does, and appends what a driver left that was killed.
    """
    if finished is not None and forgotten is not None:
        raise UsageError("--finish and --forget: give only one of them")
    if again and finished is None:
        raise UsageError("--again goes with --finish SINK")
    if force and forgotten is None:
        raise UsageError("--force goes with --forget SINK")
    output.check_seen()
    target = NodeDirectory(directory)
    node_id = target.read().node_id
    if finished is not None:
        _say(_finish(target.path, finished, node_id, timeout, again), as_json)
    elif forgotten is not None:
        _there(target.path, forgotten)
        Sink(target.path, forgotten, node_id, timeout).forget(force)
        _say({"sink": forgotten, "forgotten": True}, as_json)
    else:
        rows = [_row(folder, node_id) for folder in folders.sinks(target.path)]
        others = [(path, said) for path, said in folders.strangers(target.path) if not path.name.startswith(".")]
        if as_json:
            empty = {"staged_parts": 0, "staged_bytes": 0}
            output.print_json(rows + [{"sink": path.name, **empty, "problem": said} for path, said in others])
        else:
            _print(rows)
            for path, said in others:
                output.say(f"note: {shown(str(path))} {said}")


def _there(directory: Path, name: str) -> SinkFolder:
    found = SinkFolder.of(directory, name)
    if not found.path.is_dir():
        raise UsageError(f"there is no sink {shown(name)}: {command('transactions', directory)} lists them")
    return found


def _finish(directory: Path, name: str, node_id: int, timeout: float, again: bool) -> dict[str, Any]:
    from warren.workers.faces.transactions import finish

    _there(directory, name)
    pending = finish(directory, Sink(directory, name, node_id, timeout), timeout, "warren-transactions", again)
    batch = None if pending is None else pending.batch
    return {
        "sink": name,
        "finished": pending is not None,
        "batch": batch,
        "messages": pending.messages if pending else 0,
    }


def _say(told: dict[str, Any], as_json: bool) -> None:
    if as_json:
        output.print_json(told)
    elif "forgotten" in told:
        print(f"sink {told['sink']} is forgotten")
    elif not told["finished"]:
        print(f"sink {told['sink']} has nothing to finish")
    else:
        what = "a write" if told["batch"] is None else f"batch {told['batch']}"
        print(f"{what} of sink {told['sink']} is finished: {counted(told['messages'], 'message')}")


def _row(folder: SinkFolder, node_id: int) -> dict[str, Any]:
    row: dict[str, Any] = {"sink": folder.name, "staged_parts": 0, "staged_bytes": 0, "problem": None}
    try:
        parts = folder.parts()
        row |= {"staged_parts": len(parts), "staged_bytes": sum(_size(path) for _name, path in parts)}
        state = states.load(folder, node_id)
    except Error as error:  # of another user, too: he may have shut the folder
        return {**row, "problem": str(error)}
    if state is None:
        return {**row, "transactions": 0, "query": None, "batch": None, "messages": 0, "pending": None}
    pending = state.pending
    told = None
    if pending is not None:
        told = {"batch": pending.batch, "messages": pending.messages, "done": pending.done, "since": pending.committed}
    return {
        **row,
        "transactions": state.number,
        "query": state.stream.query if state.stream else None,
        "batch": state.stream.batch if state.stream and state.stream.batch >= 0 else None,
        "messages": state.messages,
        "committed": state.committed or None,
        "pending": told,
    }


def _size(path: Path) -> int:
    """Bytes of a file that may go meanwhile, or be in a folder of another user that nobody else looks into."""
    try:
        return path.lstat().st_size
    except (FileNotFoundError, PermissionError):
        return 0


def _print(rows: list[dict[str, Any]]) -> None:
    if not rows:
        print("no job has written with delivery=transactional here")
        return
    columns = [output.Column("sink"), output.Column("query")]
    columns += [output.Column(word, True) for word in ("batch", "messages", "to append", "since", "staged")]
    lines = []
    for row in rows:
        staged = output.bytes_text(row["staged_bytes"]) if row["staged_parts"] else "–"
        if row["problem"]:
            lines.append([row["sink"], "(its state cannot be read: see warren check)", "–", "–", "–", "–", staged])
            continue
        pending = row["pending"]
        left = f"{pending['messages'] - pending['done']:,}" if pending else "–"
        since = f"{max(0.0, time.time() - pending['since']):,.0f} s" if pending else "–"
        batch = "–" if row["batch"] is None else f"{row['batch']:,}"
        lines.append([row["sink"], row["query"] or "–", batch, f"{row['messages']:,}", left, since, staged])
    output.print_rows(columns, lines)
