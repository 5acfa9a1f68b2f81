"""Runs a module of this package in a new process: `python start_module.py perseus_like.launch ARGUMENTS`.

`python -m` puts the working directory first on `sys.path`. If other users can write there, their perseus_like would run
in its place. `python -P` does not, but needs Python 3.11.
"""

import sys

if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # the folder of this file, whose modules have common names

    import importlib

    del sys.argv[0]
    sys.exit(importlib.import_module(sys.argv[0]).main())
