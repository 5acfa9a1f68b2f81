"""Fixtures that start `perseusrun` with small scripts as ranks. These tests do not need the compiled core."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.job import LIMIT_SECONDS

Script = Callable[[str], str]
Perseusrun = Callable[..., "subprocess.CompletedProcess[str]"]
Launched = Callable[..., "subprocess.Popen[str]"]
LinesOf = Callable[["subprocess.Popen[str]", int], list[str]]
Ends = Callable[[int], bool]

LAUNCHER = [sys.executable, "-m", "perseus_like.launch"]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Returns a function that writes a program for the ranks and returns its path.

    `rank` and `size` are defined there.
    """
    count = 0

    def write(text: str) -> str:
        nonlocal count
        count += 1
        path = tmp_path / f"program{count}.py"
        head = (
            "import os, sys, signal, time, subprocess\n"
            "rank, size = int(os.environ['PERSEUS_RANK']), int(os.environ['PERSEUS_SIZE'])\n"
        )
        path.write_text(head + textwrap.dedent(text))
        return str(path)

    return write


@pytest.fixture
def perseusrun(tmp_path: Path) -> Perseusrun:
    """Returns a function that runs `perseusrun`, or another `launcher`, with these arguments to its end."""

    def run(*args: str, launcher: Sequence[str] = LAUNCHER, **more: Any) -> subprocess.CompletedProcess[str]:
        more.setdefault("stdin", None if "input" in more else subprocess.DEVNULL)
        if more["stdin"] is None:
            del more["stdin"]
        return subprocess.run(
            [*launcher, *args],
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            cwd=tmp_path,
            check=False,
            **more,
        )

    return run


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Launched]:
    """Returns a function that starts `perseusrun` and leaves it running. The end of the test kills it."""
    started: list[subprocess.Popen[str]] = []

    def start(*args: str, **more: Any) -> subprocess.Popen[str]:
        settings: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "cwd": tmp_path,
            "text": True,
        }
        process = subprocess.Popen([*LAUNCHER, *args], **{**settings, **more})
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=LIMIT_SECONDS)


@pytest.fixture
def lines_of() -> LinesOf:
    """Returns a function that reads a number of lines of a launcher's stdout."""

    def read(process: subprocess.Popen[str], count: int) -> list[str]:
        assert process.stdout is not None
        return [process.stdout.readline().rstrip("\n") for _ in range(count)]

    return read


@pytest.fixture
def ends() -> Ends:
    """Returns a function that waits for any process to end. The function returns False if the process does not end."""

    def wait(pid: int) -> bool:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return True
        try:
            ready, _, _ = select.select([descriptor], [], [], LIMIT_SECONDS)
        finally:
            os.close(descriptor)
        return bool(ready)

    return wait
