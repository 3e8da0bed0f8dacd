"""Goal: what docs/amqp.md shows works as it stands. Method: its snippet runs against a gateway, at the port of that
one.
"""

import subprocess
import sys

import warren

from support.gateway_node import GatewayNode
from support.snippets import ROOT, snippets


def test_what_the_page_shows_runs_and_programs_of_the_node_receive_it(gateway: GatewayNode) -> None:
    (shown,) = snippets(ROOT / "docs/amqp.md")
    assert ":5672/" in shown.code
    code = shown.code.replace(":5672/", f":{gateway.port}/")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    with warren.attach(gateway.directory) as node:
        assert node.queue("orders", create=False).get(timeout=30).body == b"two rabbits, one burrow"
