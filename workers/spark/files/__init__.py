"""`format("warren-files")`: the files of a data directory as rows, with the node up or down (docs/pipelines.md)."""
