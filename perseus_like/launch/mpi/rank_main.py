"""Runs one rank of a job on several hosts, and reports its end to perseusrun.

An mpirun or `ssh/host_main` starts it by its path, with nothing but the standard library:
`python -IS rank_main.py TAG '["python", "train.py"]'`. It adds this to an mpirun:

- Arguments arrive unchanged. Open MPI 5 rewrites some that look like its own, and all MPIs read `:` as a separator.
- Only rank 0 has an input.
- The exit code of the rank that failed first is known. mpirun often reports the code of a rank that it has killed.
- A rank that is lost together with its host is reported. Open MPI 5 reports a success in this case.
- Processes that a rank has left in its session end with it. mpirun would wait until they close the rank's output.
- After a failure, MPI's daemons end even on a host that cannot reach mpirun.
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
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING or __package__:
    from ...protocol.authentication import Handshake
    from ...protocol.failure_record import VARIABLE, InitCall, RecordFile
    from ...protocol.messages import agent_variable, elastic_variable
    from ...protocol.mpi_daemons import end_daemons_later
    from ...protocol.rank_variables import host_of, set_horovod_variables
    from ..start_errors import describe_code, explain_start_failure
else:
    _launch = Path(__file__).resolve().parents[1]
    sys.path += [str(_launch), str(_launch.parent / "protocol")]
    from authentication import Handshake
    from failure_record import VARIABLE, InitCall, RecordFile
    from messages import agent_variable, elastic_variable
    from mpi_daemons import end_daemons_later
    from rank_variables import host_of, set_horovod_variables
    from start_errors import describe_code, explain_start_failure

HEARTBEAT = "PERSEUS_LAUNCHER_HEARTBEAT"  # the timeout, the secret and the addresses of perseusrun
RANK_MAIN = "PERSEUS_RANK_MAIN"  # set for a rank whose failure this program reports
SHUTDOWN = b"."
# Commands of perseusrun for Ctrl-Z and the end of a pause.
PAUSE, CONTINUE = b"p", b"c"
# Command of perseusrun to report it if the rank waits in `init`.
LOOK = b"w"
# Commands of perseusrun for signals. Hydra and Intel MPI end if they get SIGUSR1, SIGUSR2 or SIGQUIT, and Hydra drops
# signals that end the job as long as it is starting its daemons.
COMMAND_OF = {
    signal.SIGUSR1: b"1",
    signal.SIGUSR2: b"2",
    signal.SIGQUIT: b"q",
    signal.SIGINT: b"i",
    signal.SIGTERM: b"t",
    signal.SIGHUP: b"h",
}
_PR_SET_PDEATHSIG = 1
_TERMINATE_SECONDS = 2.0
# A daemon that ends the job signals the ranks before it ends.
_DAEMON_GRACE_SECONDS = 0.5
# A connection to perseusrun that fails is tried again, since other processes may keep its port busy for a while.
_CONNECT_ROUNDS = 60
_ROUND_SECONDS = 1.0
# After a failure, the other ranks have this long to report their own errors before mpirun ends them.
_FAILURE_GRACE_SECONDS = 0.8
# A rank that has only lost another one waits longer, since the other one may still be writing its own error.
_LOSS_GRACE_SECONDS = 5.0
# The most that Linux takes: seconds between probes, and milliseconds without an answer.
_MOST_KEEPALIVE_SECONDS, _MOST_UNANSWERED_MS = 32767, 2**31 - 1
# The number of a worker of an elastic job, whose rank changes with each generation.
WORKER = "PERSEUS_WORKER"
_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "PERSEUS_RANK", WORKER)
# The name of the process that starts ranks without an mpirun (`ssh/host_main`).
HOST_MAIN = "perseusrun"
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PASSED_ON = (*_STOPPING, signal.SIGUSR1, signal.SIGUSR2)


def main(tag: str, encoded: str) -> int:
    """Runs the command. Returns its exit code, or 128 + signal if it was killed."""
    starter = _Starter()
    _enter_own_session()
    libc = ctypes.CDLL(None)
    parent = os.getpid()

    def die_with_parent() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    _report(tag, "began", "")
    heartbeat = Heartbeat(os.environ.pop(HEARTBEAT, ""))
    command: list[str] = json.loads(encoded)
    if elastic := agent_variable(elastic_variable() or ""):
        set_horovod_variables(int(_rank()), elastic.ranks)
        os.environ["HOROVOD_HOSTNAME"] = elastic.hosts[host_of(int(_rank()), elastic.ranks)]
    records = RecordFile()
    os.environ[VARIABLE] = records.variable_for(_rank())
    os.environ[RANK_MAIN] = "1"
    os.set_inheritable(records.fileno(), True)
    try:
        # Rank 0 reads mpirun's standard input. The others read nothing: MPICH's would never end.
        stdin = None if _rank() == "0" else subprocess.DEVNULL
        # Descriptors stay open, since the connection to MPI's process manager may be one of them.
        process = subprocess.Popen(command, stdin=stdin, close_fds=False, preexec_fn=die_with_parent)
    except OSError as error:
        text, code = explain_start_failure(command[0], error)
        _report(tag, f"ended {code}", f"could not be started: {text}")
        return code
    stop_requested = threading.Event()
    stopped_by: set[int] = set()

    def pass_on(signum: int, frame: FrameType | None) -> None:
        if signum in _STOPPING:
            if signum in stopped_by:
                return  # it came from mpirun and from perseusrun
            stopped_by.add(signum)
            stop_requested.set()
        process.send_signal(signum)

    def obey(command: bytes) -> None:
        for signum, its_command in COMMAND_OF.items():
            if command == its_command:
                pass_on(signum, None)
        if command in {PAUSE, CONTINUE}:
            _stop_or_continue(process.pid, command)
        if command == LOOK and records.init_calls().get(_rank()) is InitCall.WAITS:
            heartbeat.send(_line(tag, "waits", ""))

    for signum in _PASSED_ON:
        signal.signal(signum, pass_on)
    if not _wait(process, heartbeat, starter, obey):
        if heartbeat.is_lost and not starter.is_mpis:  # ssh may have another way to perseusrun
            _report(tag, "ended 1", "was ended, because its connection to perseusrun was lost")
        if not heartbeat.is_lost and not stop_requested.wait(_DAEMON_GRACE_SECONDS):
            heartbeat.send(_report(tag, "ended 1", f"was ended, because its {starter.name} on this host was killed"))
        _end(process)
        if starter.is_mpis:
            end_daemons_later(0.0)
        else:
            _end_session()
        return 1
    record = records.read(_rank())
    # Open MPI may end the process with a code or signal of its own after its exception.
    code = 1 if starter.is_mpis and record and record.error and process.returncode else process.returncode
    shown = code if code >= 0 else 128 - code
    if record:
        heartbeat.send(_report(tag, "failed", record.encode()))
    has_met = records.init_calls().get(_rank(), InitCall.HAS_FAILED) is not InitCall.HAS_FAILED
    if code == 0 and not has_met and not starter.is_mpis:
        _report(tag, "absent", "")
    if stop_requested.is_set() and starter.is_mpis:
        _report(tag, "stopped", "")  # the code of the mpirun counts
    else:
        heartbeat.send(_report(tag, f"ended {shown}", describe_code(code)))
    if code != 0 and starter.is_mpis and not stop_requested.is_set():
        stop_requested.wait(_LOSS_GRACE_SECONDS if record and record.is_consequence else _FAILURE_GRACE_SECONDS)
        end_daemons_later()
    else:
        _end_session()
    heartbeat.send(SHUTDOWN)  # perseusrun must not treat the end of this process as a loss
    return shown


def _enter_own_session() -> None:
    """Makes this process the leader of a session and of a process group, both with its own number.

    Linux shares the processors among sessions (`sched_autogroup_enabled`). All ranks in one session would get as much
    of a busy machine as one other process. `mpirun` still ends the same group.
    """
    with contextlib.suppress(OSError):  # the rank runs in the session of mpirun, too
        if os.getpgrp() == os.getpid() != os.getsid(0):
            os.setpgid(0, os.getpgid(os.getppid()))  # the leader of a group cannot begin a session
        if os.getsid(0) != os.getpid():
            os.setsid()


def _end_session() -> None:
    """Ends the other processes of this session, with SIGKILL those that do not end."""
    if os.getsid(0) != os.getpid():
        return  # it is mpirun's
    deadline = time.monotonic() + _TERMINATE_SECONDS
    signaled: set[int] = set()
    while members := _session_members():
        is_late = time.monotonic() > deadline
        for pid in members if is_late else members - signaled:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL if is_late else signal.SIGTERM)
        if is_late:
            return
        signaled |= members
        time.sleep(0.005)


def _session_members() -> set[int]:
    """Returns the other processes of the session that this process leads, without those that have ended."""
    own = os.getpid()
    return {
        pid for pid, fields in process_table() if int(fields[3]) == own and pid != own and fields[0] not in {b"Z", b"X"}
    }


class _Starter:
    """The process that has started this one: a daemon of mpirun, mpirun itself, or `ssh/host_main`."""

    def __init__(self) -> None:
        pid = os.getppid()
        self.name = Path(f"/proc/{pid}/comm").read_text().strip()
        self.is_mpis = self.name != HOST_MAIN
        self.descriptor = os.pidfd_open(pid)


def _wait(
    process: subprocess.Popen[bytes], heartbeat: Heartbeat, starter: _Starter, obey: Callable[[bytes], None]
) -> bool:
    """Waits for the rank's end; returns False if perseusrun or mpirun's process on this host was lost before."""
    rank = os.pidfd_open(process.pid)
    has_ended = heartbeat.poll((rank, starter.descriptor), obey) == rank
    if has_ended:
        process.wait()
    return has_ended


def _stop_or_continue(root: int, command: bytes) -> None:
    """Stops the rank and all processes that it has started, or lets them continue."""
    signum = signal.SIGSTOP if command == PAUSE else signal.SIGCONT
    for pid in _tree(root):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)


def _tree(root: int) -> list[int]:
    """Returns a process and all its descendants, parents first."""
    children: dict[int, list[int]] = {}
    for pid, fields in process_table():
        children.setdefault(int(fields[1]), []).append(pid)
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def process_table() -> Iterator[tuple[int, list[bytes]]]:
    """Yields each process of this host with the fields of /proc/PID/stat from the state on."""
    for entry in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 (names are enough, and many)
        with contextlib.suppress(OSError):
            # The name in parentheses may itself contain blanks and parentheses.
            yield int(entry), Path(f"/proc/{entry}/stat").read_bytes().rpartition(b")")[2].split()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_TERMINATE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Heartbeat:
    """The connection to perseusrun (`heartbeat.py`), the first that is established with one of its addresses.

    Without a connection, perseusrun never counts as lost.
    """

    def __init__(self, text: str) -> None:
        self.is_lost = False
        seconds, self._secret, *endpoints = text.split() or ["0", ""]
        self._timeout_seconds = int(seconds)
        self._endpoints = list(zip(endpoints[::2], map(int, endpoints[1::2]), strict=True))
        self._connection: socket.socket | None = None
        self._attempts: dict[int, _Attempt] = {}
        self._rounds_left = _CONNECT_ROUNDS
        self._next_round = 0.0
        self._connect()

    def poll(self, descriptors: Sequence[int], obey: Callable[[bytes], None]) -> int | None:
        """Serves the connection until one of these can be read, the first of which it returns, or perseusrun is lost.

        `obey` is called with each command of perseusrun.
        """
        while not self.is_lost:
            waiting = select.poll()
            for each, events in [*((each, select.POLLIN) for each in descriptors), *self._entries()]:
                waiting.register(each, events)
            milliseconds = max(0.0, self._next_round - time.monotonic()) * 1000 if self._has_idle_endpoints() else None
            for ready, _ in waiting.poll(milliseconds):  # in the order of their registration
                if ready in descriptors:
                    return ready
                for command in self._serve(ready):
                    obey(command)
            self._connect()
        return None

    def send(self, message: bytes) -> None:
        """Sends SHUTDOWN, or a status line: an mpirun that ends the job may drop what is written to stderr."""
        if self._connection:
            with contextlib.suppress(OSError):
                self._connection.send(message)

    def _connect(self) -> None:
        """Begins an attempt at each address that has none, at most once a second."""
        if not self._has_idle_endpoints() or time.monotonic() < self._next_round:
            return
        self._rounds_left -= 1
        self._next_round = time.monotonic() + _ROUND_SECONDS
        trying = {attempt.endpoint for attempt in self._attempts.values()}
        for endpoint in self._endpoints:
            if endpoint not in trying:
                with contextlib.suppress(OSError):
                    attempt = _Attempt(endpoint, self._secret)
                    self._attempts[attempt.connection.fileno()] = attempt

    def _has_idle_endpoints(self) -> bool:
        return not self._connection and self._rounds_left > 0 and len(self._attempts) < len(self._endpoints)

    def _entries(self) -> list[tuple[int, int]]:
        if self._connection:
            return [(self._connection.fileno(), select.POLLIN)]
        return [(each, attempt.event) for each, attempt in self._attempts.items()]

    def _serve(self, descriptor: int) -> list[bytes]:
        """Serves a connection that is ready; returns the commands that arrived."""
        if self._connection and descriptor == self._connection.fileno():
            received = _receive(self._connection)
            self.is_lost = received == b""
            return [bytes([command]) for command in received or b""]
        if attempt := self._attempts.get(descriptor):
            try:
                if attempt.advance():
                    self._keep(attempt.connection)
            except OSError:
                self._attempts.pop(descriptor).connection.close()
        return []

    def _keep(self, connection: socket.socket) -> None:
        set_keepalive(connection, self._timeout_seconds)
        connection.send(f"{_rank()} {os.uname().nodename}\n".encode())
        self._connection = connection
        for attempt in self._attempts.values():
            if attempt.connection is not connection:
                attempt.connection.close()
        self._attempts.clear()


class _Attempt:
    """A connection to one address of perseusrun, until its handshake is finished."""

    def __init__(self, endpoint: tuple[str, int], secret: str) -> None:
        """Raises OSError if the address cannot be reached from here."""
        self.endpoint = endpoint
        self.connection = socket.socket(socket.AF_INET6 if ":" in endpoint[0] else socket.AF_INET)
        self.event = select.POLLOUT  # the event to poll for
        self._handshake = Handshake(secret, is_listener=False)
        self.connection.setblocking(False)
        error = self.connection.connect_ex(endpoint)
        if error not in {0, errno.EINPROGRESS}:
            self.connection.close()
            raise OSError(error, os.strerror(error))

    def advance(self) -> bool:
        """Called when `event` is there; returns True once the handshake is finished. Raises OSError."""
        if self.event == select.POLLOUT:
            if error := self.connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(error, os.strerror(error))
            self.event = select.POLLIN
            return False
        self.connection.send(self._handshake.take(self.connection.recv(self._handshake.missing)))
        return not self._handshake.missing


def _receive(connection: socket.socket) -> bytes | None:
    """Returns what has arrived: nothing yet (None), or the end of the connection (empty)."""
    try:
        return connection.recv(1024)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def set_keepalive(connection: socket.socket, timeout_seconds: int) -> None:
    """Makes the kernel break the connection `timeout_seconds` after the first probe without an answer, within 10 %.

    The kernel's longest limit is about 25 days; a longer one counts as that.
    """
    interval = min(max(1, timeout_seconds // 10), _MOST_KEEPALIVE_SECONDS)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, interval)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
    # The kernel counts from the last answer, one interval before that probe, and compares at each probe. Half an
    # interval less makes sure that a probe in time is not one too late.
    unanswered_ms = min(timeout_seconds * 1000 + interval * 500, _MOST_UNANSWERED_MS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unanswered_ms)


def _rank() -> str:
    return next((os.environ[name] for name in _RANK_VARIABLES if name in os.environ), "0")


def _line(tag: str, event: str, text: str) -> bytes:
    return f"<{tag} {event}>{os.uname().nodename} {text}\n".encode()


def _report(tag: str, event: str, text: str) -> bytes:
    """Writes a status line to stderr, and returns it."""
    line = _line(tag, event, text)
    with contextlib.suppress(OSError):  # mpirun has ended
        os.write(2, line)
    return line


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
