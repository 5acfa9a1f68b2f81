"""The status lines that ranks under an mpirun print (`rank_main`), and the ranks that have printed none at the end."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from ...protocol.failure_record import decode
from ..processes.first_failure import Failure, RankEvidence, early_ends
from ..processes.supervise import BEFORE_INIT

FailureSink = Callable[[Failure], None]


@dataclass
class RankStatus:
    """The status of each rank of a job: the host on which it began, and whether it has reported its end.

    `planned` holds the name of each rank's host as the user wrote it, if hosts were given. `starter` is the program
    that starts the ranks.
    """

    size: int
    planned: list[str] = field(default_factory=list)
    starter: str = "mpirun"
    hosts: dict[int, str] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    succeeded: set[int] = field(default_factory=set)  # the ranks that have ended with code 0
    absent: set[int] = field(default_factory=set)  # those of them that have had no session
    on_absent: Callable[[], None] = lambda: None  # called after another rank has become absent

    def have_all_begun(self) -> bool:
        """Returns True once every rank has reported its host."""
        return len(self.hosts) == self.size

    def late(self, seconds: float) -> list[Failure]:
        """Returns the failures of the ranks that have not begun, `seconds` after the start of mpirun."""
        absent = [rank for rank in range(self.size) if rank not in self.hosts]
        how = _NOT_IN_TIME.format(seconds, self.starter)
        return [Failure(_name(ranks, host), how, 1, True) for host, ranks in self._by_plan(absent)]

    def missed(self, found: list[Failure]) -> list[Failure]:
        """Returns failures that no rank has reported, for example of all ranks of a host that has crashed.

        `found` are the failures that are known. If a rank has failed by itself, mpirun has ended the others, so that a
        missing report means nothing. If ranks could not be started, mpirun has ended the ranks that were running. This
        host has not crashed. If its ranks have reported nothing either, then mpirun has ended all ranks, for example
        because the program has called MPI_Abort.
        """
        if not self.hosts or any(not failure.blames_another() for failure in found):
            return []
        if early := early_ends(found, {rank: f"rank {rank} on {self.hosts[rank]}" for rank in self.succeeded}):
            return early
        if absent := [rank for rank in range(self.size) if rank not in self.hosts]:
            how = _NEVER_BEGAN.format(self.starter)
            return [Failure(_name(ranks, host), how, 1, True) for host, ranks in self._by_plan(absent)]
        silent: dict[str, list[int]] = {}
        for rank in range(self.size):
            silent.setdefault(self.hosts[rank], []).append(rank)
        silent = {host: ranks for host, ranks in silent.items() if not self.ended.intersection(ranks)}
        if found and os.uname().nodename in silent:
            return []
        return [Failure(_name(ranks, host), _VANISHED, 1, True) for host, ranks in silent.items()]

    def _by_plan(self, ranks: list[int]) -> list[tuple[str, list[int]]]:
        found: dict[str, list[int]] = {}
        for rank in ranks:
            found.setdefault(self.planned[rank] if self.planned else "", []).append(rank)
        return list(found.items())


_VANISHED = (
    "ended without a report: the host has crashed, has lost its network, or the job's processes there were killed"
)
_NEVER_BEGAN = (
    "never started: {0} could not start a process there, or that host cannot reach {0}; see {0}'s messages above"
)

_NOT_IN_TIME = (
    "not started within {:g} s (--start-timeout): {} could not start a process there, or that host cannot connect "
    "to this one; check the firewall of this host"
)


def _name(ranks: list[int], host: str) -> str:
    listed = ", ".join(map(str, ranks))
    return f"rank{'s' if len(ranks) > 1 else ''} {listed}" + (f" on {host}" if host else "")


class StatusFilter:
    """Removes the status lines of `rank_main` from a rank's stderr, and reads them. An `output.Filter`."""

    def __init__(self, rank: int, tag: str, status: RankStatus, fail: FailureSink, evidence: RankEvidence) -> None:
        self._rank = rank
        self._opening = f"<{tag} ".encode()
        self._line = re.compile(
            re.escape(self._opening) + rb"(began|failed|waits|absent|stopped|ended ([0-9]+))>(\S*) ([^\n]*)\n"
        )
        self._status = status
        self._fail = fail
        self._evidence = evidence
        self._pending = b""

    def pass_on(self, data: bytes) -> bytes:
        """Returns `data` without status lines. Text that may be the start of a status line is kept for later."""
        self._pending += data
        while report := self._line.search(self._pending):
            self._take(report)
            self._pending = self._pending[: report.start()] + self._pending[report.end() :]
        keep = self._pending.rfind(b"<")
        rest = self._pending[keep:] if keep != -1 else b""
        if not (rest.startswith(self._opening) or self._opening.startswith(rest)):
            rest = b""
        passed = self._pending[: len(self._pending) - len(rest)]
        self._pending = rest
        return self._evidence.pass_on(passed)

    def take(self, line: bytes) -> None:
        """Takes a status line that has come another way than through stderr."""
        if report := self._line.fullmatch(line):
            self._take(report)

    def _take(self, report: re.Match[bytes]) -> None:
        event, host, text = report[1], report[3].decode(), report[4].decode(errors="replace")
        if event == b"began":
            self._status.hosts[self._rank] = host
            return
        if event == b"failed":
            self._evidence.record = decode(text)
            return
        if event == b"waits":
            for rank in sorted(self._status.absent):
                self._fail(Failure(f"rank {rank} on {self._status.hosts[rank]}", BEFORE_INIT, 1, False))
            return
        if event == b"absent":
            self._status.absent.add(self._rank)
            self._status.on_absent()
            return
        if self._rank in self._status.ended:
            return  # the line has come another way
        self._status.ended.add(self._rank)
        code = int(report[2] or 0)
        if code == 0:
            self._status.succeeded.add(self._rank)
        else:
            self._evidence.has_ended_badly = True
            who, was_killed = f"rank {self._rank} on {host}", text.startswith("was killed")
            self._fail(Failure(who, text, code, was_killed, self._evidence))

    def rest(self) -> bytes:
        """Returns the text that was kept, at the end of the stream."""
        kept, self._pending = self._pending, b""
        return kept

    def has_failed(self) -> bool:
        """See `RankEvidence.has_failed`."""
        return self._evidence.has_failed()
