"""Score a results file against annotations: the same as `captioner evaluate`."""

import sys

from captioner.cli import main

if __name__ == "__main__":
    sys.exit(main(["evaluate", *sys.argv[1:]]))
