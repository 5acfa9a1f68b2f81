"""Runs one rank of a job that mpirun has started, and tells perseusrun how it ended.

Started by its path, with nothing but the standard library: `python -IS rank_main.py TAG '["python", "train.py"]'`.
What it adds to a bare mpirun: arguments arrive exactly as given (Open MPI 5 rewrites some that look like its own,
and all read `:` as a separator), only rank 0 has an input, the exit code of the rank that failed first is known
(mpirun often reports that of one it has killed), and what a rank has started is ended with it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from types import FrameType

_PR_SET_PDEATHSIG = 1
# The other ranks get this long to say what they make of it, before mpirun ends them.
_FAILURE_GRACE_SECONDS = 0.8
_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main(tag: str, encoded: str) -> int:
    """Runs the command; returns its exit code, 128 + signal for one that was killed."""
    libc = ctypes.CDLL(None)
    parent = os.getpid()

    def die_with_parent() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        # Descriptors stay open: the process manager's connection may be one of them.
        process = subprocess.Popen(json.loads(encoded), stdin=_stdin(), close_fds=False, preexec_fn=die_with_parent)
    except OSError as error:
        _tell(tag, f"could not be started: {error}", 127)
        return 127
    was_told_to_stop = threading.Event()

    def pass_on(signum: int, frame: FrameType | None) -> None:
        if signum in {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}:
            was_told_to_stop.set()
        process.send_signal(signum)

    for signum in _PASSED_ON:
        signal.signal(signum, pass_on)
    code = process.wait()
    if code != 0 and not was_told_to_stop.is_set():
        _tell(tag, _describe(code), code if code > 0 else 128 - code)
        was_told_to_stop.wait(_FAILURE_GRACE_SECONDS)
    return code if code >= 0 else 128 - code


def _stdin() -> int | None:
    """Rank 0 reads what mpirun hands on; the others nothing. (MPICH leaves them an input that never ends.)"""
    rank = next((os.environ[name] for name in _RANK_VARIABLES if name in os.environ), "0")
    return None if rank == "0" else subprocess.DEVNULL


def _tell(tag: str, text: str, code: int) -> None:
    os.write(2, f"<{tag} ended {code}>{os.uname().nodename} {text}\n".encode())


def _describe(code: int) -> str:
    if code > 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (the kernel does that when memory runs out)" if -code == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
