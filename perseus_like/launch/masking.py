"""Keeps the values of `-x NAME=VALUE` out of what others can read: printed lines and the process list."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Container, Mapping, Sequence
from pathlib import Path

from .options import make_parser
from .program import split_command

MASK = "***"


def shell_line(
    environment: Mapping[str, str], outer: Mapping[str, str], masked: Container[str], argv: Sequence[str]
) -> str:
    """Returns the shell line that runs `argv` with the variables in which `environment` differs from `outer`.

    The values of the variables in `masked` are replaced by `***`.
    """
    changed = [
        f"{name}={MASK if name in masked else value}"
        for name, value in sorted(environment.items())
        if outer.get(name) != value
    ]
    return shlex.join([*(["env", *changed] if changed else []), *argv])


def hide_values(argv: Sequence[str]) -> None:
    """Overwrites the values of `-x` and `-genv` in the process list, where all users of this host can read them.

    This process's command line ends with `argv`.
    """
    own = len(argv) - len(split_command(make_parser(), argv)[1])
    with contextlib.suppress(OSError, ValueError):
        start, end = _command_line_addresses()
        with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
            memory.seek(start)
            words = memory.read(end - start).split(b"\0")
            first = len(words) - 1 - len(argv)  # each word ends with a zero byte
            if words[first:-1] != [os.fsencode(word) for word in argv]:
                return
            for index, value in _secret_values(argv[:own]):
                word = words[first + index]
                words[first + index] = word[: len(word) - len(value)] + b"*" * len(value)
            memory.seek(start)
            memory.write(b"\0".join(words))


def _command_line_addresses() -> tuple[int, int]:
    """Returns the start and end in memory of the command line that the kernel shows for this process."""
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    return int(fields[45]), int(fields[46])


def _secret_values(own: Sequence[str]) -> list[tuple[int, bytes]]:
    """Returns the index of each word that ends with a value, and the value."""
    found: list[tuple[int, str]] = []
    for index, word in enumerate(own):
        before, earlier = own[index - 1] if index else "", own[index - 2] if index > 1 else ""
        if before == "-x" or (word.startswith("-x") and "=" in word):
            found.append((index, word.partition("=")[2]))
        elif earlier == "-genv":
            found.append((index, word))
    return [(index, os.fsencode(value)) for index, value in found if value]
