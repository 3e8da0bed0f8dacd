"""What is declared in a node, where it lies, and where a message goes."""
