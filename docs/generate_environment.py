"""Writes docs/environment.md from the table of settings that the installed core carries, and from the tables below.

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

`docs/generate_environment.py` writes this page from `csrc/base/config.cc`, the only file that reads the variables of
the first table. Do not edit the page.

`init()` reads the variables. If a `PERSEUS_` variable and its `HOROVOD_` name are both set, the `PERSEUS_` variable
counts. An empty value counts as not set. `perseusrun` has options for most of the variables and forwards all of them;
`-x NAME=VALUE` sets one on all ranks.

Some settings must be the same on all ranks, because every rank decides by them what to execute next: the fusion
threshold, the cache, chunks, streams, wire dtypes, NaN checks and tuning. For these, rank 0's value counts, and rank
0 warns about ranks that have another value. [Launching](launching.md#environment-of-a-rank) lists the variables that
the launcher sets.

| variable | Horovod's name | default | meaning |
|---|---|---|---|
"""
OF_PYTHON = """
## Variables that Python code reads

| variable | default | meaning |
|---|---|---|
| `PERSEUS_ALONE` | `0` | 1: `init()` makes a job of this process alone, whoever has started it \
([Launching](launching.md#other-launchers)). |
| `PERSEUS_AS_GLOO` | `0` | 1: torch.distributed's backend `gloo` means `perseus` for tensors on the CPU \
([torch.distributed](torch-distributed.md#programs-that-say-gloo)). Read at `import torch`. |
| `PERSEUS_TOUCHED_GRADIENTS` | `warn` | What happens when a program writes to gradients between `backward()` and \
`step()` without `synchronize()`: `warn` (once), `error` (on all ranks) or `ignore` \
([Troubleshooting](troubleshooting.md#calls)). |
"""
UNUSED = """
## Horovod's variables without effect

Rank 0 warns about each of these variables that is set, unless its effect is already the default.

| variable | why |
|---|---|
"""


def render() -> str:
    rows = (
        f"| `{name}` | {_code(horovod_name)} | {_code(default)} | {meaning} |\n"
        for name, horovod_name, default, meaning in _core.settings_table()
    )
    unused = (f"| `{name}` | {why} |\n" for name, why in _core.unused_settings())
    return HEAD + "".join(rows) + OF_PYTHON + UNUSED + "".join(unused)


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
