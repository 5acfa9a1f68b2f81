"""horovod.common.util: small helpers, and what there is to run on (`verbose` has nothing to add)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from typing import Any

from .. import basics
from ..errors import HorovodVersionMismatchError, get_version_mismatch_message


def mpi_built(verbose: bool = False) -> bool:
    return basics.mpi_built()


def gloo_built(verbose: bool = False) -> bool:
    return basics.gloo_built()


def nccl_built(verbose: bool = False) -> int:
    return basics.nccl_built()


def ddl_built(verbose: bool = False) -> bool:
    return basics.ddl_built()


def ccl_built(verbose: bool = False) -> bool:
    return basics.ccl_built()


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether `perseus_like.<ext_base_name>` ("torch", …) can be imported. Tried in a process of its own."""
    command = [sys.executable, "-c", f"import perseus_like.{ext_base_name}"]
    return subprocess.run(command, capture_output=not verbose, check=False).returncode == 0


def get_extension_full_path(pkg_path: str, *args: str) -> str:
    """The file that a compiled module `args` has beside the file `pkg_path`."""
    folder = os.path.dirname(os.path.abspath(pkg_path))  # noqa: PTH100, PTH120
    return os.path.join(folder, *args) + str(sysconfig.get_config_var("EXT_SUFFIX"))  # noqa: PTH118


@contextlib.contextmanager
def env(**kwargs: str | None) -> Iterator[None]:
    """Environment variables for the time of a `with`. None: left as it is."""
    given = {name: value for name, value in kwargs.items() if value is not None}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def is_iterable(x: Any) -> bool:
    try:
        iter(x)
    except TypeError:
        return False
    return True


__all__ = [
    "HorovodVersionMismatchError",
    "ccl_built",
    "ddl_built",
    "env",
    "extension_available",
    "get_extension_full_path",
    "get_version_mismatch_message",
    "gloo_built",
    "is_iterable",
    "mpi_built",
    "nccl_built",
]
