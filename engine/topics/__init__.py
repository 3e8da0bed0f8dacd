"""Topics: the formats of a replayable log, its consume queues and its key index."""
