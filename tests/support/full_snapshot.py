"""`python -m support.full_snapshot KIND FOLDER`: a node with a topic on a file system that writes blocks elsewhere,
after a snapshot of it, while the disk is full and afterwards. Prints what happened as JSON. For root; its mounts are
its own.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import warren
from warren.engine.errors import DiskFull, TimedOut
from warren.tools.crash.loop_image import LoopImage, own_mounts
from warren.tools.crash.powercut_load import SETTINGS, body_of, number_of
from warren.tools.crash.victims import kill_all

from support.waiting import wait_until

BEFORE, WHILE_FULL, AFTER = 300, 40, 50
SIZES = {"disk_free_bytes_min": 0, "topics_disk_full": 1.0, "index_slots": 99_991, "index_entries": 200_000}


def snapshot(kind: str, place: Path) -> None:
    """Everything shares its blocks from now on."""
    if kind == "btrfs":
        command = ["btrfs", "subvolume", "snapshot", str(place), str(place / "snapshot")]
    else:
        command = ["cp", "-r", "--reflink=always", str(place / "node" / "topics"), str(place / "snapshot")]
    subprocess.run(command, check=True, capture_output=True)


def fill(ballast: Path) -> None:
    """Until nothing fits, and what is in memory is on the disk."""
    with open(ballast, "ab", buffering=0) as file:
        for size in (1 << 20, 1 << 16, 1 << 12):
            try:
                while True:
                    file.write(bytes(size))
                    if file.tell() % (32 << 20) == 0:
                        os.fsync(file.fileno())
            except OSError:
                continue


def topic_worker(node: warren.Node) -> dict[str, Any]:
    return next(row for row in node.status()["processes"] if row["role"] == "topic_worker")


def lived(kind: str, folder: Path) -> dict[str, Any]:
    confirmed: set[int] = set()
    with LoopImage(kind, folder) as image, contextlib.ExitStack() as ending:
        ending.callback(kill_all, image.place / "node")
        settings = SETTINGS | SIZES
        with warren.open(image.place / "node", name="full-snapshot", idle_exit=60.0, **settings) as node:
            topic = node.topic("t", queues=1)

            def append(number: int, timeout: float) -> bool:
                try:
                    topic.append(body_of(number, 100), key=f"k{number}", timeout=timeout)
                except (DiskFull, TimedOut):
                    return False
                confirmed.add(number)
                return True

            for number in range(BEFORE):
                append(number, 60)
            worker = topic_worker(node)
            snapshot(kind, image.place)
            ballast = image.place / "ballast"
            refused, number = 0, BEFORE
            filling = threading.Thread(target=fill, args=(ballast,))
            filling.start()
            while filling.is_alive() or refused < WHILE_FULL:  # some are on their way when the disk gets full
                refused += not append(number, 0.2)
                number += 1
                if refused and not filling.is_alive():
                    fill(ballast)
            filling.join()
            alarms = node.status()["alarms"]
            full = topic_worker(node)
            ballast.unlink()
            began = time.monotonic()
            wait_until(lambda: append(number, 1), 60, what="an append when there is space")
            took = time.monotonic() - began
            for more in range(number + 1, number + AFTER):
                append(more, 60)
            after = topic_worker(node)
            there = []
            offset, end = topic.offsets()
            while offset < end:
                records = topic.read(0, offset, max=200).records
                there += [number_of(bytes(record.body)) for record in records]
                offset = records[-1].offset + 1
            unfound = [number for number in confirmed if len(topic.find(f"k{number}")) != 1]
        told = [
            subprocess.run(
                [sys.executable, "-m", "warren.workers.cli.main", command, str(image.place / "node")],
                capture_output=True,
                text=True,
                check=False,
            )
            for command in ("stop", "check")
        ]
    return {
        "refused": refused,
        "alarms": alarms,
        "took": took,
        "pids": [worker["pid"], full["pid"], after["pid"]],
        "lost": sorted(confirmed - set(there)),
        "doubled": len(there) - len(set(there)),
        "unfound": unfound,
        "said": [one.stdout[-2000:] for one in told if one.returncode],
    }


if __name__ == "__main__":
    own_mounts()
    print(json.dumps(lived(sys.argv[1], Path(sys.argv[2]).resolve())))
