"""Keeps the values of `-x NAME=VALUE` out of what others can read: printed lines and the process list."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Container, Mapping, Sequence
from pathlib import Path

from ..command_line import make_parser
from ..program import split_command, split_variables

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


def without_values(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Replaces `-x NAME=VALUE` and `-genv NAME VALUE` by `-x NAME` in a command line of perseusrun.

    Also returns the variables with these values, for the environment of perseusrun.
    """
    own = len(argv) - len(split_command(make_parser(), argv)[1])
    words: list[str] = []
    values: dict[str, str] = {}
    index = 0
    while index < own:
        word, following = argv[index], argv[index + 1 : index + 3]
        if word == "-genv" and len(following) == 2:
            words += ["-x", following[0]]
            values[following[0]] = following[1]
            index += 3
        elif word.startswith("-x") and (word != "-x" or following):
            name, equals, value = (following[0] if word == "-x" else word[2:]).partition("=")
            words += ["-x", name]
            values |= {name: value} if equals else {}
            index += 2 if word == "-x" else 1
        else:
            words.append(word)
            index += 1
    return [*words, *argv[own:]], values


def hide_values(argv: Sequence[str]) -> None:
    """Overwrites values in the process list, where all users of this host can read them.

    These are the values of `-x`, of `-genv`, and of variables before the command. This process's command line ends with
    `argv`.
    """
    command = split_command(make_parser(), argv)[1]
    own = len(argv) - len(command)
    with contextlib.suppress(OSError, ValueError):
        # The start and end of the command line that the kernel shows for this process.
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        start, end = int(fields[45]), int(fields[46])
        with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
            memory.seek(start)
            words = memory.read(end - start).split(b"\0")
            first = len(words) - 1 - len(argv)  # each word ends with a zero byte
            if words[first:-1] != [os.fsencode(word) for word in argv]:
                return
            for index, value in _secret_values(argv[:own], split_variables(command)[0]):
                word = words[first + index]
                words[first + index] = word[: len(word) - len(value)] + b"*" * len(value)
            memory.seek(start)
            memory.write(b"\0".join(words))


def _secret_values(own: Sequence[str], variables: Sequence[str]) -> list[tuple[int, bytes]]:
    """Returns the index of each word that ends with a value, and the value. `variables` follow the words of `own`."""
    found: list[tuple[int, str]] = []
    for index, word in enumerate(own):
        before, earlier = own[index - 1] if index else "", own[index - 2] if index > 1 else ""
        if before == "-x" or (word.startswith("-x") and "=" in word):
            found.append((index, word.partition("=")[2]))
        elif earlier == "-genv":
            found.append((index, word))
    found += [(index, word.partition("=")[2]) for index, word in enumerate(variables, len(own))]
    return [(index, os.fsencode(value)) for index, value in found if value]
