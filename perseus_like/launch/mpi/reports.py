"""The reports and the output of the ranks of a job on several hosts, on the launcher's side."""

from __future__ import annotations

from collections.abc import Callable

from ..output import Channel, Screen
from ..processes.first_failure import Failure, RankEvidence
from ..processes.supervise import LOOK_SECONDS, Supervisor
from .demultiplex import ChannelOf
from .rank_main import LOOK
from .rank_status import RankStatus, StatusFilter


class RankReports:
    """Passes what each `rank_main` reports to the supervisor, and what its rank prints to the screen.

    After a failure, the other ranks have `grace` seconds until the supervisor ends the job.
    """

    def __init__(self, supervisor: Supervisor, screen: Screen, tag: str, status: RankStatus, grace: float) -> None:
        self._supervisor = supervisor
        self._screen = screen
        self._tag = tag
        self._status = status
        self._grace = grace
        self._filters: dict[int, StatusFilter] = {}

    def fail(self, failure: Failure) -> None:
        """Ends the job because of `failure`."""
        self._supervisor.fail(failure, self._grace)

    def fail_if_late(self, seconds: float) -> None:
        """Ends the job if ranks have not begun, `seconds` after the start."""
        for failure in [] if self._supervisor.is_stopping else self._status.late(seconds):
            self.fail(failure)

    def look_for_absent(self, send_to_all: Callable[[bytes], None]) -> None:
        """Ends the job if ranks wait in `init` for one that has ended. `send_to_all` reaches every `rank_main`."""

        def look() -> None:
            if not self._supervisor.is_stopping:
                send_to_all(LOOK)
                self._supervisor.later(LOOK_SECONDS, look)

        def look_later() -> None:
            if len(self._status.absent) == 1:
                self._supervisor.later(LOOK_SECONDS, look)

        self._status.on_absent = look_later

    def take(self, rank: int, line: bytes) -> None:
        """Takes a status line that has come another way than through stderr."""
        self.filter_of(rank).take(line)

    def filter_of(self, rank: int) -> StatusFilter:
        """Returns the filter that reads the status lines of a rank."""
        if rank not in self._filters:
            evidence = RankEvidence(log=self._screen.log_of(rank, "stderr"), rank=rank)
            self._filters[rank] = StatusFilter(rank, self._tag, self._status, self.fail, evidence)
        return self._filters[rank]

    def channels(self, name: str) -> ChannelOf:
        """Returns the function that returns each rank's channel for one stream."""
        return _Channels(self._screen, name, self.filter_of)


class _Channels:
    """The channels of all ranks for one stream. A channel is created with the rank's first output."""

    def __init__(self, screen: Screen, name: str, filter_of: Callable[[int], StatusFilter]) -> None:
        self._screen = screen
        self._name = name
        self._filter_of = filter_of
        self._channels: dict[int | None, Channel] = {}

    def __call__(self, rank: int | None) -> Channel:
        if rank not in self._channels:
            status_filter = self._filter_of(rank) if rank is not None and self._name == "stderr" else None
            self._channels[rank] = self._screen.channel(rank, self._name, status_filter)
        return self._channels[rank]
