"""Explicit-state models of Warren's protocols: every interleaving of their steps, with kills in between."""
