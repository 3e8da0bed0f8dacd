"""`python -m warren`: the command line."""

from warren.workers.cli.main import main

if __name__ == "__main__":
    main()
