"""The command line `warren`, one file a group of commands."""
