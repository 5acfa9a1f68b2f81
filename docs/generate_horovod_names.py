"""Writes the table of Horovod's modules and names in docs/migrating-from-horovod.md from the installed package's list.

python docs/generate_horovod_names.py            # writes the table into the page
python docs/generate_horovod_names.py --check    # exit code 1 if the table is not up to date
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from perseus_like.names.listing import Module, modules

PAGE = Path(__file__).with_name("migrating-from-horovod.md")
BEGIN = "<!-- begin of the table: docs/generate_horovod_names.py -->\n"
END = "<!-- end of the table -->\n"
HEAD = """
| module | works | differs: how, or refused: why |
|---|---|---|
"""


def render() -> str:
    """Returns the table. Modules that are refused for one reason share a row."""
    rows = []
    for reason, group in groupby(modules().values(), key=lambda module: module.refused):
        if reason is None:
            rows += [_row(module) for module in group]
        else:
            names = "<br>".join(f"`{module.name}`" for module in group)
            rows.append(f"| {names} | – | refused: {reason} |\n")
    return HEAD + "".join(rows) + "\n"


def _row(module: Module) -> str:
    notes = [
        f"{state}: {_names(name for name in table if table[name] == text)}: {text}"
        for state, table in (("differs", module.differs), ("refused", module.refusals))
        for text in dict.fromkeys(table.values())
    ]
    return f"| `{module.name}` | {_names(module.works) or '–'} | {'<br>'.join(notes) or '–'} |\n"


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def main() -> int:
    page = PAGE.read_text()
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    new = head + BEGIN + render() + END + tail
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(new)
        return 0
    if page == new:
        return 0
    print(f"{PAGE} has another table; run python docs/generate_horovod_names.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
