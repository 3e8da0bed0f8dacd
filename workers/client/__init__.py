"""A process as a client of a node."""
