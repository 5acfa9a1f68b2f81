"""Adds to a rank's timeline when its process started, called init() and ended its session.

The core writes the timeline from init() on, and has written all of it when the session has stopped.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from pathlib import Path

from ..session import session

# The end of a complete timeline, see csrc/trace/json_array.cc, and the lines before its first event, see chrome.cc.
_CLOSING = b"\n]\n"
_HEAD_LINES = 4

_file: Path | None = None  # this rank's timeline
_before = 0.0  # seconds from the start of this process to the start of the session
_began = 0.0  # time.monotonic() when the session began


def _at_start() -> None:
    global _file, _before, _began
    # A later session of this process is not the first after the process's start.
    named = os.environ.get("PERSEUS_TIMELINE", os.environ.get("HOROVOD_TIMELINE", ""))
    if named in ("", "DYNAMIC") or session.generation != 1:
        _file = None
    else:
        path, rank = Path(named).absolute(), session.core.rank()
        _file = path.with_name(f"{path.stem}.rank{rank}{path.suffix}") if rank else path
        started = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[19]  # in ticks since the boot
        _before = time.clock_gettime(time.CLOCK_BOOTTIME) - int(started) / os.sysconf("SC_CLK_TCK")
        _began = time.monotonic()


def finish() -> None:
    """Adds the events to the timeline, unless `forget` was called. The core no longer writes to it."""
    global _file
    file, _file = _file, None
    if file is not None:
        with contextlib.suppress(OSError):
            _append(file, session_end=time.monotonic() - _began)


def forget() -> None:
    """Leaves the timeline as it is. A timeline that the program starts itself does not begin at init()."""
    global _file
    _file = None


def _append(file: Path, session_end: float) -> None:
    """Appends the events. Does nothing to a file that is not a complete timeline of this library."""
    with file.open("r+b") as opened:
        head = itertools.islice(opened, _HEAD_LINES)
        about = next((line for line in head if b'"name":"perseus_like"' in line), b"").strip().rstrip(b",")
        end = opened.seek(-len(_CLOSING), os.SEEK_END)
        if not about or opened.read() != _CLOSING:
            return
        of = {"pid": json.loads(about)["pid"], "tid": 0}
        events = [
            {"ph": "M", **of, "name": "thread_name", "args": {"name": "session"}},
            {"ph": "i", **of, "ts": 0, "name": "INIT", "s": "p", "args": {"seconds_before": round(_before, 3)}},
            {"ph": "i", **of, "ts": round(1e6 * session_end, 3), "name": "SHUTDOWN", "s": "p"},
        ]
        text = b"".join(b",\n" + json.dumps(event, separators=(",", ":")).encode() for event in events) + _CLOSING
        # One system call, so that a reader finds a complete file.
        if os.pwrite(opened.fileno(), text, end) < len(text):
            os.pwrite(opened.fileno(), _CLOSING, end)
            opened.truncate(end + len(_CLOSING))


session.on_start(_at_start)
session.on_stop(finish)
