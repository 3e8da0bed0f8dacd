"""The application of a kill campaign of Celery (celery_campaign.py), and who sends its tasks: `python -m
warren.tools.crash.celery_tasks SEED` is the sender.

Tasks and the sender write lines to one file, each by one write(): what happened, to which task.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from typing import Any

from celery import Celery, chord, signals
from celery.exceptions import WorkerLostError

import warren.celery  # noqa: F401 - the scheme warren://

URL, LEDGER, QUEUE = os.environ["WARREN_CELERY_URL"], os.environ["WARREN_CELERY_LEDGER"], "kills"
#: how many of a hundred sendings are of a task that waits in the node first, and of a chord
DELAYED, CHORDS = 15, 5
PARTS = 5

app = Celery("kills", broker=URL, backend=URL)
app.conf.update(
    task_default_queue=QUEUE,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_transport_options={"interval_start": 0.05, "interval_step": 0.05, "interval_max": 0.5},
    # A publisher that tries again may send a task twice, with any broker: here each is sent once.
    task_publish_retry=False,
    worker_prefetch_multiplier=2,
    worker_cancel_long_running_tasks_on_connection_loss=False,
)


def note(*words: object) -> None:
    """A line that outlives whatever is killed next."""
    file = os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, (" ".join(map(str, words)) + "\n").encode())
    finally:
        os.close(file)


@app.task(bind=True, name="kills.step")  # type: ignore[untyped-decorator]  # Celery has no types
def step(self: Any, seconds: float) -> int:
    """A task that takes a while."""
    note("again" if self.request.delivery_info["redelivered"] else "new", self.request.id, os.getpid())
    time.sleep(seconds)
    note("done", self.request.id)
    return 1


@app.task(bind=True, name="kills.total")  # type: ignore[untyped-decorator]
def total(self: Any, parts: list[int]) -> int:
    """The body of a chord."""
    note("body" if sum(parts) == PARTS else "wrong", self.request.id)
    return sum(parts)


@signals.task_failure.connect  # type: ignore[untyped-decorator]
def failed(task_id: str, exception: BaseException, **_more: Any) -> None:
    """None does by itself; one whose process was killed comes again."""
    if not isinstance(exception, WorkerLostError):
        note("failure", task_id, repr(exception))


def send(rng: random.Random) -> None:
    """One task or chord: `sending` before, `sent` when it is told that it is in the node."""
    kind = rng.randrange(100)
    if kind < CHORDS:
        parts = [step.si(0.01).set(task_id=f"part-{rng.getrandbits(64):x}") for _ in range(PARTS)]
        body = total.s().set(task_id=f"body-{rng.getrandbits(64):x}")
        note("sending", body.options["task_id"])
        chord(parts, body).apply_async()
        note("sent", body.options["task_id"])
        return
    id = f"task-{rng.getrandbits(64):x}"
    note("sending", id)
    step.apply_async(
        (rng.choice((0.0, 0.01, 0.2)),),
        task_id=id,
        countdown=rng.uniform(0.1, 3.0) if kind < CHORDS + DELAYED else None,
    )
    note("sent", id)


def main() -> int:
    """Send until SIGTERM. What fails is noted, and not sent again."""
    rng, going = random.Random(f"{sys.argv[1]}-{os.getpid()}-{time.time_ns()}"), [True]
    signal.signal(signal.SIGTERM, lambda *_: going.clear())
    while going:
        try:
            send(rng)
        except Exception as error:  # noqa: BLE001 - the node is killed meanwhile: what became of the task is not known
            note("failed", type(error).__name__)
            time.sleep(0.2)
        time.sleep(rng.choice((0.0, 0.05, 0.1, 0.2)))  # so that workers keep up: few messages wait while servers die
    return 0


if __name__ == "__main__":
    sys.exit(main())
