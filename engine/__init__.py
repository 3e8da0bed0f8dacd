"""Durable state and its rules: message store, queue index, queues, recovery, formats. It starts no process."""
