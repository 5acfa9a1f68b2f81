"""Programs that use Hugging Face's Trainer or accelerate, which accept a fixed list of torch.distributed backends.

They keep a process group that exists already, so perseusrun runs `perseus_like.torch.run`, which starts it before the
program.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path

from .program import module_command

RUNNER = tuple(module_command("perseus_like.torch.run")[1:])
_BY_USER = ("-m", RUNNER[1])
_PYTHON = re.compile(r"python[0-9.]*")
_FLAGS = re.compile(r"-[uOBEsSvq]+")
# A program that imports one of these starts its own process group, or none.
_OTHERS = {"perseus_like", "perseus", "horovod", "deepspeed", "lightning", "pytorch_lightning", "ray"}


def with_runner(command: Sequence[str], always: bool = False) -> list[str] | None:
    """Returns the command with `perseus_like.torch.run` inserted. None if it is no Python script of this kind.

    If `always` is true, it does so for any Python script or `-m module`.
    """
    if not command or not _PYTHON.fullmatch(Path(command[0]).name):
        return None
    index = 1
    while index < len(command) and _FLAGS.fullmatch(command[index]):
        index += 1
    program = command[index : index + 1]
    if not program or tuple(command[index : index + 2]) in (RUNNER, _BY_USER):
        return None
    if always and (program[0] == "-m" or not program[0].startswith("-")):
        return [*command[:index], *RUNNER, *command[index:]]
    return [*command[:index], *RUNNER, *command[index:]] if _needs_process_group(Path(program[0])) else None


def _needs_process_group(script: Path) -> bool:
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
