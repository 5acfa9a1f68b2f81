"""Starts worlds whose ranks report what they saw, and checks whether anything is left of them."""

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
    """A job under way, or its end."""

    process: subprocess.Popen[str]
    folder: Path
    size: int
    output: str = ""
    heard: list[str] = field(default_factory=list)  # lines of stderr that were waited for
    begun: bytes = b""  # what was read of stderr behind them

    @property
    def code(self) -> int:
        return int(self.process.returncode)

    def reports_of(self, rank: int) -> Facts:
        """All facts of a rank so far."""
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
        """The next line on stderr with this text."""
        assert self.process.stderr is not None
        while True:
            while b"\n" in self.begun:
                line, _, self.begun = self.begun.partition(b"\n")
                self.heard.append(line.decode() + "\n")
                if text in self.heard[-1]:
                    return self.heard[-1]
            ready, _, _ = select.select([self.process.stderr], [], [], TIMEOUT_SECONDS)
            assert ready, f"no line with {text!r} came; before it: {self.heard}"
            # Not by `readline`, which reads ahead, where neither `select` nor `communicate` look.
            data = os.read(self.process.stderr.fileno(), 1 << 16)
            assert data, f"the job ended without a line with {text!r}: {self.heard}"
            self.begun += data

    def go_on(self) -> None:
        """Releases the rank that waits for the test; blocks until it waits."""
        (self.folder / "gate").write_text("go on")

    def end(self) -> World:
        """Waits for the end, and looks for leftovers."""
        stdout, stderr = self.process.communicate(timeout=TIMEOUT_SECONDS)
        self.output = stdout + "".join(self.heard) + self.begun.decode() + stderr
        self._nothing_is_left()
        return self

    def _nothing_is_left(self) -> None:
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
    """Starts ranks that run a program in which `on_rank` is imported; killed at the end of the test if still there."""
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
        if wrapper:  # it finds its own programs by the PATH of the tests
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
    """Starts a world and waits for its end."""

    def to_the_end(size: int, program: str, launched: bool = True, **settings: Any) -> World:
        return start(size, program, launched, **settings).end()

    return to_the_end
