"""Settings of the tests on a real GPU (`make test-gpu`). Every rank of a world runs the tests in in_world/."""

import os

collect_ignore = [] if "PERSEUS_IN_WORLD" in os.environ else ["in_world"]
