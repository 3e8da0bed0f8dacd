"""Benchmarks, and the limits of the machine beside them."""
