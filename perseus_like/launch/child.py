"""A process that the launcher has started."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from .errors import LaunchError
from .processes import die_with_parent
from .unstarted import why_unstarted


class Feed(Protocol):
    """Takes the bytes of a process's stdout or stderr."""

    def feed(self, data: bytes) -> None:
        """The next bytes."""

    def finish(self) -> None:
        """The stream has ended."""


@dataclass
class Child:
    """A process that the launcher has started, in a session and process group of its own."""

    name: str
    process: subprocess.Popen[bytes]
    blames_another: Callable[[], bool]
    on_end: Callable[[Child], None] | None = None  # in place of ending the job when it fails
    stop_signal: signal.Signals | None = signal.SIGSTOP  # for its group when the user stops the job; None: it goes on
    status: int | None = None  # the wait status, once it has ended

    @property
    def pid(self) -> int:
        """Also the number of its session and of its process group."""
        return self.process.pid


def start_process(
    argv: Sequence[str], env: Mapping[str, str], stdin: int | None, last_word: signal.Signals, pass_fds: Sequence[int]
) -> subprocess.Popen[bytes]:
    """Starts it, with pipes for its output; it gets `last_word` when this process ends. Raises LaunchError."""
    launcher = os.getpid()
    try:
        return subprocess.Popen(
            argv,
            env=env,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=pass_fds,
            # Safe here: the launcher has one thread.
            preexec_fn=lambda: die_with_parent(launcher, last_word),
        )
    except OSError as problem:
        raise LaunchError(*why_unstarted(argv[0], problem)) from None
