"""Serve the page where pictures are captioned: ``python demo/app.py [--model DIR] [--port N]``."""

import sys

from captioner.cli import main

if __name__ == "__main__":
    sys.exit(main(["demo", *sys.argv[1:]]))
