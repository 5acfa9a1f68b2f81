"""Runs one rank of a job that mpirun has started, and tells perseusrun how it ended.

Started by its path, with nothing but the standard library: `python -IS rank_main.py TAG '["python", "train.py"]'`.
What it adds to a bare mpirun: arguments arrive exactly as given (Open MPI 5 rewrites some that look like its own,
and all read `:` as a separator), only rank 0 has an input, the exit code of the rank that failed first is known
(mpirun often reports that of one it has killed), a rank that vanishes with its host is missed (Open MPI 5 then reports
success), what a rank has started is ended with it, and after a failure MPI's daemon does not stay on a host that is cut
off from mpirun.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType

LEASH = "PERSEUS_LEASH"  # how perseusrun is reached
GOODBYE = b"."
_PR_SET_PDEATHSIG = 1
_TERMINATE_SECONDS = 2.0
# The other ranks get this long to say what they make of it, before mpirun ends them.
_FAILURE_GRACE_SECONDS = 0.8
# mpirun ends a job, and its daemons, well within this time: if it can still reach them.
_DAEMON_SECONDS = 10.0
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

    _tell(tag, "began", "")
    leash = Leash(os.environ.pop(LEASH, ""))
    try:
        # Descriptors stay open: the process manager's connection may be one of them.
        process = subprocess.Popen(json.loads(encoded), stdin=_stdin(), close_fds=False, preexec_fn=die_with_parent)
    except OSError as error:
        _tell(tag, "ended 127", f"could not be started: {error}")
        return 127
    was_told_to_stop = threading.Event()

    def pass_on(signum: int, frame: FrameType | None) -> None:
        if signum in {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}:
            was_told_to_stop.set()
        process.send_signal(signum)

    for signum in _PASSED_ON:
        signal.signal(signum, pass_on)
    if not _wait(process, leash):
        _end(process)
        end_daemons_later(0.0)
        return 1
    code = process.returncode
    shown = code if code >= 0 else 128 - code
    if was_told_to_stop.is_set():
        _tell(tag, "stopped", "")
    else:
        _tell(tag, f"ended {shown}", _describe(code))
    if code != 0 and not was_told_to_stop.is_set():
        was_told_to_stop.wait(_FAILURE_GRACE_SECONDS)
        end_daemons_later()
    leash.say_goodbye()
    return shown


def _wait(process: subprocess.Popen[bytes], leash: Leash) -> bool:
    """Waits for the rank's end; False if perseusrun was lost before."""
    descriptor = os.pidfd_open(process.pid)
    while not leash.is_lost:
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN)
        for other, events in leash.entries():
            waiting.register(other, events)
        for ready, _ in waiting.poll():
            if ready == descriptor:
                process.wait()
                return True
            leash.go_on(ready)
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_TERMINATE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Leash:
    """The connection to perseusrun (`leash.py`), tried at all its addresses at once. Without one, nothing is lost."""

    def __init__(self, text: str) -> None:
        self.is_lost = False
        self._held: socket.socket | None = None
        self._trying: dict[int, socket.socket] = {}
        self._asking: dict[int, socket.socket] = {}
        if text:
            seconds, self._asked, self._answer, port, *addresses = text.split()
            self._timeout_seconds = int(seconds)
            for address in addresses:
                attempt = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
                attempt.setblocking(False)
                if attempt.connect_ex((address, int(port))) in {0, errno.EINPROGRESS}:
                    self._trying[attempt.fileno()] = attempt
                else:
                    attempt.close()

    def entries(self) -> list[tuple[int, int]]:
        """What to poll for."""
        if self._held:
            return [(self._held.fileno(), select.POLLIN)]
        return [(each, select.POLLOUT) for each in self._trying] + [(each, select.POLLIN) for each in self._asking]

    def go_on(self, descriptor: int) -> None:
        """This one of `entries` is ready."""
        if attempt := self._trying.pop(descriptor, None):
            if _says(attempt, f"{self._asked} {_rank()} {os.uname().nodename}\n".encode()):
                self._asking[descriptor] = attempt
        elif attempt := self._asking.pop(descriptor, None):
            if _hears(attempt) == self._answer.encode():
                set_heartbeat(attempt, self._timeout_seconds)
                self._held = attempt
        elif self._held:
            self.is_lost = not _hears(self._held)

    def say_goodbye(self) -> None:
        """The end that follows is in order."""
        for connection in (self._held, *self._asking.values()):
            if connection:
                _says(connection, GOODBYE)


def _says(connection: socket.socket, text: bytes) -> bool:
    try:
        return connection.send(text) == len(text)
    except OSError:
        return False


def _hears(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1024)
    except OSError:
        return b""


def set_heartbeat(connection: socket.socket, timeout_seconds: int) -> None:
    """The kernel asks the other side after a third of the time, and breaks the connection when nothing is answered."""
    interval = max(1, timeout_seconds // 10)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, timeout_seconds // 3))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, timeout_seconds - interval) * 1000)


def end_daemons_later(seconds: float = _DAEMON_SECONDS) -> None:
    """Leaves a process behind that ends the daemons of MPI above this process, if there are any (`daemons.py`)."""
    program = str(Path(__file__).with_name("daemons.py"))
    line = [sys.executable, "-IS", program, str(seconds), str(os.getppid())]
    null = subprocess.DEVNULL  # whoever reads this process's output waits for all copies of it to close
    # Nobody waits for it, and its end matters to nobody.
    subprocess.Popen(line, stdin=null, stdout=null, stderr=null, start_new_session=True)


def _stdin() -> int | None:
    """Rank 0 reads what mpirun hands on; the others nothing. (MPICH leaves them an input that never ends.)"""
    return None if _rank() == "0" else subprocess.DEVNULL


def _rank() -> str:
    return next((os.environ[name] for name in _RANK_VARIABLES if name in os.environ), "0")


def _tell(tag: str, event: str, text: str) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more
        os.write(2, f"<{tag} {event}>{os.uname().nodename} {text}\n".encode())


def _describe(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (the kernel does that when memory runs out)" if -code == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
