"""`python -m rapidformer` is the command `rapidformer`."""

import sys

from .command import main

if not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # the working directory
sys.exit(main())
