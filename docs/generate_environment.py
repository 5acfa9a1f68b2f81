"""Writes docs/environment.md from the table of settings that the installed core carries.

python docs/generate_environment.py            # writes the page
python docs/generate_environment.py --check    # exit code 1 if the page is not up to date
"""

from __future__ import annotations

import sys
from pathlib import Path

from perseus_like import _core

PAGE = Path(__file__).with_name("environment.md")
HEAD = """\
# Environment variables

Made by `docs/generate_environment.py` from `csrc/base/config.cc`, the only place that reads them; do not edit.

They are read when `init()` is called. `HOROVOD_` names are understood where there is one; if both are set, the
`PERSEUS_` one wins, and an empty value counts as not set. `perseusrun` has options for most of them and forwards all;
`-x NAME=VALUE` sets one on all ranks. Of those by which every rank decides what comes next (the fusion threshold, the
cache, pieces, streams, types, NaN checks, tuning) rank 0's value counts, and a warning names ranks that have another.
What the launcher itself sets is in [launching.md](launching.md).

| variable | Horovod's name | default | meaning |
|---|---|---|---|
"""
UNUSED = """
## Horovod's variables that change nothing here

One that is set is named by rank 0 in the log, unless what it asks for is so anyway.

| variable | why |
|---|---|
"""


def render() -> str:
    rows = (
        f"| `{name}` | {_code(horovod_name)} | {_code(default)} | {meaning} |\n"
        for name, horovod_name, default, meaning in _core.settings_table()
    )
    unused = (f"| `{name}` | {why} |\n" for name, why in _core.unused_settings())
    return HEAD + "".join(rows) + UNUSED + "".join(unused)


def _code(text: str) -> str:
    return f"`{text}`" if text else "–"


def main() -> int:
    page = render()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page)
        return 0
    if PAGE.read_text() == page:
        return 0
    print(f"{PAGE} is not what the installed core says; run python docs/generate_environment.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
