"""Tasks of a Celery application for tests: `celery -A support.celery_tasks worker`. WARREN_BROKER and WARREN_BACKEND
say where it is, WARREN_MARKS names a file that tasks write a line to when they begin."""

import os
import time
from typing import Any

from celery import Celery, group

import warren.celery  # noqa: F401 - the scheme warren://

app = Celery("tasks", broker=os.environ.get("WARREN_BROKER"), backend=os.environ.get("WARREN_BACKEND"))
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options={"interval_start": 0.05, "interval_step": 0.05, "interval_max": 0.2},
    worker_send_task_events=True,
    task_send_sent_event=True,
    result_extended=True,
    task_track_started=False,
    worker_prefetch_multiplier=1,
    task_queue_max_priority=9,
    beat_schedule={"tick": {"task": "support.celery_tasks.mark_it", "args": ("tick",), "schedule": 0.3}},
    beat_max_loop_interval=0.1,
)


def mark(text: str) -> None:
    """A line that outlives whatever is killed next."""
    with open(os.environ["WARREN_MARKS"], "a") as file:
        file.write(text + "\n")


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task
def big(size: int) -> str:
    return "x" * size


@app.task
def fail(text: str) -> None:
    raise ValueError(text)


@app.task(bind=True, max_retries=3)
def flaky(self: Any, times: int) -> int:
    if self.request.retries < times:
        raise self.retry(countdown=0.05)
    return int(self.request.retries)


@app.task(bind=True)
def told(self: Any) -> dict[str, Any]:
    """What the task was told of its message."""
    return {"info": dict(self.request.delivery_info), "eta": self.request.eta, "time": time.time()}


@app.task(bind=True, acks_late=True, reject_on_worker_lost=True)
def hold(self: Any, name: str, seconds: float) -> bool:
    """Marks that it has begun, works until a file `<marks>.go` is there (at most so long), and says whether it was
    redelivered."""
    again = bool(self.request.delivery_info["redelivered"])
    mark(f"{name} {os.getpid()} {'redelivered' if again else 'new'}")
    end = time.monotonic() + seconds
    while time.monotonic() < end and not os.path.exists(os.environ["WARREN_MARKS"] + ".go"):
        time.sleep(0.01)
    mark(f"{name} done")
    return again


@app.task
def hold_early(name: str, seconds: float) -> int:
    """The same, acked before it begins."""
    mark(f"{name} new")
    end = time.monotonic() + seconds
    while time.monotonic() < end and not os.path.exists(os.environ["WARREN_MARKS"] + ".go"):
        time.sleep(0.01)
    mark(f"{name} done")
    return 1


@app.task
def mark_it(*words: object) -> None:
    mark(str(words[-1]))


@app.task
def fan(count: int) -> int:
    """A task that sends a group: whoever waits for its result is told of the group's members, too."""
    group(add.s(number, 1) for number in range(count)).apply_async()
    return count


@app.task(bind=True)
def spawn(self: Any, count: int) -> list[str]:
    """A task that publishes others, from the pool's child."""
    return [add.delay(number, 1).id for number in range(count)]
