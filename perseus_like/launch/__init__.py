"""`perseusrun`: starts the ranks of a job, on this host by itself and on several hosts through mpirun."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from .errors import LaunchError


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` (without the program's name) and returns the exit code."""
    from .command import run_command
    from .masking import hide_values

    _open_standard_streams()
    if argv is None:
        hide_values(sys.argv[1:])
        for signum in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(signum) is signal.SIG_DFL:
                signal.signal(signum, _exit_in_order)
    try:
        return run_command(list(sys.argv[1:] if argv is None else argv))
    except LaunchError as error:
        print(f"perseusrun: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        return 141  # what a shell reports for SIGPIPE
    except KeyboardInterrupt:
        return 130  # and for SIGINT


def _exit_in_order(signum: int, frame: object) -> NoReturn:
    """Until the first rank is started, so that remote shells are ended, too."""
    raise SystemExit(128 + signum)


def _open_standard_streams() -> None:
    """Opens the null device as each of the descriptors 0 to 2 that is closed: no socket or pipe may get its number."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
