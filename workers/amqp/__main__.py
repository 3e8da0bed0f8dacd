"""`python -m warren.workers.amqp DIR INDEX`: a gateway process. The supervisor runs it (workers/node/gateway_roles.py).

Exit codes: 0 it ended in order, 1 it is started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import sys
from pathlib import Path

from warren.engine.catalog.node_directory import NodeDirectory
from warren.engine.errors import Error
from warren.workers.process import logs

log = logging.getLogger("warren.amqp")


def main() -> int:
    """The whole life of the process."""
    directory, index = NodeDirectory(Path(sys.argv[1])), int(sys.argv[2])
    settings = directory.read().settings
    name = f"amqp-{index}"
    logs.begin(name, directory.log_file(name), settings, streams=True)
    faulthandler.enable()
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write(f"warren-{name}"[:15])
    from warren.workers.amqp.channel import Channel
    from warren.workers.amqp.gateway import Gateway

    try:
        return asyncio.run(Gateway(directory.path, index, Channel).run())
    except Error as error:
        log.error("%s", error)
    except Exception as error:
        log.critical("ends: %s", type(error).__name__, exc_info=True)
    return 1


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    os._exit(code)  # not when the last thread has what it waits for: nobody hears of that any more
