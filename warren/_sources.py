"""What `warren` consists of, when it is imported where its sources lie.

This folder holds the public face alone; engine, ipc, workers and tools stand beside it there, and are installed below
it. A Python that is started in the root of the sources finds this folder first: then the rest is that of the installed
package, if there is one.
"""

import sys
from importlib import import_module
from pkgutil import extend_path

try:
    import_module("warren.engine")
except ModuleNotFoundError as error:
    if error.name != "warren.engine":
        raise
    package = sys.modules["warren"]
    package.__path__ = extend_path(package.__path__, "warren")
    try:
        import_module("warren.engine")
    except ModuleNotFoundError:
        raise ImportError(
            f"warren is not installed for {sys.executable}: run ./scripts/setup in the folder of its sources, and use "
            "the Python of .venv (`. .venv/bin/activate`)"
        ) from None
