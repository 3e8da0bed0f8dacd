"""Warren for Taskiq: a broker and a result backend without a server.

    from warren.taskiq import WarrenBroker, WarrenResultBackend

    broker = WarrenBroker("warren:///data").with_result_backend(WarrenResultBackend("warren:///data"))

See docs/celery.md.
"""

from warren.engine.saying import not_installed

try:
    from warren.workers.celery.taskiq_broker import WarrenBroker, WarrenResultBackend
except ImportError as error:
    raise not_installed(error, "warren.taskiq") from None

__all__ = ["WarrenBroker", "WarrenResultBackend"]
