"""The message store: bodies under ids, counted references, garbage collection, recovery."""
