"""Finds the headers of each Python: those of an interpreter on this machine, else Debian's packages, unpacked."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import debian

DEBIAN = ("stable", "testing", "unstable")
QUESTION = "import sysconfig; print(sysconfig.get_path('include'))"


class MissingHeaders(Exception):
    """No headers of this Python were found. The text says where they were looked for."""


def find(version: str, processor: str, folder: Path) -> list[Path]:
    """Returns the folders of headers of CPython `version` ("3.12") for `processor`. Downloads go below `folder`.

    Headers of an interpreter of this machine also serve another processor. The sizes of types are the same on all
    64-bit Linux, and pyport.h stops the compiler if they are not.
    """
    for interpreter in interpreters(version):
        answer = subprocess.run([interpreter, "-c", QUESTION], capture_output=True, text=True, check=False)
        headers = Path(answer.stdout.strip() or "/nowhere")
        if answer.returncode == 0 and (headers / "Python.h").exists():
            return [headers]
    return of_debian(version, processor, folder)


def interpreters(version: str) -> list[str]:
    """Returns the programs that may be this Python: on PATH, and under pyenv."""
    found = shutil.which(f"python{version}")
    kept = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"), reverse=True)
    return ([found] if found else []) + [str(path) for path in kept]


def of_debian(version: str, processor: str, folder: Path) -> list[Path]:
    """Returns the headers of Debian's package libpython3.x-dev, from the first release that has it."""
    root = folder / f"{version}-{processor}"
    headers = [root / "usr" / "include" / f"python{version}", root / "usr" / "include"]
    package = f"libpython{version}-dev"
    problems = []
    for release in DEBIAN:
        if (headers[0] / "Python.h").exists():
            return headers
        try:
            debian.unpack([package], release, processor, folder, root)
        except debian.Unavailable as problem:
            problems.append(str(problem))
    if (headers[0] / "Python.h").exists():
        return headers
    raise MissingHeaders(
        f"there are no headers of Python {version}: no interpreter of this machine has them, and {package} cannot be "
        f"had ({'; '.join(problems)}); install Python {version} with its headers"
    )
