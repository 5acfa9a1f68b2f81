"""Fixtures that start worlds whose ranks report facts. They check that a world leaves no process, socket or file."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

TIMEOUT_SECONDS = 120
HERE = Path(__file__).parent
HEAD = """
import os, resource, signal, sys, time
import numpy as np
import perseus_like.numpy as hvd
from on_rank import *
"""

Facts = dict[str, Any]


@dataclass
class World:
    """A job that runs or has ended."""

    process: subprocess.Popen[str]
    folder: Path
    size: int
    output: str = ""
    lines_read: list[str] = field(default_factory=list)  # the lines of stderr that `wait_for_line` has read
    unfinished: bytes = b""  # the bytes of stderr that were read after the last of these lines

    @property
    def code(self) -> int:
        return int(self.process.returncode)

    def reports_of(self, rank: int) -> Facts:
        """Returns all facts that a rank has reported so far."""
        facts: Facts = {}
        try:
            lines = (self.folder / f"report.{rank}").read_text().splitlines()
        except FileNotFoundError:
            return facts
        for line in lines:
            facts.update(json.loads(line))
        return facts

    def all_reports(self) -> list[Facts]:
        return [self.reports_of(rank) for rank in range(self.size)]

    def wait_for_line(self, text: str) -> str:
        """Reads stderr until a line contains this text, and returns the line."""
        assert self.process.stderr is not None
        while True:
            while b"\n" in self.unfinished:
                line, _, self.unfinished = self.unfinished.partition(b"\n")
                self.lines_read.append(line.decode() + "\n")
                if text in self.lines_read[-1]:
                    return self.lines_read[-1]
            ready, _, _ = select.select([self.process.stderr], [], [], TIMEOUT_SECONDS)
            assert ready, f"no line with {text!r} came; before it: {self.lines_read}"
            # `readline` would read ahead into a buffer of which `select` and `communicate` do not know.
            data = os.read(self.process.stderr.fileno(), 1 << 16)
            assert data, f"the job ended without a line with {text!r}: {self.lines_read}"
            self.unfinished += data

    def go_on(self) -> None:
        """Blocks until a rank waits for the test, and makes this rank continue."""
        (self.folder / "gate").write_text("go on")

    def end(self) -> World:
        """Waits for the end of the job, and checks that the job has left nothing."""
        stdout, stderr = self.process.communicate(timeout=TIMEOUT_SECONDS)
        self.output = stdout + "".join(self.lines_read) + self.unfinished.decode() + stderr
        self._check_that_nothing_is_left()
        return self

    def _check_that_nothing_is_left(self) -> None:
        open_now = Path("/proc/net/unix").read_text()
        for facts in self.all_reports():
            if "pid" not in facts:
                continue
            assert not Path(f"/proc/{facts['pid']}").exists(), self.output
            assert not [name for name in facts["sockets"] if name in open_now], self.output
            assert not facts["shared_files"], self.output
            assert not [entry.name for entry in Path("/dev/shm").iterdir() if facts["job"] in entry.name]


Start = Callable[..., World]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Returns a function that starts ranks with a program that imports `on_rank`.

    Ranks that still run at the end of the test are killed.
    """
    worlds: list[World] = []

    def begin(
        size: int,
        program: str,
        launched: bool = True,
        wrapper: Sequence[str] = (),
        launcher: Sequence[str] = (sys.executable, "-m", "perseus_like.launch"),
        python: str | Path = sys.executable,
        **settings: str,
    ) -> World:
        folder = tmp_path / f"world{len(worlds)}"
        folder.mkdir()
        shutil.copy(HERE / "on_rank.py", folder)
        (folder / "program.py").write_text(HEAD + textwrap.dedent(program))
        os.mkfifo(folder / "gate")
        command = [str(python), str(folder / "program.py")]
        if launched:
            command = [*launcher, "-np", str(size), *command]
        if wrapper:  # the wrapper itself needs the PATH of the tests, so `env` sets the variables after it
            command = [*wrapper, "env", *(f"{name}={value}" for name, value in settings.items()), *command]
            settings = {}
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={
                **os.environ,
                "ON_RANK_FOLDER": str(folder),
                "ON_RANK_GATE": str(folder / "gate"),
                "OMP_NUM_THREADS": "1",
                **settings,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        worlds.append(World(process, folder, size))
        return worlds[-1]

    yield begin
    for world in worlds:
        if world.process.poll() is None:
            world.process.kill()
            world.process.communicate(timeout=TIMEOUT_SECONDS)


@pytest.fixture
def run(start: Start) -> Start:
    """Returns a function that starts a world and waits for its end."""

    def to_the_end(size: int, program: str, launched: bool = True, **settings: Any) -> World:
        return start(size, program, launched, **settings).end()

    return to_the_end
