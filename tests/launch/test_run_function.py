"""Tests of `run`, which calls a function on all ranks."""

from __future__ import annotations

import functools
import operator
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from perseus_like.launch.run_function import RankError, run
from perseus_like.launch.start_errors import LaunchError
from tests.job import LIMIT_SECONDS, run_to_end


def test_results_are_in_the_order_of_ranks() -> None:
    assert run(os.getenv, ["PERSEUS_RANK"], np=3) == ["0", "1", "2"]


def test_keyword_arguments_and_environment() -> None:
    env = {**os.environ, "GREETING": "hello"}
    assert run(os.getenv, kwargs={"key": "GREETING"}, np=2, env=env) == ["hello", "hello"]


# A mount namespace in which all but /dev/shm is read-only, as in many containers.
READ_ONLY = ["unshare", "--mount", "sh", "-ec", 'mount --bind / /; mount -o remount,bind,ro /; exec "$@"', "sh"]


def test_a_root_that_is_read_only() -> None:
    program = "import os; from perseus_like import run; print(run(os.getenv, ['PERSEUS_RANK'], np=2))"
    if subprocess.run([*READ_ONLY, "true"], capture_output=True, check=False, timeout=LIMIT_SECONDS).returncode:
        pytest.skip("this user cannot make a mount namespace")
    line = [*READ_ONLY, sys.executable, "-c", program]
    done = run_to_end(line)
    assert done.stdout == "['0', '1']\n", done.stderr


def test_an_error_names_the_rank_and_shows_its_traceback() -> None:
    with pytest.raises(RankError, match="rank 0: ZeroDivisionError: division by zero") as caught:
        run(operator.truediv, [1, 0], np=1)
    assert caught.value.rank == 0
    assert "Traceback" in caught.value.remote_traceback


def test_functions_that_only_cloudpickle_can_send() -> None:
    factor = 3
    assert run(lambda number: factor * number, [5], np=2) == [15, 15]


def test_a_rank_that_dies_is_an_error() -> None:
    with pytest.raises(RankError, match=r"exit code 3: rank [01] .* exited with code 3") as caught:
        run(os._exit, [3], np=2)
    assert caught.value.rank in (0, 1)


@pytest.mark.parametrize("argument", [0, 4, "the reason"])
def test_a_function_that_calls_exit_is_an_error(argument: object) -> None:
    with pytest.raises(RankError, match=f"rank 0: SystemExit: {argument} .*return from it instead") as caught:
        run(sys.exit, [argument], np=1)
    assert caught.value.rank == 0


def test_a_rank_that_leaves_no_result_is_an_error() -> None:
    with pytest.raises(RankError, match=r"ranks \[0, 1\] have left no result") as caught:
        run(os._exit, [0], np=2)
    assert caught.value.rank == 0


def test_a_rank_that_has_only_lost_another_is_not_named() -> None:
    """Rank 1 fails first, and rank 0 reports its failure first."""

    def train() -> None:
        import sys
        import time
        from pathlib import Path

        import perseus_like.numpy as hvd

        class Late(ValueError):
            def __str__(self) -> str:
                while not list(Path(sys.argv[1]).glob("failed.0.0")):
                    time.sleep(0.01)
                return "the cause"

        hvd.init()
        try:
            if hvd.rank() == 1:
                raise Late
            hvd.barrier()
        finally:
            hvd.shutdown()

    with pytest.raises(RankError, match="rank 1: Late: the cause") as caught:
        run(train, np=2)
    assert caught.value.rank == 1


def test_a_rank_that_dies_is_named_although_others_have_left_an_error() -> None:
    def train() -> None:
        import perseus_like.numpy as hvd

        hvd.init()
        if hvd.rank() == 1:
            os._exit(5)
        hvd.barrier()

    with pytest.raises(RankError, match=r"rank 1 .* exited with code 5") as caught:
        run(train, np=2)
    assert caught.value.rank == 1


def test_the_number_of_ranks_in_the_options() -> None:
    assert run(os.getenv, ["PERSEUS_RANK"], options=["-np", "2"]) == ["0", "1"]


