"""Durable state and its rules: message store, queue index, queues, recovery, formats. It starts no process."""

VERSION = "0.1.0"
