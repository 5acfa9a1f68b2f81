"""Runs a perseusrun as a child process, for functions that start a job and wait for its end."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...protocol.failure_record import VARIABLE, RecordFile
from ..output.masking import without_values
from ..program import module_command
from .signals import INTERRUPTS

_NAME = "perseusrun"
_RANK = re.compile(r"rank ([0-9]+) ")


@dataclass(frozen=True)
class JobEnd:
    """The end of a job. `reasons` say why it has failed: what ended an elastic job, and the first failure."""

    code: int
    reasons: tuple[str, ...] = ()

    @property
    def rank(self) -> int | None:
        """The rank that failed first, if one did."""
        return next((int(match[1]) for match in map(_RANK.match, self.reasons) if match), None)

    def __str__(self) -> str:
        return ": ".join([f"perseusrun ended with exit code {self.code}", *self.reasons]) + "; see its output"


def run_launcher(words: Sequence[str], env: Mapping[str, str] | None = None) -> JobEnd:
    """Runs perseusrun with the command line `words` to its end. `env` is by default that of this process.

    If this process is interrupted, the ranks have the launcher's time to end, and KeyboardInterrupt is raised then.
    """
    words, values = without_values(words)
    records = RecordFile()
    pipe, pipe_end = os.pipe()
    status = os.fstat(pipe)
    try:
        inner = {
            **(os.environ if env is None else env),
            **values,
            VARIABLE: records.variable_for(_NAME),
            INTERRUPTS: f"{pipe} {status.st_dev}:{status.st_ino}",
        }
        command = [*module_command("perseus_like.launch"), *words]
        code = _run(command, inner, [records.fileno(), pipe], pipe_end)
        reasons = tuple(record.error for record in records.read_all(_NAME))
    finally:
        records.close()
        os.close(pipe)
        os.close(pipe_end)
    return JobEnd(code, reasons)


def _run(command: Sequence[str], env: Mapping[str, str], pass_fds: Sequence[int], pipe_end: int) -> int:
    interrupt: KeyboardInterrupt | None = None
    with subprocess.Popen(command, env=env, pass_fds=pass_fds) as process:
        while process.returncode is None:
            if new := _wait(process):
                interrupt = new
                os.write(pipe_end, b"i")
    if interrupt is not None:
        raise interrupt
    return process.returncode


def _wait(process: subprocess.Popen[bytes]) -> KeyboardInterrupt | None:
    """Waits for the end of perseusrun, or for an interrupt, which it returns."""
    try:
        process.wait()
    except KeyboardInterrupt as error:
        return error
    except BaseException:  # of a signal handler of the program
        with contextlib.suppress(KeyboardInterrupt):
            process.terminate()
        raise
    return None


__all__ = ["JobEnd", "run_launcher"]
