"""Checks that values of `-x NAME=VALUE` reach the ranks and no other process."""

from __future__ import annotations

import secrets
import shutil
import sys
from collections.abc import Callable

import pytest

from .conftest import Perseusrun, Script

# Prints the command lines of this machine that contain the value of SECRET.
LOOK = """
    from pathlib import Path
    secret = os.environ["SECRET"].encode()
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
        except OSError:  # it has ended
            continue
        if secret in line:
            print("seen in", line)
    print("looked for", len(secret))
"""


@pytest.mark.parametrize(
    "given",
    [
        lambda value: ["-x", f"SECRET={value}"],
        lambda value: [f"-xSECRET={value}"],
        lambda value: ["-genv", "SECRET", value],
    ],
    ids=["-x", "joined", "-genv"],
)
@pytest.mark.parametrize("options", [[], ["--mpi"]], ids=["local", "mpirun"])
def test_values_are_not_in_the_process_list(
    perseusrun: Perseusrun, script: Script, given: Callable[[str], list[str]], options: list[str]
) -> None:
    if options and shutil.which("mpirun") is None:
        pytest.skip("no mpirun")
    value = secrets.token_hex(16)
    program = script(LOOK)
    if options:  # the programs read PERSEUS_RANK and PERSEUS_SIZE, which only ranks without mpirun have
        options = [*options, "-x", "PERSEUS_RANK=0", "-x", "PERSEUS_SIZE=1"]
    result = perseusrun("-np", "1", *options, *given(value), "--verbose", sys.executable, program)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "[0]<stdout>:looked for 32\n"
    assert value not in result.stderr


def test_dry_runs_mask_values(perseusrun: Perseusrun) -> None:
    result = perseusrun("--dry-run", "-np", "1", "-x", "SECRET=hush", "-x", "PATH", "x")
    assert "'SECRET=***'" in result.stdout
    assert "hush" not in result.stdout


def test_the_error_about_an_invalid_name_does_not_contain_the_value(perseusrun: Perseusrun) -> None:
    result = perseusrun("-np", "1", "-x", "a-b=hush", "x")
    assert result.returncode == 2
    assert "'a-b' is not the name of an environment variable" in result.stderr
    assert "hush" not in result.stderr


def test_arguments_of_the_command_are_not_masked(perseusrun: Perseusrun, script: Script) -> None:
    program = script("print(sys.argv[1:], open(f'/proc/{os.getppid()}/cmdline').read().split(chr(0))[-5:-1])")
    result = perseusrun("-np", "1", "-x", "A=hush", sys.executable, program, "-x", "A=hush", "b")
    assert result.stdout == f"[0]<stdout>:['-x', 'A=hush', 'b'] {[program, '-x', 'A=hush', 'b']}\n"
