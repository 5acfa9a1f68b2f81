"""horovod.runner.common.util.timeout: a deadline that several steps share."""

from __future__ import annotations

import time


class TimeoutException(Exception):
    """A step did not end before the deadline."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Timeout:
    """A deadline `timeout` seconds from now. `message` may contain `{activity}`."""

    def __init__(self, timeout: float, message: str) -> None:
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._message = message

    def remaining(self) -> float:
        """Returns the seconds until the deadline, or 0 after it."""
        return max(0.0, self._deadline - time.monotonic())

    def timed_out(self) -> bool:
        """Returns whether the deadline has passed."""
        return time.monotonic() > self._deadline

    def check_time_out_for(self, activity: str) -> None:
        """Raises TimeoutException if the deadline has passed."""
        if self.timed_out():
            text = self._message.format(activity=activity).rstrip().removesuffix(".")
            raise TimeoutException(f"{text}. Timeout after {self._timeout} seconds.")


__all__ = ["Timeout", "TimeoutException"]
