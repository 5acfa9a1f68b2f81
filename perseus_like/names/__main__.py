"""`python -m perseus_like.names horovod -- script.py …`: runs a program whose `import horovod` finds perseus_like.

Without a program, it prints the folder that has the same effect on PYTHONPATH.
"""

from __future__ import annotations

import os
import sys

from . import FOLDERS, folder_of

USAGE = f"usage: python -m perseus_like.names {{{','.join(FOLDERS)}}} [-- script.py … | -- -m module … | -- -c text …]"


def main(argv: list[str]) -> int:
    if not argv or argv[0] not in FOLDERS or (argv[1:] and argv[1] != "--"):
        print(USAGE, file=sys.stderr)
        return 2
    folder = folder_of(argv[0])
    if argv[2:]:
        # A new interpreter, so that arguments, main module and children are the program's own.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
        os.execv(sys.executable, [sys.executable, *argv[2:]])
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
