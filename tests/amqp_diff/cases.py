"""All cases, by their modules; and what a module needs that may not be here."""

import importlib
import importlib.util
import shutil
import sys
from pathlib import Path

from amqp_diff.scene import CASES

NEEDED = {"pika": "pika", "py_amqp": "amqp", "aio_pika": "aio_pika"}


def missing(module: str) -> str:
    """Why this module's cases cannot run here; empty when they can."""
    package = NEEDED.get(module)
    if package and importlib.util.find_spec(package) is None:
        return f"there is no {package} here: pip install {package.replace('_', '-')}"
    if module == "node":
        if shutil.which("node") is None:
            return "there is no node here: apt-get install nodejs npm"
        if not (Path(sys.prefix) / "node_modules/amqplib").exists():
            return "there is no amqplib here: scripts/setup installs it where npm is"
    if module == "tools" and shutil.which("amqp-publish") is None:
        return "there is no amqp-publish here: apt-get install amqp-tools"
    return ""


MODULES = sorted(path.stem.removeprefix("cases_") for path in Path(__file__).parent.glob("cases_*.py"))
for _module in MODULES:
    if not missing(_module):
        importlib.import_module(f"amqp_diff.cases_{_module}")

__all__ = ["CASES", "MODULES", "missing"]
