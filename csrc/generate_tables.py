"""Writes perseus_like/tables.py from the lists in csrc/base/tables.h.

python csrc/generate_tables.py            # writes the module
python csrc/generate_tables.py --check    # exit code 1 if the module is not up to date
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

LISTS = Path(__file__).parent / "base/tables.h"
MODULE = Path(__file__).parents[1] / "perseus_like/tables.py"
HEAD = '''"""The core's numbers of element types, reductions, errors, verbs and starts.

`csrc/generate_tables.py` writes this module from `csrc/base/tables.h`. Do not edit it.
"""

from __future__ import annotations

from enum import IntEnum
'''
CLASSES = {
    "DTYPES": ("DType", "Element types."),
    "REDUCE_OPS": (
        "ReduceOp",
        "The operation of a reduction. An average is a sum that is divided.",
    ),
    "ERROR_KINDS": ("ErrorKind", "Kinds of errors. `errors.CLASSES` has the exception class of each."),
    "REQUEST_VERBS": ("Verb", "Collectives. `join` is a state of a rank, and the engine has no request for it."),
    "STARTS": ("Start", "The thread that executes an allreduce."),
}


def render(header: str) -> str:
    text = HEAD
    for macro, (name, meaning) in CLASSES.items():
        found = re.search(rf"^#define PERSEUS_{macro}\(X\)((?:.*\\\n)*.*)", header, re.MULTILINE)
        if found is None:
            raise SystemExit(f"{LISTS} has no PERSEUS_{macro}")
        text += f'\n\nclass {name}(IntEnum):\n    """{meaning}"""\n\n'
        rows = re.findall(r"\bX\(\w+, (\w+)[^)]*\)(?: +/\* (.*?) \*/)?", found[1])
        if name == "Verb":
            rows.append(("join", "no tensor and no name"))
        for number, (row, comment) in enumerate(rows):
            text += f"    {row} = {number}{f'  # {comment}' if comment else ''}\n"
        if name == "Verb":
            reducing = re.findall(r'X\(\w+, (\w+), "\w+", true', found[1])
            listed = ", ".join(f"Verb.{verb}" for verb in reducing)
            text += f"\n\nREDUCING = ({listed})  # the verbs with an operation and factors\n"
    return text


def main() -> int:
    module = render(LISTS.read_text())
    if "--check" not in sys.argv[1:]:
        MODULE.write_text(module)
        return 0
    if MODULE.read_text() == module:
        return 0
    print(f"{MODULE} differs from the lists in {LISTS}; run python csrc/generate_tables.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
