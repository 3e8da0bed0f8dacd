"""`python -m warren.tools.fault.lane FOLDER`, under the library: does what it reads, a JSON map a line, and answers so.

{"do": "count"} → {"counts": [[scene, role, call, class, number] …]}    {"do": "session", "cases", "seed"} → a Result
{"do": "end"}
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from warren.tools.fault import shim, work
from warren.tools.fault.cases import Case
from warren.tools.fault.session import Session, count
from warren.workers.node import children
from warren.workers.node.options import RealServers

#: of the supervisors that are forked here: servers that die again and again do so in a tenth of the time
BACKOFF_MAX_S, LACK_EVERY_S = 0.3, 0.1


def _do(ruler: shim.Shim, folder: Path, order: dict[str, Any]) -> dict[str, Any]:
    if order["do"] == "count":
        return {"counts": [[*key, number] for key, number in sorted(count(ruler, folder).items())]}
    session = Session(ruler, folder, order["seed"])
    try:
        result = session.run([Case.parse(text) for text in order["cases"]])
    except Exception as error:  # noqa: BLE001 - a session that cannot go on is a finding, and not the campaign's end
        return {"failed": f"{type(error).__name__}: {error}\n{traceback.format_exc()}", "kept": str(session.root)}
    if result.kept:
        (Path(result.kept) / "session.json").write_text(json.dumps(order))
    return asdict(result)


def main() -> int:
    """Serve until told to end, or until nobody asks any more."""
    folder = Path(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    children.BACKOFF_MAX_S, children.LACK_EVERY_S = BACKOFF_MAX_S, LACK_EVERY_S
    work.load()
    RealServers()  # loads what the servers need, so that a start has nothing to load
    children.freeze()
    ruler = shim.Shim.current()
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "end":
            break
        print(json.dumps(_do(ruler, folder, order)), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
