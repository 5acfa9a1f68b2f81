"""Runs clang-tidy on the C++ sources that changed since they last passed: `make lint-tidy`.

    python tests/tidy/run_clang_tidy.py BUILD_FOLDER

CMake writes `BUILD_FOLDER/compile_commands.json`, which names the sources and their compilers' options. A source that
passed leaves a file in `BUILD_FOLDER/passed`, with a hash of everything the result depends on: the source, each header
that it includes from this project or from a folder given with `-I` or `-isystem`, the rules, the command and
clang-tidy's version. The compiler's own headers are not in the hash: remove `BUILD_FOLDER/passed` after an update.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("csrc", "adapters", "tests/cpp", "tests/fuzz")
RULES = (".clang-tidy", "tests/.clang-tidy")
CLANG_TIDY = Path(sys.executable).with_name("clang-tidy")
PROCESSES = 2
INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', re.MULTILINE)


def commands(build: Path) -> dict[Path, list[str]]:
    """Returns the compile commands of each source of this project. A source in two targets has two commands."""
    found: dict[Path, list[str]] = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        source = Path(entry["file"])
        if any(source.is_relative_to(ROOT / folder) for folder in FOLDERS):
            found.setdefault(source, []).append(entry["command"])
    return dict(sorted(found.items()))


def include_folders(command: str) -> tuple[Path, ...]:
    """Returns the folders that a compile command names with -I and -isystem, in the command's order."""
    words = shlex.split(command)
    after = {"-I", "-isystem"}
    apart = [word for before, word in itertools.pairwise(words) if before in after]
    return tuple(Path(name) for name in [*(w[2:] for w in words if w.startswith("-I") and w != "-I"), *apart])


@functools.cache
def hash_of(file: Path) -> bytes:
    return hashlib.sha256(file.read_bytes()).digest()


@functools.cache
def included(file: Path, folders: tuple[Path, ...]) -> tuple[Path, ...]:
    """Returns the headers that a file names in `#include`, also under a false #if.

    Headers that are not found are left out.
    """
    headers = []
    for quote, name in INCLUDE.findall(file.read_bytes()):
        for folder in (file.parent, *folders) if quote == b'"' else folders:
            header = folder / name.decode()
            if header.is_file():
                headers.append(header.resolve())
                break
    return tuple(headers)


def fingerprint(source: Path, its_commands: list[str], common: bytes) -> str:
    """Returns a hash of everything that clang-tidy's findings in a source depend on."""
    seen: set[Path] = {source}
    for command in its_commands:
        folders = include_folders(command)
        waiting = [source]
        while waiting:
            new = set(included(waiting.pop(), folders)) - seen
            seen |= new
            waiting.extend(new)
    parts = [common, *(command.encode() for command in its_commands), *(hash_of(file) for file in sorted(seen))]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def passes(build: Path, source: Path, mark: Path, print_of_source: str) -> bool:
    """Runs clang-tidy on one source. Prints the findings if there are any; otherwise marks the source as passed."""
    ran = subprocess.run(
        [CLANG_TIDY, "--quiet", "-p", build, source], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if ran.returncode == 0:
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.write_text(print_of_source)
    else:
        print(ran.stdout or ran.stderr, end="", flush=True)
    return ran.returncode == 0


def main() -> int:
    build = Path(sys.argv[1]).resolve()
    version = subprocess.run([CLANG_TIDY, "--version"], capture_output=True, check=True).stdout
    common = version + b"".join((ROOT / name).read_bytes() for name in RULES)
    changed = []
    for source, its_commands in commands(build).items():
        mark = build / "passed" / source.relative_to(ROOT)
        print_of_source = fingerprint(source, its_commands, common)
        if not mark.exists() or mark.read_text() != print_of_source:
            changed.append((source, mark, print_of_source))
    print(f"clang-tidy: {len(changed)} sources changed since they last passed", flush=True)
    with ThreadPoolExecutor(PROCESSES) as pool:
        failed = [not passed for passed in pool.map(lambda work: passes(build, *work), changed)]
    return int(any(failed))


if __name__ == "__main__":
    sys.exit(main())
