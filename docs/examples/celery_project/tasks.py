"""A Celery application without a broker. Start its worker here: celery -A tasks worker"""

import time

from celery import Celery

import warren.celery  # noqa: F401 - Celery knows warren:// from here on

URL = "warren:///examples-data?start=true"  # a node in ./examples-data, started by whoever comes first
app = Celery("tasks", broker=URL, backend=URL)
app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True, worker_prefetch_multiplier=1)


@app.task
def square(number: int) -> int:
    return number**2


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task
def remind(text: str) -> str:
    return f"{text} at {time.strftime('%H:%M:%S')}"
