"""The command on the launcher's command line: where it begins, `train.py` without `python`, `-m package.module`."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from . import start_module
from .start_errors import LaunchError

MODULE_FLAGS = ("-m", "--module")
_ATTACHED_NUMBER = re.compile(r"(-np|-n)([0-9]+)")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)


def module_command(name: str, python: str = sys.executable) -> list[str]:
    """Returns the command that calls `main()` of a module, without the working directory on `sys.path`."""
    return [python, str(Path(start_module.__file__).absolute()), name]


def split_command(parser: argparse.ArgumentParser, argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Splits `argv` before the first word that is neither an option of perseusrun nor its value. Drops a `--` there.

    Values are joined to their long option with `=`, so that a value may start with a dash. `-m MODULE` ends the
    options, too, and is the start of the command.
    """
    options = parser._option_string_actions
    own: list[str] = []
    index = 0
    while index < len(argv):
        word = argv[index]
        if word == "--":
            return own, list(argv[index + 1 :])
        if not word.startswith("-") or word == "-" or word in MODULE_FLAGS:
            return own, list(argv[index:])
        if number := _ATTACHED_NUMBER.fullmatch(word):
            own += number.groups()
            index += 1
            continue
        given = options[word].nargs if word in options else 0
        count = given if isinstance(given, int) else 1
        values = list(argv[index + 1 : index + 1 + count])
        own += [f"{word}={values[0]}"] if count == 1 and values and word.startswith("--") else [word, *values]
        index += 1 + count
    return own, []


def split_variables(command: list[str]) -> tuple[list[str], list[str]]:
    """Splits the words NAME=VALUE off the begin of a command, which a shell would set for its program."""
    count = next((at for at, word in enumerate(command) if not _VARIABLE.fullmatch(word)), len(command))
    return command[:count], command[count:]


def with_python(command: list[str]) -> list[str]:
    """Returns `command`, with this Python in front if it begins with `-m`, or with a script that the system cannot run.

    A script that is executable and has a `#!` line is started as it is, also if it is found in PATH. The system cannot
    run a script whose `#!` line ends with CR LF.
    """
    if command[0] in MODULE_FLAGS:
        if len(command) == 1:
            raise LaunchError(f"{command[0]}: which module? write {command[0]} package.module")
        return [sys.executable, "-m", *command[1:]]
    if not command[0].endswith(".py") or _runs_by_itself(command[0]):
        return command
    return [sys.executable, *command] if Path(command[0]).is_file() else command


def _runs_by_itself(script: str) -> bool:
    found = shutil.which(script)
    if found is None:
        return False
    try:
        with Path(found).open("rb") as file:
            first = file.readline(4096)
            return first.startswith(b"#!") and not first.endswith(b"\r\n")
    except OSError:
        return True
