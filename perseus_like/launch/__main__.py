"""`python -m perseus_like.launch` is `perseusrun`."""

import sys

from . import main

if __name__ == "__main__":
    sys.exit(main())
