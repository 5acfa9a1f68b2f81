"""The record of the exception that ends a rank: the rank writes it, and its launcher reads it.

The launcher makes a file without a name, which the rank inherits. The rank appends one line of JSON to it when an
exception is not caught. `rank_main` imports this module by its folder. Needs the standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import sysconfig
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from types import TracebackType

VARIABLE = "PERSEUS_FAILURE_RECORD"
FULL_TRACEBACKS = "PERSEUS_FULL_TRACEBACKS"
_MOST_FRAMES = 3
_LONGEST_TEXT, _LONGEST_LINE = 600, 160
_MOST_BYTES = 3500  # a status line of `rank_main` with a record in it is one write to a pipe (PIPE_BUF)


@dataclass(frozen=True)
class FailureRecord:
    """An exception. `frames` are the last ones of the user's program, each as its lines in a traceback.

    `is_consequence`: the process has failed because it has lost another one. Without an `error`, the process has only
    noticed the loss: the record counts if it ends with a failure and without another record.
    """

    name: str  # the process, as the launcher calls it
    error: str
    frames: list[str]
    is_consequence: bool = False

    def encode(self) -> str:
        """Returns one line of JSON in ASCII."""
        text = json.dumps(asdict(self))
        return (
            text if len(text) <= _MOST_BYTES else json.dumps({**asdict(self), "error": self.error[:80], "frames": []})
        )


def decode(text: str | bytes) -> FailureRecord | None:
    """Reads what `FailureRecord.encode` returns; None for any other text."""
    try:
        found = FailureRecord(**json.loads(text))
    except (TypeError, ValueError):
        return None
    is_valid = isinstance(found.name, str) and isinstance(found.error, str) and isinstance(found.frames, list)
    is_valid = is_valid and isinstance(found.is_consequence, bool)
    return found if is_valid and all(isinstance(frame, str) for frame in found.frames) else None


class InitCall(Enum):
    """The state of a call of `init`. A value and the name of the process are a line of the file."""

    WAITS = b"waits in init: "
    HAS_STARTED = b"has a session: "
    HAS_FAILED = b"init has failed: "


class RecordFile:
    """The launcher's side: a file for the records of several processes."""

    def __init__(self) -> None:
        self._file = _new_file()
        fcntl.fcntl(self._file, fcntl.F_SETFL, os.O_APPEND)  # the processes share one position

    def fileno(self) -> int:
        """Returns the descriptor, which processes must inherit under the same number."""
        return self._file

    def variable_for(self, name: str) -> str:
        """Returns the value of `VARIABLE` for the process that is called `name`."""
        status = os.fstat(self._file)
        return f"{self._file} {status.st_dev}:{status.st_ino} {name}"

    def read(self, name: str) -> FailureRecord | None:
        """Returns the last record of the process that is called `name`."""
        return next(reversed(self.read_all(name)), None)

    def read_all(self, name: str) -> list[FailureRecord]:
        """Returns the records of the process that is called `name`, in the order of their writing."""
        records = map(decode, os.pread(self._file, os.fstat(self._file).st_size, 0).splitlines())
        return [record for record in records if record and record.name == name]

    def init_calls(self) -> dict[str, InitCall]:
        """Returns the last call of each process that has called `init`, by the name of the process."""
        lines = os.pread(self._file, os.fstat(self._file).st_size, 0).splitlines()
        return {
            line.removeprefix(call.value).decode(): call
            for line in lines
            for call in InitCall
            if line.startswith(call.value)
        }

    def close(self) -> None:
        """Discards the records."""
        os.close(self._file)


def _new_file() -> int:
    """Returns the descriptor of a new file without a name, on a disk if a sandbox does not allow `memfd_create`."""
    try:
        return os.memfd_create("perseus-failures", os.MFD_CLOEXEC)
    except OSError:
        with tempfile.TemporaryFile(buffering=0) as file:
            return os.dup(file.fileno())


