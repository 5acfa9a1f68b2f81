"""Programs of Hugging Face's Trainer and accelerate, which choose a backend of torch.distributed among names they know.

They keep a world that is there, so perseusrun has it started before the program, by `perseus_like.torch.run`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path

RUNNER = ("-m", "perseus_like.torch.run")
_PYTHON = re.compile(r"python[0-9.]*")
_FLAGS = re.compile(r"-[uOBEsSvq]+")
# Who imports these starts its own world, or none.
_OTHERS = {"perseus_like", "perseus", "horovod", "deepspeed", "lightning", "pytorch_lightning", "ray"}


def with_runner(command: Sequence[str], always: bool = False) -> list[str] | None:
    """The command as `perseus_like.torch.run` starts it; None where it is no Python script of this kind.

    `always`: also for a script, or a `-m module`, that does not look like one.
    """
    if not command or not _PYTHON.fullmatch(Path(command[0]).name):
        return None
    place = 1
    while place < len(command) and _FLAGS.fullmatch(command[place]):
        place += 1
    program = command[place : place + 1]
    if not program or tuple(command[place : place + 2]) == RUNNER:
        return None
    if always and (program[0] == "-m" or not program[0].startswith("-")):
        return [*command[:place], *RUNNER, *command[place:]]
    return [*command[:place], *RUNNER, *command[place:]] if _wants_a_world(Path(program[0])) else None


def _wants_a_world(script: Path) -> bool:
    try:
        tree = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    modules: set[str] = set()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module.partition(".")[0])
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
    if modules & _OTHERS or "init_process_group" in names:
        return False
    return "accelerate" in modules or ("transformers" in modules and any(name.endswith("Trainer") for name in names))
