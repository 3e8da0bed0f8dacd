"""Pipelines over the files of a node: functions on DataFrames, and what `warren spark run` runs (docs/pipelines.md)."""
