"""Crash evidence: kill campaigns over a real node, and images of shared memory after every instruction."""
