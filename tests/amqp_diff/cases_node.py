"""By amqplib on Node: the scripts are in node_cases.js; each is a process of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

from amqp_diff.scene import CASES, Scene

SCRIPTS = Path(__file__).with_name("node_cases.js")
#: where scripts/setup puts amqplib
MODULES = Path(sys.prefix) / "node_modules"


def _case(name: str, words: set[str]) -> None:
    def run(s: Scene) -> None:
        for word in words:
            s.name(word)
        done = subprocess.run(
            ["node", str(SCRIPTS), name, s.server.host, str(s.server.port), s.case, s.server.vhost],
            env={**os.environ, "NODE_PATH": str(MODULES)}, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        s.lines += done.stdout.splitlines()
        s.lines += [f"standard error: {line}" for line in done.stderr.splitlines()]

    CASES[f"node.{name}"] = run


for _name, _body in re.findall(r"^  async (\w+)\(.*?\{\n(.*?)^  \},$", SCRIPTS.read_text(), re.MULTILINE | re.DOTALL):
    _case(_name, {"q", *re.findall(r"name\('(\w+)'\)", _body), *re.findall(r"\['q', '(\w+)'\]", _body)})
