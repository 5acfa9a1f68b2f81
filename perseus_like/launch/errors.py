"""What the launcher cannot do, said in one line."""

from __future__ import annotations


class LaunchError(Exception):
    """The job was not started. The text says what is wrong and what to do."""

    def __init__(self, text: str, exit_code: int = 2) -> None:
        super().__init__(text)
        self.exit_code = exit_code
