"""Runs a perseusrun as a child process, for functions that start a job and wait for its end."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..protocol.failure_record import VARIABLE, RecordFile
from .program import module_command

_NAME = "perseusrun"


@dataclass(frozen=True)
class JobEnd:
    """The end of a job. `reason` says why the launcher has ended an elastic job; it is empty for other jobs."""

    code: int
    reason: str

    def __str__(self) -> str:
        reason = f": {self.reason}" if self.reason else ""
        return f"perseusrun ended with exit code {self.code}{reason}; its output says which rank failed"


def run_launcher(words: Sequence[str], env: Mapping[str, str] | None = None) -> JobEnd:
    """Runs perseusrun with the command line `words` to its end. `env` is by default that of this process."""
    records = RecordFile()
    try:
        inner = {**(os.environ if env is None else env), VARIABLE: records.variable_for(_NAME)}
        command = [*module_command("perseus_like.launch"), *words]
        done = subprocess.run(command, env=inner, pass_fds=[records.fileno()], check=False)
        record = records.read(_NAME)
    finally:
        records.close()
    return JobEnd(done.returncode, record.error if record else "")


__all__ = ["JobEnd", "run_launcher"]
