"""Finds mpirun and recognises the MPI that it belongs to."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ..start_errors import LaunchError

_VERSION_SECONDS = 30


class Family(Enum):
    """MPIs whose launchers differ in their options."""

    OPEN_MPI_4 = "Open MPI 4"
    OPEN_MPI_5 = "Open MPI 5"
    MPICH = "MPICH"
    INTEL = "Intel MPI"


@dataclass(frozen=True)
class Mpirun:
    """An mpirun of a known MPI."""

    path: Path
    family: Family
    version: str


def find_mpirun(given: str | None = None) -> Mpirun:
    """Returns the given mpirun, or the one in this Python's prefix, or the first in PATH. Raises LaunchError."""
    return identify(locate(given))


def locate(given: str | None = None) -> Path:
    """Returns the path of such an mpirun. Raises LaunchError if there is none."""
    if given is not None:
        found = shutil.which(given)
        if not found:
            raise LaunchError(f"--mpirun {given!r}: no such program; give the path of an mpirun")
        return Path(found).absolute()
    for name in ("mpirun", "mpiexec"):
        for path in (str(Path(sys.prefix, "bin")), None):
            if found := shutil.which(name, path=path):
                return Path(found).absolute()
    raise LaunchError(
        "no mpirun found in this Python's prefix or in PATH; install one MPI, for example with "
        "pip install 'perseus-like[mpich]', or give --mpirun PATH"
    )


def identify(path: Path) -> Mpirun:
    """Asks an mpirun for its version. Raises LaunchError if the MPI is not known."""
    try:
        answer = subprocess.run(
            [path, "--version"],
            env=with_own_folder(os.environ, path),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"cannot ask {str(path)!r} for its version: {error}; give another with --mpirun") from error
    text = answer.stdout + answer.stderr
    known = recognise(text)
    if known is None:
        first = next(iter(text.strip().splitlines()), "nothing")
        raise LaunchError(
            f"{str(path)!r} belongs to no MPI that perseusrun knows (its --version prints {first!r}); "
            "give the mpirun of Open MPI, MPICH or Intel MPI with --mpirun"
        )
    return Mpirun(path, *known)


def recognise(text: str) -> tuple[Family, str] | None:
    """Returns the family and the version, from the output of `mpirun --version`."""
    if "Intel(R) MPI" in text:
        return Family.INTEL, _first(r"Version (\S+)", text)
    if "Open MPI" in text or "OpenRTE" in text:
        version = _first(r"\((?:Open MPI|OpenRTE)\) (\S+)", text)
        major = version.split(".")[0]
        return Family.OPEN_MPI_4 if major.isdigit() and int(major) < 5 else Family.OPEN_MPI_5, version
    if "HYDRA" in text or "mpich" in text.lower():
        return Family.MPICH, _first(r"Version:\s*(\S+)", text)
    return None


def _first(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1] if match else "unknown"


def with_own_folder(environment: Mapping[str, str], path: Path) -> dict[str, str]:
    """Returns the environment with the mpirun's folder in PATH, where the mpirun finds its helpers."""
    folder = str(path.parent)
    folders = environment.get("PATH", os.defpath).split(os.pathsep)
    inner = dict(environment)
    if folder not in folders:
        inner["PATH"] = os.pathsep.join([folder, *folders])
    return inner
