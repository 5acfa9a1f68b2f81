"""Writes docs/environment.md from the table of settings that the installed core carries, and from the tables below.

It also writes the table of launchers in docs/launching.md.

python docs/generate_environment.py            # writes the pages
python docs/generate_environment.py --check    # exit code 1 if a page is not up to date
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from perseus_like import _core
from perseus_like.launchers import LAUNCHERS, Launcher

PAGE = Path(__file__).with_name("environment.md")
LAUNCHING = Path(__file__).with_name("launching.md")
HEAD_OF_LAUNCHERS = "| launcher | recognised by | how ranks meet |\n|---|---|---|\n"
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
| `PERSEUS_SECRET_FILE` | – | A file with a secret, the same on all hosts, by which ranks without a store or an MPI \
authenticate each other when they start ([Trust](trust.md#ranks-that-meet-without-a-secret)). |
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


def _signs_of(launcher: Launcher) -> str:
    signs = ", ".join(f"`{name}`" for name in launcher.variables)
    return signs + (", and " + " or ".join(f"`{name}`" for name in launcher.any_of) if launcher.any_of else "")


def with_launchers(page: str) -> str:
    """Returns the page with the table of launchers renewed."""
    rows = [f"| {launcher.name} | {_signs_of(launcher)} | {launcher.meet} |\n" for launcher in LAUNCHERS]
    before, _, after = page.partition(HEAD_OF_LAUNCHERS)
    return before + HEAD_OF_LAUNCHERS + "".join(rows) + re.sub(r"\A(\|.*\n)*", "", after)


def main() -> int:
    pages = {PAGE: render(), LAUNCHING: with_launchers(LAUNCHING.read_text())}
    if "--check" not in sys.argv[1:]:
        for page, text in pages.items():
            page.write_text(text)
        return 0
    old = [str(page) for page, text in pages.items() if page.read_text() != text]
    if old:
        print(f"not what the installed package says: {old}; run python docs/generate_environment.py", file=sys.stderr)
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main())
