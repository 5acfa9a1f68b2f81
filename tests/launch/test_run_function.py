"""Tests of `run`, which calls a function on all ranks."""

from __future__ import annotations

import functools
import operator
import os
import shutil
import sys
from pathlib import Path

import pytest

from perseus_like.launch.errors import LaunchError
from perseus_like.launch.run_function import RankError, run


def test_results_are_in_the_order_of_ranks() -> None:
    assert run(os.getenv, ["PERSEUS_RANK"], np=3) == ["0", "1", "2"]


def test_keyword_arguments_and_environment() -> None:
    env = {**os.environ, "GREETING": "hello"}
    assert run(os.getenv, kwargs={"key": "GREETING"}, np=2, env=env) == ["hello", "hello"]


def test_an_error_names_the_rank_and_shows_its_traceback() -> None:
    with pytest.raises(RankError, match="rank 0: ZeroDivisionError: division by zero") as caught:
        run(operator.truediv, [1, 0], np=1)
    assert caught.value.rank == 0
    assert "Traceback" in caught.value.remote_traceback


def test_functions_that_only_cloudpickle_can_send() -> None:
    factor = 3
    assert run(lambda number: factor * number, [5], np=2) == [15, 15]


def test_a_rank_that_dies_is_an_error() -> None:
    with pytest.raises(RankError, match="exit code 3"):
        run(os._exit, [3], np=2)


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
        import perseus_like as hvd

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
        import perseus_like as hvd

        hvd.init()
        return hvd.rank(), hvd.size()

    assert run(rank_and_size, min_np=2, hosts="localhost:2", use_mpi=True) == [(0, 2), (1, 2)]


def test_nothing_is_left_in_the_folder(tmp_path: Path) -> None:
    assert run(operator.add, [1, 2], np=2, folder=tmp_path) == [3, 3]
    assert list(tmp_path.iterdir()) == []
