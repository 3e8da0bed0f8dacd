"""How a process of Warren starts another Python: with the modules of this one, and with nothing from where it stands.

`python script.py` can import what lies beside the script, `python -m` and an empty entry in PYTHONPATH what lies in the
current directory, each before the standard library. A node started from there must not: a file `queue.py` would stop
it, and run inside it. So every Python that we start gets

    -P                no script folder and no current directory, also where this process has them
    PYTHONPATH        of this process, without empty entries; not where this one ignores it (`-E`, `-I`)
    what it lacks     folders in which this process found Warren or a package that Warren needs (it put them into
                      sys.path itself, or a `.pth` file did), at the end: there they cannot take anything's place

Other folders that this process put into its sys.path are not passed on: nothing of Warren is there.
"""

from __future__ import annotations

import importlib.util
import os
import site
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

#: top-level modules that a node imports (pyproject.toml; Arrow is for clients)
NEEDED = ("warren", "click", "msgspec", "numpy", "posix_ipc", "psutil", "rich", "sysv_ipc")

_WITH_FOLDERS = (
    "import runpy, site, sys\n"
    "for folder in sys.argv.pop(1).splitlines():\n"
    "    if folder not in sys.path:\n"
    "        site.addsitedir(folder) if folder.endswith('-packages') else sys.path.append(folder)\n"
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)\n"
)


def command(module: str, *words: str) -> list[str]:
    """The command line that runs a module in a new Python; to be started with `environment()`."""
    start = [sys.executable, "-P", *(["-s"] if sys.flags.no_user_site else [])]
    lacking = _lacking()
    if lacking:
        return [*start, "-c", _WITH_FOLDERS, "\n".join(lacking), module, *words]
    return [*start, "-m", module, *words]


def environment(base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """`base` as a new Python may have it."""
    found = {name: value for name, value in base.items() if not _ignored(name)}
    paths = [path for path in found.pop("PYTHONPATH", "").split(os.pathsep) if path]
    if paths:
        found["PYTHONPATH"] = os.pathsep.join(paths)
    return found


def _ignored(name: str) -> bool:
    return bool(sys.flags.ignore_environment) and name.startswith("PYTHON")


def _lacking() -> list[str]:
    """Folders of this process's sys.path that hold something needed, and that a new Python would not have."""
    known = {*site.getsitepackages(), *environment().get("PYTHONPATH", "").split(os.pathsep)}
    known |= {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    if site.ENABLE_USER_SITE:
        known.add(site.getusersitepackages())
    found = dict.fromkeys(folder for module in NEEDED if (folder := _folder_of(module)) in sys.path)
    return [folder for folder in found if folder not in known]


def _folder_of(module: str) -> str:
    """The folder in which this process finds a top-level module, "" where it is no folder's."""
    specification = importlib.util.find_spec(module)
    if specification is None or specification.origin is None:
        return ""
    path = Path(specification.origin)
    return str(path.parent.parent if specification.submodule_search_locations is not None else path.parent)
