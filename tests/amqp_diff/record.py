"""Record anew what RabbitMQ answers:  python -m amqp_diff.record [case or module …]    (with PYTHONPATH=tests)

Starts the installed rabbitmq-server for itself. Each module's answers are in `recorded/MODULE.json`; cases that are
gone are forgotten. A case runs twice, and is refused when its two transcripts differ: it would depend on chance.
"""

import argparse
import json
import sys
import time
import traceback
from pathlib import Path

from warren.tools.rabbitmq import RabbitMQ

from amqp_diff.cases import CASES, missing
from amqp_diff.scene import Server, run

RECORDED = Path(__file__).parent / "recorded"


def recorded(module: str) -> dict[str, list[str]]:
    """The answers of a module's cases, by the case's name."""
    path = RECORDED / f"{module}.json"
    if not path.exists():
        return {}
    answers: dict[str, list[str]] = json.loads(path.read_text())
    return answers


def main() -> int:
    """Run what is asked for, and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", nargs="*", help="cases or modules; all by default")
    parser.add_argument("--show", action="store_true", help="print the transcripts, and write nothing")
    parser.add_argument("--once", action="store_true", help="run each case once")
    chosen = parser.parse_args()
    wanted = [name for name in CASES if not chosen.which or {name, name.partition(".")[0]} & set(chosen.which)]
    answers: dict[str, dict[str, list[str]]] = {}
    failed = []
    with RabbitMQ() as rabbit:
        server = Server(rabbit.host, rabbit.port, alarm=rabbit.alarm)
        for name in wanted:
            module = name.partition(".")[0]
            reason = missing(module)
            if reason:
                print(f"{name}: left as it is, {reason}", file=sys.stderr)
                continue
            started = time.monotonic()
            try:
                lines = run(name, server)
                second = lines if chosen.once else run(name, server)
            except Exception:  # noqa: BLE001 (the others are still recorded, and the command fails)
                failed.append(name)
                print(f"{name}:", traceback.format_exc(), file=sys.stderr)
                continue
            if lines != second:
                failed.append(name)
                print(f"{name}: two runs differ", *lines, "----", *second, sep="\n    ", file=sys.stderr)
                continue
            answers.setdefault(module, {})[name.partition(".")[2]] = lines
            print(f"{name}: {len(lines)} lines, {time.monotonic() - started:.2f} s", file=sys.stderr)
            if chosen.show:
                print(f"# {name}", *lines, "", sep="\n")
    if not chosen.show:
        RECORDED.mkdir(exist_ok=True)
        for module, fresh in answers.items():
            merged = recorded(module) | fresh
            kept = {
                name: merged[name]
                for name in (case.partition(".")[2] for case in CASES if case.startswith(module + "."))
                if name in merged
            }
            (RECORDED / f"{module}.json").write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    if failed:
        print("not recorded: " + ", ".join(failed), file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
