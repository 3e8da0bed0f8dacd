"""Warren for Celery: a broker and a result backend without a server, `warren:///DIRECTORY`.

    import warren.celery
    from celery import Celery

    app = Celery("tasks", broker="warren:///data", backend="warren:///data")

Importing this module makes the scheme known to kombu and Celery. See docs/celery.md.
"""

from warren.engine.saying import not_installed

try:
    from kombu.transport import TRANSPORT_ALIASES

    from warren.workers.celery.results import Backend
    from warren.workers.celery.transport import Transport
except ImportError as error:
    raise not_installed(error, "warren.celery") from None

__all__ = ["Transport", "Backend"]

TRANSPORT_ALIASES["warren"] = "warren.workers.celery.transport:Transport"
