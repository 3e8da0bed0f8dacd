"""Queues: what waits in which order, and the index on disk that says so."""
