"""Tools for the people who run or develop Warren."""
