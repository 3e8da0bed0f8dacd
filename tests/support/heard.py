"""What is said by the parts of a node, kept as a list."""

from logging import INFO


class Heard(list[str]):
    """A `Say` (warren/engine/saying.py) that keeps the lines."""

    def __call__(self, text: str, level: int = INFO, *, exc_info: bool = False) -> None:
        self.append(text)
