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
        from .explain import about, pointer

        print(f"perseusrun: {error}", file=sys.stderr)
        if section := about(str(error)):
            print(pointer(section), file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        return 141  # a shell's exit code for SIGPIPE
    except KeyboardInterrupt:
        return 130  # a shell's exit code for SIGINT


def _exit_in_order(signum: int, frame: object) -> NoReturn:
    """Exits with the signal's exit code. It is the handler until the first rank starts, so that remote shells end."""
    raise SystemExit(128 + signum)


def _open_standard_streams() -> None:
    """Opens the null device for each of the descriptors 0 to 2 that is closed, so that no socket gets its number."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
