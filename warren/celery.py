"""Warren for Celery: a broker and a result backend without a server, `warren:///DIRECTORY`.

    import warren.celery
    from celery import Celery

    app = Celery("tasks", broker="warren:///data", backend="warren:///data")

Importing this module makes the scheme known to kombu and Celery. See docs/celery.md.
"""

from typing import Any

from warren.engine.saying import not_installed

try:
    from celery.signals import worker_init
    from kombu.transport import TRANSPORT_ALIASES

    from warren.workers.celery.results import Backend
    from warren.workers.celery.transport import Transport
except ImportError as error:
    raise not_installed(error, "warren.celery") from None

__all__ = ["Transport", "Backend"]

TRANSPORT_ALIASES["warren"] = "warren.workers.celery.transport:Transport"


def _with_neighbors(**_sent: Any) -> None:
    """Let workers ask each other what was revoked: Celery has mingle and gossip for the transports that it knows."""
    from celery.worker.consumer.gossip import Gossip
    from celery.worker.consumer.mingle import Mingle

    for step in (Mingle, Gossip):
        step.compatible_transports = step.compatible_transports | {Transport.driver_type}


worker_init.connect(_with_neighbors, weak=False)
