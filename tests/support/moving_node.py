"""`python -m support.moving_node DIR POINT PASS WHOM`: start a real node that dies at a crash point of its moves.

At the PASSth time that the supervisor (or its child) comes to POINT (workers/node/moves.py), the process there is
killed: WHOM `all`: with the supervisor, `child`: the child alone. Settings stand in the directory. It ends with 0 when
the node came up: then the point was not reached.
"""

import os
import signal
import sys
from pathlib import Path

from warren.workers.node import moves
from warren.workers.node.options import Options, RealServers
from warren.workers.node.supervise import supervise


def main() -> int:
    directory, point, passes, whom, workers = sys.argv[1:]
    supervisor = os.getpid()
    seen = 0

    def reached(name: str) -> None:
        nonlocal seen
        seen += name == point
        if name != point or seen < int(passes):
            return
        if whom == "all" and os.getpid() != supervisor:
            os.kill(supervisor, signal.SIGKILL)
        if whom == "all" or os.getpid() != supervisor:
            os.kill(os.getpid(), signal.SIGKILL)

    moves.reached = reached

    def up(_line: str) -> None:
        Path(directory, "came-up").touch()
        os.kill(supervisor, signal.SIGTERM)

    return supervise(directory, Options(changes={"workers": workers}), RealServers, up)


if __name__ == "__main__":
    sys.exit(main())
