"""`python -m warren.tools.bench`: the same as `warren bench`."""

import sys

from warren.tools.bench import main

if __name__ == "__main__":
    sys.exit(main())
