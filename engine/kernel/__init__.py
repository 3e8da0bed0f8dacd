"""What every room of the engine stands on: formats, frames, logs, files that are replaced whole."""
