"""Tests in real processes: those in in_world/ run on every rank of a world that test_worlds.py starts."""

import os

collect_ignore = [] if "PERSEUS_IN_WORLD" in os.environ else ["in_world"]
