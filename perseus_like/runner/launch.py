"""horovod.runner.launch: the command line is that of perseusrun. `python -m horovod.runner.launch` runs it, too."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

# With `-m` the module's package is horovod.runner, in which relative names would not be found.
from perseus_like.common.util import ccl_built, ddl_built, extension_available, gloo_built, mpi_built, nccl_built
from perseus_like.launch import main as run_commandline
from perseus_like.launch.run_function import RankError, run
from perseus_like.runner.arguments import options_of


def _run(args: Any) -> list[Any] | None:
    """Runs the job that an object of _HorovodArgs describes.

    Returns the results of `args.run_func` by rank, or None for `args.command`. Raises RankError if the job fails.
    """
    options = options_of(args)
    if args.run_func is not None:
        return run(args.run_func, options=options, num_proc=args.num_proc or 1, executable=args.executable)
    if not args.command and not args.check_build:
        raise ValueError("neither args.command nor args.run_func is set; set one of them")
    command = [sys.executable, "-m", "perseus_like.launch", *options, *(args.command or ())]
    code = subprocess.run(command, check=False).returncode
    if code:
        raise RankError(None, f"perseusrun ended with exit code {code}; its output says which rank failed")
    return None


__all__ = [
    "ccl_built",
    "ddl_built",
    "extension_available",
    "gloo_built",
    "mpi_built",
    "nccl_built",
    "run_commandline",
]

if __name__ == "__main__":
    sys.exit(run_commandline())
