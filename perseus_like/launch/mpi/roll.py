"""What ranks under an mpirun say of themselves (`rank_main`), and which of them are missed at the end."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from ..verdict import Failure, Witness

FailureSink = Callable[[Failure], None]


@dataclass
class Roll:
    """Where the ranks of a job began, and which of them have said how they ended.

    `planned` holds the name of each rank's host as the user wrote it, if hosts were given.
    """

    size: int
    planned: list[str] = field(default_factory=list)
    hosts: dict[int, str] = field(default_factory=dict)
    heard: set[int] = field(default_factory=set)

    def have_all_begun(self) -> bool:
        """True once every rank has said where it runs."""
        return len(self.hosts) == self.size

    def missed(self, found: list[Failure]) -> list[Failure]:
        """Failures that nobody has reported, given those `found`: all ranks of a host that has crashed, for example.

        If a rank has failed by itself, mpirun has ended the others, and silence means nothing. If ranks could not be
        started, mpirun has ended those that run.
        """
        if not self.hosts or any(not failure.blames_another() for failure in found):
            return []
        if absent := [rank for rank in range(self.size) if rank not in self.hosts]:
            return [
                Failure(_name(ranks, host), _NEVER_BEGAN, 1, True, lambda: False)
                for host, ranks in self._by_plan(absent)
            ]
        silent: dict[str, list[int]] = {}
        for rank in range(self.size):
            silent.setdefault(self.hosts[rank], []).append(rank)
        return [
            Failure(_name(ranks, host), _VANISHED, 1, True, lambda: False)
            for host, ranks in silent.items()
            if not self.heard.intersection(ranks)
        ]

    def _by_plan(self, ranks: list[int]) -> list[tuple[str, list[int]]]:
        found: dict[str, list[int]] = {}
        for rank in ranks:
            found.setdefault(self.planned[rank] if self.planned else "", []).append(rank)
        return list(found.items())


_VANISHED = (
    "vanished without a word: the host has crashed or is cut off, or somebody has killed the job's processes there"
)
_NEVER_BEGAN = (
    "never began: mpirun could not start a process there, or cannot be reached from there; its own messages are above"
)


def _name(ranks: list[int], host: str) -> str:
    listed = ", ".join(map(str, ranks))
    return f"rank{'s' if len(ranks) > 1 else ''} {listed}" + (f" on {host}" if host else "")


class Reports:
    """Takes a rank's own words out of its stderr. An `output.Filter`."""

    def __init__(self, rank: int, tag: str, roll: Roll, fail: FailureSink) -> None:
        self._rank = rank
        self._opening = f"<{tag} ".encode()
        self._report = re.compile(re.escape(self._opening) + rb"(began|stopped|ended ([0-9]+))>(\S*) ([^\n]*)\n")
        self._roll = roll
        self._fail = fail
        self._witness = Witness()
        self._pending = b""

    def pass_on(self, data: bytes) -> bytes:
        """`data` without reports; what may be the beginning of one is kept for later."""
        self._witness.pass_on(data)
        self._pending += data
        while report := self._report.search(self._pending):
            self._take(report)
            self._pending = self._pending[: report.start()] + self._pending[report.end() :]
        keep = self._pending.rfind(b"<")
        rest = self._pending[keep:] if keep != -1 else b""
        if not (rest.startswith(self._opening) or self._opening.startswith(rest)):
            rest = b""
        passed = self._pending[: len(self._pending) - len(rest)]
        self._pending = rest
        return passed

    def _take(self, report: re.Match[bytes]) -> None:
        event, host, text = report[1], report[3].decode(), report[4].decode(errors="replace")
        if event == b"began":
            self._roll.hosts[self._rank] = host
            return
        self._roll.heard.add(self._rank)
        code = int(report[2] or 0)
        if code != 0:
            who, was_killed = f"rank {self._rank} on {host}", text.startswith("was killed")
            self._fail(Failure(who, text, code, was_killed, self._witness.blames_another))

    def rest(self) -> bytes:
        """What was kept, at the end of the stream."""
        kept, self._pending = self._pending, b""
        return kept
