"""A publisher that goes on whatever happens: `python steady_publisher.py DIR QUEUE LOG FIRST`.

It publishes numbers from FIRST on, each with its own confirm, and appends what was confirmed to LOG, one number a line,
after the confirm. An error costs the number that was under way, never a line. It ends at SIGTERM.
"""

import os
import signal
import sys

import warren


def main() -> None:
    """Publish until told to end."""
    directory, name, path, first = sys.argv[1:5]
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    number = int(first)
    while not ended:
        try:
            with warren.attach(directory, timeout=1.0) as node:
                queue = node.queue(name)
                while not ended:
                    number += 1
                    queue.put(b"%d" % number, timeout=5.0)
                    os.write(log, b"%d\n" % number)
        except warren.Error as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
