"""horovod.runner.launch: the command line is that of perseusrun. `python -m horovod.runner.launch` runs it, too."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from typing import Any

# With `-m` the module's package is horovod.runner, in which relative names would not be found.
from perseus_like.common.util import ccl_built, ddl_built, extension_available, gloo_built, mpi_built, nccl_built
from perseus_like.launch import main
from perseus_like.launch.command_line import parse_options
from perseus_like.launch.elastic import environment_has_timeout
from perseus_like.launch.processes.child_launcher import run_launcher
from perseus_like.launch.run_function import RankError, run
from perseus_like.launch.start_errors import LaunchError
from perseus_like.names import HOROVOD_VERSION
from perseus_like.runner.elastic import driver
from perseus_like.runner.launcher_options import _HorovodArgs, options_of, parse_words

_BUILD = """\
Horovod v{version}:

Available Frameworks:
    [{tensorflow}] TensorFlow
    [{torch}] PyTorch
    [{mxnet}] MXNet

Available Controllers:
    [{mpi}] MPI
    [{gloo}] Gloo

Available Tensor Operations:
    [{nccl}] NCCL
    [{ddl}] DDL
    [{ccl}] CCL
    [{mpi}] MPI
    [{gloo}] Gloo"""


def run_commandline(argv: Sequence[str] | None = None) -> int:
    """Runs perseusrun. `--version` and `--check-build` print what Horovod prints, since scripts read it."""
    try:
        options = parse_options(sys.argv[1:] if argv is None else argv)
    except LaunchError:
        return main(argv)  # it reports the error
    if options.version:
        print(HOROVOD_VERSION)
    elif options.check_build:
        print(_build())
    else:
        return main(argv)
    return 0


def _build() -> str:
    """Returns the table of `horovodrun --check-build`."""
    found: dict[str, object] = {
        name: importlib.util.find_spec(name) is not None for name in ("tensorflow", "torch", "mxnet")
    }
    found |= {"mpi": mpi_built(), "gloo": gloo_built(), "nccl": nccl_built(), "ddl": ddl_built(), "ccl": ccl_built()}
    marks = {name: "X" if is_there else " " for name, is_there in found.items()}
    return _BUILD.format(version=HOROVOD_VERSION, **marks)


def parse_args() -> _HorovodArgs:
    """Returns the options and the command of `sys.argv` as attributes. Ends the program if they are invalid."""
    try:
        return parse_words(sys.argv[1:])
    except LaunchError as error:
        print(f"perseusrun: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None


def _run(args: Any) -> list[Any] | None:
    """Runs the job that an object of _HorovodArgs describes.

    Returns the results of `args.run_func` by rank, or None for `args.command`. Raises RankError if the job fails.
    """
    return _run_with(args, options_of(args))


def _run_elastic(args: Any) -> list[Any] | None:
    """Runs the elastic job that `args` describes, as `_run` does.

    The times in horovod.runner.elastic.driver apply if neither `args` nor the environment has others.
    """
    defaults = [f"--discovery-interval={driver.DISCOVER_HOSTS_FREQUENCY_SECS}"]
    if not environment_has_timeout():
        defaults.append(f"--elastic-timeout={driver.ELASTIC_TIMEOUT_SECS}")
    if args.min_num_proc is None:
        defaults.append(f"--min-num-proc={args.num_proc or 1}")
    return _run_with(args, [*defaults, *options_of(args)])


def _run_with(args: Any, options: Sequence[str]) -> list[Any] | None:
    if args.run_func is not None:
        return run(args.run_func, options=options, num_proc=args.num_proc or 1, executable=args.executable)
    if not args.command and not args.check_build:
        raise ValueError("neither args.command nor args.run_func is set; set one of them")
    end = run_launcher([*options, *(args.command or ())])
    if end.code:
        raise RankError(end.rank, str(end))
    return None


__all__ = [
    "ccl_built",
    "ddl_built",
    "extension_available",
    "gloo_built",
    "mpi_built",
    "nccl_built",
    "parse_args",
    "run_commandline",
]

if __name__ == "__main__":
    sys.exit(run_commandline())
