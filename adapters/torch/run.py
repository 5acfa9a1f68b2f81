"""`python -m perseus_like.torch.run script.py …`: a program of torch.distributed as it is, over the backend perseus.

The world is started before the program; Hugging Face's Trainer and accelerate, and DeepSpeed, keep one that is there,
whatever backend they would have chosen. Under mpirun, perseusrun and torchrun; without a launcher the program runs as
it would without this.
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

import torch.distributed as dist
from perseus_like_autoload import as_gloo

from perseus_like.launchers import is_launched

from .accelerate_check import check_accelerate
from .distributed.job_variables import export_world, notes_on_pinning
from .old_arguments import trainer_arguments, translated, uses_trainer

USAGE = "usage: python -m perseus_like.torch.run script.py [arguments] | -m module [arguments]"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program in this process. Returns 2 for wrong usage."""
    arguments = sys.argv[1:] if arguments is None else arguments
    as_module = arguments[:1] == ["-m"]
    program = list(arguments[1 if as_module else 0 :])
    if not program or (program[0].startswith("-") and not as_module):
        print(USAGE, file=sys.stderr)
        return 2
    if not dist.is_initialized() and (is_launched() or dist.is_torchelastic_launched()):
        dist.init_process_group("gloo" if as_gloo.is_on(dist) else "perseus")
        export_world()
        check_accelerate()
    sys.argv[:] = [program[0], *_for_todays_trainer(program, as_module)]
    try:
        if as_module:
            _put_first(Path.cwd())
            runpy.run_module(program[0], run_name="__main__", alter_sys=True)
        else:
            _put_first(Path(program[0]).resolve().parent)
            runpy.run_path(program[0], run_name="__main__")
    finally:
        # After an error, the other ranks must learn that this rank has failed, not that it has left.
        if dist.is_initialized() and sys.exc_info()[0] in (None, SystemExit):
            dist.destroy_process_group()
    return 0


def _put_first(folder: Path) -> None:
    """Puts `folder` first on `sys.path`, as Python does for a program of its command line."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, str(folder))


def _for_todays_trainer(program: Sequence[str], as_module: bool) -> list[str]:
    """Returns the program's arguments. Notes say which ones changed, and which variables have no effect."""
    arguments = list(program[1:])
    script = _source_of(program[0], as_module)
    if script is None or not uses_trainer(script):
        return arguments
    notes = notes_on_pinning()
    trainer = trainer_arguments()
    if trainer is not None:
        arguments, changes = translated(arguments, script, trainer)
        notes += changes
    if not dist.is_initialized() or dist.get_rank() == 0:
        for note in notes:
            print(f"perseus_like.torch.run: {note}", file=sys.stderr, flush=True)
    return arguments


def _source_of(program: str, as_module: bool) -> str | None:
    """Returns the program's text. None if there is no such file, which `runpy` reports."""
    if as_module:
        spec = importlib.util.find_spec(program.partition(".")[0]) and importlib.util.find_spec(program)
        file = Path(spec.origin) if spec is not None and spec.origin is not None else Path(program)
    else:
        file = Path(program)
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else None


if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # the working directory
    sys.exit(main())
