"""Checks error texts that programs for Horovod search for, in processes that import horovod and in others."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from perseus_like.names import folder_of
from tests.job import LIMIT_SECONDS, needs

needs("torch")

PROGRAM = """
    import sys
    if sys.argv[1] == "horovod":
        import horovod
    import perseus_like, perseus_like.torch as hvd
    from perseus_like.runner import _HorovodArgs
    from perseus_like.runner.launch import _run
    import torch

    def text_of(function, *kinds):
        try:
            function()
        except kinds as error:
            return str(error).splitlines()[0]

    def fail():
        raise ValueError("no data")

    print(text_of(hvd.rank, ValueError))
    print(text_of(lambda: hvd.allreduce(torch.ones(1)), hvd.HorovodInternalError))
    print(text_of(lambda: perseus_like.run(fail, np=1), RuntimeError))
    args = _HorovodArgs()
    args.command = ["false"]
    print(text_of(lambda: _run(args), RuntimeError))
"""

# Rank 0 waits in a collective while its peer ends.
PEER = """
    import sys
    if sys.argv[1] == "horovod":
        import horovod
    import perseus_like.torch as hvd
    import torch
    hvd.init()
    if hvd.rank() == 0:
        try:
            hvd.allreduce(torch.ones(1))
        except hvd.HorovodInternalError as error:
            print(error)
"""


def lines_of(program: str, name: str, size: int | None = None) -> list[str]:
    """Runs `program` with `name` as its argument, as a job of `size` ranks if a size is given.

    Returns its output lines.
    """
    launcher = [] if size is None else ["-m", "perseus_like.launch", "-np", str(size), "--no-prefix", sys.executable]
    command = [sys.executable, *launcher, "-c", textwrap.dedent(program), name]
    env = {**os.environ, "PYTHONPATH": folder_of("horovod"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_texts_in_a_process_that_imports_horovod() -> None:
    rank, allreduce, run, command = lines_of(PROGRAM, "horovod")
    assert rank == allreduce == "Horovod has not been initialized; call init() first"
    status = "Horovod detected that one or more processes exited with non-zero status: "
    assert run.startswith(f"{status}rank 0: ")
    assert command.startswith(f"{status}perseusrun ended with exit code 1")


def test_texts_in_a_process_without_horovod() -> None:
    rank, allreduce, run, command = lines_of(PROGRAM, "perseus_like")
    assert rank == allreduce == "perseus_like has not been initialized; call init() first"
    assert run.startswith("rank 0: ")
    assert command.startswith("perseusrun ended with exit code 1")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "is_prefixed"), [("horovod", True), ("perseus_like", False)])
def test_the_text_about_a_peer_that_left(name: str, is_prefixed: bool) -> None:
    (text,) = lines_of(PEER, name, 2)
    assert text.startswith("Horovod has been shut down: ") is is_prefixed
    assert "rank 1" in text
