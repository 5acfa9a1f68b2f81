"""`python -m perseus_like` is `perseusrun`."""

import sys

from .launch import main

if __name__ == "__main__":
    sys.exit(main())
