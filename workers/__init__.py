"""Process roles (supervisor, store server, queue worker) and the ways in (client, command line, Spark)."""
