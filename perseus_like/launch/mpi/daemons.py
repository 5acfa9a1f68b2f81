"""Ends MPI's daemons of this host that their mpirun has not ended: it may be out of reach, or wait for a host that is.

Started by its path, with nothing but the standard library: `python -IS daemons.py SECONDS PID`. It outlives whoever has
started it, and waits so long for PID and the daemons that have started it to end by themselves.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from pathlib import Path

_TERMINATE_SECONDS = 1.0
# As /proc/PID/comm has them: at most 15 letters.
_NAMES = {"hydra_pmi_proxy", "hydra_bstrap_pr", "prted", "orted", "mpirun", "mpiexec", "mpiexec.hydra", "prterun"}


def main(seconds: float, pid: int) -> None:
    """Waits; then ends what is left."""
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
