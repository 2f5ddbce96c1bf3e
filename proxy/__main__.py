"""`python -m proxy` is the command `spillway`."""

from __future__ import annotations

import sys

from proxy.cli import main

if __name__ == "__main__":
    sys.exit(main())
