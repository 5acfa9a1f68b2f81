"""Starts the ranks of one host for a perseusrun that uses no mpirun, and passes on their output.

perseusrun starts it by its path, with nothing but the standard library, and on other hosts over ssh:
`python -IS host_main.py`. Its standard input begins with the length of a plan, in `LENGTH_DIGITS` digits, and the plan,
which has secrets. If rank 0 is one of its ranks, what follows is the input of this rank. Each piece of output of a rank
has a mark with the rank in front, as from Hydra (`mpi/demultiplex.py`).

Each rank runs under `rank_main`. When perseusrun is gone, or this process gets a SIGTERM, the ranks and all processes
in their sessions end.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from ..mpi import rank_main
    from ..start_errors import describe_code, explain_start_failure
else:
    _launch = Path(__file__).resolve().parents[1]
    sys.path += [str(_launch), str(_launch / "mpi")]
    import rank_main
    from start_errors import describe_code, explain_start_failure

LENGTH_DIGITS = 12
_BLOCK = 1 << 16
_MOST_IN_PIPE = 1 << 20
# A rank and its `rank_main` have this long to end after a SIGTERM.
_TERMINATE_SECONDS = 2.0


@dataclass
class _Rank:
    """A `rank_main` that runs. `streams` are its output, by the descriptor on which this process passes it on."""

    number: int
    process: subprocess.Popen[bytes]
    end: int  # a pidfd
    streams: dict[int, IO[bytes]]


class HostRanks:
    """The ranks of this host, in one thread with one event loop."""

    def __init__(self, tag: str, has_rank_0: bool) -> None:
        self._tag = tag
        self._living: dict[int, _Rank] = {}
        self._actions: dict[int, Callable[[], object]] = {}
        self._poll = select.poll()
        self._watch(1, _leave, events=0)  # an error: nobody reads any more
        if not has_rank_0:
            self._watch(0, _leave_at_end_of_input)

    def start(self, number: int, command: list[str], variables: dict[str, str]) -> None:
        """Starts a rank, or reports why it does not start."""
        line = [sys.executable, "-IS", str(Path(rank_main.__file__).absolute()), self._tag, json.dumps(command)]
        try:
            process = subprocess.Popen(
                line,
                env={**os.environ, **variables},
                stdin=None if number == 0 else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        except OSError as error:
            text, code = explain_start_failure(line[0], error)
            self.report_end(number, code, f"could not be started: {text}")
            return
        assert process.stdout is not None
        assert process.stderr is not None
        rank = _Rank(number, process, os.pidfd_open(process.pid), {1: process.stdout, 2: process.stderr})
        self._living[process.pid] = rank
        for target, stream in rank.streams.items():
            os.set_blocking(stream.fileno(), False)
            self._watch(stream.fileno(), functools.partial(self._pass_on, rank, target))
        self._watch(rank.end, lambda: self._conclude(rank))

    def serve(self) -> None:
        """Passes on output until all ranks have ended."""
        while self._living:
            for descriptor, _ in self._poll.poll():
                if act := self._actions.get(descriptor):
                    act()

    def end(self) -> None:
        """Ends the ranks that are left, and the processes in their sessions."""
        sessions = [*self._living]
        for rank in self._living.values():
            rank.process.terminate()
        deadline = time.monotonic() + _TERMINATE_SECONDS
        for rank in self._living.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                rank.process.wait(max(0.0, deadline - time.monotonic()))
        _kill(sessions)

    def report_end(self, number: int, code: int, how: str) -> None:
        """Reports the end of a rank in the words of `rank_main`, whose own report comes first if there is one."""
        self._write(2, number, f"<{self._tag} ended {code}>{os.uname().nodename} {how}\n".encode())

    def _watch(self, descriptor: int, act: Callable[[], object], events: int = select.POLLIN) -> None:
        self._actions[descriptor] = act
        self._poll.register(descriptor, events)

    def _forget(self, descriptor: int) -> None:
        del self._actions[descriptor]
        self._poll.unregister(descriptor)

    def _pass_on(self, rank: _Rank, target: int) -> int:
        """Passes on one piece of output. Returns its length; 0 if there is none now."""
        stream = rank.streams.get(target)
        try:
            data = os.read(stream.fileno(), _BLOCK) if stream else b""
        except BlockingIOError:
            return 0
        if data:
            self._write(target, rank.number, data)
        elif stream:
            self._forget(stream.fileno())
            rank.streams.pop(target).close()
        return len(data)

    def _conclude(self, rank: _Rank) -> None:
        """Passes on what a rank that has ended has left in its pipes. Others may hold these open."""
        for target in (1, 2):
            passed = 0
            while passed < _MOST_IN_PIPE and (count := self._pass_on(rank, target)):
                passed += count
            if stream := rank.streams.pop(target, None):
                self._forget(stream.fileno())
                stream.close()
        self._forget(rank.end)
        os.close(rank.end)
        code = rank.process.wait()
        del self._living[rank.process.pid]
        if code < 0:  # otherwise, `rank_main` has done it
            _kill([rank.process.pid])
        self.report_end(rank.number, code if code >= 0 else 128 - code, describe_code(code))

    def _write(self, target: int, number: int, data: bytes) -> None:
        mark = f"<{self._tag} {number}>".encode()
        left = memoryview(b"".join(mark + line for line in io.BytesIO(data)))
        try:
            while left:
                left = left[os.write(target, left) :]
        except BrokenPipeError:
            _leave()


def _kill(sessions: list[int]) -> None:
    """Kills the processes of these sessions, which are called by the numbers of their leaders."""
    for pid, fields in rank_main.process_table():
        if int(fields[3]) in sessions:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _leave() -> None:
    """Ends this process, and with it the ranks, since perseusrun is gone."""
    sys.exit(1)


def _leave_at_end_of_input() -> None:
    if not os.read(0, _BLOCK):
        _leave()


def _read(count: int) -> bytes:
    """Reads exactly `count` bytes of the standard input. The rest of it belongs to rank 0."""
    data = b""
    while len(data) < count:
        piece = os.read(0, count - len(data))
        if not piece:
            _leave()
        data += piece
    return data


def main() -> None:
    """Starts the ranks and waits until they have ended."""
    Path("/proc/self/comm").write_text(rank_main.HOST_MAIN)
    for signum in (signal.SIGINT, signal.SIGHUP):
        # perseusrun decides when the job is over. The ranks would inherit SIG_IGN.
        signal.signal(signum, lambda signum, frame: None)
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    plan: dict[str, Any] = json.loads(_read(int(_read(LENGTH_DIGITS))))
    ranks = HostRanks(plan["tag"], any(number == 0 for number, _ in plan["ranks"]))
    try:
        os.chdir(plan["folder"])
    except OSError as error:
        for number, _ in plan["ranks"]:
            where = f"the folder {plan['folder']} on {os.uname().nodename}"
            how = f"could not be started: cannot enter {where}: {error.strerror}"
            ranks.report_end(number, 126, how)
        return
    os.environ.update(plan["environment"])
    try:
        for number, variables in plan["ranks"]:
            ranks.start(number, plan["command"], variables)
        ranks.serve()
    finally:
        signal.signal(signal.SIGTERM, lambda signum, frame: None)
        ranks.end()


if __name__ == "__main__":
    main()
