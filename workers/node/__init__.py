"""The supervisor's process: makes a node, keeps its servers alive, watches its clients, ends it in good order."""
