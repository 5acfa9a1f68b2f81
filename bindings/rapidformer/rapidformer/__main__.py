"""`python -m rapidformer` is the command `rapidformer`."""

import sys

from .command import main

sys.exit(main())
