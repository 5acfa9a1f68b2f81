"""The command `rapidformer`, which is also `python -m rapidformer`."""

from __future__ import annotations

import os
import runpy
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from . import launch
from .checks import check
from .options import InputError, parse, parse_known


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs `rapidformer ARGUMENTS`. Returns 2 for wrong input, after one line that says what is wrong."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if arguments[:1] == ["bench"]:
            from . import bench

            return bench.run(arguments[1:])
        return _train(arguments)
    except InputError as error:
        if os.environ.get("RANK", "0") == "0" and _rank() <= 0:
            print(f"rapidformer: {error}", file=sys.stderr, flush=True)
        return 2


def _train(arguments: list[str]) -> int:
    args, others = parse_known(arguments)
    if others and args.user_script is None:
        parse(arguments)  # its error names the unknown options
    size = launch.launched()
    check(args, launch.job_size(os.environ) if size is None else size)
    if size is None:
        launch.start(arguments)
    from . import world

    try:
        if args.user_script is not None:
            run_script(args, arguments)
        else:
            from .tasks import run_task

            run_task(arguments)
    finally:
        # After other exceptions, the other processes must learn that this one failed.
        if sys.exc_info()[0] in (None, SystemExit, InputError):
            world.stop()
    return 0


def run_script(args: Namespace, arguments: Sequence[str]) -> None:
    """Runs the user's script, in this process, with the same options."""
    from . import mpu

    mpu.install_as_megatron()
    script = str(args.user_script)
    sys.argv[:] = [script, *arguments]
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, str(Path(script).resolve().parent))
    runpy.run_path(script, run_name="__main__")


def _rank() -> int:
    from perseus_like import launchers

    launcher = launchers.own()
    return 0 if launcher is None else launcher.rank


if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # the working directory
    sys.exit(main())