def write_record(error: BaseException, lost_another: type[BaseException]) -> None:
    """Writes the record of this process, if it has a launcher. `lost_another`: see `is_consequence`."""
    text = "".join(traceback.format_exception_only(type(error), error)).strip()
    _write(text, _frames(error.__traceback__), is_consequence(error, lost_another))


def is_consequence(error: BaseException, lost_another: type[BaseException]) -> bool:
    """Returns True if the first of the exceptions that led to `error` is a `lost_another`."""
    return isinstance(_chain(error)[-1], lost_another)


def has_agent() -> bool:
    """Returns True under torchrun, whose agent names the process that ends first as the cause of a failure."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def note_lost_process() -> None:
    """Writes that this process has lost another one, which explains a failure of this process without an exception."""
    _write("", [], is_consequence=True)


def write_reason(text: str) -> None:
    """Writes `text` as the reason why this process ends, if another process of this library waits for it."""
    _write(text, [])


@contextlib.contextmanager
def noted_init() -> Iterator[None]:
    """Tells the launcher that this process waits for all ranks in `init`, and then whether it has got a session."""
    _append_init(InitCall.WAITS)
    try:
        yield
    except BaseException:
        _append_init(InitCall.HAS_FAILED)
        raise
    _append_init(InitCall.HAS_STARTED)


def _append_init(call: InitCall) -> None:
    _append(lambda name: call.value + name.encode())


def _write(text: str, frames: list[str], is_consequence: bool = False) -> None:
    _append(lambda name: FailureRecord(name, text[:_LONGEST_TEXT], frames, is_consequence).encode().encode())


def _append(line_of: Callable[[str], bytes]) -> None:
    """Appends a line to the launcher's file. `line_of` gets the name of this process."""
    # Without the variable there is no launcher; without the descriptor, a program in between has closed it.
    with contextlib.suppress(OSError, ValueError):
        number, file, name = os.environ.get(VARIABLE, "").split(" ", 2)
        status = os.fstat(int(number))
        if file == f"{status.st_dev}:{status.st_ino}":
            os.write(int(number), line_of(name) + b"\n")


def report_failures(lost_another: type[BaseException], of_this_library: type[BaseException]) -> None:
    """Makes uncaught exceptions leave a record in a process of a launcher.

    An exception of class `lost_another` prints one line in place of its traceback, unless `--full-tracebacks` was
    given, or another exception than those of this library led to it. A `KeyboardInterrupt` prints one line with the
    place in the user's program, unless `--full-tracebacks` was given, or another exception led to it.
    """
    if VARIABLE not in os.environ:
        return
    process, previous = os.getpid(), sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if os.getpid() == process:
            write_record(error, lost_another)
        is_plain = isinstance(error, lost_another) and all(isinstance(e, of_this_library) for e in _chain(error))
        is_interrupt = kind is KeyboardInterrupt and len(_chain(error)) == 1
        if (is_plain or is_interrupt) and not os.environ.get(FULL_TRACEBACKS):
            text = "".join(traceback.format_exception_only(kind, error)).strip()
            place = [frame.replace("\n  ", ": ") for frame in _frames(trace)[-1:] if is_interrupt]
            print(": ".join([text, *place]), file=sys.stderr, flush=True)
        else:
            previous(kind, error, trace)

    sys.excepthook = excepthook


def _chain(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return found


def _frames(trace: TracebackType | None) -> list[str]:
    frames = traceback.extract_tb(trace)
    own = [frame for frame in frames if _is_of_the_program(frame.filename)]
    lines = []
    for frame in (own or frames)[-_MOST_FRAMES:]:
        place = f'File "{frame.filename}", line {frame.lineno}, in {frame.name}'
        lines.append("\n  ".join([place, frame.line[:_LONGEST_LINE]] if frame.line else [place]))
    return lines


def _is_of_the_program(filename: str) -> bool:
    if filename.startswith("<frozen"):
        return False
    installed = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    parts = Path(filename).parts
    return not ({"site-packages", "dist-packages"}.intersection(parts) or filename.startswith(tuple(installed)))
