"""This process as a client of a Celery application, without its tasks."""

import contextlib
from collections.abc import Iterator
from typing import Any

from celery import Celery
from kombu import pools

import warren.celery  # noqa: F401 - the scheme warren://
from warren.workers.celery.place import Place


@contextlib.contextmanager
def client(url: str, *, backend: str | None = None, **settings: Any) -> Iterator[Any]:
    """An application that sends tasks by name; nothing of it stays."""
    results = backend or url
    app = Celery("client", broker=url, backend=results, set_as_current=False)
    app.conf.update(task_queue_max_priority=9, **settings)
    try:
        yield app
    finally:
        app.backend.result_consumer.stop()
        pools.reset()  # they are the process's, not the application's
        app.close()
        for place in (url, results):
            if place.startswith("warren://"):
                Place.of(place).client.close()


def named(app: Any, task: str, *arguments: Any, **options: Any) -> Any:
    """A signature of a task of support/celery_tasks.py."""
    return app.signature(f"support.celery_tasks.{task}", args=arguments, **options)