def test_values_of_variables_are_not_in_the_process_list() -> None:
    def look() -> tuple[str | None, bytes]:
        return os.environ.get("KEY"), Path(f"/proc/{os.getppid()}/cmdline").read_bytes()

    ((key, line),) = run(look, options=["-x", "KEY=secret"])
    assert key == "secret"
    assert b"perseus_like.launch" in line
    assert b"KEY=" not in line


INTERRUPTED = """
import perseus_like, sys

def train(folder):
    import pathlib, time, perseus_like.numpy as hvd
    hvd.init()
    hvd.barrier()
    try:
        print("ready", flush=True)
        while True:  # a signal may come before a single wait begins
            time.sleep(0.01)
    except KeyboardInterrupt:
        time.sleep(1.0)  # as long as writing a checkpoint takes
        pathlib.Path(folder, f"saved.{hvd.rank()}").touch()

perseus_like.run(train, [sys.argv[1]], np=2)
"""


@pytest.mark.parametrize("is_terminal", [True, False], ids=["terminal", "kill"])
def test_ranks_have_time_to_save_after_an_interrupt(tmp_path: Path, is_terminal: bool) -> None:
    """A terminal interrupts the program and its perseusrun, `kill -INT` the program alone."""
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path)]
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True, start_new_session=True) as program:
        assert program.stdout is not None
        assert all(program.stdout.readline().endswith(":ready\n") for _ in range(2))
        (os.killpg if is_terminal else os.kill)(program.pid, signal.SIGINT)
        _, errors = program.communicate(timeout=LIMIT_SECONDS)
    assert sorted(path.name for path in tmp_path.glob("saved.*")) == ["saved.0", "saved.1"], errors
    assert program.returncode == -signal.SIGINT
    assert errors.count("perseusrun: SIGINT") == 1, errors


def test_an_argument_or_result_that_cannot_be_pickled_is_an_error() -> None:
    with pytest.raises((LaunchError, TypeError), match="pickle"):
        run(functools.partial(operator.add, (number for number in [1])), np=1)


def test_parameters_of_horovod(tmp_path: Path) -> None:
    assert run(os.getpid, (), {}, 1, start_timeout=50, verbose=1, use_gloo=True, disable_cache=True)
    run(print, ["to a file"], num_proc=2, hosts="localhost:2", output_filename=str(tmp_path / "logs"))
    assert (tmp_path / "logs/rank.1/stdout").read_text() == "to a file\n"


def test_elastic_jobs(tmp_path: Path) -> None:
    script = tmp_path / "hosts.sh"
    script.write_text("#!/bin/sh\necho localhost:2\necho 127.0.0.2:2\n")
    script.chmod(0o755)

    def rank_and_size() -> tuple[int, int]:
        import perseus_like.numpy as hvd

        hvd.init()
        return hvd.rank(), hvd.size()

    found = run(rank_and_size, min_np=2, max_num_proc=3, cooldown_range=(1, 2), host_discovery_script=str(script))
    assert found == [(0, 3), (1, 3), (2, 3)]


def test_elastic_jobs_over_mpi() -> None:
    """Each rank writes its result under its own number."""
    if shutil.which("mpirun", path=str(Path(sys.executable).parent)) is None and shutil.which("mpirun") is None:
        pytest.skip("no mpirun")
    if shutil.which("ssh") is None:
        pytest.skip("no ssh, which an elastic job over mpirun asks for")

    def rank_and_size() -> tuple[int, int]:
        import perseus_like.numpy as hvd

        hvd.init()
        return hvd.rank(), hvd.size()

    assert run(rank_and_size, min_np=2, hosts="localhost:2", use_mpi=True) == [(0, 2), (1, 2)]


def test_nothing_is_left_in_the_folder(tmp_path: Path) -> None:
    assert run(operator.add, [1, 2], np=2, folder=tmp_path) == [3, 3]
    assert list(tmp_path.iterdir()) == []
