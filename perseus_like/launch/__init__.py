"""`perseusrun`: starts the ranks of a job, by itself, or on several hosts also through mpirun."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from ..protocol import launcher_signals
from .start_errors import LaunchError


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (without the program's name) and returns the exit code."""
    if argv is None:
        launcher_signals.handle()
    from .command_line.command import run_command
    from .output.masking import hide_values

    _open_standard_streams()
    if argv is None:
        hide_values(sys.argv[1:])
    try:
        return run_command(list(sys.argv[1:] if argv is None else argv))
    except LaunchError as error:
        from .command_line.explain import about, pointer

        print(f"perseusrun: {error}", file=sys.stderr)
        if section := about(str(error)):
            print(pointer(section), file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        return 141  # a shell's exit code for SIGPIPE
    except KeyboardInterrupt:
        return 130  # a shell's exit code for SIGINT


def _open_standard_streams() -> None:
    """Opens the null device for each of the descriptors 0 to 2 that is closed, so that no socket gets its number."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
