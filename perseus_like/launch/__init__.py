"""`perseusrun`: starts the ranks of a job, on this host by itself and on several hosts through mpirun."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .errors import LaunchError


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (without the program's name) and returns the exit code."""
    from .command import run_command
    from .masking import hide_values

    if argv is None:
        hide_values(sys.argv[1:])
    try:
        return run_command(list(sys.argv[1:] if argv is None else argv))
    except LaunchError as error:
        print(f"perseusrun: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        return 141  # what a shell reports for SIGPIPE
