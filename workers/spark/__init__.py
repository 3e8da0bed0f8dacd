"""Warren in Spark: the Python data source `format("warren")`, and what a session for it needs."""
