"""The server processes: store server, queue worker with its forwarder of dead letters, collector."""
