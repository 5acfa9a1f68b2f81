"""horovod.common.util: small helpers and build queries. The parameter `verbose` has no effect."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from .. import world
from ..errors import HorovodVersionMismatchError, get_version_mismatch_message

T = TypeVar("T")

# The frameworks that Horovod has extensions for.
EXTENSIONS = ["tensorflow", "torch", "mxnet"]

# Horovod's decorator of this name; programs import it.
_cache = functools.cache


def mpi_built(verbose: bool = False) -> bool:
    return world.mpi_built()


def gloo_built(verbose: bool = False) -> bool:
    return world.gloo_built()


def nccl_built(verbose: bool = False) -> int:
    return world.nccl_built()


def ddl_built(verbose: bool = False) -> bool:
    return world.ddl_built()


def ccl_built(verbose: bool = False) -> bool:
    return world.ccl_built()


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Returns whether `perseus_like.<ext_base_name>` ("torch", …) can be imported. Tries it in another process."""
    # `python -c` would search the working directory first.
    program = f"import sys; sys.path[:] = {sys.path!r}; import perseus_like.{ext_base_name}"
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=not verbose, check=False).returncode == 0


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Returns True if tensors on an accelerator can be communicated.

    Args:
        ext_base_name: has no effect; it is an argument of Horovod.
        verbose: has no effect; it is an argument of Horovod.

    Returns:
        True if a CUDA or ROCm driver is installed.

    Examples:
        >>> hvd.gpu_available("") in (True, False)
        True
    """
    return world.cuda_built() or world.rocm_built()


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Does nothing. Horovod raises ImportError if it was built without the framework; here nothing is built for one."""


def check_installed_version(name: str, version: str, exception: Exception | None = None) -> None:
    """Does nothing. Horovod warns about a framework of another release than the one it was built for."""


def get_ext_suffix() -> str:
    """Returns the file name suffix of compiled modules."""
    return str(sysconfig.get_config_var("EXT_SUFFIX"))


def get_extension_full_path(pkg_path: str, *args: str) -> str:
    """Returns the path of the compiled module `args` in the folder of the file `pkg_path`."""
    folder = os.path.dirname(os.path.abspath(pkg_path))  # noqa: PTH100, PTH120
    return os.path.join(folder, *args) + get_ext_suffix()  # noqa: PTH118


@contextlib.contextmanager
def env(**kwargs: str | None) -> Iterator[None]:
    """Sets environment variables during a `with` block. A variable whose value is None stays as it is."""
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


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[[int | None, bool | None], int]:
    """Returns a function of (op, average) that returns the operation. It raises ValueError if both are given."""
    from ..collectives import resolve_op

    return resolve_op


def num_rank_is_power_2(num_rank: int) -> bool:
    """Returns True if a number of ranks is a power of 2.

    Args:
        num_rank: the number.

    Returns:
        True for 1, 2, 4, 8, …

    Examples:
        >>> [number for number in range(9) if hvd.check_num_rank_power_of_2(number)]
        [1, 2, 4, 8]
    """
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(l: Sequence[T], n: int) -> list[Sequence[T]]:  # noqa: E741
    """Splits a list into `n` parts in order, nearly equal in length, the longer ones first."""
    length, longer = divmod(len(l), n)
    ends = [length * part + min(part, longer) for part in range(n + 1)]
    return [l[begin:end] for begin, end in itertools.pairwise(ends)]


def is_iterable(x: Any) -> bool:
    try:
        iter(x)
    except TypeError:
        return False
    return True


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Returns whether the version `ver` is `target` or later. A pre-release comes before its release.

    ValueError if one of them is no str, or if `target` does not have the form major.minor.patch.
    """
    if not (isinstance(ver, str) and isinstance(target, str)):
        raise ValueError(f"versions must be str, not {ver!r} and {target!r}")
    if target.count(".") != 2:
        raise ValueError(f"the version {target!r} must have the form major.minor.patch")
    return _version_key(ver) >= _version_key(target)


def _version_key(version: str) -> tuple[list[int], bool]:
    """Returns the release numbers without trailing zeros, and whether it is a final release."""
    match = re.match(r"v?(\d+(?:\.\d+)*)(.*)", version.strip())
    if match is None:
        raise ValueError(f"{version!r} is no version; write major.minor.patch")
    numbers = [int(number) for number in match[1].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers, re.match(r"[._-]?(a|b|c|rc|alpha|beta|pre|preview|dev)", match[2], re.IGNORECASE) is None


__all__ = [
    "EXTENSIONS",
    "HorovodVersionMismatchError",
    "ccl_built",
    "check_extension",
    "check_installed_version",
    "ddl_built",
    "env",
    "extension_available",
    "get_average_backwards_compatibility_fun",
    "get_ext_suffix",
    "get_extension_full_path",
    "get_version_mismatch_message",
    "gloo_built",
    "gpu_available",
    "is_iterable",
    "is_version_greater_equal_than",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "split_list",
]
