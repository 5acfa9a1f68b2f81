"""Finds the rank that failed first, which determines the job's exit code and the launcher's message.

When one rank fails, the others soon fail, too, because they have lost it. They may end before the rank that failed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# The traceback of a rank that has failed because of another rank contains this text.
_BLAME = b"PeerLostError"


@dataclass(frozen=True)
class Failure:
    """The failure of a process or a host."""

    who: str
    how: str
    code: int
    was_killed: bool
    blames_another: Callable[[], bool]


class Verdict:
    """All failures of a job, and the first one."""

    def __init__(self) -> None:
        self._failures: list[Failure] = []
        self.first: Failure | None = None

    def add(self, failure: Failure) -> None:
        """Adds a failure. Call it in the order in which failures were noticed."""
        self._failures.append(failure)

    def add_missed(self, missed: Callable[[list[Failure]], list[Failure]]) -> None:
        """Adds failures that are found at the end of the job. `missed` gets the failures that are known."""
        if self.first is None or self.first.blames_another():
            self._failures += missed(self._failures)

    def __bool__(self) -> bool:
        return bool(self._failures)

    def decide(self, is_final: bool) -> bool:
        """Returns True if the first failure has become known now.

        If every failure blames another rank, only a final decision chooses one of them.
        """
        if self.first or not self._failures:
            return False
        self.first = (
            # A rank that was killed has not failed because of another rank.
            next((failure for failure in self._failures if failure.was_killed), None)
            or next((failure for failure in self._failures if not failure.blames_another()), None)
            or (self._failures[0] if is_final else None)
        )
        return self.first is not None

    def later(self) -> list[Failure]:
        """Returns the failures that are not the first."""
        return [failure for failure in self._failures if failure is not self.first]


class Witness:
    """Searches a rank's stderr for an error that blames another rank. An `output.Filter`."""

    def __init__(self) -> None:
        self._end = b""
        self._has_seen = False

    def pass_on(self, data: bytes) -> bytes:
        """Returns `data` unchanged."""
        text = self._end + data
        self._has_seen = self._has_seen or _BLAME in text
        self._end = text[-len(_BLAME) :]
        return data

    def rest(self) -> bytes:
        """Returns nothing, since nothing is held back."""
        return b""

    def blames_another(self) -> bool:
        """Returns True if the rank has reported that it lost another."""
        return self._has_seen
