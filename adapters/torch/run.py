"""`python -m perseus_like.torch.run script.py …`: a program of torch.distributed as it is, over the backend perseus.

The world is started before the program; Hugging Face's Trainer and accelerate, and DeepSpeed, keep one that is there,
whatever backend they would have chosen. Under mpirun, perseusrun and torchrun; without a launcher the program runs as
it would without this.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

import torch.distributed as dist

from perseus_like.session import session

from .accelerate_check import check_accelerate
from .distributed.autoload import as_gloo
from .distributed.env import export_world

USAGE = "usage: python -m perseus_like.torch.run script.py [arguments] | -m module [arguments]"


def main(arguments: Sequence[str]) -> int:
    """Runs the program in this process. Returns 2 for wrong usage."""
    as_module = arguments[:1] == ["-m"]
    program = list(arguments[1 if as_module else 0 :])
    if not program or (program[0].startswith("-") and not as_module):
        print(USAGE, file=sys.stderr)
        return 2
    if not dist.is_initialized() and (session.core.launched(sys.prefix) is not None or dist.is_torchelastic_launched()):
        dist.init_process_group("gloo" if as_gloo.is_on(dist) else "perseus")
        export_world()
        check_accelerate()
    sys.argv[:] = program
    try:
        if as_module:
            sys.path[0] = str(Path.cwd())
            runpy.run_module(program[0], run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(program[0]).resolve().parent)
            runpy.run_path(program[0], run_name="__main__")
    finally:
        # After an error, the other ranks must learn that this rank has failed, not that it has left.
        if dist.is_initialized() and sys.exc_info()[0] in (None, SystemExit):
            dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
