"""The user's signals from the start of perseusrun until it can pass them on: the first one ends perseusrun.

A handler ends a Python program by an exception, which Python discards in some places, such as the weakref callbacks of
its import system. So the handler also records the signal. The launcher looks at the record before the first rank.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PROGRAMS = {"perseusrun", "perseus_like", "perseus_like.launch"}
_arrived: list[signal.Signals] = []


def handle_if_launcher() -> None:
    """Calls `handle` if Python runs perseusrun. The imports before its `main` take most of the time of its start."""
    if os.path.basename(_program()) in _PROGRAMS:  # noqa: PTH119 (without pathlib, whose import takes 10 ms)
        handle()


def handle() -> None:
    """Makes the stopping signals that have Python's default handlers end this process with 128 + the signal."""
    for signum in _STOPPING:
        if signal.getsignal(signum) in {signal.SIG_DFL, signal.default_int_handler}:
            signal.signal(signum, _exit_in_order)


def take_arrived() -> list[signal.Signals]:
    """Returns the signals that have arrived although this process still runs, once."""
    taken = _arrived.copy()
    _arrived.clear()
    return taken


def _exit_in_order(signum: int, frame: object) -> NoReturn:
    """Exits in order, so that remote shells end."""
    _arrived.append(signal.Signals(signum))
    raise SystemExit(128 + signum)


def _program() -> str:
    """Returns the path of the script or the name of the module that Python runs."""
    program = sys.argv[0] if getattr(sys, "argv", None) else ""
    if program == "-m":  # until Python has found the module, whose packages it imports before
        return sys.orig_argv[-len(sys.argv)].removeprefix("-m")
    return program
