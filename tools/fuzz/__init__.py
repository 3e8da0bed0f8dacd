"""Fuzzing of the C core: targets (`*.c`), their corpus, and what builds and runs them. `scripts/fuzz --help`."""
