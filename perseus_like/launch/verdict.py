"""Which rank failed first: what the job's exit code and the launcher's message are about.

When one rank fails, the others soon fail, too, because they have lost it, and it may well be they who end first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# What a rank's traceback says when it has failed because of another.
_BLAME = b"PeerLostError"


@dataclass(frozen=True)
class Failure:
    """One end that was not a success."""

    who: str
    how: str
    code: int
    was_killed: bool
    blames_another: Callable[[], bool]


class Verdict:
    """All failures of a job, and the one that counts."""

    def __init__(self) -> None:
        self._failures: list[Failure] = []
        self.first: Failure | None = None

    def add(self, failure: Failure) -> None:
        """Failures in the order in which they were noticed."""
        self._failures.append(failure)

    def add_missed(self, missed: Callable[[list[Failure]], list[Failure]]) -> None:
        """Failures seen only now that all is over, given those before; an mpirun's failure is not their cause."""
        if self.first is None or self.first.blames_another():
            self._failures += missed(self._failures)

    def __bool__(self) -> bool:
        return bool(self._failures)

    def decide(self, is_final: bool) -> bool:
        """True if the first failure has become known now. Where all blame another, only a final verdict takes one."""
        if self.first or not self._failures:
            return False
        self.first = (
            # A rank that was killed has not reacted to anything.
            next((failure for failure in self._failures if failure.was_killed), None)
            or next((failure for failure in self._failures if not failure.blames_another()), None)
            or (self._failures[0] if is_final else None)
        )
        return self.first is not None

    def later(self) -> list[Failure]:
        """The failures that are not the first."""
        return [failure for failure in self._failures if failure is not self.first]


class Witness:
    """Looks for blame in a rank's stderr while it passes. An `output.Filter`."""

    def __init__(self) -> None:
        self._end = b""
        self._has_seen = False

    def pass_on(self, data: bytes) -> bytes:
        """`data`, unchanged."""
        text = self._end + data
        self._has_seen = self._has_seen or _BLAME in text
        self._end = text[-len(_BLAME) :]
        return data

    def rest(self) -> bytes:
        """Nothing is held back."""
        return b""

    def blames_another(self) -> bool:
        """True if the rank has said that it lost another."""
        return self._has_seen
