"""What every process of a node or beside it needs: how it starts, what ties it to the directory, how it asks."""
