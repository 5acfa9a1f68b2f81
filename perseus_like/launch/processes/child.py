"""A process that the launcher has started."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..start_errors import LaunchError, explain_start_failure
from . import die_with_parent
from .first_failure import RankEvidence


class Feed(Protocol):
    """Takes the bytes of a process's stdout or stderr."""

    def feed(self, data: bytes) -> None:
        """Takes the next bytes."""

    def finish(self) -> None:
        """Handles the end of the stream."""


@dataclass
class Child:
    """A process that the launcher has started, in a session and process group of its own.

    A process without a `stop_signal` serves the other processes. It gets none of the user's signals, and continues
    until the other processes have ended.
    """

    name: str
    process: subprocess.Popen[bytes]
    evidence: RankEvidence
    on_end: Callable[[Child], None] | None = None  # called at its end; without it, a failure ends the job
    stop_signal: signal.Signals | None = signal.SIGSTOP  # its process group gets it when the user stops the job
    status: int | None = None  # the wait status, once it has ended

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its session and of its process group."""
        return self.process.pid


def start_process(
    argv: Sequence[str],
    env: Mapping[str, str],
    stdin: int | None,
    death_signal: signal.Signals,
    pass_fds: Sequence[int],
    most_files: tuple[int, int],
) -> subprocess.Popen[bytes]:
    """Starts a process with pipes for its output. It gets `death_signal` when this process ends. Raises LaunchError.

    `most_files` is its soft and its hard limit of open descriptors.
    """
    launcher = os.getpid()

    def prepare() -> None:
        die_with_parent(launcher, death_signal)
        resource.setrlimit(resource.RLIMIT_NOFILE, most_files)

    try:
        return subprocess.Popen(
            argv,
            env=env,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=pass_fds,
            # preexec_fn is safe, since the launcher has one thread.
            preexec_fn=prepare,
        )
    except OSError as problem:
        raise LaunchError(*explain_start_failure(argv[0], problem)) from None
