"""The worker as a command: ``python -m runner.launch <folder> [--trust] [--debug]``."""

import sys

from runner.launch.worker import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
