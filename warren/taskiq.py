"""Warren for Taskiq: a broker and a result backend without a server.

    from warren.taskiq import WarrenBroker, WarrenResultBackend

    broker = WarrenBroker("warren:///data").with_result_backend(WarrenResultBackend("warren:///data"))

See docs/celery.md.
"""

from warren.workers.celery.taskiq_broker import WarrenBroker, WarrenResultBackend

__all__ = ["WarrenBroker", "WarrenResultBackend"]
