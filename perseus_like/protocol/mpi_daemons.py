"""Ends MPI's daemons on this host if their mpirun does not: it may be out of reach, or wait for a host that is.

`end_daemons_later` starts this file by its path, with nothing but the standard library:
`python -IS mpi_daemons.py SECONDS PID`. The program outlives the process that started it. It waits for at most SECONDS
until PID and the daemons that are its ancestors have ended by themselves, and then ends them.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

# If mpirun can still reach its daemons, it ends a job and the daemons well within this time.
_PATIENCE_SECONDS = 10.0
_TERMINATE_SECONDS = 1.0
# The names of daemons in /proc/PID/comm, which holds at most 15 characters.
_NAMES = {"hydra_pmi_proxy", "hydra_bstrap_pr", "prted", "orted", "mpirun", "mpiexec", "mpiexec.hydra", "prterun"}


def end_daemons_later(seconds: float = _PATIENCE_SECONDS) -> None:
    """Starts a process that ends the MPI daemons among this process's ancestors, if there are any.

    The process is not waited for.
    """
    line = [sys.executable, "-IS", str(Path(__file__).absolute()), str(seconds), str(os.getppid())]
    null = subprocess.DEVNULL  # a reader of this process's output waits until all copies of the descriptor are closed
    subprocess.Popen(line, stdin=null, stdout=null, stderr=null, start_new_session=True)


def main(seconds: float, pid: int) -> None:
    """Waits for at most `seconds`, then sends SIGTERM and SIGKILL to the daemons that are left."""
    daemons = _open(pid)
    for signum, patience in ((0, seconds), (signal.SIGTERM, _TERMINATE_SECONDS), (signal.SIGKILL, 0.0)):
        for daemon in daemons:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(daemon, signum)
        deadline = time.monotonic() + patience
        daemons = [daemon for daemon in daemons if not _ends(daemon, deadline)]


def _is_daemon(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() in _NAMES
    except OSError:
        return False


def _open(pid: int) -> list[int]:
    daemons: list[int] = []
    with contextlib.suppress(OSError):
        while _is_daemon(pid):
            daemons.append(os.pidfd_open(pid))
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return daemons


def _ends(daemon: int, deadline: float) -> bool:
    waiting = select.poll()
    waiting.register(daemon, select.POLLIN)
    return bool(waiting.poll(max(0.0, deadline - time.monotonic()) * 1000))


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
