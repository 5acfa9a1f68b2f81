"""`perseus_like.run(function, ...)`: calls a Python function on each rank and returns what each returned.

The job is a `perseusrun` of its own (signals, process trees and output are its business). Function, arguments and
results travel as pickles in a private folder that only this user can enter; they are read back only from there.
With several hosts the folder must be on a file system that they share (`folder=`).
"""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from .errors import LaunchError

_Result = TypeVar("_Result")
_RANK_VARIABLES = ("PERSEUS_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")


class RankError(RuntimeError):
    """The function failed on a rank. `rank` is its number, `remote_traceback` the text of its traceback."""

    def __init__(self, rank: int | None, text: str, remote_traceback: str = "") -> None:
        super().__init__(f"{text}\n{remote_traceback}".rstrip())
        self.rank = rank
        self.remote_traceback = remote_traceback


def run(
    function: Callable[..., _Result],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int = 1,
    hosts: str | None = None,
    *,
    hostfile: str | None = None,
    options: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> list[_Result]:
    """Calls `function(*args, **kwargs)` on `np` ranks; returns the results by rank.

    `options` are more options of perseusrun, `env` replaces the environment. A lambda or a function of `__main__`
    needs cloudpickle. Raises RankError where the function or its process fails on a rank (the first to fail counts).
    """
    with tempfile.TemporaryDirectory(prefix="perseus-run-", dir=folder) as name:  # made with mode 0700
        place = Path(name)
        (place / "call").write_bytes(_dumps((function, tuple(args), dict(kwargs or {}))))
        where = ["-H", hosts] if hosts else ["--hostfile", hostfile] if hostfile else []
        rank_command = [sys.executable, "-m", __name__, name]
        launcher = [sys.executable, "-m", "perseus_like.launch", "-np", str(np), *where, *options, *rank_command]
        inner = dict(os.environ if env is None else env)
        # What the caller can import, the ranks can, too.
        inner["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
        code = subprocess.run(launcher, env=inner, check=False).returncode
        return _collect(place, np, code)


def _collect(place: Path, size: int, code: int) -> list[Any]:
    failures = sorted(place.glob("failed.*"), key=lambda path: path.stat().st_mtime_ns)
    if failures:
        rank = int(failures[0].suffix[1:])
        text, remote = pickle.loads(failures[0].read_bytes())
        raise RankError(rank, f"rank {rank}: {text}", remote)
    if code != 0:
        raise RankError(None, f"perseusrun ended with exit code {code}; its output says which rank failed")
    try:
        return [pickle.loads((place / f"result.{rank}").read_bytes()) for rank in range(size)]
    except FileNotFoundError as error:
        raise RankError(
            None, f"a rank has left no result ({error.filename}); do the hosts share this folder?"
        ) from None


def _dumps(value: Any) -> bytes:
    try:
        dumps = importlib.import_module("cloudpickle").dumps
    except ImportError:
        try:
            return pickle.dumps(value)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise LaunchError(f"cannot pickle the function ({error}): pip install cloudpickle") from error
    data: bytes = dumps(value)
    return data


def _rank_main(place: Path) -> int:
    """One rank: calls the function, leaves the result or the error in the folder."""
    rank = next((int(os.environ[name]) for name in _RANK_VARIABLES if name in os.environ), 0)
    try:
        function, args, kwargs = pickle.loads((place / "call").read_bytes())
        outcome, data = "result", _dumps(function(*args, **kwargs))
    except Exception as error:
        outcome, data = "failed", pickle.dumps((f"{type(error).__name__}: {error}", traceback.format_exc()))
    partial = place / f"partial.{rank}"
    partial.write_bytes(data)
    partial.rename(place / f"{outcome}.{rank}")
    return 0 if outcome == "result" else 1


if __name__ == "__main__":
    sys.exit(_rank_main(Path(sys.argv[1])))
