"""Warren for Dramatiq: a broker and a result backend without a server.

    import dramatiq
    from warren.dramatiq import WarrenBroker

    dramatiq.set_broker(WarrenBroker("warren:///data"))

See docs/celery.md.
"""

from warren.engine.saying import not_installed

try:
    from warren.workers.celery.dramatiq_broker import WarrenBackend, WarrenBroker
except ImportError as error:
    raise not_installed(error, "warren.dramatiq") from None

__all__ = ["WarrenBroker", "WarrenBackend"]
