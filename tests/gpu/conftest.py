"""Tests on a real GPU, by `make test-gpu`: those in in_world/ run on every rank of a world."""

import os

collect_ignore = [] if "PERSEUS_IN_WORLD" in os.environ else ["in_world"]
