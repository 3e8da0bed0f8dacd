"""The fault campaign: system calls of a node and of its clients fail by plan, and nothing confirmed may be lost."""
