"""Functions for the programs of the ranks. Each rank reports facts or words to its own file.

`Job` copies this module to the folder of the program.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

# MPI's launchers set only PMI_RANK.
rank = int(next((os.environ[name] for name in ("PERSEUS_RANK", "RANK", "PMI_RANK") if os.environ.get(name)), "0"))
size = int(os.environ.get("PERSEUS_SIZE", "1"))
_FOLDER = Path(os.environ["ON_RANK_FOLDER"])


def report(*words: object, **facts: Any) -> None:
    """Adds a line of words, or of facts in JSON, to the file of this rank. It stays there if the rank dies afterwards.

    One write appends the line, so a reader never sees a part of a line before another one.
    """
    line = " ".join(map(str, words)) if words or not facts else json.dumps(facts)
    file = os.open(_FOLDER / f"rank{rank}.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, f"{line}\n".encode())
    os.close(file)


def wait_until(condition: Callable[[], object]) -> None:
    """Blocks until the condition is true. The job's own limit ends a rank that waits in vain."""
    while not condition():
        time.sleep(0.005)


def contains(file: str, *texts: str) -> bool:
    """Returns True if the file exists and contains these texts."""
    found = Path(file).read_text() if Path(file).exists() else None
    return found is not None and all(text in found for text in texts)


def outcome_of(call: Callable[[], object]) -> dict[str, Any]:
    """Calls `call` and returns the classes and the text of its error if it raises one."""
    try:
        call()
    except Exception as error:
        return {"kinds": [kind.__name__ for kind in type(error).__mro__], "text": str(error)}
    return {"kinds": [], "text": ""}


def ones(count: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Returns an array of ones, in memory that begins at a page and that nothing else uses."""
    import numpy as np

    array = np.frombuffer(mmap.mmap(-1, 4 * count), np.float32)
    array[:] = 1
    return array


def crash_at_second_half(array: np.ndarray[Any, Any]) -> None:
    """Makes this process crash when it reads or writes the second half of an array. The array begins at a page."""
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)  # oneCCL's own handler does not end the process
    half = array.nbytes // 2
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(array.ctypes.data + half), ctypes.c_size_t(half), 0) == 0


def still_works() -> None:
    """Raises an error if this rank's collectives do not work."""
    import perseus_like.numpy as hvd

    assert hvd.allreduce(1.0, op=hvd.Sum, name="still works") == hvd.size()


def sockets() -> list[str]:
    """Returns the names of the Unix sockets that this process has open."""
    mine = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except FileNotFoundError:  # the descriptor by which `iterdir` read the folder
            continue
        if target.startswith("socket:["):
            mine.add(target[len("socket:[") : -1])
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    return sorted({line[7] for line in lines if len(line) > 7 and line[6] in mine})


def shared_files() -> list[str]:
    """Returns the files in /dev/shm that this process maps."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return sorted({line.split()[5] for line in maps if "/dev/shm/" in line})


def start() -> None:
    """Calls `init` and reports this process and its sockets and files, which must be gone after the job."""
    import perseus_like.numpy as hvd

    hvd.init()
    # The name of this job tells its files from the files of other jobs on this machine.
    job = os.environ.get("PERSEUS_RENDEZVOUS", f"perseus-{os.getpid()}-")
    report(pid=os.getpid(), job=job, sockets=sockets(), shared_files=shared_files())


def wait_for_test() -> None:
    """Blocks until the test calls `go_on`."""
    report(waits=True)
    (_FOLDER / "gate").read_text()


def wait_for_end_of(other: int) -> None:
    """Blocks until the launcher has noticed the end of another rank, which has called `start`."""
    lines = (_FOLDER / f"rank{other}.txt").read_text().splitlines()
    pid = next(json.loads(line)["pid"] for line in lines if '"pid"' in line)
    wait_until(lambda: not Path(f"/proc/{pid}").exists())


def cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system


def leave_now(code: int) -> None:
    """Ends this process without a shutdown message."""
    sys.stdout.flush()
    os._exit(code)
